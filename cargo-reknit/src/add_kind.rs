//! `cargo reknit add kind`: another Kind with its controller.

use anyhow::{Result, bail};

use crate::{
    names::{Kind, Version},
    output,
    plan::{Plan, PlanFlags},
    project::Project,
    template::{KIND, Names},
};

/// Adds a Kind with its controller, its tests and an example
#[derive(Debug, clap::Args)]
pub(crate) struct AddKind {
    /// The Kind in CamelCase, for example Greeting
    kind: Kind,
    /// The version of the Kind
    #[arg(long, default_value = "v1alpha1")]
    version: Version,
    /// Changes files even if they have uncommitted changes
    #[arg(long)]
    allow_dirty: bool,
    #[command(flatten)]
    plan: PlanFlags,
}

impl AddKind {
    pub(crate) fn run(self) -> Result<()> {
        let project = Project::current()?;
        let module = self.kind.module();
        if project.folder.join("src").join(&module).exists() {
            bail!("the project has src/{module} already; choose another Kind");
        }
        let names = Names::default()
            .project(&project.name)
            .group(&project.group)
            .version(&self.version)
            .kind(&self.kind);
        let mut plan = Plan::new(&project.folder);
        plan.create_all(KIND, &names);
        plan.insert("src/lib.rs", "modules", format!("pub mod {module};"));
        plan.insert("src/lib.rs", "controllers", format!(".controller({module}::controller)"));
        plan.insert("src/lib.rs", "definitions", format!("{module}::definition()?,"));
        plan.execute(self.plan, self.allow_dirty)?;
        if !self.plan.is_dry_run() {
            output::next(&["cargo reknit crd --write", "cargo reknit rbac --write", "cargo test"]);
        }
        Ok(())
    }
}
