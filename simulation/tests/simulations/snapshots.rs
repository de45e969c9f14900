//! Replicas that each keep a snapshot of all widgets, also of those that another one leads.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use reknit_injection::{Context, internal::host_name};
use reknit_reconciler::{Controller, ObserveKind, Outcome, ReconcileKind, Result};
use reknit_simulation::{Simulation, simulation};
use serde_json::json;
use tokio::sync::watch;

use crate::widgets::{Widget, WidgetStatus, secs, widget};

const REPLICAS: usize = 3;
const WIDGETS: u64 = 20;

/// The size of each widget, by name.
type Sizes = BTreeMap<String, String>;

/// Keeps the size of each widget in the snapshot. Its passes are long, so that many are dropped, and write nothing that
/// leads to another one.
struct Remembering(watch::Sender<Sizes>);

impl Remembering {
    fn remember(&self, widget: &Widget) {
        self.0.send_modify(|sizes| drop(sizes.insert(widget.name_any(), widget.spec.size.to_string())));
    }
}

impl ReconcileKind for Remembering {
    type Kind = Widget;

    async fn reconcile_kind(&self, widget: &Widget, _: &mut WidgetStatus) -> Result<Outcome> {
        tokio::time::sleep(secs(8)).await;
        self.remember(widget);
        Ok(Outcome::done())
    }
}

impl ObserveKind for Remembering {
    async fn observe_kind(&self, widget: &Widget) -> Result<Outcome> {
        self.remember(widget);
        Ok(Outcome::done())
    }
}

/// Shows the snapshot of this replica in a map, for the check: it is no write of a pass.
async fn show(maps: Api<ConfigMap>, mut sizes: watch::Receiver<Sizes>) {
    let (name, parameters) = (host_name(), PatchParams::apply("snapshot").force());
    while sizes.changed().await.is_ok() {
        let mut shown = async || {
            let data = sizes.borrow_and_update().clone();
            let map = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data}));
            maps.patch(&name, &parameters, &map).await
        };
        while shown().await.is_err() {
            tokio::time::sleep(secs(1)).await;
        }
    }
}

fn remembering(cx: &Context) -> Result<Controller> {
    let (sizes, shown) = watch::channel(Sizes::new());
    tokio::spawn(show(Api::namespaced(cx.client(), "snapshots"), shown));
    Ok(Controller::of::<Widget>(cx).reconciler(Remembering(sizes)).observing_as_follower().build())
}

fn snapshots() -> Simulation {
    let mut simulation = simulation([remembering]).replicas(REPLICAS);
    for number in 0..WIDGETS {
        let (name, second) = (format!("w{number}"), 20 + 5 * number);
        let created = widget(&name);
        let grown = json!({"spec": {"size": 2}});
        simulation = simulation
            .at(secs(1), move |cluster| cluster.create(created.clone()))
            .at(secs(second), move |cluster| cluster.merge::<Widget>(&format!("shop/{name}"), &grown));
    }
    simulation.finally("each replica remembers the last sizes", |cluster| {
        (0..REPLICAS).all(|replica| {
            let map = cluster.get::<ConfigMap>(&format!("snapshots/replica-{replica}"));
            let shown = map.and_then(|map| map.data).unwrap_or_default();
            (0..WIDGETS).all(|number| shown.get(&format!("w{number}")).is_some_and(|size| size == "2"))
        })
    })
}

#[test]
fn each_replica_observes_the_last_state_through_faults() {
    snapshots().seeds(0..3).run();
}
