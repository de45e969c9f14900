//! A gate that holds responses or watch lines until the test lets them through.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use super::TIMEOUT;

/// A gate, initially closed. Arrivals pass in the order in which they came.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    arrived: watch::Sender<usize>,
    /// One permit for each arrival that may pass.
    permits: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { arrived: watch::Sender::default(), permits: Arc::new(Semaphore::new(0)) }
    }
}

impl Gate {
    /// Called by the proxy: arrives at the gate, and waits until the test lets this arrival through.
    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|arrived| *arrived += 1);
        self.permits.acquire().await.expect("the semaphore is never closed").forget();
    }

    /// Waits until there have been `total` arrivals since the gate was created. Fails the test after [`TIMEOUT`].
    pub(crate) async fn wait_for_arrivals(&self, total: usize) {
        let mut arrived = self.arrived.subscribe();
        let reached = tokio::time::timeout(TIMEOUT, arrived.wait_for(|arrived| *arrived >= total)).await;
        assert!(reached.is_ok(), "only {} of {total} arrivals within {TIMEOUT:?}", *self.arrived.borrow());
    }

    /// Lets one more arrival through: the longest waiting, or, if none waits, the next to come.
    pub(crate) fn let_one_through(&self) {
        self.permits.add_permits(1);
    }

    /// Lets all arrivals through from now on.
    pub(crate) fn open(&self) {
        self.permits.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}
