//! How many bytes requests may have at once.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::server::limits::Limits;

const KIB: usize = 1024;
/// What the smallest request counts for, in KiB. What has more is large.
const LEAST: usize = 64;

/// So many bytes. Large requests have half of them, and wait for each other first, so that no small one waits behind them.
#[derive(Clone)]
pub(crate) struct Budget {
    all: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// What large requests have together, in KiB.
    half: usize,
    /// What one request counts for at the most, in KiB.
    most: usize,
}

/// What a request takes of a budget, until it is dropped.
pub(crate) struct Share {
    all: OwnedSemaphorePermit,
    large: OwnedSemaphorePermit,
}

impl Budget {
    /// For bodies: a request counts for all of it at the most, since so many bytes are held.
    pub(crate) fn of_bodies(limits: &Limits) -> Self {
        Self::new(limits.bodies, limits.bodies)
    }

    /// For what is decoded: a request counts for half of it at the most, so that small ones find room beside it.
    pub(crate) fn of_work(limits: &Limits) -> Self {
        Self::new(limits.work, limits.work / 2)
    }

    fn new(bytes: usize, most: usize) -> Self {
        let semaphore = |bytes| Arc::new(Semaphore::new(kib(bytes)));
        Self { all: semaphore(bytes), large: semaphore(bytes / 2), half: kib(bytes / 2), most: kib(most) }
    }

    /// Waits for room for so many bytes.
    pub(crate) async fn take(&self, bytes: usize) -> Result<Share, AcquireError> {
        let (all, large) = self.parts(bytes);
        let large = self.large.clone().acquire_many_owned(large).await?;
        Ok(Share { all: self.all.clone().acquire_many_owned(all).await?, large })
    }

    /// Gives back what so few bytes do not take.
    pub(crate) fn shrink(&self, share: &mut Share, bytes: usize) {
        let (all, large) = self.parts(bytes);
        for (permit, needed) in [(&mut share.all, all), (&mut share.large, large)] {
            drop(permit.split(permit.num_permits().saturating_sub(needed as usize)));
        }
    }

    /// What so many bytes take of the whole, and of what large requests have.
    fn parts(&self, bytes: usize) -> (u32, u32) {
        let count = |most: usize| u32::try_from(kib(bytes).min(most)).unwrap_or(u32::MAX);
        (count(self.most), if bytes > LEAST * KIB { count(self.half) } else { 0 })
    }
}

/// As a semaphore can count it.
fn kib(bytes: usize) -> usize {
    bytes.div_ceil(KIB).clamp(LEAST, Semaphore::MAX_PERMITS)
}
