//! `cargo reknit plan`: what the program would change in a cluster.

use std::{
    env,
    ffi::OsString,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

use crate::project::{ProjectFlags, cargo};

/// Builds the program of the project, and prints what it would change in the cluster of the kubeconfig, without changing
/// anything
///
/// The exit status is that of the program: 0 if there is nothing to change, 3 if there is, 4 if the plan is incomplete.
#[derive(Debug, clap::Args)]
pub(crate) struct ClusterPlan {
    #[command(flatten)]
    project: ProjectFlags,
    /// Arguments of the program, such as --plan-output=json or --context=production
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

impl ClusterPlan {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let project = self.project.project()?;
        let mut command = self.command(project.name.as_str());
        let status = command.current_dir(&project.folder).status().context("cannot run cargo")?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
    }

    /// The program with `--plan`, in the namespace of the project's manifests unless the environment names another.
    fn command(&self, program: &str) -> Command {
        let mut command = cargo();
        command.args(["run", "--quiet", "--bin", program, "--", "--plan"]).args(&self.args);
        if env::var_os("SYSTEM_NAMESPACE").is_none() {
            command.env("SYSTEM_NAMESPACE", program);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_gets_the_flag_and_the_arguments() {
        let project = ProjectFlags::default();
        let command = ClusterPlan { project, args: vec!["--context=production".into()] }.command("shop");
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["run", "--quiet", "--bin", "shop", "--", "--plan", "--context=production"]);
    }
}
