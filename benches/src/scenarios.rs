//! Fixed pieces of work for instruction counts: each does the same every time, on one thread.

use reknit::testing::{ControllerExt, InformerExt};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use reknit::{
    injection::{Informers, Shutdown},
    prelude::*,
    reconciler::{ControllerConstructor, ReconcileKey, Run, leader::Leadership, leader::Ring},
};
use samples_apis::AddressableServiceStatus;
use serde_json::{Value, json};
use tokio::{
    runtime::{self, Runtime},
    sync::watch,
};

use crate::{
    addressable_service, controller,
    server::{Server, place, stored},
    service,
};

/// Creates a runtime of one thread. Call everything here within one.
pub fn runtime() -> std::io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// The sample controller with ten workers, from the first list to the last status write and its watch event.
pub struct Passes {
    server: Server,
    objects: usize,
}

impl Passes {
    /// Prepares this many objects of each Kind, without a status.
    pub fn of(objects: usize) -> Self {
        Self { server: Server::holding(objects, false), objects }
    }

    /// Runs until every status is written and its watch event has arrived.
    pub async fn run(&self) -> Result<()> {
        let (controller, informers) = constructed(&self.server, controller)?;
        informers.start();
        let running = tokio::spawn(controller.run(always()));
        self.server.echoed(self.objects).await;
        running.abort();
        Ok(())
    }
}

/// The keys of a controller that does nothing with them.
pub struct Keys {
    queue: Queue,
    controller: Controller,
    passed: watch::Receiver<usize>,
}

struct Counter(watch::Sender<usize>);

impl ReconcileKey for Counter {
    async fn reconcile_key(&self, _: &Key) -> Result<Outcome> {
        self.0.send_modify(|passed| *passed += 1);
        Ok(Outcome::done())
    }
}

/// The lane of the queue that a key is added to.
#[derive(Clone, Copy, Debug)]
pub enum Lane {
    /// An event of a watch.
    Fast,
    /// A resync.
    Slow,
    /// A delay of at most ten milliseconds.
    Delayed,
}

impl Default for Keys {
    fn default() -> Self {
        let cx = Context::new("bench", Server::holding(0, false).client());
        let build = Controller::named("keys", &cx);
        let (count, passed) = watch::channel(0);
        Self { queue: build.queue(), controller: build.reconciler(Counter(count)), passed }
    }
}

impl Keys {
    /// Adds this many keys.
    pub fn add(&self, keys: usize, lane: Lane) {
        for number in 0..keys {
            let key = key(number);
            match lane {
                Lane::Fast => self.queue.add(key),
                Lane::Slow => self.queue.add_slow(key),
                Lane::Delayed => {
                    self.queue.add_after(key, Duration::from_micros(number as u64 * 37 % 10_000))
                }
            }
        }
    }

    /// Reconciles this many keys.
    pub async fn work_off(self, keys: usize) {
        let mut passed = self.passed;
        let running = tokio::spawn(self.controller.run(always()));
        // The controller holds the sender and is running.
        let _ = passed.wait_for(|passed| *passed >= keys).await;
        running.abort();
    }
}

/// AddressableServices that are enqueued by changes of the Services that they read.
pub struct Observers {
    controller: Controller,
    services: Informer<Service>,
    observers: usize,
    shared: bool,
}

impl Observers {
    /// Prepares this many, which read one Service or each their own.
    pub fn of(observers: usize, shared: bool) -> Result<Self> {
        let mut objects = Vec::new();
        for number in 0..observers {
            let mut object = stored(addressable_service("bench", &name(number)), number);
            object["spec"]["serviceName"] = target(number, shared).into();
            object["status"] = crate::ready_status("bench", &target(number, shared))["status"].take();
            objects.push(object);
            if number == 0 || !shared {
                objects.push(stored(service("bench", &target(number, shared)), number));
            }
        }
        let cx = Context::preloaded("bench", Server::holding(0, false).client(), objects);
        Ok(Self { controller: controller(&cx)?, services: cx.get(), observers, shared })
    }

