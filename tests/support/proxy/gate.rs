//! A gate that holds requests or watch events until the test lets them through.

use tokio::sync::watch;

use super::SOON;

/// The number of arrivals and the number of those that may pass. They pass in the order of arrival.
#[derive(Clone, Debug)]
pub(crate) struct Gate(watch::Sender<Count>);

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    arrived: usize,
    let_through: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self(watch::channel(Count::default()).0)
    }
}

impl Gate {
    /// Arrives at the gate, and waits until it may pass.
    pub(crate) async fn pass(&self) {
        let mut number = 0;
        self.0.send_modify(|count| {
            number = count.arrived;
            count.arrived += 1;
        });
        let mut count = self.0.subscribe();
        count.wait_for(|count| count.let_through > number).await.expect("the gate holds its own sender");
    }

    /// Waits until there were `n` arrivals in all, and fails the test if there are fewer.
    pub(crate) async fn arrived(&self, n: usize) {
        let mut count = self.0.subscribe();
        let came = tokio::time::timeout(SOON, count.wait_for(|count| count.arrived >= n)).await;
        assert!(came.is_ok(), "waited {SOON:?} for {n} at the gate: {:?}", *self.0.borrow());
    }

    /// Lets the next arrival through, whether it waits already or is still to come.
    pub(crate) fn let_one_through(&self) {
        self.0.send_modify(|count| count.let_through = count.let_through.saturating_add(1));
    }

    /// Opens the gate for all arrivals.
    pub(crate) fn open(&self) {
        self.0.send_modify(|count| count.let_through = usize::MAX);
    }
}
