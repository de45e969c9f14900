//! How a pass that did not fail ends.

use std::{fmt, time::Duration};

use crate::Event;

/// What comes after a pass that did not fail. It may carry an event, which is recorded and decides nothing.
///
/// ```
/// use std::time::Duration;
/// use reknit_reconciler::{Event, Outcome};
///
/// let done = Outcome::done();
/// let later = Outcome::after(Duration::from_secs(30));
/// let said = Outcome::done().event(Event::normal("Created", "created the pod"));
/// assert_ne!(done, later);
/// assert_ne!(done, said);
/// ```
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    next: Next,
    event: Option<Event>,
}

/// What happens to the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Done,
    After(Duration),
    Skip,
}

/// `done`, `after 30s`, `skip`.
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
    /// The object is as it should be until something changes. Its backoff is forgotten; in
    /// [`finalize_kind`](crate::FinalizeKind::finalize_kind), the finalizer is removed.
    pub const fn done() -> Self {
        Self { next: Next::Done, event: None }
    }

    /// The key is to be looked at again after this long, whatever happens until then. Its backoff is forgotten.
    pub const fn after(wait: Duration) -> Self {
        Self { next: Next::After(wait), event: None }
    }

    /// There is nothing to be done about this key now, and nothing to be counted as done either: something else
    /// will wake it. Its backoff is forgotten; a finalizer stays.
    ///
    /// The pass has been one like any other: the finalizer was put on before it, and the status is written after it,
    /// with its conditions initialised. Objects that are to be left alone are not for the pass to find out:
    /// [`ControllerBuilder::only`](crate::ControllerBuilder::only) and [`class`](crate::ControllerBuilder::class) say which a
    /// controller touches, [`Controller::selected`](crate::Controller::selected) which it knows.
    pub const fn skip() -> Self {
        Self { next: Next::Skip, event: None }
    }

    /// The same, with an event to record about the object.
    pub fn event(mut self, event: Event) -> Self {
        self.event = Some(event);
        self
    }

    /// The event that it carries.
    pub fn recorded(&self) -> Option<&Event> {
        self.event.as_ref()
    }

    pub(crate) fn next(&self) -> Next {
        self.next
    }

    pub(crate) fn is_done(&self) -> bool {
        self.next == Next::Done
    }
}
