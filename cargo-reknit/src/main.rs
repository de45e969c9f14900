//! A cargo subcommand that creates, extends and runs projects with reknit.

mod add;
mod built_in;
mod cluster_plan;
mod dev;
mod insertion;
mod kind_flags;
mod manifests;
mod names;
mod new;
mod output;
mod plan;
mod project;
mod rustfmt;
mod template;
mod template_names;

use std::{env, io, process::ExitCode};

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// Creates, extends and runs projects with reknit, a framework for Kubernetes controllers
///
/// The exit status is 0 after success, 1 after a failure or a refusal, and 2 for an invalid command line. A refused
/// command changes nothing.
#[derive(Debug, Parser)]
#[command(name = "cargo-reknit", bin_name = "cargo reknit", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    New(new::New),
    #[command(subcommand)]
    Add(add::Add),
    Crd(manifests::Crd),
    Rbac(manifests::Rbac),
    Dev(dev::Dev),
    Plan(cluster_plan::ClusterPlan),
    /// Prints a script that completes `cargo-reknit` in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::New(new) => new.run()?,
            Self::Add(add) => add.run()?,
            Self::Crd(crd) => crd.run()?,
            Self::Rbac(rbac) => rbac.run()?,
            Self::Dev(dev) => dev.run()?,
            Self::Plan(plan) => return plan.run(),
            Self::Completions { shell } => {
                clap_complete::generate(shell, &mut Args::command(), "cargo-reknit", &mut io::stdout());
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn main() -> ExitCode {
    // cargo passes the name of the subcommand as the first argument.
    let is_subcommand = env::args_os().nth(1).is_some_and(|first| first == "reknit");
    let args = Args::parse_from(
        env::args_os().enumerate().filter_map(|(i, arg)| (i != 1 || !is_subcommand).then_some(arg)),
    );
    args.command.run().unwrap_or_else(|error| {
        output::error(&error);
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
