//! The texts of errors in ConfigMaps.

/// Returns the text `KEY: VALUE is WHY`. The value is cut off after 200 characters. A value with an `@` is not shown,
/// because it may be a URL with a password.
pub(super) fn invalid(key: &str, value: &str, why: &str) -> String {
    let value = match value.contains('@') {
        true => "the value (not shown)".into(),
        false => format!("{:?}", value.chars().take(200).collect::<String>()),
    };
    format!("{key}: {value} is {why}")
}
