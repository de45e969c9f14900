//! Memory budgets for the bodies of requests and for the work on them.

use std::{net::IpAddr, sync::Arc, time::Duration};

use reknit_server::Turns;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

const KIB: usize = 1024;
/// The time that each client may take for a body while other bodies wait for room, besides that for its bytes.
const PATIENCE: Duration = Duration::from_secs(1);
/// The bytes for which a client may take a further millisecond.
const BYTES_PER_MILLISECOND: usize = 8 * KIB;
/// The largest body that counts as small, in KiB.
const SMALL_BODY_KIB: usize = 64;

/// A limit on the bytes of bodies that are held at once. Bytes count as they arrive.
///
/// One half is for the first 64 KiB of every body, and the other half for the bytes beyond, so small bodies do not wait
/// for large bodies. While a half is full, one body at a time may exceed it. Otherwise several incomplete bodies could
/// fill it and wait for each other forever.
///
/// Clients take turns. Bodies that arrive slowly give way to those that wait for room: else a client could fill a half with
/// bodies that it does not finish.
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
    /// The line of bodies that wait for room.
    turns: Turns,
    /// True while a body waits for room.
    is_needed: watch::Sender<bool>,
}

/// The bytes that one body of a client holds, released on drop.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    client: IpAddr,
    count: usize,
    small: HeldPermits,
    large: HeldPermits,
}

#[derive(Debug, Default)]
struct HeldPermits {
    bytes: Option<OwnedSemaphorePermit>,
    excess: Option<OwnedSemaphorePermit>,
}

impl HeldBytes {
    pub(crate) fn of(client: IpAddr) -> Self {
        Self { client, count: 0, small: HeldPermits::default(), large: HeldPermits::default() }
    }
}

impl BodyBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        let half = || BudgetHalf {
            bytes: semaphore(bytes / 2),
            excess: semaphore(1),
            turns: Turns::default(),
            is_needed: watch::Sender::default(),
        };
        Self { small: half(), large: half() }
    }

    /// Adds bytes that have arrived, and waits while there is no room for them.
    pub(crate) async fn add(&self, held: &mut HeldBytes, bytes: usize) {
        let small = bytes.min((SMALL_BODY_KIB * KIB).saturating_sub(held.count));
        held.count += bytes;
        self.small.add(held.client, &mut held.small, small).await;
        self.large.add(held.client, &mut held.large, bytes - small).await;
    }

    /// Waits until a body has to give way: its client has taken too long for it, and other bodies wait for the room that it
    /// holds. `taken` is the time for which the body has waited for its client so far.
    pub(crate) async fn wait_until_overdue(&self, held: &HeldBytes, taken: Duration) {
        let patience = PATIENCE + Duration::from_millis((held.count / BYTES_PER_MILLISECOND) as u64);
        tokio::time::sleep(patience.saturating_sub(taken)).await;
        tokio::select! {
            () = self.small.wait_until_needed(&held.small) => {}
            () = self.large.wait_until_needed(&held.large) => {}
        }
    }
}

impl BudgetHalf {
    /// Waits until other bodies wait for the room that a body holds. Never, if it holds none.
    async fn wait_until_needed(&self, held: &HeldPermits) {
        if held.bytes.is_none() && held.excess.is_none() {
            return std::future::pending().await;
        }
        let _ = self.is_needed.subscribe().wait_for(|is_needed| *is_needed).await;
    }

    async fn add(&self, client: IpAddr, held: &mut HeldPermits, bytes: usize) {
        if bytes == 0 || held.excess.is_some() {
            return;
        }
        let _turn = self.turns.wait(client).await;
        if let Ok(permit) = self.bytes.clone().try_acquire_many_owned(permits(bytes)) {
            return held.merge(permit);
        }
        let _need = Need::new(&self.is_needed);
        tokio::select! {
            biased;
            permit = acquire(&self.bytes, bytes) => permit.into_iter().for_each(|permit| held.merge(permit)),
            permit = acquire(&self.excess, 1) => held.excess = permit,
        }
    }
}

impl HeldPermits {
    fn merge(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.bytes {
            Some(bytes) => bytes.merge(permit),
            bytes => *bytes = Some(permit),
        }
    }
}

/// A body that waits for room, until this is dropped.
struct Need<'a>(&'a watch::Sender<bool>);

impl<'a> Need<'a> {
    fn new(is_needed: &'a watch::Sender<bool>) -> Self {
        is_needed.send_replace(true);
        Self(is_needed)
    }
}

impl Drop for Need<'_> {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

/// A limit on the bytes of bodies that are decoded and processed at once.
///
/// A body counts for 64 KiB at least and for half of the budget at most. All large bodies share one half, so small
/// bodies do not wait for them. Clients take turns.
#[derive(Clone)]
pub(crate) struct WorkBudget {
    all: Shared,
    large: Shared,
    /// Half of the budget, in KiB.
    half: usize,
}

/// Permits for which clients wait in turns.
#[derive(Clone)]
struct Shared {
    permits: Arc<Semaphore>,
    turns: Turns,
}

impl Shared {
    fn new(permits: usize) -> Self {
        Self { permits: semaphore(permits), turns: Turns::default() }
    }

    async fn acquire(&self, client: IpAddr, count: usize) -> Option<OwnedSemaphorePermit> {
        let _turn = self.turns.wait(client).await;
        acquire(&self.permits, count).await
    }
}

impl WorkBudget {
    pub(crate) fn new(bytes: usize) -> Self {
        let half = kib(bytes / 2);
        Self { all: Shared::new(kib(bytes)), large: Shared::new(half), half }
    }

    /// Waits until a body of this size may be processed. The body counts until the permits are dropped.
    pub(crate) async fn acquire(&self, client: IpAddr, bytes: usize) -> [Option<OwnedSemaphorePermit>; 2] {
        let count = kib(bytes).min(self.half);
        let large = match bytes > SMALL_BODY_KIB * KIB {
            true => self.large.acquire(client, count).await,
            false => None,
        };
        [self.all.acquire(client, count).await, large]
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
    semaphore.clone().acquire_many_owned(permits(count)).await.ok()
}

fn permits(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::time::{Instant, timeout};

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn only_one_body_at_a_time_can_exceed_a_full_budget() {
        let budget = BodyBudget::new(400 * KIB);
        let (mut first, mut second) = (HeldBytes::of(CLIENT), HeldBytes::of(CLIENT));
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
        let (mut large, mut other_large) = (HeldBytes::of(CLIENT), HeldBytes::of(CLIENT));
        budget.add(&mut large, 300 * KIB).await;
        assert!(budget.add(&mut other_large, 300 * KIB).now_or_never().is_none());
        assert!(budget.add(&mut HeldBytes::of(CLIENT), 64 * KIB).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn interleaved_bodies_do_not_deadlock() {
        let budget = BodyBudget::new(128 * KIB);
        let bodies = (0..20).map(|_| async {
            let mut held = HeldBytes::of(CLIENT);
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
