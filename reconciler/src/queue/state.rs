//! The state of a queue and its keys, to show it.

use std::{sync::Arc, time::Duration};

use reknit_apis::Key;
use reknit_injection::internal::clock_instant;
use serde::Serialize;
use tokio::time::Instant;

use super::{Queue, Shared, lanes::Lane};
use crate::metrics::ScrapedQueue;

/// The state of a queue as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct QueueState {
    /// The number of workers, without the one for namespaces that have none.
    pub workers: usize,
    /// The number of keys that wait for a worker, without those of resyncs and promotions.
    pub queued: usize,
    /// The number of keys of resyncs and promotions that wait for a worker.
    pub queued_slow: usize,
    /// The number of keys that wait because too much changes without a prompt, or in a storm.
    pub held: usize,
    /// The number of keys whose pass runs.
    pub running: usize,
    /// The number of failed keys that wait for their retry.
    pub retrying: usize,
    /// The number of keys that are enqueued later.
    pub delayed: usize,
}

/// A key in a queue as JSON. A key may be in several states.
#[derive(Clone, Debug, Serialize)]
pub struct KeyState {
    /// The key.
    pub key: String,
    /// `running`, `queued`, `queued_slow`, `held`, `retrying`, `delayed`, or `failed` with a permanent error.
    pub state: &'static str,
    /// The time since the key has this state. `None` if it is not known.
    pub age_seconds: Option<f64>,
    /// The time until the key is enqueued. `None` if it waits for something else.
    pub due_seconds: Option<f64>,
    /// The causes of the next pass; of a retry, the error.
    pub causes: String,
}

impl Queue {
    pub(crate) fn state(&self) -> QueueState {
        let state = self.0.state.lock();
        QueueState {
            workers: state.workers,
            queued: state.lanes.len_of(Lane::Fast),
            queued_slow: state.lanes.len_of(Lane::Slow),
            held: state.lanes.held(),
            running: state.running.len(),
            retrying: state.retries.len(),
            delayed: state.delayed.len(),
        }
    }

    /// Returns true if a pass of the key runs, or is to run.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        let state = self.0.state.lock();
        state.lanes.contains(key) || state.retries.failures(key) > 0 || state.delayed.contains(key)
    }

    /// The states of the keys for which `is_wanted` returns true, at most this number of each lane and state.
    pub(crate) fn key_states(&self, limit: usize, is_wanted: impl Fn(&Key) -> bool) -> Vec<KeyState> {
        let (state, now, clock) = (self.0.state.lock(), Instant::now(), clock_instant(&self.0.clock));
        let wanted = |key: &Arc<Key>| is_wanted(key);
        let running = state
            .running
            .iter()
            .filter(|(key, _)| wanted(key))
            .take(limit)
            .map(|(key, since)| KeyState::new(key, "running", Some(*since), None, String::new(), now));
        let mut counts = [0; Lane::Fast as usize + 1];
        let mut has_room = |lane: Lane| {
            counts[lane as usize] += 1;
            counts[lane as usize] <= limit
        };
        let queued = state.lanes.queued().filter(|(key, lane, ..)| wanted(key) && has_room(*lane)).map(
            |(key, lane, since, causes)| {
                let name = match lane {
                    Lane::Fast => "queued",
                    Lane::Slow => "queued_slow",
                    Lane::HeldByBrake | Lane::HeldByStorm => "held",
                };
                let due = if lane == Lane::HeldByStorm { state.storms.due(key) } else { None };
                KeyState::new(key, name, Some(since), due, causes.to_string(), now)
            },
        );
        let retrying = state.retries.keys().filter(|(key, _)| wanted(key)).take(limit).map(|(key, due)| {
            KeyState::new(key, "retrying", None, due, state.retries.cause(key).to_string(), now)
        });
        let delayed = state
            .delayed
            .iter()
            .filter(|(key, _)| wanted(key))
            .take(limit)
            .map(|(key, due)| KeyState::new(key, "delayed", None, Some(due), String::new(), clock));
        running.chain(queued).chain(retrying).chain(delayed).collect()
    }
}

impl ScrapedQueue for Shared {
    fn ages(&self) -> Vec<Duration> {
        self.state.lock().running.iter().map(|(_, claimed_at)| claimed_at.elapsed()).collect()
    }

    /// Looks at each queued key, so that adding and claiming keys cost nothing. A key whose delay, backoff or storm is over
    /// counts as queued in the fast lane: only a worker that asks for its next key moves it there.
    fn oldest_queued(&self) -> [Duration; 2] {
        let (state, now, clock) = (self.state.lock(), Instant::now(), clock_instant(&self.clock));
        let mut oldest = [Duration::ZERO; 2];
        for (_, lane, queued_at, _) in state.lanes.queued() {
            let age = match lane {
                Lane::Fast => &mut oldest[0],
                Lane::Slow => &mut oldest[1],
                Lane::HeldByBrake | Lane::HeldByStorm => continue,
            };
            *age = (now - queued_at).max(*age);
        }
        let dues = [
            (clock, state.delayed.next_due()),
            (now, state.retries.next_due()),
            (now, state.storms.next_due()),
        ];
        let overdue = dues.into_iter().filter_map(|(now, due)| now.checked_duration_since(due?));
        oldest[0] = overdue.fold(oldest[0], Duration::max);
        oldest
    }
}

impl KeyState {
    /// A key that no pass follows, since the last one failed with a permanent error.
    pub(crate) fn failed(key: &Key) -> Self {
        Self::new(key, "failed", None, None, String::new(), Instant::now())
    }

