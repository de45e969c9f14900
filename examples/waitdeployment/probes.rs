//! Tries addresses beside the passes, and wakes whoever waits for them.

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

/// How many connections are attempted at once: as many looks, and as many that have the whole of their timeout.
const AT_ONCE: usize = 250;
/// How long a look takes at most.
const LOOK: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What came of the last attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Connected,
    Failed(String),
}

/// One task for each target that some key waits for, however many do; it ends with the last of them, or when the target
/// answers.
///
/// An attempt waits for its turn among [`AT_ONCE`] others. Each try begins with a look, of a second at most, and looks take
/// turns of their own, so that what answers at once does not wait for what never does; where that was not enough, the
/// address has the whole of its timeout with the others.
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

/// A key that waits, for as long as this is kept.
pub(crate) struct Waiting {
    key: Key,
    target: Target,
    tried: Arc<Tried>,
}

/// A target that some key waits for; the task that tries it ends when none does.
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

    /// What came of trying this for this key, if anything has yet; from now on it is tried, and the key woken when
    /// something comes of it. A success stands until the key is [forgotten](Self::forget).
    pub(crate) fn ask(&self, key: Key, target: Target) -> Option<Answer> {
        let waiting = self.waiting.get(&key).filter(|waiting| waiting.target == target);
        let waiting = waiting.unwrap_or_else(|| self.wait(key, target));
        waiting.tried.known.lock().answer.clone()
    }

    /// The key waits no longer.
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

    /// One that is still being tried, or a new one: a success is old news to who asks later.
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

    /// Wakes those who wait, if it is news.
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

/// None where there is no answer in time.
async fn look_and_wait(target: &Target, turns: &Turns) -> Option<Answer> {
    let look = target.timeout.min(LOOK);
    let seen = attempt(&turns.look, &target.address, look).await;
    if seen.is_some() || look == target.timeout {
        return seen;
    }
    attempt(&turns.whole, &target.address, target.timeout).await
}

/// Once it has its turn; none where there is no answer in time.
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

    /// Port 1 of this machine refuses.
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

        /// What is being tried.
        fn tries(&self) -> Vec<Target> {
            let all = self.tried.lock();
            all.iter()
                .filter(|(_, tried)| tried.strong_count() > 0)
                .map(|(target, _)| target.clone())
                .collect()
        }
    }

    #[tokio::test]
    async fn however_many_wait_for_a_target_it_is_tried_once_and_all_are_told() {
        let probes = probes();
        (0..1000).for_each(|number| assert_eq!(probes.ask(key(number), refusing(1)), None));
        assert_eq!(probes.tries().len(), 1);
        let refused = Answer::Failed("connection refused".into());
        assert_eq!(probes.answer(999, &refusing(1)).await, refused);
        assert_eq!(
            probes.ask(key(1000), refusing(1)),
            Some(refused),
            "who comes later is told what is known"
        );
    }

    #[tokio::test]
    async fn nothing_is_tried_for_keys_that_are_forgotten_or_ask_for_another_target() {
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
    async fn a_success_stands_until_it_is_forgotten_and_is_no_news_to_who_asks_later() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = Target { address, timeout: Duration::from_secs(5) };
        let probes = probes();
        assert_eq!(probes.answer(1, &target).await, Answer::Connected);
        drop(listener);
        assert_eq!(probes.ask(key(1), target.clone()), Some(Answer::Connected));
        assert_eq!(probes.ask(key(2), target.clone()), None, "it is tried for this one");
        probes.forget(&key(1));
        assert_ne!(probes.ask(key(1), target), Some(Answer::Connected));
    }
}
