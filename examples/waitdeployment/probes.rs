//! Probes addresses in the background and enqueues the keys that wait for them.

use std::{
    collections::{HashMap, HashSet},
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

/// The number of connections that are attempted at once: this many short attempts, and this many long ones.
const AT_ONCE: usize = 250;
/// The time limit of a short attempt.
const LOOK: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The result of the last attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Connected,
    Failed(String),
}

/// The probes: one task for each target for which keys wait. It ends with the last of these keys, or when the target
/// answers.
///
/// [`AT_ONCE`] attempts run at once. Each try begins with a short attempt of at most a second, and short attempts have places
/// of their own, so a target that answers at once does not wait for one that never does. If the short attempt was not
/// enough, a long one follows, with the whole timeout.
pub(crate) struct Probes {
    waiting: PerKey<Arc<Waiting>>,
    tried: Mutex<HashMap<Target, Weak<Tried>>>,
    turns: Arc<Turns>,
    queue: Queue,
}

struct Turns {
    look: Semaphore,
    whole: Semaphore,
}

/// A waiting key. It waits until this is dropped.
pub(crate) struct Waiting {
    key: Key,
    target: Target,
    tried: Arc<Tried>,
}

/// A target for which keys wait. Its task ends when none does.
#[derive(Default)]
struct Tried {
    task: Mutex<Option<AbortHandle>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    answer: Option<Answer>,
    keys: HashSet<Key>,
}

impl Probes {
    pub(crate) fn new(waiting: PerKey<Arc<Waiting>>, queue: Queue) -> Self {
        let turns = Turns { look: Semaphore::new(AT_ONCE), whole: Semaphore::new(AT_ONCE) };
        Self { waiting, tried: Mutex::default(), turns: Arc::new(turns), queue }
    }

    /// Returns the result of the target for this key, if there is one. From now on the target is probed, and the key is
    /// enqueued when there is a result. A success stays until the key is [forgotten](Self::forget).
    pub(crate) fn ask(&self, key: Key, target: Target) -> Option<Answer> {
        let waiting = self.waiting.get(&key).filter(|waiting| waiting.target == target);
        let waiting = waiting.unwrap_or_else(|| self.wait(key, target));
        waiting.tried.known.lock().answer.clone()
    }

    /// Stops waiting for this key.
    pub(crate) fn forget(&self, key: &Key) {
        self.waiting.remove(key);
    }

    fn wait(&self, key: Key, target: Target) -> Arc<Waiting> {
        let tried = self.tried(&target);
        tried.known.lock().keys.insert(key.clone());
        let waiting = Arc::new(Waiting { key: key.clone(), target, tried });
        self.waiting.insert(key, waiting.clone());
        waiting
    }

    /// The running probe of this target, or a new one. A success before does not count for a key that asks later.
    fn tried(&self, target: &Target) -> Arc<Tried> {
        let mut all = self.tried.lock();
        let known = all.get(target).and_then(Weak::upgrade).filter(|tried| !tried.has_answered());
        known.unwrap_or_else(|| {
            all.retain(|_, tried| tried.strong_count() > 0);
            let tried = self.start(target.clone());
            all.insert(target.clone(), Arc::downgrade(&tried));
            tried
        })
    }

    fn start(&self, target: Target) -> Arc<Tried> {
        let tried = Arc::new(Tried::default());
        let (turns, queue, weak) = (self.turns.clone(), self.queue.clone(), Arc::downgrade(&tried));
        let task = tokio::spawn(keep_trying(target, turns, queue, weak));
        *tried.task.lock() = Some(task.abort_handle());
        tried
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.tried.known.lock().keys.remove(&self.key);
    }
}

impl Drop for Tried {
    fn drop(&mut self) {
        self.task.get_mut().iter().for_each(AbortHandle::abort);
    }
}

impl Tried {
    fn has_answered(&self) -> bool {
        self.known.lock().answer == Some(Answer::Connected)
    }

