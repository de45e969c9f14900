//! Finds other processes of the component that share the leases of a controller, and select other objects.
//!
//! A bucket is led by one process, which reconciles only what it selects. So nobody reconciles the keys of the bucket
//! that only another process selects.

use reknit_injection::internal::LogLimit;
use tokio::time::Instant;
use tracing::warn;

use crate::{candidate::Candidate, lease::Announcement, ring::fnv};

/// The number of characters that are left of a long text.
const KEPT: usize = 200;
/// The maximum number of characters of an announced text: those that are left, and the hash.
const MAX_LENGTH: usize = KEPT + "… (hash 0123456789abcdef)".len() - "…".len() + 1;

/// Cuts the text of a selection that is too long for an announcement, so that it ends with its hash. A text that was cut
/// stays as it is.
pub(crate) fn shorten(selects: &str) -> String {
    if selects.chars().nth(MAX_LENGTH).is_none() {
        return selects.into();
    }
    let kept: String = selects.chars().take(KEPT).collect();
    format!("{kept}… (hash {:016x})", fnv(&[selects]))
}

/// Compares what this process selects with what the other members select.
#[derive(Default)]
pub(crate) struct Selections {
    /// The last member and controller that were logged.
    log_limit: LogLimit<(String, String)>,
}

impl Selections {
    /// Logs a warning, at most once a minute, if another member has run the same controller with another selection for
    /// longer than a lease lasts. A rollout that changes the selection is over by then, or lasts so long that it matters.
    pub(crate) fn compare(&mut self, candidate: &Candidate, own: &Announcement) {
        let (leases, now) = (candidate.watch.read(), Instant::now());
        for (member, other, _) in leases.live_members(now) {
            let is_new = now - other.joined < candidate.config.lease_duration;
            let Some(found) = own.find_other_selection(&other.announcement).filter(|_| !is_new) else {
                continue;
            };
            if self.log_limit.allows(&(member.to_owned(), found.controller.to_owned())) {
                warn!(
                    "knative.dev/controller" = found.controller,
                    selects = found.own,
                    other = member,
                    other_selects = found.theirs,
                    "another process shares the Leases of this controller, and selects other objects: what only one of them \
                     selects may stay without a reconcile; set LEADERELECTION_COMPONENT for one of the two Deployments, or \
                     end the rollout that changes the selection"
                );
            }
            return;
        }
    }
}