    fn new(
        key: &Key,
        state: &'static str,
        since: Option<Instant>,
        due: Option<Instant>,
        causes: String,
        now: Instant,
    ) -> Self {
        let age = since.map(|since| (now - since).as_secs_f64());
        let due = due.map(|due| (due - now).as_secs_f64());
        Self { key: key.to_string(), state, age_seconds: age, due_seconds: due, causes }
    }
}

#[cfg(test)]
mod tests {
    use reknit_injection::internal::CurrentPass;

    use super::*;
    use crate::queue::Cause;

    #[tokio::test(start_paused = true)]
    async fn each_key_is_shown_with_what_it_waits_for() {
        let queue = Queue::new();
        ["a", "b"].iter().for_each(|name| queue.add(Key::new("shop", name)));
        let [running, failed] = [queue.next().await.unwrap(), queue.next().await.unwrap()];
        let hour = Duration::from_secs(3600);
        queue.retry(&failed, hour..=Duration::MAX, "no such host");
        drop(failed);
        queue.add_because(Key::new("shop", "c"), "the probe ended");
        queue.add_slow(Key::new("shop", "d"));
        queue.add_after(Key::new("shop", "e"), hour);
        let QueueState { queued, queued_slow, running: runs, retrying, delayed, .. } = queue.state();
        assert_eq!((queued, queued_slow, runs, retrying, delayed), (1, 1, 1, 1, 1));
        let mut states: Vec<_> = queue
            .key_states(9, |_| true)
            .into_iter()
            .map(|state| (state.key, state.state, state.age_seconds, state.due_seconds, state.causes))
            .collect();
        states.sort_by(|(key, ..), (other, ..)| key.cmp(other));
        let state =
            |key: &str, state, age, due, causes: &str| (key.to_owned(), state, age, due, causes.to_owned());
        let expected = [
            state("shop/a", "running", Some(0.0), None, ""),
            state("shop/b", "retrying", None, Some(3600.0), "retry 1 after: no such host"),
            state("shop/c", "queued", Some(0.0), None, "added to the queue: the probe ended"),
            state("shop/d", "queued_slow", Some(0.0), None, "added to the queue"),
            state("shop/e", "delayed", None, Some(3600.0), ""),
        ];
        assert_eq!(states, expected);
        assert_eq!(queue.key_states(9, |key| key.name == "e").len(), 1);
        assert_eq!(queue.key_states(0, |_| true).len(), 0);
        (0..100).for_each(|n| queue.add(Key::new("shop", &format!("queued-{n}"))));
        let names: Vec<_> = queue.key_states(1, |_| true).into_iter().map(|state| state.state).collect();
        for name in ["running", "queued", "queued_slow", "retrying", "delayed"] {
            assert_eq!(names.iter().filter(|state| **state == name).count(), 1, "{name}: {names:?}");
        }
        let contained = ["a", "b", "c", "d", "e", "none"].map(|name| queue.contains(&Key::new("shop", name)));
        assert_eq!(contained, [true, true, true, true, true, false]);
        drop(running);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_key_counts_from_the_moment_at_which_a_worker_could_take_it() {
        let (queue, second) = (Queue::new(), Duration::from_secs(1));
        let oldest = || queue.0.oldest_queued().map(|age| age.as_secs());
        assert_eq!(oldest(), [0, 0], "empty");
        queue.add_slow(Key::new("shop", "resynced"));
        tokio::time::advance(10 * second).await;
        queue.add(Key::new("shop", "failing"));
        tokio::time::advance(5 * second).await;
        assert_eq!(oldest(), [5, 15]);
        let failing = queue.next().await.unwrap();
        assert_eq!(oldest(), [0, 15], "a running key is not queued");
        queue.retry(&failing, 60 * second..=60 * second, "no such host");
        drop(failing);
        queue.add_after(Key::new("shop", "later"), 90 * second);
        tokio::time::advance(50 * second).await;
        assert_eq!(oldest(), [0, 65], "the retry and the delay are not over");
        tokio::time::advance(30 * second).await;
        assert_eq!(oldest(), [20, 95], "no worker has asked since the backoff ended");
        queue.add(Key::new("shop", "resynced"));
        assert_eq!(oldest(), [95, 0], "the key moved to the fast lane");
        drop(queue.next().await.unwrap());
        tokio::time::advance(10 * second).await;
        assert_eq!(oldest(), [10, 0], "since its backoff was found to be over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_key_counts_from_its_release() {
        let (queue, second) = (Queue::new(), Duration::from_secs(1));
        queue.set_brake(1);
        queue.add_slow_for(Key::new("shop", "a"), Cause::Start);
        let claimed = queue.begin_or_hold(queue.next().await.unwrap()).unwrap();
        let pass = CurrentPass::begin(&"web".into(), &claimed.key, false);
        queue.count_changes_of(&pass);
        (0..9).for_each(|_| pass.count_change());
        queue.add_slow_for(Key::new("shop", "b"), Cause::Start);
        assert!(queue.begin_or_hold(queue.next().await.unwrap()).is_none(), "the brake holds it");
        tokio::time::advance(20 * second).await;
        assert_eq!(queue.0.oldest_queued(), [Duration::ZERO; 2], "it is held");
        queue.add(Key::new("shop", "b"));
        tokio::time::advance(3 * second).await;
        assert_eq!(queue.0.oldest_queued(), [3 * second, Duration::ZERO]);
    }
}
