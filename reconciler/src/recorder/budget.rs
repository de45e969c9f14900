//! How many requests for events about one object a controller may make, as client-go has it.

use std::{collections::HashMap, mem, time::Duration};

use tokio::time::Instant;

use super::series::Source;

/// So many at once,
const BURST: u32 = 25;
/// and then one after each of these.
const EACH: Duration = Duration::from_secs(300);
/// Of how many sources the older half is forgotten.
const CAPACITY: usize = 4096;

/// What each source has spent lately, of as many as there is room for.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    recent: HashMap<Source, Spent>,
    before: HashMap<Source, Spent>,
}

/// When all of it has been regained.
type Spent = Instant;

impl Budgets {
    /// Whether the source may make one more request, which is counted then.
    pub(super) fn spend(&mut self, source: &Source) -> bool {
        let now = Instant::now();
        let spent =
            self.recent.get(source).or_else(|| self.before.get(source)).map_or(now, |spent| now.max(*spent));
        let may = spent <= now + EACH * (BURST - 1);
        self.note(source, if may { spent + EACH } else { spent });
        may
    }

    fn note(&mut self, source: &Source, spent: Spent) {
        if self.recent.len() >= CAPACITY / 2 {
            self.before = mem::take(&mut self.recent);
        }
        self.recent.insert(source.clone(), spent);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.recent.len() + self.before.len()
    }
}
