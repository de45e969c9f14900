//! Fixed pieces of work for instruction counts: each does the same every time, on one thread.

use reknit::testing::{ControllerExt, InformerExt};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use reknit::{
    injection::{Informers, Shutdown},
    knative::Addressable,
    leadership::{Leadership, Ring},
    prelude::*,
    reconciler::{ControllerConstructor, ReconcileKey, Run},
};
use reknit_samples::AddressableServiceStatus;
use serde_json::{Value, json};
use tokio::{
    runtime::{self, Runtime},
    sync::watch,
};

use crate::{
    addressable_service, controller,
    server::{Server, namespace_and_name, with_server_fields},
    service,
};

/// Creates a runtime with one thread. All other functions of this module have to be called within such a runtime.
pub fn build_runtime() -> std::io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

/// The sample controller with ten workers, from the first list to the last status write and its watch event.
pub struct Passes {
    server: Server,
    objects: usize,
}

impl Passes {
    /// Creates a server with this many objects of each Kind, without a status.
    pub fn new(objects: usize) -> Self {
        Self { server: Server::with_objects(objects), objects }
    }

    /// Runs until every status is written and its watch event has arrived.
    pub async fn run(&self) -> Result<()> {
        let (controller, informers) = construct(&self.server, controller)?;
        informers.start();
        let running = tokio::spawn(controller.run(run_as_leader()));
        self.server.wait_for_echoes(self.objects).await;
        running.abort();
        Ok(())
    }
}

/// The queue of a controller that only counts the keys.
pub struct Keys {
    namespaces: usize,
    queue: Queue,
    controller: Controller,
    reconciled: watch::Receiver<usize>,
}

struct Counter(watch::Sender<usize>);

impl ReconcileKey for Counter {
    async fn reconcile_key(&self, _: &Key) -> Result<Outcome> {
        self.0.send_modify(|reconciled| *reconciled += 1);
        Ok(Outcome::done())
    }
}

/// The way in which a key is added to the queue.
#[derive(Clone, Copy, Debug)]
pub enum Lane {
    /// At once, as after a watch event.
    Fast,
    /// To the slow lane, as for a resync.
    Slow,
    /// After a delay of at most ten milliseconds.
    Delayed,
}

impl Keys {
    /// A queue without keys. They will be in this many namespaces.
    pub fn in_namespaces(namespaces: usize) -> Self {
        let cx = Context::new("bench", Server::with_objects(0).client());
        let build = Controller::named("keys", &cx);
        let (count, reconciled) = watch::channel(0);
        Self { namespaces, queue: build.queue(), controller: build.reconciler(Counter(count)), reconciled }
    }

    /// Adds this many keys.
    pub fn add(&self, keys: usize, lane: Lane) {
        for number in 0..keys {
            let key = Key::new(&*format!("bench-{}", number % self.namespaces), &name(number));
            match lane {
                Lane::Fast => self.queue.add(key),
                Lane::Slow => self.queue.add_slow(key),
                Lane::Delayed => {
                    self.queue.add_after(key, Duration::from_micros(number as u64 * 37 % 10_000))
                }
            }
        }
    }

    /// Runs the controller until it has reconciled this many keys.
    pub async fn reconcile(self, keys: usize) {
        let mut reconciled = self.reconciled;
        let running = tokio::spawn(self.controller.run(run_as_leader()));
        // Cannot fail: the running controller holds the sender.
        let _ = reconciled.wait_for(|reconciled| *reconciled >= keys).await;
        running.abort();
    }
}

/// AddressableServices that observe Services: a change of a Service enqueues those that read it.
pub struct Observers {
    controller: Controller,
    services: Informer<Service>,
    observers: usize,
    shared: bool,
}

impl Observers {
    /// Creates this many observers. If `shared`, all of them read the same Service, else each reads its own.
    pub fn new(observers: usize, shared: bool) -> Result<Self> {
        let mut objects = Vec::new();
        for number in 0..observers {
            let mut object = with_server_fields(addressable_service("bench", &name(number)), number);
            object["spec"]["serviceName"] = service_name(number, shared).into();
            object["status"] = crate::ready_status("bench", &service_name(number, shared))["status"].take();
            objects.push(object);
            if number == 0 || !shared {
                objects.push(with_server_fields(service("bench", &service_name(number, shared)), number));
            }
        }
        let cx = Context::preloaded("bench", Server::with_objects(0).client(), objects);
        Ok(Self { controller: controller(&cx)?, services: cx.get(), observers, shared })
    }

