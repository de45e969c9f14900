//! Probes addresses in the background and enqueues the keys that wait for them.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use reknit::{prelude::*, reconciler::PerKey};
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::target::Target;

/// The limit of short attempts that run at once, and also of long ones.
const MAX_CONCURRENT: usize = 250;
/// The time limit of a short attempt.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The result of the last attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    Connected,
    Failed(String),
}

/// The running probes: one task for each target that keys wait for. A task ends when its last key stops waiting, or
/// when it has connected.
///
/// Each try begins with a short attempt of at most a second. If there is no answer in that time, a long attempt with
/// the whole timeout follows. At most [`MAX_CONCURRENT`] attempts of each kind run at the same time. Short attempts do
/// not wait for long ones, so a target that answers quickly is not delayed by targets that never answer.
pub(crate) struct Probes {
    waiting: PerKey<Arc<WaitingKey>>,
    probes: Mutex<HashMap<Target, Weak<Probe>>>,
    permits: Arc<Permits>,
    queue: Queue,
}

/// Limits the attempts that run at once.
struct Permits {
    short: Semaphore,
    long: Semaphore,
}

/// A key that waits for a probe, until this is dropped.
pub(crate) struct WaitingKey {
    key: Key,
    target: Target,
    probe: Arc<Probe>,
}

/// The probe of one target. Its task ends when this is dropped: when no key waits for it.
#[derive(Default)]
struct Probe {
    task: Mutex<Option<AbortHandle>>,
    state: Mutex<ProbeState>,
}

#[derive(Default)]
struct ProbeState {
    result: Option<ProbeResult>,
    /// The waiting keys.
    keys: BTreeSet<Key>,
}

impl Probes {
    pub(crate) fn new(waiting: PerKey<Arc<WaitingKey>>, queue: Queue) -> Self {
        let permits = Permits { short: Semaphore::new(MAX_CONCURRENT), long: Semaphore::new(MAX_CONCURRENT) };
        Self { waiting, probes: Mutex::default(), permits: Arc::new(permits), queue }
    }

    /// Returns the result of the target's probe for this key, if there is one. From now on the target is probed, and
    /// the key is enqueued when there is a new result. A success stays until the key is [forgotten](Self::forget).
    pub(crate) fn result(&self, key: Key, target: Target) -> Option<ProbeResult> {
        let waiting = self.waiting.get(&key).filter(|waiting| waiting.target == target);
        let waiting = waiting.unwrap_or_else(|| self.wait(key, target));
        waiting.probe.state.lock().result.clone()
    }

    /// Stops waiting for this key.
    pub(crate) fn forget(&self, key: &Key) {
        self.waiting.remove(key);
    }

    fn wait(&self, key: Key, target: Target) -> Arc<WaitingKey> {
        let probe = self.probe(&target);
        probe.state.lock().keys.insert(key.clone());
        let waiting = Arc::new(WaitingKey { key: key.clone(), target, probe });
        self.waiting.insert(key, waiting.clone());
        waiting
    }

    /// Returns the running probe of this target, or starts one. A probe that has connected is not reused, because the
    /// target may have failed since.
    fn probe(&self, target: &Target) -> Arc<Probe> {
        let mut probes = self.probes.lock();
        let running = probes.get(target).and_then(Weak::upgrade).filter(|probe| !probe.has_connected());
        running.unwrap_or_else(|| {
            probes.retain(|_, probe| probe.strong_count() > 0);
            let probe = self.start(target.clone());
            probes.insert(target.clone(), Arc::downgrade(&probe));
            probe
        })
    }

    fn start(&self, target: Target) -> Arc<Probe> {
        let probe = Arc::new(Probe::default());
        let (permits, queue, weak) = (self.permits.clone(), self.queue.clone(), Arc::downgrade(&probe));
        let task = tokio::spawn(run(target, permits, queue, weak));
        *probe.task.lock() = Some(task.abort_handle());
        probe
    }
}

impl Drop for WaitingKey {
    fn drop(&mut self) {
        self.probe.state.lock().keys.remove(&self.key);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.task.get_mut().iter().for_each(AbortHandle::abort);
    }
}

impl Probe {
    fn has_connected(&self) -> bool {
        self.state.lock().result == Some(ProbeResult::Connected)
    }

    /// Stores the result, and enqueues the waiting keys if it is new.
    fn set_result(&self, result: ProbeResult, queue: &Queue) {
        let mut state = self.state.lock();
        if state.result.as_ref() != Some(&result) {
            state.result = Some(result);
            state.keys.iter().for_each(|key| queue.add(key.clone()));
        }
    }
}

