//! A seed decides the requests of a controller, and their order.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use reknit_injection::{
    Context, Informer, Shutdown,
    internal::{Seeded, within},
};
use reknit_leadership::Leadership;
use reknit_reconciler::{Event, Run, Tracked};
use reknit_testing::{ApiServer, InformerExt};
use tokio::{runtime::Builder, time::sleep};

use super::*;

/// Writes the names of all lamps in the order of the cache, fails for every third lamp, and records events.
struct Listing {
    lamps: Informer<Lamp>,
    services: Tracked<Service>,
}

impl ReconcileKind for Listing {
    type Kind = Lamp;
    async fn reconcile_kind(&self, lamp: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        self.services.get(lamp, "web");
        let names: Vec<_> = self.lamps.list().map(|lamp| lamp.name_any()).collect();
        Lamp::CONDITIONS.manage(status).mark_false("Ready", "Listed", names.join(" "));
        let number: u32 = lamp.name_any().parse().unwrap();
        match number % 3 {
            0 => Err("every third lamp fails".into()),
            _ => {
                Ok(Outcome::after(Duration::from_secs(number.into())).event(Event::normal("Listed", "once")))
            }
        }
    }
}

/// The requests of a controller of twenty lamps during a minute.
fn requests(seed: u64) -> Vec<String> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let run = async {
        let server = ApiServer::new();
        let lamps = (0..20).map(|n| {
            let mut lamp = lamp();
            (lamp.metadata.name, lamp.metadata.uid) = (Some(n.to_string()), Some(n.to_string()));
            server.insert(&lamp)
        });
        let cx = Context::preloaded("test", server.client(), lamps.collect());
        let (mut build, services) = (Controller::of::<Lamp>(&cx), cx.get::<Informer<Service>>());
        let queue = build.queue();
        let reconciler = Listing { lamps: cx.get(), services: build.track() };
        let controller = build.reconciler(reconciler).build();
        let (trigger, stop) = Shutdown::new();
        let run = Run { leadership: Leadership::always(), stop, drain: Duration::ZERO, workers: Some(3) };
        let running = tokio::spawn(controller.run(run));
        queue.resync();
        sleep(Duration::from_secs(30)).await;
        let mut service = Service::default();
        (service.metadata.namespace, service.metadata.name) = (Some("default".into()), Some("web".into()));
        services.insert(service);
        sleep(Duration::from_secs(30)).await;
        trigger.start();
        running.await.unwrap();
        let writes = server.take_writes().into_iter();
        writes
            .map(|write| format!("{} {} {} {}", write.verb, write.resource, write.name, write.body))
            .collect()
    };
    within(&Seeded::environment(seed), || runtime.block_on(run))
}

#[test]
fn the_same_seed_sends_the_same_requests_in_the_same_order() {
    let first = requests(1);
    assert!(first.len() > 50, "only {} requests", first.len());
    for _ in 0..3 {
        assert_eq!(first, requests(1));
    }
    assert_ne!(first, requests(2));
}
