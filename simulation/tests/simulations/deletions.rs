//! A controller without a finalizer, which is told of deletions.

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Api;
use reknit_injection::Context;
use reknit_reconciler::{Controller, Key, ObserveDeletion, Outcome, ReconcileKind, Result};
use reknit_simulation::{Fault, Simulation, simulation};

use crate::widgets::{Widget, WidgetStatus, secs, widget};

/// Notes each deleted widget in a map.
struct Noting {
    notes: Api<ConfigMap>,
}

impl ReconcileKind for Noting {
    type Kind = Widget;

    async fn reconcile_kind(&self, _: &Widget, status: &mut WidgetStatus) -> Result<Outcome> {
        status.passes = 1;
        Ok(Outcome::done())
    }
}

impl ObserveDeletion for Noting {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        let name = Some(format!("{}-is-gone", key.name));
        let note =
            ConfigMap { metadata: ObjectMeta { name, ..ObjectMeta::default() }, ..ConfigMap::default() };
        match self.notes.create(&Default::default(), &note).await {
            Err(kube::Error::Api(refusal)) if refusal.is_already_exists() => {}
            created => drop(created?),
        }
        Ok(Outcome::done())
    }
}

fn noting(cx: &Context) -> Result<Controller> {
    let build = Controller::of::<Widget>(cx);
    let notes = Api::namespaced(build.client(), "notes");
    Ok(build.reconciler(Noting { notes }).observing_deletion_as_leader().build())
}

/// Widgets that go at any time, while leases change hands. A process that starts after a deletion cannot know of it, so
/// the replicas never stop, and lists do not hide a deletion from all of them.
pub(crate) fn departures() -> Simulation {
    let mut simulation = simulation([noting]).replicas(3);
    for number in 0..20 {
        let (name, second) = (format!("w{number}"), 100 + 5 * number);
        let created = widget(&name);
        simulation = simulation
            .at(secs(1), move |cluster| cluster.create(created.clone()))
            .at(secs(second), move |cluster| cluster.delete::<Widget>(&format!("shop/{name}")));
    }
    let simulation = simulation.finally("each deletion is noted", |cluster| {
        let notes = cluster.list::<ConfigMap>().len();
        if notes == 20 { Ok(()) } else { Err(format!("{notes} of 20 deletions were noted")) }
    });
    [Fault::Crashes, Fault::Restarts].into_iter().fold(simulation, Simulation::without)
}

#[test]
fn each_deletion_is_observed_by_a_leader_through_faults() {
    departures().seeds(0..10).run();
}
