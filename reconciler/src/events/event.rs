//! An event about an object, as `kubectl describe` shows it.

/// The type of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Information about a change that was expected.
    Normal,
    /// A problem.
    Warning,
}

/// An event to record about an object: its type, its reason in one CamelCase word, and its message.
///
/// A pass returns it with its [`Outcome`](crate::Outcome). Other code records it through a
/// [`Recorder`](crate::Recorder).
///
/// ```
/// use reknit_reconciler::{Event, Outcome};
///
/// let outcome = Outcome::done().event(Event::normal("Scaled", "went from 2 to 3 replicas"));
/// assert_eq!(outcome.recorded_event().unwrap().reason, "Scaled");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The type.
    pub type_: EventType,
    /// The reason in one CamelCase word. Longer ones are cut to 128 bytes.
    pub reason: String,
    /// The message for humans. Longer ones are cut to 1 KiB.
    pub message: String,
}

impl Event {
    /// An event of type Normal.
    pub fn normal(reason: &str, message: impl Into<String>) -> Self {
        Self { type_: EventType::Normal, reason: reason.into(), message: message.into() }
    }

    /// An event of type Warning.
    pub fn warning(reason: &str, message: impl Into<String>) -> Self {
        Self { type_: EventType::Warning, reason: reason.into(), message: message.into() }
    }
}

impl EventType {
    /// The name in Kubernetes: `Normal` or `Warning`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}
