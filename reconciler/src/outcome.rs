//! The result of a successful pass.

use std::{fmt, time::Duration};

use crate::Event;

/// The result of a successful pass: when the key is processed next, and optionally an event to record.
///
/// ```
/// use std::time::Duration;
/// use reknit_reconciler::{Event, Outcome};
///
/// let done = Outcome::done();
/// let later = Outcome::after(Duration::from_secs(30));
/// let with_event = Outcome::done().event(Event::normal("Created", "created the pod"));
/// assert_ne!(done, later);
/// assert_ne!(done, with_event);
/// ```
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    next: Next,
    event: Option<Event>,
}

/// The next pass of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Done,
    After(Duration),
    Skip,
}

/// Formats as `done`, `after 30s` or `skip`.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.next {
            Next::Done => f.write_str("done"),
            Next::After(wait) => write!(f, "after {wait:?}"),
            Next::Skip => f.write_str("skip"),
        }
    }
}

impl Outcome {
    /// The object is reconciled, and its key waits for the next change. The backoff is reset. In
    /// [`finalize_kind`](crate::FinalizeKind::finalize_kind), the finalizer is removed.
    pub const fn done() -> Self {
        Self { next: Next::Done, event: None }
    }

    /// The key is enqueued again after this time, even if another pass of the key runs before. The backoff is reset.
    /// The time in which the machine was suspended, or by which its clock was set forward, counts too, within a minute.
    pub const fn after(wait: Duration) -> Self {
        Self { next: Next::After(wait), event: None }
    }

    /// The pass had nothing to do, and the key waits for the next change. The backoff is reset, and a finalizer is
    /// kept.
    ///
    /// The framework treats the pass like any other: the finalizer was added before it, and the status is written after
    /// it, with its conditions initialised. To leave objects alone, use
    /// [`Builder::filter`](crate::Builder::filter), [`class`](crate::Builder::class) or
    /// [`Controller::selected`](crate::Controller::selected).
    pub const fn skip() -> Self {
        Self { next: Next::Skip, event: None }
    }

    /// Adds an event to record about the object.
    pub fn event(mut self, event: Event) -> Self {
        self.event = Some(event);
        self
    }

    /// The event to record, if any.
    pub fn recorded_event(&self) -> Option<&Event> {
        self.event.as_ref()
    }

    pub(crate) fn next(&self) -> Next {
        self.next
    }

    pub(crate) fn is_done(&self) -> bool {
        self.next == Next::Done
    }
}