    /// Reconciles each of them. They read their Services and have nothing to write.
    pub async fn look(&self) -> Result<()> {
        for number in 0..self.observers {
            let _ = self.controller.once(&Key::new("bench", &name(number))).await?;
        }
        self.controller.queued();
        Ok(())
    }

    /// Each Service in a later version.
    pub fn changed(&self, version: usize) -> Vec<Service> {
        let services = if self.shared { 1 } else { self.observers };
        let change = |number| {
            let mut changed = decoded(stored(service("bench", &target(number, self.shared)), number));
            changed.metadata.resource_version = Some((self.observers + 1 + version).to_string());
            changed
        };
        (0..services).map(change).collect()
    }

    /// Changes these Services, and returns the number of enqueued keys.
    pub fn wake(&self, changed: Vec<Service>) -> usize {
        changed.into_iter().for_each(|service| self.services.insert(service));
        self.controller.queued().len()
    }
}

fn name(number: usize) -> String {
    format!("web-{number:07}")
}

fn target(number: usize, shared: bool) -> String {
    name(if shared { 0 } else { number })
}

/// Services in a cache.
pub struct Stored {
    server: Server,
    services: Informer<Service>,
    objects: usize,
}

impl Stored {
    /// Lists this many Services from a server of their own.
    pub async fn listed(objects: usize) -> Self {
        Self::listed_from(Server::holding(objects, false), objects).await
    }

    /// Lists the Services of this server.
    pub async fn listed_from(server: Server, objects: usize) -> Self {
        let (services, informers) = {
            let cx = Context::new("bench", server.client());
            (cx.get::<Informer<Service>>(), cx.informers())
        };
        informers.start();
        services.synced().await;
        Self { server, services, objects }
    }

    /// Reads each Service by its key, and returns how many were found.
    pub fn get_each(&self) -> usize {
        (0..self.objects).filter(|number| self.services.get(&key(*number)).is_some()).count()
    }

    /// Changes one in a hundred Services at the server, without sending the change.
    pub async fn outdated(objects: usize) -> Self {
        let stored = Self::listed(objects).await;
        stored.server.watched_services(1).await;
        stored.server.change_services(100);
        stored
    }

    /// Relists all Services.
    pub async fn relist(&self) {
        let gone = json!({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410}});
        self.server.tell_of_services(format!("{gone}\n").into()).await;
        self.server.watched_services(2).await;
    }
}

/// Changes a condition this many times.
pub fn turn_condition(times: usize) -> AddressableServiceStatus {
    let mut status = AddressableServiceStatus::default();
    for time in 0..times {
        match time % 2 {
            0 => status.mark_service_unavailable("web"),
            _ => status.mark_service_available(Addressable::default()),
        }
    }
    status
}

/// Finds the buckets of this many keys, among eight.
pub fn find_buckets(keys: usize) -> usize {
    let ring = Ring::new((0..8).map(|bucket| format!("controller.bench.{bucket:02}-of-08")));
    (0..keys).map(|number| ring.owner(&key(number)).len()).sum()
}

fn key(number: usize) -> Key {
    let (namespace, name) = place(number);
    Key::new(&*namespace, &name)
}

#[expect(clippy::expect_used, reason = "it is made here")]
fn decoded(service: Value) -> Service {
    serde_json::from_value(service).expect("a Service")
}

fn constructed(server: &Server, constructor: ControllerConstructor) -> Result<(Controller, Informers)> {
    let cx = Context::new("bench", server.client());
    Ok((constructor(&cx)?, cx.informers()))
}

fn always() -> Run {
    Run {
        leadership: Leadership::always(),
        stop: Shutdown::never(),
        drain: Duration::ZERO,
        workers: Some(10),
    }
}
