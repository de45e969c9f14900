//! Measures the memory and the time that many objects take in one process: half of them are Services, half are Ready
//! AddressableServices, and watches deliver all of them to the measured controller. Run it as
//! `bench-million [OBJECTS [CHANGES]]`. The defaults are a million objects and a tenth as many changes.

use std::{
    env,
    error::Error,
    ops::Range,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Service;
use prometheus::Registry;
use reknit::{injection::Shutdown, leadership::Leadership, prelude::*, reconciler::Run};
use reknit_benches::{Server, controller, events, resident};
use reknit_samples::AddressableService;
use tokio::time::sleep;

type BoxResult<T> = std::result::Result<T, Box<dyn Error>>;

const WORKERS: usize = 10;
const POLL: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> BoxResult<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize| arguments.get(index).map(|argument| argument.parse()).transpose();
    let objects: usize = number(0)?.unwrap_or(1_000_000);
    let changes: usize = number(1)?.unwrap_or(objects / 10);
    let bench = Bench::start().await?;
    bench.print_phase("empty", 0, Instant::now())?;
    let start = Instant::now();
    bench.send_events(0..objects / 2).await;
    bench.wait_for_passes(objects / 2).await;
    bench.print_phase("all sent", objects, start)?;
    let start = Instant::now();
    bench.send_events(0..changes / 2).await;
    // Each key is enqueued by its object and by its Service. The queue may merge the two, so this is the least number
    // of passes.
    bench.wait_for_passes(objects / 2 + changes / 2).await;
    bench.print_phase("changed", changes, start)
}

/// The controller, with its server and its informers.
struct Bench {
    server: Server,
    registry: Registry,
    services: Informer<Service>,
    objects: Informer<AddressableService>,
}

impl Bench {
    async fn start() -> BoxResult<Self> {
        let (server, registry) = (Server::with_objects(0), Registry::new());
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
        server.wait_until_watched().await;
        Ok(Self { server, registry, services, objects })
    }

    /// Sends the Services of these numbers and then the AddressableServices, each in a new version. The Services are
    /// cached first, so every reconcile finds its Service and has nothing to write.
    async fn send_events(&self, numbers: Range<usize>) {
        let expected = self.services.len().max(numbers.end);
        for numbers in events::chunks(numbers.clone()) {
            self.server.send_service_events(events::services(&numbers)).await;
        }
        while self.services.len() < expected {
            sleep(POLL).await;
        }
        for numbers in events::chunks(numbers) {
            self.server.send_addressable_service_events(events::addressable_services(&numbers)).await;
        }
    }

    /// Waits until this many passes have ended and the queue is empty.
    async fn wait_for_passes(&self, passes: usize) {
        while self.metric_sum("controller_runtime_reconcile_total") < passes as f64
            || self.metric_sum("workqueue_depth") > 0.0
        {
            sleep(POLL).await;
        }
    }

    /// Returns the sum of a counter or gauge over its labels.
    fn metric_sum(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let metrics =
            families.iter().filter(|family| family.name() == name).flat_map(|family| family.get_metric());
        metrics.map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value()).sum()
    }

    fn print_phase(&self, phase: &str, events: usize, start: Instant) -> BoxResult<()> {
        let (memory, seconds) = (resident::memory_of(std::process::id())?, start.elapsed().as_secs_f64());
        let encoded = self.services.bytes() + self.objects.bytes();
        println!(
            "{phase}: {} objects, {:.0} MB as compact JSON, {:.0} MB resident, {:.0} MB at the peak; {events} events and \
             {:.0} passes so far, {seconds:.1} s, {:.0} events/s",
            self.services.len() + self.objects.len(),
            encoded as f64 / 1e6,
            memory.settled,
            memory.peak,
            self.metric_sum("controller_runtime_reconcile_total"),
            events as f64 / seconds,
        );
        Ok(())
    }
}
