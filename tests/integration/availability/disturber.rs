//! Disturbs random replicas of a cluster, and varies their number.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::jiff::Timestamp;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::cluster::{Cluster, Replica, SHORT_LEASES};
use crate::support::{link::Condition, process::Signal};

const TICK: Duration = Duration::from_millis(250);
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// The bounds of the number of replicas.
const REPLICAS: (usize, usize) = (2, 5);
/// The time between two disturbances, in milliseconds.
const PAUSE: std::ops::Range<u64> = 1_000..4_000;
/// The time until a paused or disconnected replica recovers, in milliseconds: shorter and longer than a lease.
const LENGTH: std::ops::Range<u64> = 500..10_000;

/// The time after which a replica knows for how long each lease has not been renewed: a lease duration after it started or
/// recovered, and a second to start.
const TIME_TO_SETTLE: Duration = Duration::from_secs(SHORT_LEASES.lease.as_secs() + 1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Kill,
    Restart,
    Pause,
    Break,
    Silence,
}

const KINDS: [Kind; 5] = [Kind::Kill, Kind::Restart, Kind::Pause, Kind::Break, Kind::Silence];

/// A disturbance of one replica.
#[derive(Debug)]
#[expect(dead_code, reason = "shown in failures")]
pub(super) struct Disturbance {
    kind: Kind,
    replica: String,
    at: Timestamp,
    lasts: Duration,
}

pub(super) struct Disturber<'a> {
    cluster: &'a Cluster,
    random: StdRng,
    replicas: Vec<Subject>,
    /// The replicas that are about to exit.
    stopping: Vec<JoinHandle<Replica>>,
    /// The replicas that have exited, kept for their logs.
    stopped: Vec<Replica>,
    pub disturbances: Vec<Disturbance>,
    /// The times at which replicas resumed that were paused or had a silent link.
    pub resumptions: Vec<(String, Timestamp)>,
}

/// A replica, and the disturbance that it still has to recover from.
struct Subject {
    replica: Replica,
    disturbed: Option<(Kind, Instant)>,
    /// The time at which the replica started or last recovered.
    undisturbed_since: Instant,
}

impl<'a> Disturber<'a> {
    pub(super) fn new(cluster: &'a Cluster, seed: u64) -> Self {
        Self {
            cluster,
            random: StdRng::seed_from_u64(seed),
            replicas: Vec::new(),
            stopping: Vec::new(),
            stopped: Vec::new(),
            disturbances: Vec::new(),
            resumptions: Vec::new(),
        }
    }

    /// Disturbs replicas for this time. The number of replicas rises from the lower bound to the upper one, and falls
    /// again.
    pub(super) async fn run(&mut self, length: Duration) {
        self.scale_up(REPLICAS.0).await;
        while self.healthy().await.len() < REPLICAS.0 {
            sleep(TICK).await;
        }
        let began = Instant::now();
        let mut next = began;
        while began.elapsed() < length {
            let progress = began.elapsed().as_secs_f64() / length.as_secs_f64();
            let number = number_of_replicas(progress);
            self.scale_up(number).await;
            self.recover(Instant::now());
            if next <= Instant::now() {
                self.disturb_one(number).await;
                next = Instant::now() + Duration::from_millis(self.random.random_range(PAUSE));
            }
            sleep(TICK).await;
        }
    }

    /// Ends all disturbances, and waits for the replicas that stop. Returns the names of the others, in order.
    pub(super) async fn end_all(&mut self) -> Vec<String> {
        self.recover(Instant::now() + Duration::from_millis(LENGTH.end));
        for stopping in self.stopping.drain(..) {
            self.stopped.push(stopping.await.expect("the replica stops"));
        }
        let mut names: Vec<_> = self.replicas.iter().map(|subject| subject.replica.name.clone()).collect();
        names.sort();
        names
    }

    /// The time at which the replica was last disturbed before `end`.
    pub(super) fn last_disturbance(&self, replica: &str, end: Timestamp) -> Option<Timestamp> {
        let ours = self.disturbances.iter().filter(|disturbance| disturbance.replica == replica);
        ours.map(|disturbance| disturbance.at).filter(|at| *at < end).max()
    }

