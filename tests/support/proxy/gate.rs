//! A gate that holds responses or watch lines until the test lets them through.

use tokio::sync::watch;

use super::TIMEOUT;

/// A gate, initially closed. Arrivals pass in the order in which they came.
#[derive(Clone, Debug)]
pub(crate) struct Gate(watch::Sender<Counts>);

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    arrived: usize,
    let_through: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self(watch::channel(Counts::default()).0)
    }
}

impl Gate {
    /// Called by the proxy: arrives at the gate, and waits until the test lets this arrival through.
    pub(crate) async fn pass(&self) {
        let mut number = 0;
        self.0.send_modify(|counts| {
            number = counts.arrived;
            counts.arrived += 1;
        });
        let mut counts = self.0.subscribe();
        counts.wait_for(|counts| counts.let_through > number).await.expect("the gate holds its own sender");
    }

    /// Waits until there have been `total` arrivals since the gate was created. Fails the test after [`TIMEOUT`].
    pub(crate) async fn wait_for_arrivals(&self, total: usize) {
        let mut counts = self.0.subscribe();
        let reached = tokio::time::timeout(TIMEOUT, counts.wait_for(|counts| counts.arrived >= total)).await;
        assert!(reached.is_ok(), "fewer than {total} arrivals within {TIMEOUT:?}: {:?}", *self.0.borrow());
    }

    /// Lets one more arrival through: the longest waiting, or, if none waits, the next to come.
    pub(crate) fn let_one_through(&self) {
        self.0.send_modify(|counts| counts.let_through = counts.let_through.saturating_add(1));
    }

    /// Lets all arrivals through from now on.
    pub(crate) fn open(&self) {
        self.0.send_modify(|counts| counts.let_through = usize::MAX);
    }
}
