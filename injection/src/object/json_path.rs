//! The path of a value in a JSON text, as Kubernetes writes it: `spec.ports[0].port`.

use std::fmt;

/// The fields and items that lead to a value. A name with special characters is written in brackets:
/// `metadata.labels[example.com/x]`.
pub(super) struct JsonPath<'a>(Vec<Step<'a>>);

enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

impl<'a> JsonPath<'a> {
    /// The path of the last value in a truncated JSON text.
    pub(super) fn at_the_end_of(text: &'a str) -> Self {
        let (mut steps, mut last_string, mut at) = (Vec::new(), "", 0);
        while let Some(byte) = text.as_bytes().get(at) {
            match (byte, steps.last_mut()) {
                (b'{', _) => steps.push(Step::Field("")),
                (b'[', _) => steps.push(Step::Item(0)),
                (b'}' | b']', _) => {
                    steps.pop();
                }
                (b':', Some(step)) => *step = Step::Field(last_string),
                (b',', Some(Step::Item(n))) => *n += 1,
                (b',', Some(step)) => *step = Step::Field(""),
                (b'"', _) => {
                    last_string = until_closing_quote(&text[at + 1..]);
                    at += last_string.len() + 1;
                }
                _ => {}
            }
            at += 1;
        }
        Self(steps)
    }

    /// The path with at most this number of steps.
    pub(super) fn truncated(mut self, steps: usize) -> Self {
        self.0.truncate(steps);
        self
    }
}

/// The text up to the closing quote of a string, or the whole text if the string is truncated.
fn until_closing_quote(text: &str) -> &str {
    let mut is_escaped = false;
    let is_closing_quote = |byte: u8| {
        let is_closing_quote = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_closing_quote
    };
    &text[..text.bytes().position(is_closing_quote).unwrap_or(text.len())]
}

impl fmt::Display for JsonPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |name: &str| {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        };
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Item(item) => write!(f, "[{item}]")?,
                Step::Field("") => {}
                Step::Field(name) if !is_plain(name) => write!(f, "[{name}]")?,
                Step::Field(name) if index == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_fields_and_items() {
        let text = r#"{"a":1,"metadata":{"labels":{"example.com/x":"a, \"{\" \\","y":"ä"}},"b":[[],{"c":[true,2,{"d":3}]}],"#;
        let path_at = |until: &str| {
            JsonPath::at_the_end_of(&text[..text.find(until).unwrap() + until.len()]).to_string()
        };
        assert_eq!(path_at("{"), "");
        assert_eq!(path_at(r#""a":1"#), "a");
        assert_eq!(path_at(r#""a, "#), "metadata.labels[example.com/x]");
        assert_eq!(path_at(r#"\\","y":"#), "metadata.labels.y");
        assert_eq!(path_at(r#""ä"}"#), "metadata.labels");
        assert_eq!(path_at("[[]"), "b[0]");
        assert_eq!(path_at("true,2"), "b[1].c[1]");
        assert_eq!(path_at(r#""d":3"#), "b[1].c[2].d");
        assert_eq!(path_at("3}"), "b[1].c[2]");
        assert_eq!(JsonPath::at_the_end_of(r#"{"b":[{"c":1"#).truncated(2).to_string(), "b[0]");
        assert_eq!(JsonPath::at_the_end_of(r#"{"a":{"b":1,"unknown""#).to_string(), "a");
        assert_eq!(JsonPath::at_the_end_of("").to_string(), "");
    }
}
