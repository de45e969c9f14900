//! Connections that wait for a request.
use std::{
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::connection::Connection;

/// An API server closes what was idle for 90 seconds. What has been idle for this long is closed before it is twice that.
const KEPT: Duration = Duration::from_secs(45);

/// Connections that no request is on.
#[derive(Clone, Default)]
pub(super) struct Idle(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    connections: Vec<(Instant, Connection)>,
    is_swept: bool,
}

impl Idle {
    /// The one that was used last.
    pub(super) fn take(&self) -> Option<Connection> {
        Some(self.0.lock().connections.pop()?.1)
    }

    /// One that cannot be used again is closed. To be called within a tokio runtime.
    pub(super) fn keep(&self, mut connection: Connection) {
        if !connection.is_reusable() {
            return;
        }
        let mut kept = self.0.lock();
        kept.connections.push((Instant::now(), connection));
        if !mem::replace(&mut kept.is_swept, true) {
            tokio::spawn(sweep(Arc::downgrade(&self.0)));
        }
    }
}

/// Ends when there is nothing left to close.
async fn sweep(idle: Weak<Mutex<Kept>>) {
    loop {
        sleep(KEPT).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut kept = idle.lock();
        kept.connections.retain(|(since, _)| since.elapsed() < KEPT);
        if kept.connections.is_empty() {
            kept.is_swept = false;
            return;
        }
    }
}
