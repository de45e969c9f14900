//! A controller that creates a ConfigMap in each Namespace.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Outcome, Owned, ReconcileKind, Result};
use reknit_simulation::{Simulation, simulation};

struct Greeter {
    maps: Owned<ConfigMap>,
}

impl ReconcileKind for Greeter {
    type Kind = Namespace;

    async fn reconcile_kind(&self, namespace: &Namespace, _: &mut ()) -> Result<Outcome> {
        let mut map = ConfigMap::default();
        map.metadata.namespace = namespace.metadata.name.clone();
        map.metadata.name = Some("greeting".into());
        map.data = Some([("text".to_owned(), "hello".to_owned())].into());
        self.maps.apply(namespace, map).await?;
        Ok(Outcome::done())
    }
}

fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Namespace>(cx);
    let maps = build.owns();
    Ok(build.reconciler(Greeter { maps }).build())
}

fn namespace(name: &str) -> Namespace {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.into());
    namespace
}

pub(crate) fn greeter() -> Simulation {
    simulation([controller])
        .at(Duration::from_secs(1), |cluster| cluster.create(namespace("shop")))
        .finally("the greeting exists", |cluster| cluster.get::<ConfigMap>("shop/greeting").is_some())
}

#[test]
fn one_replica_survives_faults() {
    greeter().seeds(0..50).each_write().run();
}

#[test]
fn three_replicas_survive_faults() {
    greeter().replicas(3).seeds(0..20).each_write().run();
}
