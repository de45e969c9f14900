//! The heartbeat of the runtime that runs passes.

use std::{convert::Infallible, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

const INTERVAL: Duration = Duration::from_secs(1);

/// The heartbeat of a runtime, which is silent while blocking code occupies all of its threads. Clones are the same
/// heartbeat.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<Mutex<Instant>>);

impl Default for Heartbeat {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Heartbeat {
    /// Beats every second, in the runtime that polls this future. Never resolves.
    pub async fn beat(self) -> Infallible {
        loop {
            *self.0.lock() = Instant::now();
            sleep(INTERVAL).await;
        }
    }

    /// Returns the time for which the heartbeat is overdue.
    pub fn silence(&self) -> Duration {
        self.0.lock().elapsed().saturating_sub(INTERVAL)
    }
}
