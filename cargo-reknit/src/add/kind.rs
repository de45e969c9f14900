//! `cargo reknit add kind`: another Kind with its controller.

use anyhow::{Result, bail};

use super::AddFlags;
use crate::{
    names::{Kind, Version},
    plan::Plan,
    project::Project,
    template::{KIND_FILES, Names},
};

/// Adds a Kind with its controller, its tests and an example
#[derive(Debug, clap::Args)]
pub(crate) struct AddKind {
    /// The Kind in CamelCase, for example Greeting
    kind: Kind,
    /// The version of the Kind
    #[arg(long, default_value = "v1alpha1")]
    version: Version,
    #[command(flatten)]
    flags: AddFlags,
}

impl AddKind {
    pub(super) fn run(self) -> Result<()> {
        let project = Project::current()?;
        let module = self.kind.module();
        for path in [format!("src/{module}"), format!("src/{module}.rs")] {
            if project.folder.join(&path).exists() {
                bail!("the project has {path} already; choose another Kind");
            }
        }
        let names = Names::of(&project).version(&self.version).kind(&self.kind);
        let mut plan = Plan::new(&project.folder);
        plan.create_all(KIND_FILES, &names);
        plan.insert("src/lib.rs", "modules", format!("pub mod {module};"));
        plan.insert("src/lib.rs", "controllers", format!(".controller({module}::controller)"));
        plan.insert("src/lib.rs", "definitions", format!("{module}::definition()?,"));
        self.flags.apply_to(plan)
    }
}
