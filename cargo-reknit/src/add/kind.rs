//! `cargo reknit add kind`: another Kind with its controller.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use super::AddFlags;
use crate::{
    kind_flags::{DEFINITIONS, KindFlags},
    names::{Group, Kind, Plural},
    output,
    plan::Plan,
    project::Project,
    template_names::Names,
};

/// Adds a Kind with its controller, its tests and an example
#[derive(Debug, clap::Args)]
pub(crate) struct AddKind {
    /// The Kind in CamelCase, for example Greeting
    kind: Kind,
    /// The API group of the Kind; the default is that of the project
    #[arg(long)]
    group: Option<Group>,
    #[command(flatten)]
    kind_flags: KindFlags,
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
        let (plural, group) =
            (self.kind_flags.plural(&self.kind), self.group.as_ref().unwrap_or(&project.group));
        self.kind_flags.check_group(group)?;
        if let Some(file) = file_with_plural(&project, group, &plural) {
            bail!(
                "{} has the plural {} already; choose another one with --plural",
                file.display(),
                plural.as_str()
            );
        }
        let names = Names::default().project(&project.name).group(group);
        let names = self.kind_flags.names(names, &self.kind);
        let mut plan = Plan::new(&project.folder);
        self.kind_flags.plan(&mut plan, &names);
        plan.insert("src/lib.rs", "modules", format!("pub mod {module};"));
        plan.insert("src/lib.rs", "controllers", format!(".controller({module}::controller)"));
        if !self.kind_flags.external {
            plan.insert("src/lib.rs", "definitions", format!("{module}::definition()?,"));
            let kustomization = fs::read_to_string(project.folder.join("config/Kustomization"));
            if !kustomization.is_ok_and(|text| text.contains(DEFINITIONS)) {
                plan.insert("config/Kustomization", "resources", DEFINITIONS);
            }
        }
        self.flags.execute(plan)?;
        output::resource(&plural, group, &self.kind);
        self.flags.print_next();
        Ok(())
    }
}

/// The file of the Kind of this group that has this plural, from the folder of the project.
fn file_with_plural(project: &Project, group: &Group, plural: &Plural) -> Option<PathBuf> {
    let declarations =
        [format!("plural = \"{}\"", plural.as_str()), format!("group = \"{}\"", group.as_str())];
    let folders = fs::read_dir(project.folder.join("src")).ok()?;
    let mut files = folders.flatten().map(|folder| Path::new("src").join(folder.file_name()).join("kind.rs"));
    let declares = |file: &PathBuf| {
        fs::read_to_string(project.folder.join(file))
            .is_ok_and(|text| declarations.iter().all(|declaration| text.contains(declaration)))
    };
    files.find(declares)
}
