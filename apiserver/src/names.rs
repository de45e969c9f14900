//! The rules for names and labels, with the messages of the API server for each fault.

use crate::collection::Collection;

/// The characters of a word, for messages.
const WORD: &str =
    "alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// Checks the name of an object.
pub(crate) fn object_name(collection: &Collection, name: &str) -> Vec<String> {
    match (&*collection.group, &*collection.plural) {
        ("", "namespaces" | "services") => dns_label(name),
        ("rbac.authorization.k8s.io" | "apiregistration.k8s.io", _) => path_segment(name),
        ("networking.k8s.io", "ipaddresses") => Vec::new(),
        _ => dns_subdomain(name),
    }
}

/// Checks the key of a label or an annotation, or a finalizer.
pub(crate) fn qualified_name(text: &str) -> Vec<String> {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let rule = format!(
        "must consist of {WORD} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
         '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
    );
    if name.contains('/') {
        let prefixed = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
        return vec![format!("a valid label key {rule} {prefixed}")];
    }
    let mut faults = Vec::new();
    match prefix {
        Some("") => faults.push("prefix part must be non-empty".into()),
        Some(prefix) => {
            faults.extend(dns_subdomain(prefix).iter().map(|fault| format!("prefix part {fault}")))
        }
        None => {}
    }
    if name.is_empty() {
        faults.push("name part must be non-empty".into());
    }
    faults.extend(too_long(name, 63, "bytes").map(|fault| format!("name part {fault}")));
    if !is_word(name, "-_.") {
        faults.push(format!("name part {rule}"));
    }
    faults
}

/// Checks the value of a label.
pub(crate) fn label_value(text: &str) -> Vec<String> {
    let mut faults: Vec<_> = too_long(text, 63, "bytes").into_iter().collect();
    if !text.is_empty() && !is_word(text, "-_.") {
        faults.push(format!(
            "a valid label must be an empty string or consist of {WORD} (e.g. 'MyValue',  or 'my_value',  or '12345', \
             regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
        ));
    }
    faults
}

fn dns_label(text: &str) -> Vec<String> {
    let mut faults: Vec<_> = too_long(text, 63, "characters").into_iter().collect();
    if is_dns_label(text) {
        return faults;
    }
    faults.push(if text.split('.').all(is_dns_label) {
        "must not contain dots".into()
    } else {
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end \
         with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            .into()
    });
    faults
}

fn dns_subdomain(text: &str) -> Vec<String> {
    let mut faults: Vec<_> = too_long(text, 253, "characters").into_iter().collect();
    if !text.split('.').all(is_dns_label) {
        faults.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
             and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into(),
        );
    }
    faults
}

fn path_segment(text: &str) -> Vec<String> {
    match text {
        "." | ".." => vec![format!("may not be '{text}'")],
        _ => ["/", "%"]
            .iter()
            .filter(|part| text.contains(**part))
            .map(|part| format!("may not contain '{part}'"))
            .collect(),
    }
}

fn is_dns_label(text: &str) -> bool {
    !text.bytes().any(|byte| byte.is_ascii_uppercase()) && is_word(text, "-")
}

/// Returns true if the text consists of ASCII letters and digits, and between its ends also of these characters.
fn is_word(text: &str, inner: &str) -> bool {
    let is_end = |end: Option<char>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    is_end(text.chars().next())
        && is_end(text.chars().last())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || inner.contains(letter))
}

fn too_long(text: &str, max: usize, unit: &str) -> Option<String> {
    (text.len() > max).then(|| format!("must be no more than {max} {unit}"))
}
