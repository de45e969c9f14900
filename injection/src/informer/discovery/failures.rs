//! The documents of the discovery whose last request failed.

use std::time::Duration;

use kube::core::GroupVersionKind;
use parking_lot::Mutex;
use reknit_apis::internal::HashMap;
use tokio::time::Instant;

use super::{NOT_FOUND_FOR, TIMEOUT, UNUSED_AFTER, Unresolved};
use crate::reflector::Failure;

/// The documents whose last request failed, by their paths. The health of a document is one fact for all Kinds and
/// passes: while it fails, at most one pass waits for another request, and the others get the last failure at once.
#[derive(Default)]
pub(super) struct Failures(Mutex<State>);

#[derive(Default)]
struct State {
    failed: HashMap<String, Failed>,
    /// The time of the last answer of each document, for a while.
    answered: HashMap<String, Instant>,
}

struct Failed {
    failure: Failure,
    /// The time from which the next pass requests the document again.
    until: Instant,
}

/// The time after which a request that is dropped without an answer, as by the deadline of its pass, counts as failed.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// A request for a document.
pub(super) struct Pending<'a> {
    failures: &'a Failures,
    path: &'a str,
    began: Instant,
    has_ended: bool,
}

impl Failures {
    /// Begins a request for a document.
    ///
    /// # Errors
    ///
    /// Returns the last failure of the document, as the error of this Kind, if another pass is to request it. Until that
    /// request ends, all others get the failure.
    pub(super) fn begin<'a>(
        &'a self,
        path: &'a str,
        kind: &GroupVersionKind,
    ) -> Result<Pending<'a>, Unresolved> {
        let began = Instant::now();
        match self.0.lock().failed.get_mut(path) {
            Some(failed) if began < failed.until => {
                return Err(Unresolved::new(kind, failed.failure.clone()));
            }
            Some(failed) => failed.until = began + TIMEOUT + NOT_FOUND_FOR,
            None => {}
        }
        Ok(Pending { failures: self, path, began, has_ended: false })
    }

    fn insert(&self, path: &str, failure: Failure) {
        let (mut state, now) = (self.0.lock(), Instant::now());
        state.failed.retain(|_, failed| now < failed.until + UNUSED_AFTER);
        state.failed.insert(path.into(), Failed { failure, until: now + NOT_FOUND_FOR });
    }
}

impl Pending<'_> {
    /// Records the answer.
    pub(super) fn end<T>(mut self, answer: &Result<T, Unresolved>) {
        self.has_ended = true;
        match answer {
            Ok(_) => {
                let (mut state, now) = (self.failures.0.lock(), Instant::now());
                state.failed.remove(self.path);
                state.answered.retain(|_, at| now < *at + UNUSED_AFTER);
                state.answered.insert(self.path.into(), now);
            }
            Err(Unresolved { source, .. }) => self.failures.insert(self.path, source.clone()),
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let waited = self.began.elapsed();
        let answered = self.failures.0.lock().answered.get(self.path).copied();
        let is_silent = answered.is_none_or(|at| at < self.began);
        if !self.has_ended && is_silent && waited >= SILENT_AFTER {
            self.failures.insert(self.path, Failure::Timeout(waited));
        }
    }
}