    /// Reconciles each observer, which reads its Service and writes nothing.
    pub async fn reconcile_each(&self) -> Result<()> {
        for number in 0..self.observers {
            let _ = self.controller.once(&Key::new("bench", &name(number))).await?;
        }
        self.controller.take_queued();
        Ok(())
    }

    /// Returns each Service with a higher resourceVersion than in the cache.
    pub fn changed_services(&self) -> Vec<Service> {
        let services = if self.shared { 1 } else { self.observers };
        let change = |number| {
            let mut changed =
                decoded(with_server_fields(service("bench", &service_name(number, self.shared)), number));
            changed.metadata.resource_version = Some((self.observers + 2).to_string());
            changed
        };
        (0..services).map(change).collect()
    }

    /// Puts these Services into the cache, and returns the number of keys that this enqueues.
    pub fn update_services(&self, changed: Vec<Service>) -> usize {
        changed.into_iter().for_each(|service| self.services.insert(service));
        self.controller.take_queued().len()
    }
}

fn name(number: usize) -> String {
    format!("web-{number:07}")
}

fn service_name(number: usize, shared: bool) -> String {
    name(if shared { 0 } else { number })
}

/// Services in a cache.
pub struct CachedServices {
    server: Server,
    services: Informer<Service>,
    objects: usize,
}

impl CachedServices {
    /// Lists this many Services from a new server.
    pub async fn list(objects: usize) -> Self {
        Self::list_from(Server::with_objects(objects), objects).await
    }

    /// Lists the Services of this server.
    pub async fn list_from(server: Server, objects: usize) -> Self {
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
        (0..self.objects).filter(|number| self.services.get(&key_of(*number)).is_some()).count()
    }

    /// Lists this many Services, and then changes one in a hundred at the server without a watch event.
    pub async fn outdated(objects: usize) -> Self {
        let services = Self::list(objects).await;
        services.server.wait_for_service_watches(1).await;
        services.server.change_services(100);
        services
    }

    /// Ends the watch with 410, and waits until all Services are listed again.
    pub async fn relist(&self) {
        let gone = json!({"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410}});
        self.server.send_service_events(format!("{gone}\n").into()).await;
        self.server.wait_for_service_watches(2).await;
    }
}

/// Changes the Ready condition this many times.
pub fn flip_condition(times: usize) -> AddressableServiceStatus {
    let mut status = AddressableServiceStatus::default();
    for turn in 0..times {
        match turn % 2 {
            0 => status.mark_service_unavailable("web"),
            _ => status.mark_service_available(Addressable::default()),
        }
    }
    status
}

/// Finds the bucket of each of this many keys, among eight. Returns the sum of the lengths of the buckets' names, so
/// that the compiler cannot remove a lookup.
pub fn find_buckets(keys: usize) -> usize {
    let ring = Ring::new((0..8).map(|bucket| format!("controller.bench.{bucket:02}-of-08")));
    (0..keys).map(|number| ring.owner(&key_of(number)).len()).sum()
}

fn key_of(number: usize) -> Key {
    let (namespace, name) = namespace_and_name(number);
    Key::new(&*namespace, &name)
}

#[expect(clippy::expect_used, reason = "the callers build a valid Service")]
fn decoded(service: Value) -> Service {
    serde_json::from_value(service).expect("a Service")
}

fn construct(server: &Server, constructor: ControllerConstructor) -> Result<(Controller, Informers)> {
    let cx = Context::new("bench", server.client());
    Ok((constructor(&cx)?, cx.informers()))
}

fn run_as_leader() -> Run {
    Run {
        leadership: Leadership::always(),
        stop: Shutdown::never(),
        drain: Duration::ZERO,
        workers: Some(10),
    }
}
