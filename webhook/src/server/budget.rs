//! Memory budgets for the bodies of requests and for the work on them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const KIB: usize = 1024;
/// The largest body that counts as small, in KiB.
const SMALL_BODY_KIB: usize = 64;

/// A limit on the bytes of bodies that are held at once. Bytes count as they arrive.
///
/// One half is for the first 64 KiB of every body, and the other half for the bytes beyond, so small bodies do not wait
/// for large bodies. While a half is full, one body at a time may exceed it. Otherwise several incomplete bodies could
/// fill it and wait for each other forever.
#[derive(Clone)]
pub(crate) struct BodyBudget {
    small: BudgetHalf,
    large: BudgetHalf,
}

#[derive(Clone)]
struct BudgetHalf {
    bytes: Arc<Semaphore>,
    /// The single permit to exceed this half.
    excess: Arc<Semaphore>,
}

/// The bytes that one body holds, released on drop.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes {
    count: usize,
    small: HeldPermits,
    large: HeldPermits,
}

#[derive(Debug, Default)]
struct HeldPermits {
    bytes: Option<OwnedSemaphorePermit>,
    excess: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        let half = || BudgetHalf { bytes: semaphore(bytes / 2), excess: semaphore(1) };
        Self { small: half(), large: half() }
    }

    /// Adds bytes that have arrived, and waits while there is no room for them.
    pub(crate) async fn add(&self, held: &mut HeldBytes, bytes: usize) {
        let small = bytes.min((SMALL_BODY_KIB * KIB).saturating_sub(held.count));
        held.count += bytes;
        self.small.add(&mut held.small, small).await;
        self.large.add(&mut held.large, bytes - small).await;
    }
}

impl BudgetHalf {
    async fn add(&self, held: &mut HeldPermits, bytes: usize) {
        if bytes == 0 || held.excess.is_some() {
            return;
        }
        tokio::select! {
            biased;
            permit = acquire(&self.bytes, bytes) => match (&mut held.bytes, permit) {
                (Some(bytes), Some(permit)) => bytes.merge(permit),
                (bytes, permit) => *bytes = permit,
            },
            permit = acquire(&self.excess, 1) => held.excess = permit,
        }
    }
}

/// A limit on the bytes of bodies that are decoded and processed at once.
///
/// A body counts for 64 KiB at least and for half of the budget at most. All large bodies share one half, so small
/// bodies do not wait for them.
#[derive(Clone)]
pub(crate) struct WorkBudget {
    all: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Half of the budget, in KiB.
    half: usize,
}

impl WorkBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        let half = kib(bytes / 2);
        Self { all: semaphore(kib(bytes)), large: semaphore(half), half }
    }

    /// Waits until a body of this size may be processed. The body counts until the permits are dropped.
    pub(crate) async fn acquire(&self, bytes: usize) -> [Option<OwnedSemaphorePermit>; 2] {
        let count = kib(bytes).min(self.half);
        let large = acquire(&self.large, if bytes > SMALL_BODY_KIB * KIB { count } else { 0 }).await;
        [acquire(&self.all, count).await, large]
    }
}

/// Converts to KiB, rounded up and at least 64: smaller bodies count for 64 KiB.
fn kib(bytes: usize) -> usize {
    bytes.div_ceil(KIB).max(SMALL_BODY_KIB)
}

fn semaphore(permits: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)))
}

/// Acquires permits. Never returns `None`, since no semaphore is closed.
async fn acquire(semaphore: &Arc<Semaphore>, count: usize) -> Option<OwnedSemaphorePermit> {
    semaphore.clone().acquire_many_owned(u32::try_from(count).unwrap_or(u32::MAX)).await.ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test]
    async fn only_one_body_at_a_time_can_exceed_a_full_budget() {
        let budget = BodyBudget::new(400 * KIB);
        let (mut first, mut second) = (HeldBytes::default(), HeldBytes::default());
        budget.add(&mut first, 200 * KIB).await;
        budget.add(&mut second, 128 * KIB).await;
        budget.add(&mut first, 100 * KIB).await;
        assert!(
            budget.add(&mut second, KIB).now_or_never().is_none(),
            "a second body must not exceed the budget"
        );
        budget.add(&mut first, 1_000 * KIB).await;
        drop(first);
        assert!(budget.add(&mut second, 128 * KIB).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_small_body_does_not_wait_for_large_ones() {
        let budget = BodyBudget::new(400 * KIB);
        let (mut large, mut other_large) = (HeldBytes::default(), HeldBytes::default());
        budget.add(&mut large, 300 * KIB).await;
        assert!(budget.add(&mut other_large, 300 * KIB).now_or_never().is_none());
        assert!(budget.add(&mut HeldBytes::default(), 64 * KIB).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn interleaved_bodies_do_not_deadlock() {
        let budget = BodyBudget::new(128 * KIB);
        let bodies = (0..20).map(|_| async {
            let mut held = HeldBytes::default();
            for _ in 0..10 {
                budget.add(&mut held, 16 * KIB).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            held.count
        });
        let start = Instant::now();
        let held = timeout(Duration::from_secs(10), futures::future::join_all(bodies)).await;
        assert_eq!(held.unwrap(), [160 * KIB; 20], "after {:?}", start.elapsed());
    }
}
