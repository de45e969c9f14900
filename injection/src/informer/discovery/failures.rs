//! The documents of the discovery whose last request failed.

use kube::core::GroupVersionKind;
use parking_lot::Mutex;
use reknit_apis::internal::HashMap;
use tokio::time::Instant;

use super::{NOT_FOUND_FOR, TIMEOUT, UNUSED_AFTER, Unresolved};
use crate::reflector::Failure;

/// The documents whose last request failed, by their paths. The health of a document is one fact for all Kinds and
/// passes: while it fails, at most one pass waits for another request, and the others get the last failure at once.
#[derive(Default)]
pub(super) struct Failures(Mutex<HashMap<String, Failed>>);

struct Failed {
    failure: Failure,
    /// The time from which the next pass requests the document again.
    until: Instant,
}

impl Failures {
    /// Returns the last failure of a document, as the error of this Kind. `None` if the caller is to request the document.
    /// Until that request ends, the others still get the failure.
    pub(super) fn of(&self, path: &str, kind: &GroupVersionKind) -> Option<Unresolved> {
        let (mut failures, now) = (self.0.lock(), Instant::now());
        let failed = failures.get_mut(path)?;
        if failed.until <= now {
            failed.until = now + TIMEOUT + NOT_FOUND_FOR;
            return None;
        }
        Some(Unresolved::new(kind, failed.failure.clone()))
    }

    /// Records the end of a request.
    pub(super) fn record<T>(&self, path: &str, answer: &Result<T, Unresolved>) {
        let (mut failures, now) = (self.0.lock(), Instant::now());
        match answer {
            Ok(_) => drop(failures.remove(path)),
            Err(Unresolved { source, .. }) => {
                failures.retain(|_, failed| now < failed.until + UNUSED_AFTER);
                failures.insert(path.into(), Failed { failure: source.clone(), until: now + NOT_FOUND_FOR });
            }
        }
    }
}
