//! A process that shares the buckets of its controllers with others.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::FutureExt;
use prometheus::Registry;
use reknit_injection::InformerHandle;
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    LeaderElectionConfig, Leadership,
    fake::FakeApi,
    internal::{Candidate, Electors, Identity, Member},
};

pub(super) const LEASE: Duration = Duration::from_secs(60);
pub(super) const RETRY: Duration = Duration::from_secs(10);

pub(super) struct Replica {
    /// The leadership of each controller.
    pub(super) leaderships: BTreeMap<String, Leadership>,
    pub(super) registry: Registry,
    stop: Option<oneshot::Sender<()>>,
    drained: Option<oneshot::Sender<()>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Replica {
    /// Starts a process with ten buckets for one controller.
    pub(super) fn start(api: &FakeApi, name: &str) -> Self {
        Self::start_with(api, name, 10, &["lamps"])
    }

    pub(super) fn start_with(api: &FakeApi, name: &str, buckets: u32, controllers: &[&str]) -> Self {
        let config = LeaderElectionConfig { buckets, ..Default::default() };
        Self::start_configured(api, name, &config, controllers)
    }

    pub(super) fn start_configured(
        api: &FakeApi,
        name: &str,
        config: &LeaderElectionConfig,
        controllers: &[&str],
    ) -> Self {
        Self::start_watching(api, name, config, controllers, false)
    }

    /// Starts a process whose watch of leases may hang after the first list.
    pub(super) fn start_watching(
        api: &FakeApi,
        name: &str,
        config: &LeaderElectionConfig,
        controllers: &[&str],
        hangs: bool,
    ) -> Self {
        Self::start_each(api, name, config, controllers, hangs, |electors| electors)
    }

    /// Starts a process with one bucket for one controller, which announces what it selects.
    pub(super) fn start_selecting(api: &FakeApi, name: &str, selects: &str) -> Self {
        let config = LeaderElectionConfig::default();
        Self::start_each(api, name, &config, &["lamps"], false, |electors| electors.selecting(selects))
    }

    /// Starts a process with one bucket for one controller, whose passes read this informer.
    pub(super) fn start_reading(api: &FakeApi, name: &str, informer: Arc<dyn InformerHandle>) -> Self {
        let config = LeaderElectionConfig::default();
        let reading = |electors: Electors| electors.reading(std::slice::from_ref(&informer));
        Self::start_each(api, name, &config, &["lamps"], false, reading)
    }

    fn start_each(
        api: &FakeApi,
        name: &str,
        config: &LeaderElectionConfig,
        controllers: &[&str],
        hangs: bool,
        configure: impl Fn(Electors) -> Electors,
    ) -> Self {
        let registry = Registry::new();
        let identity = Identity::on(name);
        let candidate = Candidate::new(api.client(), "ns", "test", identity, config, &registry).unwrap();
        let candidate = api.watched_by(candidate, hangs);
        let ((stop, stopping), (drain, drained)) = (oneshot::channel(), oneshot::channel());
        let (stopping, drained) = (stopping.map(drop).shared(), drained.map(drop).shared());
        let mut tasks = vec![tokio::spawn(Member::new(&candidate).run(stopping.clone()))];
        let mut leaderships = BTreeMap::new();
        for controller in controllers {
            let (leadership, electors) = Electors::new(&candidate, controller).unwrap();
            leaderships.insert((*controller).to_owned(), leadership);
            let electors = configure(electors);
            tasks.push(tokio::spawn(electors.run(stopping.clone(), drained.clone())));
        }
        Self { leaderships, registry, stop: Some(stop), drained: Some(drain), tasks }
    }

    pub(super) fn lamps(&self) -> &Leadership {
        &self.leaderships["lamps"]
    }

    /// The number of buckets that this process leads, of all controllers.
    pub(super) fn led(&self) -> usize {
        self.leaderships.values().map(|leadership| leadership.led_buckets().len()).sum()
    }

    /// Starts a clean shutdown, in which all passes have ended, and waits for its end.
    pub(super) async fn stop(mut self) {
        self.stop.take();
        self.drained.take();
        for task in &mut self.tasks {
            task.await.unwrap();
        }
    }
}

impl Drop for Replica {
    /// Kills the process.
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Waits until the replicas lead these numbers of buckets, in order. Returns the time that this took.
pub(super) async fn wait_for_shares(replicas: &[&Replica], shares: &[usize]) -> Duration {
    let start = tokio::time::Instant::now();
    let led = || replicas.iter().map(|replica| replica.led()).collect::<Vec<_>>();
    let settled = async {
        while led() != shares {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LEASE * 3, settled).await.is_ok(), "the shares are {:?}, not {shares:?}", led());
    start.elapsed()
}
