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
    /// Creates an error whose text starts with `KEY: VALUE is ` and ends with `why`. The value is cut off after 200
    /// characters. A value with an `@` is not shown, because it may be a URL with a password.
    pub(super) fn new(key: &str, value: &str, why: impl Into<String>) -> Self {
        let value = match value.contains('@') {
            true => "the value (not shown)".into(),
            false => format!("{:?}", value.chars().take(200).collect::<String>()),
        };
        Self { key: key.to_owned(), value, why: why.into() }
    }
}
