//! The health of a webhook. A webhook is stuck if code of a Kind, such as its validation, does not return.

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::limits::Limits;

/// The multiple of [`Limits::response_timeout`] after which running code counts as
/// stuck.
const STUCK_FACTOR: u32 = 3;

/// The health of a webhook. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health {
    running: RunningCode,
    stuck_after: Duration,
}

impl Health {
    pub(crate) fn new(running: RunningCode, limits: &Limits) -> Self {
        Self { running, stuck_after: limits.response_timeout.saturating_mul(STUCK_FACTOR) }
    }

    /// Returns how long the oldest running code of a Kind has run, if that exceeds three times
    /// [`Limits::response_timeout`]. Its request has long been answered with 504, but
    /// the code keeps its share of [`Limits::decoded_bodies`] until the process ends.
    pub fn stuck_for(&self) -> Option<Duration> {
        let oldest_start = self.running.lock().iter().find_map(Weak::upgrade)?;
        Some(oldest_start.elapsed()).filter(|age| *age > self.stuck_after)
    }

    /// Records that code starts now, and that it runs until the returned start time is dropped.
    pub(crate) fn track(&self) -> Arc<Instant> {
        let (start, mut running) = (Arc::new(Instant::now()), self.running.lock());
        running.retain(|start| start.strong_count() > 0);
        running.push(Arc::downgrade(&start));
        start
    }
}

/// The start times of running code of Kinds, oldest first.
pub(crate) type RunningCode = Arc<Mutex<Vec<Weak<Instant>>>>;
