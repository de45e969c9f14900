//! Logs the warnings in the API server's responses, for example about deprecated versions and unknown fields.

use std::collections::BTreeSet;

use http::{HeaderMap, header::WARNING};
use parking_lot::Mutex;

/// The maximum number of remembered warnings. After that, each may be logged once more.
const CAPACITY: usize = 1000;
/// The code of the warnings that are meant for users.
const CODE: &str = "299";

/// The warnings that this process has logged.
static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Logs each warning of a response, once per process.
pub(super) fn log_warnings(headers: &HeaderMap) {
    for warning in header_warnings(headers).into_iter().filter(|warning| is_new(warning)) {
        tracing::warn!(warning, "the API server warns: change what the request sends or names");
    }
}

/// Returns the warnings of a response.
pub fn header_warnings(headers: &HeaderMap) -> Vec<String> {
    let headers = headers.get_all(WARNING).iter();
    headers.flat_map(|header| texts(&String::from_utf8_lossy(header.as_bytes()))).collect()
}

fn is_new(warning: &str) -> bool {
    let mut logged = LOGGED.lock();
    if logged.contains(warning) {
        return false;
    }
    if logged.len() >= CAPACITY {
        logged.clear();
    }
    logged.insert(warning.to_owned())
}

/// Returns the texts of the warnings in a header, such as `299 - "batch/v1beta1 is deprecated", 299 - "another"`.
fn texts(header: &str) -> Vec<String> {
    let (mut texts, mut rest) = (Vec::new(), header);
    while let Some((code_and_agent, quoted)) = rest.split_once('"') {
        let (text, length) = unquote(quoted);
        if code_and_agent.trim_start_matches([',', ' ']).starts_with(CODE) {
            texts.push(text);
        }
        rest = &quoted[length..];
    }
    texts
}

/// Returns the text up to the closing quote without its escapes, and the number of bytes read.
fn unquote(quoted: &str) -> (String, usize) {
    let (mut text, mut chars) = (String::new(), quoted.char_indices());
    while let Some((index, c)) = chars.next() {
        match c {
            '"' => return (text, index + 1),
            '\\' => text.extend(chars.next().map(|(_, escaped)| escaped)),
            c => text.push(c),
        }
    }
    (text, quoted.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_warnings_of_a_header_are_read() {
        for (header, expected) in [
            (r#"299 - "unknown field \"spec.foo\"""#, &[r#"unknown field "spec.foo""#][..]),
            (r#"299 - "a, b", 299 host:80 "c""#, &["a, b", "c"]),
            (r#"110 proxy "stale" "Sat, 25 Aug 2012 23:34:45 GMT", 299 - "d""#, &["d"]),
            (r#"299 - "not closed"#, &["not closed"]),
            ("299 - none", &[]),
            ("", &[]),
        ] {
            assert_eq!(texts(header), expected, "{header}");
        }
    }

    #[test]
    fn a_warning_is_logged_once_and_the_memory_is_bounded() {
        assert!(is_new("first"));
        assert!(!is_new("first"));
        for n in 0..2 * CAPACITY {
            is_new(&n.to_string());
        }
        assert!(LOGGED.lock().len() <= CAPACITY);
    }
}
