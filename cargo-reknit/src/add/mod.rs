//! `cargo reknit add`: parts of a project that exists.

mod existing_kind;
mod kind;
mod program_webhook;
mod version;
mod webhook;

use anyhow::Result;
use clap::Subcommand;

use crate::{
    output,
    plan::{Plan, PlanFlags},
    project::ProjectFlags,
};

/// Adds a part to the project of the current folder
///
/// Lines are inserted at the marker comments `reknit:scaffold:...` and nowhere else. A file with uncommitted changes is
/// not changed without --allow-dirty, so commit before each of these commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Add {
    Kind(kind::AddKind),
    Webhook(webhook::AddWebhook),
    Version(version::AddVersion),
}

impl Add {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Kind(add) => add.run(),
            Self::Webhook(add) => add.run(),
            Self::Version(add) => add.run(),
        }
    }
}

/// The flags of every command that changes a project.
#[derive(Clone, Debug, clap::Args)]
struct AddFlags {
    /// Changes files even if they have uncommitted changes
    #[arg(long)]
    allow_dirty: bool,
    #[command(flatten)]
    plan: PlanFlags,
    #[command(flatten)]
    project: ProjectFlags,
}

impl AddFlags {
    /// Executes the plan as the flags say, and prints what comes next.
    fn apply_to(&self, plan: Plan) -> Result<()> {
        self.execute(plan)?;
        self.print_next();
        Ok(())
    }

    /// Executes the plan as the flags say.
    fn execute(&self, plan: Plan) -> Result<()> {
        plan.execute(self.plan, self.allow_dirty)
    }

    /// Prints the commands that bring the generated files up to date and test the project, unless this is a dry run.
    fn print_next(&self) {
        if !self.plan.is_dry_run() {
            output::next(&[
                "cargo reknit crd --write",
                "cargo reknit rbac --write",
                "cargo test",
                "git add --all && git commit    # before the next `cargo reknit add`",
            ]);
        }
    }
}
