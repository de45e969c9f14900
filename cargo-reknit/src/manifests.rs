//! `cargo reknit crd` and `cargo reknit rbac`: the manifests that the project's own programs print.

use std::{fs, process::Stdio};

use anyhow::{Context, Result, bail};

use crate::{
    output,
    project::{Project, cargo},
};

/// Runs the program `crd` of the project, which prints the CustomResourceDefinitions
#[derive(Debug, clap::Args)]
pub(crate) struct Crd {
    /// Writes them to config/300-crds.yaml
    #[arg(long)]
    write: bool,
}

impl Crd {
    pub(crate) fn run(self) -> Result<()> {
        generate("crd", "config/300-crds.yaml", self.write)
    }
}

/// Runs the program `rbac` of the project, which prints the service account and the roles that the constructors need
#[derive(Debug, clap::Args)]
pub(crate) struct Rbac {
    /// Writes them to config/200-rbac.yaml
    #[arg(long)]
    write: bool,
}

impl Rbac {
    pub(crate) fn run(self) -> Result<()> {
        generate("rbac", "config/200-rbac.yaml", self.write)
    }
}

/// Runs a program of the project, and prints its output, or writes it to the file.
fn generate(program: &str, path: &str, write: bool) -> Result<()> {
    let project = Project::current()?;
    let mut cargo = cargo();
    cargo.args(["run", "--quiet", "--bin", program]).current_dir(&project.folder);
    if !write {
        let status = cargo.status().context("cannot run cargo")?;
        return if status.success() { Ok(()) } else { bail!("the program {program} of the project failed") };
    }
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the program {program} of the project failed; {path} is unchanged");
    }
    let file = project.folder.join(path);
    if fs::read(&file).is_ok_and(|old| old == output.stdout) {
        output::step("unchanged", path);
        return Ok(());
    }
    fs::write(&file, output.stdout).with_context(|| format!("cannot write {path}"))?;
    output::step("changed", path);
    Ok(())
}
