//! A steady load of changes to AddressableServices.

use std::{collections::BTreeMap, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IteratorRandom};
use reknit::testing::eventually;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
    time::interval,
};

use crate::support::{
    objects::{Objects, State, is_observed, state},
    wait::TIMEOUT,
};

/// The Service that exists in a [`Cluster`](super::cluster::Cluster).
pub(super) const SERVICE: &str = "web";
/// That Service, and a name that no Service has.
const SERVICES: [&str; 2] = [SERVICE, "none"];

/// A running load.
pub(super) struct Load {
    task: JoinHandle<BTreeMap<String, &'static str>>,
    stop: oneshot::Sender<()>,
    prefix: String,
    /// The number of operations so far.
    operations: watch::Receiver<usize>,
}

/// The objects that a load has left behind.
pub(super) struct RemainingObjects {
    /// The prefix of the names of the load's objects.
    prefix: String,
    /// The name of the Service of each object.
    services: BTreeMap<String, &'static str>,
}

impl Load {
    /// Creates this number of objects a second.
    pub(super) async fn creating(objects: &Objects, per_second: u32) -> Self {
        Self::start(objects, per_second, 0, 1.0).await
    }

    /// Creates, changes and deletes objects, this number a second in all. Loads of one cluster need different seeds.
    pub(super) async fn mixed(objects: &Objects, per_second: u32, seed: u64) -> Self {
        Self::start(objects, per_second, seed, 0.3).await
    }

    /// `creations` is the probability that an object is created. Of the other operations, a third are deletions.
    async fn start(objects: &Objects, per_second: u32, seed: u64, creations: f64) -> Self {
        let (objects, mut random) = (objects.clone(), StdRng::seed_from_u64(seed));
        let prefix = format!("x{seed}-");
        let name = {
            let prefix = prefix.clone();
            move |number| format!("{prefix}{number}")
        };
        let (stop, mut stopped) = oneshot::channel();
        let (done, operations) = watch::channel(0);
        let task = tokio::spawn(async move {
            let mut existing = BTreeMap::new();
            let mut ticks = interval(Duration::from_secs(1) / per_second);
            for number in 0usize.. {
                tokio::select! {
                    _ = ticks.tick() => {}
                    _ = &mut stopped => break,
                }
                let chosen = existing.keys().choose(&mut random).cloned();
                match chosen.filter(|_| !random.random_bool(creations)) {
                    None => create(&objects, &mut existing, name(number), &mut random).await,
                    Some(name) if random.random_bool(1.0 / 3.0) => {
                        objects.delete_addressable(&name).await;
                        existing.remove(&name);
                    }
                    Some(name) => change(&objects, &mut existing, name).await,
                }
                done.send_replace(number + 1);
            }
            existing
        });
        Self { task, stop, prefix, operations }
    }

    /// Waits for this number of further operations.
    pub(super) async fn wait_for_operations(&self, number: usize) {
        let mut operations = self.operations.clone();
        let goal = *operations.borrow() + number;
        operations.wait_for(|operations| *operations >= goal).await.expect("the load runs");
    }

    /// Stops the load.
    pub(super) async fn stop(self) -> RemainingObjects {
        // An error means that the task has panicked, which the next line reports.
        let _ = self.stop.send(());
        RemainingObjects { prefix: self.prefix, services: self.task.await.expect("the load succeeds") }
    }
}

async fn create(
    objects: &Objects,
    existing: &mut BTreeMap<String, &'static str>,
    name: String,
    random: &mut StdRng,
) {
    let service = SERVICES[random.random_range(0..SERVICES.len())];
    objects.create_addressable(&name, service).await;
    existing.insert(name, service);
}

/// Sets the Service in the spec to the other of the two, which also changes the status.
async fn change(objects: &Objects, existing: &mut BTreeMap<String, &'static str>, name: String) {
    let service = if existing[&name] == SERVICES[0] { SERVICES[1] } else { SERVICES[0] };
    objects.set_service_name(&name, service).await;
    existing.insert(name, service);
}

impl RemainingObjects {
    /// Waits until exactly these objects of the load exist, each with the status that its spec requires.
    pub(super) async fn wait_until_reconciled(&self, objects: &Objects) {
        let expected: BTreeMap<_, _> = self
            .services
            .iter()
            .map(|(name, service)| (name.clone(), Some(expected_state(objects, service))))
            .collect();
        eventually("the reconciliation of each object", TIMEOUT, async || {
            let list =
                objects.addressables().list(&Default::default()).await.map_err(|error| error.to_string())?;
            let observed = |object: &_| if is_observed(object) { state(object) } else { None };
            let actual: BTreeMap<_, _> = list
                .iter()
                .map(|object| (object.metadata.name.clone().unwrap_or_default(), observed(object)))
                .filter(|(name, _)| name.starts_with(&self.prefix))
                .collect();
            let wrong: Vec<_> =
                actual.iter().filter(|(name, state)| expected.get(*name) != Some(state)).collect();
            let missing: Vec<_> = expected.keys().filter(|name| !actual.contains_key(*name)).collect();
            if wrong.is_empty() && missing.is_empty() {
                Ok(())
            } else {
                Err(format!("wrong: {wrong:?}, missing: {missing:?}"))
            }
        })
        .await;
    }
}

fn expected_state(objects: &Objects, service: &str) -> State {
    if service == SERVICES[0] { objects.available(service) } else { objects.unavailable(service) }
}
