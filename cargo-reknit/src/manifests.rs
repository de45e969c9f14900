//! `cargo reknit crd` and `cargo reknit rbac`: the manifests that the project's own programs print.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    path::Path,
    process::Stdio,
};

use anyhow::{Context, Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use reknit_apis::check_definition;

use crate::{
    output,
    project::{Project, ProjectFlags, cargo},
};

/// Runs the program `crd` of the project, which prints the CustomResourceDefinitions, and checks them
#[derive(Debug, clap::Args)]
pub(crate) struct Crd {
    /// Writes them to config/300-crds.yaml
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    project: ProjectFlags,
}

impl Crd {
    pub(crate) fn run(self) -> Result<()> {
        let output = Output { path: "config/300-crds.yaml", write: self.write };
        output.generate(&self.project.project()?, "crd", &[], check_definitions)
    }
}

/// The manifests of the account of `--shadow`.
const SHADOW: &str = "config/shadow/rbac.yaml";

/// Runs the program `rbac` of the project, which prints the service account and the roles that the constructors need
#[derive(Debug, clap::Args)]
pub(crate) struct Rbac {
    /// Writes them to config/200-rbac.yaml, and those of the account of --shadow to config/shadow/rbac.yaml
    #[arg(long)]
    write: bool,
    /// Prints those of the account of --shadow and --plan, which may send only dry runs
    #[arg(long, conflicts_with = "write")]
    shadow: bool,
    #[command(flatten)]
    project: ProjectFlags,
    /// Arguments of the program, such as --namespace=team-a
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

impl Rbac {
    pub(crate) fn run(self) -> Result<()> {
        let (project, write) = (self.project.project()?, self.write);
        let args = rbac_arguments(self.args);
        if !self.shadow {
            Output { path: "config/200-rbac.yaml", write }.generate(&project, "rbac", &args, |_| Ok(()))?;
        }
        if self.shadow || write && project.folder.join(SHADOW).exists() {
            let args = [vec!["--shadow".into()], args].concat();
            Output { path: SHADOW, write }.generate(&project, "rbac", &args, |_| Ok(()))?;
        }
        Ok(())
    }
}

/// Returns the command line of the program `rbac`. The arguments before `--` are those of `Rbac::print`.
pub(crate) fn rbac_arguments(args: Vec<OsString>) -> Vec<OsString> {
    match args.is_empty() {
        true => args,
        false => [vec!["--".into()], args].concat(),
    }
}

/// The destination of the output of a program: the terminal, or a file of the project.
struct Output {
    path: &'static str,
    write: bool,
}

impl Output {
    /// Runs a program of the project, checks its output, and prints or writes it.
    fn generate(
        &self,
        project: &Project,
        program: &str,
        args: &[OsString],
        check: fn(&str) -> Result<()>,
    ) -> Result<()> {
        let mut cargo = cargo();
        cargo.args(["run", "--quiet", "--bin", program, "--"]).args(args).current_dir(&project.folder);
        let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
        let unchanged = if self.write { format!("; {} is unchanged", self.path) } else { String::new() };
        if !output.status.success() {
            bail!("the program {program} of the project failed{unchanged}");
        }
        let text = String::from_utf8(output.stdout)
            .with_context(|| format!("the program {program} of the project printed no text{unchanged}"))?;
        check(&text)
            .with_context(|| format!("the output of the program {program} is not usable{unchanged}"))?;
        match self.write {
            true => self.write_to(&project.folder, &text),
            false => {
                let mut stdout = io::stdout();
                stdout
                    .write_all(text.as_bytes())
                    .and_then(|()| stdout.flush())
                    .context("cannot print the output")
            }
        }
    }

    fn write_to(&self, folder: &Path, text: &str) -> Result<()> {
        let file = folder.join(self.path);
        if fs::read_to_string(&file).is_ok_and(|old| old == text) {
            output::step("unchanged", self.path);
            return Ok(());
        }
        fs::write(&file, text).with_context(|| format!("cannot write {}", self.path))?;
        output::step("changed", self.path);
        Ok(())
    }
}

/// Checks CustomResourceDefinitions by the rules of the API server.
fn check_definitions(yaml: &str) -> Result<()> {
    for definition in
        serde_saphyr::from_multiple::<CustomResourceDefinition>(yaml).context("it is no definition")?
    {
        check_definition(&definition)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_that_the_api_server_refuses_is_not_written() {
        let definition = |schema: &str| {
            format!(
                "# Generated.\n---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
                 metadata: {{name: lamps.demo.reknit.dev}}\nspec:\n  group: demo.reknit.dev\n  scope: Namespaced\n  \
                 names: {{kind: Lamp, plural: lamps}}\n  versions:\n  - {{name: v1, served: true, storage: true, \
                 schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {schema}}}}}}}}}\n"
            )
        };
        check_definitions(&definition("{type: string}")).unwrap();
        let error = check_definitions(&definition("{description: anything}")).unwrap_err().to_string();
        assert!(error.contains("lamps.demo.reknit.dev\n  v1: spec: it has no type"), "{error}");
    }
}
