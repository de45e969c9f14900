//! The smallest controller: says what became of each Mydemo.

use std::process::ExitCode;

use kube::CustomResource;
use reknit::{prelude::*, sharedmain::NamespaceFlag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where something listens.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(group = "crddemo.k8s.io", version = "v1", kind = "Mydemo", plural = "mydemos", namespaced)]
pub struct MydemoSpec {
    /// Its address.
    pub ip: String,
    /// Its port.
    pub port: u16,
}

impl Kind for Mydemo {
    type Status = ();
}

/// Reconciles Mydemos, and logs each change of them.
pub fn controller(cx: &Context) -> Result<Controller> {
    let selection = cx.get::<NamespaceFlag>().selection();
    cx.informer(selection.clone()).on(log);
    let build = Controller::selected::<Mydemo>(cx, selection);
    Ok(build.reconciler(Reconciler).observing_deletion().build())
}

fn log(change: &Change<Mydemo>) {
    let key = change.key();
    match change {
        Change::Added(new) => tracing::info!(%key, spec = ?new.spec, "added"),
        Change::Updated { old, new } if old.spec != new.spec => {
            tracing::info!(%key, old = ?old.spec, new = ?new.spec, "changed");
        }
        Change::Updated { .. } | Change::Deleted { .. } => {}
    }
}

struct Reconciler;

impl ReconcileKind for Reconciler {
    type Kind = Mydemo;

    async fn reconcile_kind(&self, _: &Mydemo, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done().event(Event::normal("Synced", "Mydemo synced successfully")))
    }
}

impl ObserveDeletion for Reconciler {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        tracing::info!(%key, "deleted");
        Ok(Outcome::done())
    }
}

fn main() -> ExitCode {
    Main::new("mydemo").flags::<NamespaceFlag>().controller(controller).run()
}
