//! `cargo reknit new`: a new project.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{
    names::{Group, Kind, Plural, ProjectName, Version},
    output,
    plan::{Plan, PlanFlags},
    project::cargo,
    template::{CARGO_LOCK, GIT_SOURCE, KIND_FILES, Names, PROJECT},
};

/// Creates a project with one Kind, its controller and its tests, and the manifests that deploy it
#[derive(Debug, clap::Args)]
pub(crate) struct New {
    /// The folder of the project, which has to be empty or absent
    folder: PathBuf,
    /// The API group of the project's Kinds, for example example.com
    #[arg(long)]
    group: Group,
    /// The version of the Kind
    #[arg(long, default_value = "v1alpha1")]
    version: Version,
    /// The Kind in CamelCase, for example Greeting
    #[arg(long)]
    kind: Kind,
    /// The plural of the Kind, for example greetings; the default is made from the Kind
    #[arg(long)]
    plural: Option<Plural>,
    /// The name of the package, the namespace and the image; the default is the name of the folder
    #[arg(long)]
    name: Option<ProjectName>,
    /// Depends on a checkout of reknit in this folder, by a relative path if the project's folder is beside it and else
    /// by an absolute one; the default is its git repository
    #[arg(long, value_name = "CHECKOUT")]
    path: Option<PathBuf>,
    #[command(flatten)]
    plan: PlanFlags,
}

impl New {
    pub(crate) fn run(self) -> Result<()> {
        self.check_empty()?;
        let name = match &self.name {
            Some(name) => name.clone(),
            None => self.name_of_folder()?,
        };
        let plural = self.plural.clone().unwrap_or_else(|| self.kind.plural());
        let names = Names::default().project(&name).group(&self.group);
        let names = names.version(&self.version).kind(&self.kind).plural(&plural);
        let mut plan = Plan::new(&self.folder);
        plan.create_all(PROJECT, &names);
        plan.create_all(KIND_FILES, &names);
        plan.create("Cargo.lock", CARGO_LOCK);
        if let Some(checkout) = &self.path {
            plan.replace("Cargo.toml", GIT_SOURCE, &self.path_source(checkout)?);
        }
        plan.execute(self.plan, false)?;
        output::resource(&plural, &self.group, &self.kind);
        if !self.plan.is_dry_run() {
            self.check_project()?;
            self.update_lock_file();
            output::next(&[&format!("cd {}", self.folder.display()), "cargo test", "cargo reknit dev"]);
        }
        Ok(())
    }

    /// Fails with cargo's message if cargo does not accept the project where it is.
    fn check_project(&self) -> Result<()> {
        let mut cargo = cargo();
        cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(&self.folder);
        let output = cargo.output().context("cannot run cargo")?;
        if !output.status.success() {
            bail!("cargo refuses the new project: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Adds the project to Cargo.lock, and removes the packages that it does not need.
    fn update_lock_file(&self) {
        let mut cargo = cargo();
        cargo.args(["update", "--workspace", "--offline"]).current_dir(&self.folder);
        // Without a copy of reknit's git repository this fails. The first build does the same with the network.
        let _ = cargo.output();
    }

    fn check_empty(&self) -> Result<()> {
        let folder = &self.folder;
        if !folder.exists() {
            return Ok(());
        }
        let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
        let names = names
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("cannot read {}", folder.display()))?;
        if names.iter().any(|name| name != ".git") {
            bail!("{} is not empty; choose an empty or absent folder", folder.display());
        }
        Ok(())
    }

    fn name_of_folder(&self) -> Result<ProjectName> {
        let folder = absolute(&self.folder)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.parse().map_err(|error| {
            anyhow::anyhow!("the folder's name {name:?} cannot be the project's: {error}; or pass --name")
        })
    }

    /// Returns the source of reknit in a checkout, after a check that reknit is there. The path is relative if the
    /// project is beside the checkout, so that both can be moved together.
    fn path_source(&self, checkout: &Path) -> Result<String> {
        let resolved =
            checkout.canonicalize().with_context(|| format!("cannot find {}", checkout.display()))?;
        let manifest = fs::read_to_string(resolved.join("Cargo.toml")).unwrap_or_default();
        if !manifest.contains("name = \"reknit\"") {
            bail!(
                "{} is not a checkout of reknit: it has no Cargo.toml of the package reknit",
                resolved.display()
            );
        }
        let path = match resolved.file_name() {
            Some(name) if absolute(&self.folder)?.parent() == resolved.parent() => Path::new("..").join(name),
            _ => resolved,
        };
        // A string of JSON is one of TOML too.
        let path = serde_json::to_string(&path.display().to_string()).context("cannot quote the path")?;
        Ok(format!("path = {path}"))
    }
}

/// Returns the absolute path of a folder, which may be absent. A path that ends in `.` or `..` is resolved, because
/// only then it has a name.
fn absolute(folder: &Path) -> Result<PathBuf> {
    let folder = env::current_dir().context("cannot determine the current folder")?.join(folder);
    let parent = folder.parent().and_then(|parent| parent.canonicalize().ok());
    let beside = parent.zip(folder.file_name()).map(|(parent, name)| parent.join(name));
    Ok(folder.canonicalize().ok().or(beside).unwrap_or(folder))
}
