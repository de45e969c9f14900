//! The number of event requests that one controller may make about one object, as in client-go.

use std::{collections::HashMap, mem, time::Duration};

use tokio::time::Instant;

use super::series::Source;

/// The requests of a full budget.
const BURST: u32 = 25;
/// The time that refills the budget by one request.
const REFILL: Duration = Duration::from_secs(300);
/// The number of sources to remember. The older half is forgotten when it is reached.
const CAPACITY: usize = 4096;

/// The budgets of the most recent sources, each as the time at which it is full again.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    pub(super) recent: HashMap<Source, Instant>,
    pub(super) before: HashMap<Source, Instant>,
}

impl Budgets {
    /// Spends one request of the source's budget. Returns false if none is left.
    pub(super) fn spend(&mut self, source: &Source) -> bool {
        let now = Instant::now();
        let full_at =
            self.recent.get(source).or_else(|| self.before.get(source)).map_or(now, |at| now.max(*at));
        let may = full_at <= now + REFILL * (BURST - 1);
        if self.recent.len() >= CAPACITY / 2 {
            self.before = mem::take(&mut self.recent);
        }
        self.recent.insert(source.clone(), if may { full_at + REFILL } else { full_at });
        may
    }
}
