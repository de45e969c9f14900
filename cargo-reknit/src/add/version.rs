//! `cargo reknit add version`: another version of a Kind that exists.

use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{AddFlags, existing_kind::ExistingKind, program_webhook};
use crate::{
    names::{Kind, Version},
    plan::Plan,
    project::Project,
    template::{CONVERSION, VERSION},
    template_names::Names,
};

/// Adds a version of a Kind, with the conversion between the versions in the program's webhook
///
/// The new version starts as a copy of the Kind's file kind.rs. The existing version stays the one that is stored and
/// that the controller uses, and becomes the hub of the conversions.
#[derive(Debug, clap::Args)]
pub(crate) struct AddVersion {
    /// The Kind, for example Greeting
    kind: Kind,
    /// The new version, for example v1beta1
    version: Version,
    #[command(flatten)]
    flags: AddFlags,
}

impl AddVersion {
    pub(super) fn run(self) -> Result<()> {
        let project = self.flags.project.project()?;
        let kind = ExistingKind::find(&project, &self.kind)?;
        let hub = kind.version()?;
        let (name, module, version) = (self.kind.as_str(), &kind.module, self.version.as_str());
        let file = format!("src/{module}/{version}.rs");
        if self.version == hub {
            bail!(
                "{name} has the version {version} already, in src/{module}/kind.rs; choose another version"
            );
        }
        if project.folder.join(&file).exists() {
            bail!("{name} has the version {version} already, in {file}; choose another version");
        }
        let names = Names::of(&project).kind(&self.kind).version(&hub).new_version(&self.version);
        let mut plan = Plan::new(&project.folder);
        program_webhook::ensure(&mut plan, &names);
        self.plan_definition(&mut plan, &kind, &names);
        plan.create(file, kind.source_of(&self.version));
        plan.create_all(VERSION, &names);
        plan.create(format!("config/example/{module}_{version}.yaml"), self.example(&project, &kind)?);
        let type_path = format!("crate::{module}::{version}::{name}");
        program_webhook::register(&mut plan, "conversion", &type_path);
        self.flags.apply_to(plan)
    }

    /// Plans the version in the definition of the Kind, and its conversion by the webhook.
    fn plan_definition(&self, plan: &mut Plan, kind: &ExistingKind, names: &Names) {
        let (name, version) = (self.kind.as_str(), self.version.as_str());
        let path = format!("src/{}/mod.rs", kind.module);
        if !plan.is_in_project(CONVERSION[0].0) {
            plan.create_all(CONVERSION, names);
            plan.insert("src/lib.rs", "modules", "mod conversion;");
        }
        plan.insert(&path, "modules", format!("pub mod {version};"));
        plan.insert(&path, "modules", format!("mod {version}_conversion;"));
        plan.insert(&path, "versions", format!("definition_of::<{version}::{name}>()?,"));
        if !kind.is_converted {
            let conversion = "let definition = crate::conversion::by_webhook(definition);";
            plan.insert(&path, "conversion", conversion);
        }
    }

    /// Returns the example of the Kind in the new version, and with another name.
    fn example(&self, project: &Project, kind: &ExistingKind) -> Result<String> {
        let path = format!("config/example/{}.yaml", kind.module);
        let version = self.version.as_str();
        let text = fs::read_to_string(project.folder.join(&path));
        let text = text.with_context(|| format!("cannot read {path}, which the tests convert"))?;
        let invalid = || format!("{path} has to be one object with an apiVersion and a name");
        let mut object: Value = serde_saphyr::from_str(&text).with_context(invalid)?;
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        let name = format!("{}-{version}", name.with_context(invalid)?);
        object["metadata"]["name"] = json!(name);
        let group = object["apiVersion"]
            .as_str()
            .and_then(|old| old.split_once('/'))
            .map(|(group, _)| group.to_owned());
        object["apiVersion"] = json!(format!("{}/{version}", group.with_context(invalid)?));
        serde_saphyr::to_string(&object).context("cannot write the example")
    }
}