/// Probes the target until it has connected, or until the probe is dropped. The pause between two tries doubles.
async fn run(target: Target, permits: Arc<Permits>, queue: Queue, probe: Weak<Probe>) {
    let mut pause = MIN_PAUSE;
    loop {
        let timed_out = || ProbeResult::Failed(format!("no answer within {:?}", target.timeout));
        let result = short_then_long_attempt(&target, &permits).await.unwrap_or_else(timed_out);
        let Some(probe) = probe.upgrade() else { return };
        probe.set_result(result.clone(), &queue);
        drop(probe);
        if result == ProbeResult::Connected {
            return;
        }
        sleep(pause).await;
        pause = MAX_PAUSE.min(pause * 2);
    }
}

/// Makes a short attempt, and then a long one if needed. `None` if there is no answer in time.
async fn short_then_long_attempt(target: &Target, permits: &Permits) -> Option<ProbeResult> {
    let short_timeout = target.timeout.min(SHORT_TIMEOUT);
    let result = attempt(&permits.short, &target.address, short_timeout).await;
    if result.is_some() || short_timeout == target.timeout {
        return result;
    }
    attempt(&permits.long, &target.address, target.timeout).await
}

/// Makes one attempt when a permit is free. `None` if there is no answer in time.
async fn attempt(permits: &Semaphore, address: &str, limit: Duration) -> Option<ProbeResult> {
    let _permit = permits.acquire().await.ok()?;
    let connected = timeout(limit, TcpStream::connect(address)).await.ok()?;
    Some(connected.map_or_else(|error| ProbeResult::Failed(cause(&error)), |_| ProbeResult::Connected))
}

fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use k8s_openapi::api::core::v1::ConfigMap;
    use reknit::testing::ApiServer;
    use tokio::net::TcpListener;

    use super::*;

    fn probes() -> Probes {
        let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
        let mut build = Controller::of::<ConfigMap>(&cx);
        Probes::new(build.per_key(), build.queue())
    }

    /// A target on 127.0.0.x that refuses connections.
    fn refusing(last_octet: u8) -> Target {
        Target { address: format!("127.0.0.{last_octet}:1"), timeout: Duration::from_secs(1) }
    }

    fn key(number: u32) -> Key {
        Key::new("default", &format!("key-{number}"))
    }

    impl Probes {
        async fn wait_for_result(&self, number: u32, target: &Target) -> ProbeResult {
            loop {
                if let Some(result) = self.result(key(number), target.clone()) {
                    return result;
                }
                tokio::task::yield_now().await;
            }
        }

        fn running_targets(&self) -> Vec<Target> {
            let probes = self.probes.lock();
            probes
                .iter()
                .filter(|(_, probe)| probe.strong_count() > 0)
                .map(|(target, _)| target.clone())
                .collect()
        }
    }

    #[tokio::test]
    async fn a_target_is_probed_once_for_all_keys_that_wait() {
        let probes = probes();
        (0..1000).for_each(|number| assert_eq!(probes.result(key(number), refusing(1)), None));
        assert_eq!(probes.running_targets().len(), 1);
        let refused = ProbeResult::Failed("connection refused".into());
        assert_eq!(probes.wait_for_result(999, &refusing(1)).await, refused);
        assert_eq!(probes.result(key(1000), refusing(1)), Some(refused), "a later key gets the known result");
    }

    #[tokio::test]
    async fn forgotten_keys_and_replaced_targets_are_not_probed() {
        let probes = probes();
        probes.result(key(1), refusing(1));
        probes.result(key(2), refusing(1));
        let task =
            probes.waiting.get(&key(2)).map(|waiting| waiting.probe.task.lock().clone()).unwrap().unwrap();
        probes.result(key(1), refusing(2));
        assert_eq!(probes.running_targets().len(), 2);
        probes.forget(&key(2));
        assert_eq!(probes.running_targets(), [refusing(2)]);
        probes.forget(&key(1));
        probes.forget(&key(1));
        assert_eq!(probes.running_targets(), []);
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_success_stays_until_its_key_is_forgotten() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = Target { address, timeout: Duration::from_secs(5) };
        let probes = probes();
        assert_eq!(probes.wait_for_result(1, &target).await, ProbeResult::Connected);
        drop(listener);
        assert_eq!(probes.result(key(1), target.clone()), Some(ProbeResult::Connected));
        assert_eq!(probes.result(key(2), target.clone()), None, "the target is probed for this key");
        probes.forget(&key(1));
        assert_ne!(probes.result(key(1), target), Some(ProbeResult::Connected));
    }
}