    pub(super) fn counts(&self) -> BTreeMap<Kind, usize> {
        let mut counts = BTreeMap::new();
        for disturbance in &self.disturbances {
            *counts.entry(disturbance.kind).or_default() += 1;
        }
        counts
    }

    /// Returns the log lines of all replicas about a lease, in the order of time.
    pub(super) fn log_of(&self, lease: &str) -> String {
        let replicas = self.replicas.iter().map(|subject| &subject.replica).chain(&self.stopped);
        let mut lines: Vec<_> = replicas.flat_map(|replica| replica.log_of(lease)).collect();
        lines.sort();
        lines.join("\n")
    }

    /// Starts replicas until there are this many.
    async fn scale_up(&mut self, number: usize) {
        while self.replicas.len() < number {
            let replica = self.cluster.spawn_replica().await;
            self.replicas.push(Subject { replica, disturbed: None, undisturbed_since: Instant::now() });
        }
    }

    /// Disturbs a replica at random, or stops it if there are more than `number`.
    async fn disturb_one(&mut self, number: usize) {
        if let Some(index) = self.choose().await {
            let random = *KINDS.choose(&mut self.random).expect("a kind");
            self.disturb(index, if self.replicas.len() > number { Kind::Restart } else { random });
        }
    }

    /// Chooses a healthy replica, of which another healthy one can take over the buckets when their leases expire.
    async fn choose(&mut self) -> Option<usize> {
        let mut healthy = self.healthy().await;
        let is_settled = |index: &usize| self.replicas[*index].undisturbed_since.elapsed() > TIME_TO_SETTLE;
        let settled: Vec<_> = healthy.iter().copied().filter(is_settled).collect();
        healthy.retain(|index| settled.iter().any(|other| other != index));
        healthy.choose(&mut self.random).copied()
    }

    /// The indices of the replicas that are ready and not disturbed.
    async fn healthy(&self) -> Vec<usize> {
        let mut healthy = Vec::new();
        for (index, subject) in self.replicas.iter().enumerate() {
            let probe = timeout(PROBE_TIMEOUT, subject.replica.process.probe("/readiness"));
            if subject.disturbed.is_none() && probe.await.is_ok_and(|(status, _)| status == 200) {
                healthy.push(index);
            }
        }
        healthy
    }

    fn disturb(&mut self, index: usize, kind: Kind) {
        let lasts = Duration::from_millis(self.random.random_range(LENGTH));
        let name = self.replicas[index].replica.name.clone();
        self.disturbances.push(Disturbance { kind, replica: name, at: Timestamp::now(), lasts });
        let subject = &mut self.replicas[index];
        subject.disturbed = Some((kind, Instant::now() + lasts));
        match kind {
            Kind::Pause => subject.replica.signal(Signal::STOP),
            Kind::Break => subject.replica.set_link(Condition::Broken),
            Kind::Silence => subject.replica.set_link(Condition::Silent),
            Kind::Kill | Kind::Restart => {
                let mut replica = self.replicas.remove(index).replica;
                self.stopping.push(tokio::spawn(async move {
                    match kind {
                        Kind::Kill => replica.kill().await,
                        _ => replica.stop().await,
                    }
                    replica
                }));
            }
        }
    }

    /// Ends the disturbances that have lasted long enough at this time.
    fn recover(&mut self, now: Instant) {
        for Subject { replica, disturbed, undisturbed_since } in &mut self.replicas {
            let Some((kind, _)) = disturbed.take_if(|(_, until)| *until <= now) else { continue };
            *undisturbed_since = Instant::now();
            self.resumptions.push((replica.name.clone(), Timestamp::now()));
            match kind {
                Kind::Pause => replica.signal(Signal::CONT),
                _ => replica.set_link(Condition::Up),
            }
        }
    }
}

/// The number of replicas at this part of the run: the upper bound in the middle, and the lower one at both ends.
fn number_of_replicas(progress: f64) -> usize {
    let (min, max) = REPLICAS;
    let height = 1.0 - (2.0 * progress - 1.0).abs();
    min + (height * (max - min) as f64).round() as usize
}
