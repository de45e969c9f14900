//! Something that happened to an object, for whoever runs `kubectl describe` on it.

/// What to record about an object: Normal or Warning, a reason in one CamelCase word, and a message.
///
/// A pass hands it over with its [`Outcome`](crate::Outcome); anything else records it through a
/// [`Recorder`](crate::Recorder).
///
/// ```
/// use reknit_reconciler::{Event, Outcome};
///
/// let outcome = Outcome::done().event(Event::normal("Scaled", "went from 2 to 3 replicas"));
/// assert_eq!(outcome.recorded().unwrap().reason, "Scaled");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Whether it is one of the things that happen, rather than something to look into.
    pub normal: bool,
    /// Why, in one CamelCase word of at most 128 bytes; what is longer is cut.
    pub reason: String,
    /// For humans; at most 1 KiB is kept.
    pub message: String,
}

impl Event {
    /// An event of type Normal.
    pub fn normal(reason: &str, message: impl Into<String>) -> Self {
        Self { normal: true, reason: reason.into(), message: message.into() }
    }

    /// An event of type Warning.
    pub fn warning(reason: &str, message: impl Into<String>) -> Self {
        Self { normal: false, reason: reason.into(), message: message.into() }
    }

    pub(crate) fn type_name(&self) -> &'static str {
        if self.normal { "Normal" } else { "Warning" }
    }
}