    /// Enqueues the waiting keys if the result is new.
    fn tell(&self, answer: Answer, queue: &Queue) {
        let mut known = self.known.lock();
        if known.answer.as_ref() != Some(&answer) {
            known.answer = Some(answer);
            known.keys.iter().for_each(|key| queue.add(key.clone()));
        }
    }
}

async fn keep_trying(target: Target, turns: Arc<Turns>, queue: Queue, tried: Weak<Tried>) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        let silent = || Answer::Failed(format!("no answer within {:?}", target.timeout));
        let known = look_and_wait(&target, &turns).await.unwrap_or_else(silent);
        let Some(tried) = tried.upgrade() else { return };
        tried.tell(known.clone(), &queue);
        drop(tried);
        if known == Answer::Connected {
            return;
        }
        sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

/// Makes a short attempt, then a long one. `None` if there is no answer in time.
async fn look_and_wait(target: &Target, turns: &Turns) -> Option<Answer> {
    let look = target.timeout.min(LOOK);
    let seen = attempt(&turns.look, &target.address, look).await;
    if seen.is_some() || look == target.timeout {
        return seen;
    }
    attempt(&turns.whole, &target.address, target.timeout).await
}

/// Makes one attempt when a place is free. `None` if there is no answer in time.
async fn attempt(turns: &Semaphore, address: &str, limit: Duration) -> Option<Answer> {
    let _turn = turns.acquire().await.ok()?;
    let connected = timeout(limit, TcpStream::connect(address)).await.ok()?;
    Some(connected.map_or_else(|error| Answer::Failed(in_words(&error)), |_| Answer::Connected))
}

fn in_words(error: &io::Error) -> String {
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

    /// A target on this machine that refuses connections.
    fn refusing(last: u8) -> Target {
        Target { address: format!("127.0.0.{last}:1"), timeout: Duration::from_secs(1) }
    }

    fn key(number: u32) -> Key {
        Key::new("default", &format!("key-{number}"))
    }

    impl Probes {
        async fn answer(&self, number: u32, target: &Target) -> Answer {
            loop {
                if let Some(answer) = self.ask(key(number), target.clone()) {
                    return answer;
                }
                tokio::task::yield_now().await;
            }
        }

        /// The targets that are probed.
        fn tries(&self) -> Vec<Target> {
            let all = self.tried.lock();
            all.iter()
                .filter(|(_, tried)| tried.strong_count() > 0)
                .map(|(target, _)| target.clone())
                .collect()
        }
    }

    #[tokio::test]
    async fn a_target_is_probed_once_for_all_keys_that_wait() {
        let probes = probes();
        (0..1000).for_each(|number| assert_eq!(probes.ask(key(number), refusing(1)), None));
        assert_eq!(probes.tries().len(), 1);
        let refused = Answer::Failed("connection refused".into());
        assert_eq!(probes.answer(999, &refusing(1)).await, refused);
        assert_eq!(probes.ask(key(1000), refusing(1)), Some(refused), "a later key gets the known result");
    }

    #[tokio::test]
    async fn forgotten_keys_and_replaced_targets_are_not_probed() {
        let probes = probes();
        probes.ask(key(1), refusing(1));
        probes.ask(key(2), refusing(1));
        let task =
            probes.waiting.get(&key(2)).map(|waiting| waiting.tried.task.lock().clone()).unwrap().unwrap();
        probes.ask(key(1), refusing(2));
        assert_eq!(probes.tries().len(), 2);
        probes.forget(&key(2));
        assert_eq!(probes.tries(), [refusing(2)]);
        probes.forget(&key(1));
        probes.forget(&key(1));
        assert_eq!(probes.tries(), []);
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_success_stays_until_it_is_forgotten() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = Target { address, timeout: Duration::from_secs(5) };
        let probes = probes();
        assert_eq!(probes.answer(1, &target).await, Answer::Connected);
        drop(listener);
        assert_eq!(probes.ask(key(1), target.clone()), Some(Answer::Connected));
        assert_eq!(probes.ask(key(2), target.clone()), None, "the target is probed for this key");
        probes.forget(&key(1));
        assert_ne!(probes.ask(key(1), target), Some(Answer::Connected));
    }
}
