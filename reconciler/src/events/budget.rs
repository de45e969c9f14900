//! A token bucket for each controller and object that limits event requests, like client-go's
//! `EventSourceObjectSpamFilter`.

use std::{mem, time::Duration};

use reknit_apis::internal::HashMap;
use tokio::time::Instant;

use super::series::SpamKey;

/// The number of requests that a full bucket allows at once.
const BURST: u32 = 25;
/// The interval after which one more request is allowed.
const REFILL: Duration = Duration::from_secs(300);
/// The maximum number of buckets. When `recent` holds half of them, it replaces `previous`, whose buckets are dropped.
const CAPACITY: usize = 4096;

/// Token buckets in two generations. Each bucket is stored as the time at which it will be full again.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    pub(super) recent: HashMap<SpamKey, Instant>,
    pub(super) previous: HashMap<SpamKey, Instant>,
}

impl Budgets {
    /// Takes one token from the bucket of this controller and object. Returns false if the bucket is empty.
    pub(super) fn spend(&mut self, spam_key: &SpamKey) -> bool {
        let now = Instant::now();
        let full_at =
            self.recent.get(spam_key).or_else(|| self.previous.get(spam_key)).map_or(now, |at| now.max(*at));
        // Each missing token moves `full_at` one interval into the future. A token is left while fewer than BURST
        // tokens are missing.
        let is_allowed = full_at <= now + REFILL * (BURST - 1);
        if self.recent.len() >= CAPACITY / 2 {
            self.previous = mem::take(&mut self.recent);
        }
        self.recent.insert(spam_key.clone(), if is_allowed { full_at + REFILL } else { full_at });
        is_allowed
    }
}
