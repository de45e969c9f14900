//! `cargo reknit add webhook`: defaults and rules of a Kind that exists.

use std::fs;

use anyhow::{Result, bail};

use super::{AddFlags, existing_kind::ExistingKind, program_webhook};
use crate::{
    names::Kind,
    plan::Plan,
    project::Project,
    template::{
        DEFAULTING_CODE, DEFAULTING_MANIFESTS, File, VALIDATION_CODE, VALIDATION_MANIFESTS, WEBHOOK_TESTS,
    },
    template_names::Names,
};

/// Adds defaults and rules of a Kind, in a webhook that the program serves
///
/// Without --defaulting and --validation, adds both.
#[derive(Debug, clap::Args)]
pub(crate) struct AddWebhook {
    /// The Kind, for example Greeting
    kind: Kind,
    /// Adds the defaults of the Kind
    #[arg(long)]
    defaulting: bool,
    /// Adds the rules by which objects are validated
    #[arg(long)]
    validation: bool,
    #[command(flatten)]
    flags: AddFlags,
}

/// One of the two halves of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Half {
    /// The method of `Webhook`, and the flag of the command.
    name: &'static str,
    /// The module of the Kind with the code.
    module: &'static str,
    code: &'static [File],
    manifests: &'static [File],
}

const DEFAULTING: Half =
    Half { name: "defaulting", module: "defaults", code: DEFAULTING_CODE, manifests: DEFAULTING_MANIFESTS };
const VALIDATION: Half =
    Half { name: "validation", module: "rules", code: VALIDATION_CODE, manifests: VALIDATION_MANIFESTS };

impl AddWebhook {
    pub(super) fn run(self) -> Result<()> {
        let project = self.flags.project.project()?;
        let kind = ExistingKind::find(&project, &self.kind)?;
        let halves = self.halves();
        check_absent(&project, &kind, &halves)?;
        let names = Names::of(&project).kind(&self.kind);
        let mut plan = Plan::new(&project.folder);
        program_webhook::ensure(&mut plan, &names);
        for half in halves {
            half.plan(&mut plan, &kind, &names);
        }
        if !plan.is_in_project(&names.apply(WEBHOOK_TESTS[0].0)) {
            plan.create_all(WEBHOOK_TESTS, &names);
        }
        self.flags.apply_to(plan)
    }

    fn halves(&self) -> Vec<Half> {
        match (self.defaulting, self.validation) {
            (true, false) => vec![DEFAULTING],
            (false, true) => vec![VALIDATION],
            _ => vec![DEFAULTING, VALIDATION],
        }
    }
}

/// Fails if the project has one of the halves of this Kind.
fn check_absent(project: &Project, kind: &ExistingKind, halves: &[Half]) -> Result<()> {
    let webhook = fs::read_to_string(project.folder.join("src/webhook.rs")).unwrap_or_default();
    let (found, absent): (Vec<_>, Vec<_>) = halves
        .iter()
        .map(|half| (half.name, half.find(project, kind, &webhook)))
        .partition(|half| half.1.is_some());
    let Some((name, Some(evidence))) = found.first() else { return Ok(()) };
    let hint = absent.first().map(|(absent, _)| format!("; pass --{absent} to add only that"));
    let kind = kind.kind.as_str();
    bail!("the webhook has {name} of {kind} already: {evidence}{}", hint.unwrap_or_default())
}

impl Half {
    /// Says where the project has this half of the Kind, if it does.
    fn find(self, project: &Project, kind: &ExistingKind, webhook: &str) -> Option<String> {
        let call = program_webhook::call(self.name, &kind.type_path());
        let file = format!("src/{}/{}.rs", kind.module, self.module);
        match webhook.contains(&call) {
            true => Some(format!("src/webhook.rs contains `{call}`")),
            false => project.folder.join(&file).exists().then(|| format!("{file} exists")),
        }
    }

    fn plan(self, plan: &mut Plan, kind: &ExistingKind, names: &Names) {
        let (folder, name) = (format!("src/{}", kind.module), kind.kind.as_str());
        // Defaults that the Kind already declares are kept.
        if self != DEFAULTING || !kind.declares_defaults() {
            plan.create_all(self.code, names);
            plan.insert(format!("{folder}/mod.rs"), "modules", format!("mod {};", self.module));
            if self == DEFAULTING {
                let defaults = format!("defaults: {name}::set_spec_defaults,");
                plan.insert(format!("{folder}/kind.rs"), "defaults", defaults);
            }
        }
        program_webhook::register(plan, self.name, &kind.type_path());
        program_webhook::ensure_manifests(plan, self.manifests, names);
    }
}
