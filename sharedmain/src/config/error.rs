//! Errors of values in ConfigMaps.

/// An invalid value in a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {value} is {why}")]
pub(crate) struct ConfigError {
    key: String,
    value: String,
    why: String,
}

impl ConfigError {
    /// Shows the start of the value, unless it has an `@`, before which there may be a password. The reason continues the
    /// sentence after "is".
    pub(super) fn new(key: &str, value: &str, why: impl Into<String>) -> Self {
        let value = match value.contains('@') {
            true => "the value (not shown)".into(),
            false => format!("{:?}", value.chars().take(200).collect::<String>()),
        };
        Self { key: key.to_owned(), value, why: why.into() }
    }
}
