//! A value in a ConfigMap that cannot be used.

/// Which key, which value, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {value} is {why}")]
pub(crate) struct ConfigError {
    key: String,
    value: String,
    why: String,
}

impl ConfigError {
    /// `why` goes on after "is". Only the start of a long value is kept.
    pub(crate) fn new(key: &str, value: &str, why: impl Into<String>) -> Self {
        let start: String = value.chars().take(200).collect();
        Self { key: key.to_owned(), value: format!("{start:?}"), why: why.into() }
    }

    /// The same where the value may hold a password.
    pub(crate) fn unseen(key: &str, why: impl Into<String>) -> Self {
        Self { key: key.to_owned(), value: "the value (not shown)".into(), why: why.into() }
    }
}
