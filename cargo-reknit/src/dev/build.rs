//! Builds of the project.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::SystemTime,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::process::Command;

use crate::project::cargo;

/// The executables of the project by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executables(BTreeMap<String, (PathBuf, Option<SystemTime>)>);

impl Executables {
    /// Builds all programs of the project, with further arguments of `cargo build`. cargo prints its errors.
    pub(crate) async fn build(folder: &Path, args: &[String]) -> Result<Self> {
        let mut cargo = Command::from(cargo());
        cargo.args(["build", "--bins", "--message-format", "json-render-diagnostics"]).args(args);
        cargo.current_dir(folder);
        let output = capture(&mut cargo).await.context("cannot run cargo")?;
        if !output.status.success() {
            bail!("the project does not compile");
        }
        let messages = String::from_utf8_lossy(&output.stdout);
        let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let executable = |message: Value| {
            let path = PathBuf::from(message["executable"].as_str()?);
            let modified = path.metadata().and_then(|metadata| metadata.modified()).ok();
            Some((message["target"]["name"].as_str()?.to_owned(), (path, modified)))
        };
        Ok(Self(messages.filter_map(executable).collect()))
    }

    /// The path of an executable.
    pub(crate) fn find(&self, name: &str) -> Result<&Path> {
        let found = self.0.get(name).map(|(path, _)| &**path);
        found.with_context(|| {
            format!("config/ has a Deployment of {name}, but the project has no program of this name")
        })
    }

    /// Runs one of the programs that print manifests, and returns its output. Returns `None` if the project does not
    /// have it.
    pub(crate) async fn print(&self, name: &str, args: &[OsString], folder: &Path) -> Result<Option<String>> {
        let Some((path, _)) = self.0.get(name) else { return Ok(None) };
        let output = capture(Command::new(path).args(args).current_dir(folder)).await;
        let output = output.with_context(|| format!("cannot run {}", path.display()))?;
        if !output.status.success() {
            bail!("the program {name} of the project failed");
        }
        Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
    }
}

/// Runs a command, and returns what it writes to its standard output. Its messages go to standard error.
async fn capture(command: &mut Command) -> io::Result<Output> {
    // `Command::output` would capture the messages too.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true);
    command.spawn()?.wait_with_output().await
}
