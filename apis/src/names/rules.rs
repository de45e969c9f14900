//! The rules for names in Kubernetes, with the messages of its Go library.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// The second half of Kubernetes' message for a malformed name or key. The first half names the malformed part.
const QUALIFIED_NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
     with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

/// Validates a qualified name: the key of a label or an annotation, a finalizer, or a group and version.
///
/// A qualified name is a name, optionally after a DNS subdomain and a slash. Returns Kubernetes' messages for all
/// faults, and none for a valid name.
///
/// ```
/// assert!(reknit_apis::qualified_name("example.com/team").is_empty());
/// assert_eq!(reknit_apis::qualified_name("/team"), ["prefix part must be non-empty"]);
/// ```
pub fn qualified_name(text: &str) -> Vec<String> {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    if name.contains('/') {
        let example = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
        return vec![format!("a valid label key {QUALIFIED_NAME_RULE} {example}")];
    }
    let mut messages = Vec::new();
    match prefix {
        Some("") => messages.push("prefix part must be non-empty".into()),
        Some(prefix) => {
            messages.extend(dns_subdomain(prefix).iter().map(|message| format!("prefix part {message}")))
        }
        None => {}
    }
    if name.is_empty() {
        messages.push("name part must be non-empty".into());
    }
    messages.extend(check_length(name, 63).map(|message| format!("name part {message}")));
    if !is_word(name, |byte| b"-_.".contains(&byte)) {
        messages.push(format!("name part {QUALIFIED_NAME_RULE}"));
    }
    messages
}

/// Validates a label's value.
pub(crate) fn label_value(text: &str) -> Vec<String> {
    let mut messages: Vec<_> = check_length(text, 63).into_iter().collect();
    if !text.is_empty() && !is_word(text, |byte| b"-_.".contains(&byte)) {
        messages.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
             for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .into(),
        );
    }
    messages
}

/// Validates the name of a Kind.
pub(crate) fn c_identifier(text: &str) -> Vec<String> {
    let has_valid_start = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if has_valid_start && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Vec::new();
    }
    vec![
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric \
         characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is \
         '[A-Za-z_][A-Za-z0-9_]*')"
            .into(),
    ]
}

/// Validates an RFC 1123 label: the name of a namespace, or of an object that becomes a host name.
///
/// Returns Kubernetes' messages for all faults, and none for a valid label.
///
/// ```
/// assert!(reknit_apis::dns_label("shop").is_empty());
/// assert_eq!(reknit_apis::dns_label("a.shop"), ["must not contain dots"]);
/// ```
pub fn dns_label(text: &str) -> Vec<String> {
    let mut messages: Vec<_> = check_length(text, 63).into_iter().collect();
    if is_dns_label(text) {
        return messages;
    }
    messages.push(if text.split('.').all(is_dns_label) {
        "must not contain dots".into()
    } else {
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
         end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            .into()
    });
    messages
}

/// Validates an RFC 1123 subdomain: the name of an object of most Kinds.
///
/// Returns Kubernetes' messages for all faults, and none for a valid name. An invalid name must not become part of a
/// request's path.
///
/// ```
/// assert!(reknit_apis::dns_subdomain("web-1.shop").is_empty());
/// assert!(!reknit_apis::dns_subdomain("web/status").is_empty());
/// ```
pub fn dns_subdomain(text: &str) -> Vec<String> {
    let mut messages: Vec<_> = check_length(text, 253).into_iter().collect();
    if !text.split('.').all(is_dns_label) {
        messages.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
             must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into(),
        );
    }
    messages
}

/// Returns the message for the first invalid requirement of a label selector.
pub(crate) fn label_selector(selector: &LabelSelector) -> Option<String> {
    let labels = selector.match_labels.iter().flatten();
    let mut from_labels =
        labels.map(|(key, value)| check_requirement(key, "In", std::slice::from_ref(value)));
    let expressions = selector.match_expressions.iter().flatten();
    let mut from_expressions = expressions.map(|expression| {
        let values = expression.values.as_deref().unwrap_or_default();
        check_requirement(&expression.key, &expression.operator, values)
    });
    from_labels.find_map(|message| message).or_else(|| from_expressions.find_map(|message| message))
}

/// Validates one requirement of a label selector. Returns all messages as one, or `None` if it is valid.
fn check_requirement(key: &str, operator: &str, values: &[String]) -> Option<String> {
    let mut messages = Vec::new();
    if let key_messages @ [_, ..] = &*qualified_name(key) {
        messages.push(format!("key: Invalid value: {key:?}: {}", key_messages.join("; ")));
    }
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            messages.push(
                "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty".into(),
            );
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let reason = "values set must be empty for exists and does not exist";
            messages.push(format!("values: Invalid value: {values:?}: {reason}"));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => return Some(format!("{operator:?} is not a valid label selector operator")),
    }
    for (index, value) in values.iter().enumerate() {
        if let value_messages @ [_, ..] = &*label_value(value) {
            let reasons = value_messages.join("; ");
            messages.push(format!("values[{index}][{key}]: Invalid value: {value:?}: {reasons}"));
        }
    }
    match &messages[..] {
        [] => None,
        [message] => Some(message.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

fn is_dns_label(text: &str) -> bool {
    let has_uppercase = text.bytes().any(|byte| byte.is_ascii_uppercase());
    !has_uppercase && is_word(text, |byte| byte == b'-')
}

/// Returns true if the text consists of ASCII letters and digits, and between its ends also of bytes that `is_inner`
/// allows.
fn is_word(text: &str, is_inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let first_and_last = bytes.first().zip(bytes.last());
    first_and_last.is_some_and(|(first, last)| first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || is_inner(*byte))
}

/// Returns the message for a text that is too long.
fn check_length(text: &str, max: usize) -> Option<String> {
    (text.len() > max).then(|| format!("must be no more than {max} characters"))
}
