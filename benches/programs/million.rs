//! The memory and time of many objects in one process: half of them Services, half Ready AddressableServices, all
//! delivered by watches to the controller of README.md. `bench-million OBJECTS [CHANGES]`: the defaults are a million
//! objects and a tenth as many changes.

use std::{
    env,
    error::Error,
    ops::Range,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Service;
use prometheus::Registry;
use reknit::{
    injection::Shutdown,
    prelude::*,
    reconciler::{Run, leader::Leadership},
};
use reknit_benches::{Server, controller, events, resident};
use samples_apis::AddressableService;
use tokio::time::sleep;

type Outcome<T> = std::result::Result<T, Box<dyn Error>>;

const WORKERS: usize = 10;
const POLL: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).map(|argument| argument.parse()).transpose();
    let objects: usize = number(0)?.unwrap_or(1_000_000);
    let changes: usize = number(1)?.unwrap_or(objects / 10);
    let million = Million::start().await?;
    million.say("empty", 0, Instant::now())?;
    let begun = Instant::now();
    million.tell(0..objects / 2).await;
    million.passed(objects / 2).await;
    million.say("all told", objects, begun)?;
    let begun = Instant::now();
    million.tell(0..changes / 2).await;
    // Each key is enqueued by its object and by its Service. The number of reconciles depends on how the two coincide.
    million.passed(objects / 2 + changes / 2).await;
    million.say("changed", changes, begun)
}

struct Million {
    server: Server,
    registry: Registry,
    services: Informer<Service>,
    objects: Informer<AddressableService>,
}

impl Million {
    async fn start() -> Outcome<Self> {
        let (server, registry) = (Server::holding(0, true), Registry::new());
        let (controller, informers, services, objects) = {
            let cx = Context::builder("bench", server.client()).metrics(registry.clone()).build();
            let controller = controller(&cx).map_err(|error| error.to_string())?;
            (controller, cx.informers(), cx.get(), cx.get())
        };
        informers.start();
        let run = Run {
            leadership: Leadership::always(),
            stop: Shutdown::never(),
            drain: Duration::ZERO,
            workers: Some(WORKERS),
        };
        tokio::spawn(controller.run(run));
        server.watched().await;
        Ok(Self { server, registry, services, objects })
    }

    /// Sends the Services of these numbers and then the AddressableServices, each in a new version. Every reconcile
    /// finds its Service, so there is nothing to write.
    async fn tell(&self, numbers: Range<usize>) {
        let expected = self.services.len().max(numbers.end);
        for numbers in events::chunks(numbers.clone()) {
            self.server.tell_of_services(events::services(&numbers)).await;
        }
        while self.services.len() < expected {
            sleep(POLL).await;
        }
        for numbers in events::chunks(numbers) {
            self.server.tell_of_addressable_services(events::addressable_services(&numbers)).await;
        }
    }

    /// Waits until there were this many reconciles and the queue is empty.
    async fn passed(&self, passes: usize) {
        while self.counted("reknit_reconcile_total") < passes as f64 || self.counted("workqueue_depth") > 0.0
        {
            sleep(POLL).await;
        }
    }

    fn counted(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let metrics =
            families.iter().filter(|family| family.name() == name).flat_map(|family| family.get_metric());
        metrics.map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value()).sum()
    }

    fn say(&self, what: &str, events: usize, begun: Instant) -> Outcome<()> {
        let (memory, seconds) = (resident::of(std::process::id())?, begun.elapsed().as_secs_f64());
        let text = self.services.bytes() + self.objects.bytes();
        println!(
            "{what}: {} objects, {:.0} MB as compact JSON, {:.0} MB resident, {:.0} MB at the peak; {events} events and \
             {:.0} passes so far, {seconds:.1} s, {:.0} events/s",
            self.services.len() + self.objects.len(),
            text as f64 / 1e6,
            memory.settled,
            memory.peak,
            self.counted("reknit_reconcile_total"),
            events as f64 / seconds,
        );
        Ok(())
    }
}
