//! Runs a controller from its first list to its last pass.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures::future::join_all;
use reknit_apis::Key;
use reknit_injection::Shutdown;
use tokio::{task::JoinSet, time::Instant};

use super::Controller;
use crate::{
    Outcome, Result,
    leader::{Leader, Leadership},
    outcome::Next,
    queue::Claimed,
};

/// What a controller is told when it runs.
#[derive(Clone)]
pub struct Run {
    /// Which keys it may write.
    pub leadership: Leadership,
    /// When it has to stop.
    pub stop: Shutdown,
    /// How long the passes that run then may still take.
    pub drain: Duration,
    /// How many workers, where that is not left to the controller.
    pub workers: Option<usize>,
}

/// How a controller stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// How many passes were still running at the end, and were dropped.
    pub dropped: usize,
}

impl Controller {
    /// Waits for the first list of each of its informers, then works until it is told to stop: it takes no more
    /// keys then, lets the passes that run come to their end for as long as it may, and drops the rest.
    ///
    /// Somebody else starts the informers. Dropping the future drops every pass at once.
    pub async fn run(self, run: Run) -> Drained {
        let Run { leadership, stop, drain, workers } = run;
        tokio::select! {
            () = self.synced() => {}
            () = stop.wait() => return Drained::default(),
        }
        let workers = workers.unwrap_or(self.parts.workers).max(1);
        tracing::info!("knative.dev/controller" = self.parts.name, workers, "the controller starts");
        let controller = Arc::new(self);
        let mut tasks = JoinSet::new();
        for _ in 0..workers {
            tasks.spawn(controller.clone().work(leadership.clone()));
        }
        let mut following = pin!(controller.follow(leadership.clone()));
        tokio::select! {
            () = stop.wait() => {}
            () = controller.resync() => {}
            () = &mut following => {}
            () = replace(&mut tasks, || controller.clone().work(leadership.clone())) => {}
        }
        controller.drain(tasks, drain, following).await
    }

    async fn synced(&self) {
        join_all(self.parts.feeds.iter().map(|feed| feed.synced())).await;
    }

    /// One worker: a key at a time, until the queue is closed.
    async fn work(self: Arc<Self>, leadership: Leadership) {
        while let Some(claimed) = self.parts.queue.next().await {
            self.work_on(&claimed, &leadership).await;
            drop(claimed);
            tokio::task::consume_budget().await; // many short passes in a row leave others their turn
        }
    }

    /// A pass, dropped where it stands if its key is no longer led here.
    async fn work_on(&self, claimed: &Claimed, leadership: &Leadership) {
        if !leadership.leads(claimed) {
            let result = self.pass(claimed, false).await;
            self.put_off(claimed, leadership);
            return self.conclude(claimed, &result);
        }
        let start = Instant::now();
        tokio::select! {
            biased;
            () = leadership.lost(claimed) => {
                self.metrics.ended("lost", start.elapsed());
                tracing::info!("knative.dev/controller" = self.parts.name, key = %**claimed, "lost the lead in a pass: it is dropped");
                self.put_off(claimed, leadership);
                self.parts.queue.forget(claimed);
                self.parts.per_key.drop_of(claimed);
            }
            result = self.pass(claimed, true) => self.conclude(claimed, &result),
        }
    }

    /// What becomes of the key. That somebody was faster passes by itself, so it is retried even where the error was
    /// marked permanent.
    fn conclude(&self, claimed: &Claimed, result: &Result<Outcome>) {
        let queue = &self.parts.queue;
        match result {
            Ok(outcome) => {
                queue.forget(claimed);
                if let Next::After(wait) = outcome.next() {
                    queue.add_after((**claimed).clone(), wait);
                }
            }
            Err(error) if error.is_permanent() && !error.is_conflict() => queue.forget(claimed),
            Err(error) => queue.retry(claimed, error.latest_retry()),
        }
    }

