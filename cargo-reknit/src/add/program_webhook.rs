//! The webhook of the program, in `src/webhook.rs`, which the first Kind with a webhook brings along.

use crate::{
    plan::Plan,
    rustfmt,
    template::{File, WEBHOOK, WEBHOOK_MANIFESTS},
    template_names::Names,
};

/// The file with the constructor of the webhook.
const FILE: &str = "src/webhook.rs";

/// Plans the webhook with its Deployment and its Service, unless the project has one.
pub(super) fn ensure(plan: &mut Plan, names: &Names) {
    if plan.is_in_project(FILE) {
        return;
    }
    plan.create_all(WEBHOOK, names);
    plan.insert("Cargo.toml", "features", "\"webhook\",");
    plan.insert("src/lib.rs", "modules", "pub mod webhook;");
    plan.insert("src/lib.rs", "controllers", ".webhook(webhook::webhook)");
    ensure_manifests(plan, WEBHOOK_MANIFESTS, names);
}

/// Plans manifests as resources of the kustomization, except for those that the project has.
pub(super) fn ensure_manifests(plan: &mut Plan, manifests: &[File], names: &Names) {
    for manifest in manifests.iter().filter(|(path, _)| !plan.is_in_project(path)).collect::<Vec<_>>() {
        let name = manifest.0.trim_start_matches("config/");
        plan.insert("config/Kustomization", "resources", format!("- {name}"));
        plan.create_all(std::slice::from_ref(manifest), names);
    }
}

/// Plans a call of a method of `Webhook` for a type.
pub(super) fn register(plan: &mut Plan, method: &str, type_path: &str) {
    let statement = format!("let webhook = webhook{};", call(method, type_path));
    let lines = rustfmt::format_statement(plan.folder(), &statement);
    plan.insert(FILE, "webhook", lines);
}

/// Returns the call of a method of `Webhook` for a type.
pub(super) fn call(method: &str, type_path: &str) -> String {
    format!(".{method}::<{type_path}>()")
}
