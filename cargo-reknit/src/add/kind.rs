//! `cargo reknit add kind`: another Kind with its controller.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use super::AddFlags;
use crate::{
    names::{Kind, Plural, Version},
    output,
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
    /// The plural of the Kind, for example greetings; the default is made from the Kind
    #[arg(long)]
    plural: Option<Plural>,
    #[command(flatten)]
    flags: AddFlags,
}

impl AddKind {
    pub(super) fn run(self) -> Result<()> {
        let project = self.flags.project.project()?;
        let module = self.kind.module();
        for path in [format!("src/{module}"), format!("src/{module}.rs")] {
            if project.folder.join(&path).exists() {
                bail!("the project has {path} already; choose another Kind");
            }
        }
        let plural = self.plural.unwrap_or_else(|| self.kind.plural());
        if let Some(file) = file_with_plural(&project, &plural) {
            bail!(
                "{} has the plural {} already; choose another one with --plural",
                file.display(),
                plural.as_str()
            );
        }
        let names = Names::of(&project).version(&self.version).kind(&self.kind).plural(&plural);
        let mut plan = Plan::new(&project.folder);
        plan.create_all(KIND_FILES, &names);
        plan.insert("src/lib.rs", "modules", format!("pub mod {module};"));
        plan.insert("src/lib.rs", "controllers", format!(".controller({module}::controller)"));
        plan.insert("src/lib.rs", "definitions", format!("{module}::definition()?,"));
        self.flags.execute(plan)?;
        output::resource(&plural, &project.group, &self.kind);
        self.flags.print_next();
        Ok(())
    }
}

/// The file of the Kind that has this plural, from the folder of the project.
fn file_with_plural(project: &Project, plural: &Plural) -> Option<PathBuf> {
    let declaration = format!("plural = \"{}\"", plural.as_str());
    let folders = fs::read_dir(project.folder.join("src")).ok()?;
    let mut files = folders.flatten().map(|folder| Path::new("src").join(folder.file_name()).join("kind.rs"));
    let declares = |file: &PathBuf| {
        fs::read_to_string(project.folder.join(file)).is_ok_and(|text| text.contains(&declaration))
    };
    files.find(declares)
}
