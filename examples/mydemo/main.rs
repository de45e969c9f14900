//! A minimal controller: logs the changes of each Mydemo.

use std::process::ExitCode;

use kube::CustomResource;
use reknit::{injection::Change, prelude::*, reconciler::ObserveDeletion, sharedmain::NamespaceFlag};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An address to listen on.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(group = "crddemo.k8s.io", version = "v1", kind = "Mydemo", plural = "mydemos", namespaced)]
// The API server refuses groups below k8s.io without it.
#[kube(annotation("api-approved.kubernetes.io", "unapproved, an example"))]
pub struct MydemoSpec {
    /// The IP address.
    pub ip: String,
    /// The port.
    pub port: u16,
}

kind!(Mydemo {});

/// Reconciles Mydemos, and logs their changes.
pub fn controller(cx: &Context) -> Result<Controller> {
    cx.informer(cx.get()).on(log);
    Ok(Controller::of::<Mydemo>(cx).reconciler(Reconciler).observing_deletion_as_leader().build())
}

/// Logs an added object and each changed field.
fn log(change: &Change<Mydemo>) {
    let key = change.key();
    match change {
        Change::Added(new) => tracing::info!(%key, new.spec.ip, new.spec.port, "added"),
        Change::Updated { old, new } => {
            let (old, new) = (&old.spec, &new.spec);
            if old.ip != new.ip {
                tracing::info!(%key, old = old.ip, new = new.ip, "ip changed");
            }
            if old.port != new.port {
                tracing::info!(%key, old = old.port, new = new.port, "port changed");
            }
        }
        Change::Deleted { .. } => {} // observe_deletion logs it.
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
    async fn observe_deletion(&self, _: &Key) -> Result<Outcome> {
        tracing::info!("deleted"); // The key is a field of the span of the pass.
        Ok(Outcome::done())
    }
}

/// The program: its controllers and flags.
pub fn program() -> Main {
    Main::new("mydemo").flags::<NamespaceFlag>().controller(controller).plannable()
}

fn main() -> ExitCode {
    program().run()
}