    /// Looks at every key once in a while. Not all controllers of all processes at the same time.
    async fn resync(&self) {
        let enqueue_all = self.parts.enqueue_all();
        while let Some(wait) = jittered(self.parts.resync) {
            tokio::time::sleep(wait).await;
            enqueue_all();
        }
        std::future::pending().await
    }

    /// Looks at every key of a bucket that is led from now on.
    async fn follow(&self, mut leadership: Leadership) {
        loop {
            let change = leadership.changed().await;
            tracing::info!("knative.dev/controller" = self.parts.name, gained = ?change.gained, lost = ?change.lost, "leadership changed");
            self.parts
                .per_key
                .drop_where(|key| change.lost.iter().any(|bucket| leadership.owns(bucket, key)));
            if !change.gained.is_empty() {
                self.promote(&change.gained, &leadership);
            }
        }
    }

    fn promote(&self, gained: &[Arc<str>], leadership: &Leadership) {
        let is_gained = |key: &Key| gained.iter().any(|bucket| leadership.owns(bucket, key));
        let promoted = self.pass.promoted().into_iter().filter(is_gained);
        let put_off = gained.iter().filter_map(|bucket| self.put_off.lock().remove(bucket)).flatten();
        promoted.chain(put_off).for_each(|key| self.parts.queue.add_slow(key));
    }

    /// What falls due while nobody is known to lead the key is done when this process does. Somebody else who leads it
    /// looks at what his informers hold.
    fn put_off(&self, key: &Key, leadership: &Leadership) {
        let Some(bucket) = leadership.bucket(key) else { return };
        let mut put_off = self.put_off.lock(); // before looking: a promotion takes what is in it after the lead has come
        match leadership.leader(key) {
            Leader::ThisProcess => self.parts.queue.add(key.clone()),
            Leader::Other => drop(put_off.remove(bucket)),
            Leader::Unknown { led_before } if self.pass.is_owed(key, led_before) => {
                put_off.entry(bucket.clone()).or_default().insert(key.clone());
            }
            Leader::Unknown { .. } => {}
        }
    }

    /// The lead may be lost while passes come to their end, so it is followed meanwhile.
    async fn drain(
        &self,
        mut tasks: JoinSet<()>,
        limit: Duration,
        following: Pin<&mut impl Future<Output = ()>>,
    ) -> Drained {
        self.parts.queue.close();
        let all_ended = async { while tasks.join_next().await.is_some() {} };
        let in_time = tokio::select! {
            ended = tokio::time::timeout(limit, all_ended) => ended.is_ok(),
            () = following => false,
        };
        if in_time {
            return Drained::default();
        }
        let dropped = self.parts.queue.running();
        for (key, since) in &dropped {
            tracing::warn!("knative.dev/controller" = self.parts.name, %key, age = ?since.elapsed(), "the pass is dropped: it does not end");
        }
        tasks.shutdown().await;
        Drained { dropped: dropped.len() }
    }
}

/// Until the next resync. None where there is to be none: zero, as in client-go, or longer than can be counted.
fn jittered(resync: Duration) -> Option<Duration> {
    let wait = resync.as_secs_f64() * rand::random_range(0.9..1.1);
    Duration::try_from_secs_f64(wait).ok().filter(|wait| !wait.is_zero())
}

/// A worker ends only where dropping a user's future panics; another takes its place. Never resolves.
async fn replace<F: Future<Output = ()> + Send + 'static>(tasks: &mut JoinSet<()>, worker: impl Fn() -> F) {
    while tasks.join_next().await.is_some() {
        tracing::error!("a worker ended, and is replaced");
        tasks.spawn(worker());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resync_that_is_zero_or_endless_is_none_and_another_comes_within_a_tenth() {
        assert_eq!(jittered(Duration::ZERO), None);
        assert!(jittered(Duration::MAX).is_none_or(|wait| wait > Duration::MAX / 2));
        let wait = jittered(Duration::from_secs(100)).unwrap().as_secs_f64();
        assert!((90.0..=110.0).contains(&wait), "{wait}");
    }
}
