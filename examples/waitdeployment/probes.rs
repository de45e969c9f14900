//! Tries addresses beside the passes, and wakes whoever waits for them.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use reknit::prelude::*;
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::target::Target;

/// How many connections are attempted at once: as many for the first time, and as many again.
const AT_ONCE: usize = 250;
/// How long the first attempt takes at most.
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
/// An attempt waits for its turn among [`AT_ONCE`] others. What was never tried takes turns of its own, of a second at
/// most, so that it does not wait for what never answers; where that was not enough, it has the whole of its timeout with
/// the others.
#[derive(Clone)]
pub(crate) struct Probes(Arc<Shared>);

struct Shared {
    queue: Queue,
    state: Mutex<State>,
    first: Semaphore,
    again: Semaphore,
}

#[derive(Default)]
struct State {
    waiting: HashMap<Key, Waiting>,
    tried: HashMap<Target, Tried>,
}

struct Waiting {
    target: Target,
    answer: Option<Answer>,
}

struct Tried {
    task: AbortHandle,
    keys: HashSet<Key>,
    answer: Option<Answer>,
}

impl Probes {
    pub(crate) fn new(queue: Queue) -> Self {
        let (first, again) = (Semaphore::new(AT_ONCE), Semaphore::new(AT_ONCE));
        Self(Arc::new(Shared { queue, state: Mutex::default(), first, again }))
    }

    /// What came of trying this for this key, if anything has yet; from now on it is tried, and the key woken when
    /// something comes of it. A success stands until the key is [forgotten](Self::forget).
    pub(crate) fn ask(&self, key: Key, target: Target) -> Option<Answer> {
        let state = &mut *self.0.state.lock();
        if let Some(waiting) = state.waiting.get(&key).filter(|waiting| waiting.target == target) {
            return waiting.answer.clone();
        }
        state.forget(&key);
        let start = || {
            let task = tokio::spawn(self.0.clone().keep_trying(target.clone())).abort_handle();
            Tried { task, keys: HashSet::new(), answer: None }
        };
        let tried = state.tried.entry(target.clone()).or_insert_with(start);
        tried.keys.insert(key.clone());
        let answer = tried.answer.clone();
        state.waiting.insert(key, Waiting { target, answer: answer.clone() });
        answer
    }

    /// The key waits no longer.
    pub(crate) fn forget(&self, key: &Key) {
        self.0.state.lock().forget(key);
    }
}

impl State {
    fn forget(&mut self, key: &Key) {
        let Some(Waiting { target, .. }) = self.waiting.remove(key) else { return };
        let Some(tried) = self.tried.get_mut(&target) else { return };
        tried.keys.remove(key);
        if tried.keys.is_empty() {
            tried.task.abort();
            self.tried.remove(&target);
        }
    }

    /// Notes what came of an attempt, and answers the keys to which that is news.
    fn note(&mut self, target: &Target, answer: &Answer) -> Vec<Key> {
        let Some(tried) = self.tried.get_mut(target) else { return Vec::new() };
        tried.answer = Some(answer.clone());
        let mut keys = tried.keys.clone();
        if *answer == Answer::Connected {
            self.tried.remove(target);
        }
        let mut is_news = |key: &Key| {
            let waiting = self.waiting.get_mut(key);
            waiting.is_some_and(|waiting| waiting.answer.replace(answer.clone()).as_ref() != Some(answer))
        };
        keys.retain(&mut is_news);
        keys.into_iter().collect()
    }
}

impl Shared {
    async fn keep_trying(self: Arc<Self>, target: Target) {
        let look = target.timeout.min(LOOK);
        let mut answer = attempt(&self.first, &target.address, look).await;
        if answer.is_none() && look < target.timeout {
            answer = attempt(&self.again, &target.address, target.timeout).await;
        }
        let mut pause = SHORTEST_PAUSE;
        loop {
            let silent = || Answer::Failed(format!("no answer within {:?}", target.timeout));
            let known = answer.unwrap_or_else(silent);
            let woken = self.state.lock().note(&target, &known);
            woken.into_iter().for_each(|key| self.queue.add(key));
            if known == Answer::Connected {
                return;
            }
            sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
            answer = attempt(&self.again, &target.address, target.timeout).await;
        }
    }
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

    use reknit::testing::ApiServer;
    use tokio::net::TcpListener;

    use super::*;

    fn probes() -> Probes {
        let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
        Probes::new(Controller::named("test", &cx).queue())
    }

    /// Port 1 of this machine refuses.
    fn refusing(last: u8) -> Target {
        Target { address: format!("127.0.0.{last}:1"), timeout: Duration::from_secs(1) }
    }

    fn key(number: u32) -> Key {
        Key::new("default", &format!("key-{number}"))
    }

    async fn until(probes: &Probes, number: u32, target: &Target) -> Answer {
        loop {
            if let Some(answer) = probes.ask(key(number), target.clone()) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn however_many_wait_for_a_target_it_is_tried_once_and_all_are_told() {
        let probes = probes();
        (0..1000).for_each(|number| assert_eq!(probes.ask(key(number), refusing(1)), None));
        assert_eq!(probes.0.state.lock().tried.len(), 1);
        let refused = Answer::Failed("connection refused".into());
        assert_eq!(until(&probes, 999, &refusing(1)).await, refused);
        assert_eq!(
            probes.ask(key(1000), refusing(1)),
            Some(refused),
            "who comes later is told what is known"
        );
    }

    #[tokio::test]
    async fn nothing_is_left_of_keys_that_are_forgotten_or_ask_for_another_target() {
        let probes = probes();
        probes.ask(key(1), refusing(1));
        probes.ask(key(2), refusing(1));
        let task = probes.0.state.lock().tried[&refusing(1)].task.clone();
        probes.ask(key(1), refusing(2));
        assert_eq!(probes.0.state.lock().tried.len(), 2);
        probes.forget(&key(2));
        assert_eq!(probes.0.state.lock().tried.keys().collect::<Vec<_>>(), [&refusing(2)]);
        probes.forget(&key(1));
        probes.forget(&key(1));
        while !task.is_finished() {
            tokio::task::yield_now().await;
        }
        let state = probes.0.state.lock();
        assert!(state.tried.is_empty() && state.waiting.is_empty());
    }

    #[tokio::test]
    async fn a_success_stands_until_it_is_forgotten_and_is_no_news_to_who_asks_later() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let target = Target { address, timeout: Duration::from_secs(5) };
        let probes = probes();
        assert_eq!(until(&probes, 1, &target).await, Answer::Connected);
        drop(listener);
        assert_eq!(probes.ask(key(1), target.clone()), Some(Answer::Connected));
        assert_eq!(probes.ask(key(2), target.clone()), None, "it is tried for this one");
        probes.forget(&key(1));
        assert_ne!(probes.ask(key(1), target), Some(Answer::Connected));
    }
}
