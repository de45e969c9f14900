//! Connections that wait for a request.
use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::connection::Connection;

/// An API server closes what was idle for 90 seconds. What has been idle for this long is used no more.
const KEPT: Duration = Duration::from_secs(45);

/// Connections that no request is on.
#[derive(Clone, Default)]
pub(super) struct Idle(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    /// The longest idle first.
    connections: Vec<(Instant, Connection)>,
    sweep: Option<JoinHandle<()>>,
}

impl Idle {
    /// The one that was used last.
    pub(super) fn take(&self) -> Option<Connection> {
        let (since, connection) = self.0.lock().connections.pop()?;
        (since.elapsed() < KEPT).then_some(connection)
    }

    /// Closes one that cannot be used again, and where there is no tokio runtime that would close it later.
    pub(super) fn keep(&self, mut connection: Connection) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !connection.is_reusable() {
            return;
        }
        let mut kept = self.0.lock();
        kept.connections.push((Instant::now(), connection));
        // With its runtime it ends before its time.
        if kept.sweep.as_ref().is_none_or(JoinHandle::is_finished) {
            kept.sweep = Some(runtime.spawn(sweep(Arc::downgrade(&self.0))));
        }
    }
}

/// Closes what is idle for too long, until nothing is left.
async fn sweep(idle: Weak<Mutex<Kept>>) {
    loop {
        sleep(KEPT).await;
        let Some(idle) = idle.upgrade() else { return };
        let mut kept = idle.lock();
        let old = kept.connections.partition_point(|(since, _)| since.elapsed() >= KEPT);
        let closed: Vec<_> = kept.connections.drain(..old).collect();
        let is_last = kept.connections.is_empty();
        if is_last {
            kept.sweep = None;
        }
        drop(kept);
        drop(closed);
        if is_last {
            return;
        }
    }
}
