//! The project that a command works on.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;

use crate::names::{Group, ProjectName};

/// A package that `cargo reknit new` made.
#[derive(Debug)]
pub(crate) struct Project {
    pub(crate) folder: PathBuf,
    pub(crate) name: ProjectName,
    /// The API group of its Kinds.
    pub(crate) group: Group,
}

/// The flag that selects the project.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ProjectFlags {
    /// The Cargo.toml of the project; the default is the one that cargo finds from the current folder
    #[arg(long, value_name = "PATH")]
    manifest_path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    metadata: Option<PackageMetadata>,
}

#[derive(Deserialize)]
struct PackageMetadata {
    reknit: Option<Settings>,
}

#[derive(Deserialize)]
struct Settings {
    group: String,
}

impl ProjectFlags {
    /// Returns the project of the flag, or else of the current folder, as cargo finds a package.
    ///
    /// # Errors
    ///
    /// Fails if there is no Cargo.toml there, or if it has no `[package.metadata.reknit]`.
    pub(crate) fn project(&self) -> Result<Project> {
        let Some(manifest) = &self.manifest_path else {
            return Project::of(&env::current_dir().context("cannot determine the current folder")?);
        };
        let path = manifest.canonicalize().with_context(|| format!("cannot find {}", manifest.display()))?;
        match path.parent() {
            Some(folder) if path.ends_with("Cargo.toml") => Project::of(folder),
            _ => bail!("--manifest-path has to be a path to a Cargo.toml, not {}", manifest.display()),
        }
    }
}

impl Project {
    /// The project of this folder, as cargo finds a package.
    fn of(folder: &Path) -> Result<Self> {
        let none = || {
            anyhow!(
                "no project in {}; `cargo reknit new` makes one, and other commands run in its folder",
                folder.display()
            )
        };
        let mut cargo = cargo();
        cargo
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(folder)
            .stdin(Stdio::null());
        let output = cargo.output().context("cannot run cargo")?;
        let message = String::from_utf8_lossy(&output.stderr);
        match output.status.success() {
            true => {}
            false if message.contains("could not find `Cargo.toml`") => return Err(none()),
            false => bail!("cargo cannot read the project: {}", message.trim()),
        }
        let metadata: Metadata =
            serde_json::from_slice(&output.stdout).context("cannot read cargo's metadata")?;
        let depth = |package: &Package| package.manifest_path.components().count();
        let contains =
            |package: &Package| package.manifest_path.parent().is_some_and(|root| folder.starts_with(root));
        let package = metadata.packages.into_iter().filter(contains).max_by_key(depth).ok_or_else(none)?;
        let settings = package.metadata.and_then(|metadata| metadata.reknit);
        let settings = settings.ok_or_else(|| {
            anyhow!(
                "{} has no [package.metadata.reknit], so `cargo reknit new` did not make this project; add \
                 `group = \"example.com\"` with the API group of your Kinds there, if its layout is the same",
                package.manifest_path.display()
            )
        })?;
        let parse_error =
            |what: &str, error: String| anyhow!("{what} in {}: {error}", package.manifest_path.display());
        Ok(Self {
            name: package.name.parse().map_err(|error| parse_error("package.name", error))?,
            group: settings
                .group
                .parse()
                .map_err(|error| parse_error("package.metadata.reknit.group", error))?,
            folder: package.manifest_path.parent().map(Into::into).unwrap_or_default(),
        })
    }
}

/// The cargo that runs this subcommand.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn manifest(folder: &Path, metadata: &str) {
        let package = "[package]\nname = \"shop\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
        fs::create_dir_all(folder.join("src")).unwrap();
        fs::write(folder.join("src/lib.rs"), "").unwrap();
        fs::write(folder.join("Cargo.toml"), format!("{package}{metadata}")).unwrap();
    }

    #[test]
    fn a_project_is_found_from_a_folder_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        manifest(&root, "[package.metadata.reknit]\ngroup = \"example.com\"\n");
        let project = Project::of(&root.join("src")).unwrap();
        assert_eq!((project.folder, project.name.as_str()), (root, "shop"));
        assert_eq!(project.group.as_str(), "example.com");
    }

    #[test]
    fn a_folder_without_a_project_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = Project::of(folder.path()).unwrap_err().to_string();
        assert!(refusal.starts_with("no project in ") && refusal.contains("cargo reknit new"), "{refusal}");
    }

    #[test]
    fn a_package_of_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        manifest(&root, "");
        let refusal = Project::of(&root).unwrap_err().to_string();
        assert!(refusal.contains("has no [package.metadata.reknit]"), "{refusal}");
    }
}
