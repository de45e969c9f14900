//! The path of a value in a JSON text, as Kubernetes writes it: `spec.ports[0].port`.

use std::fmt;

/// The fields and items that lead to a value. A key with special characters is written as `metadata.labels[example.com/x]`.
pub(super) struct JsonPath<'a>(Vec<Step<'a>>);

enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

impl<'a> JsonPath<'a> {
    /// The path of the value in which this beginning of a JSON text ends.
    pub(super) fn at_the_end_of(text: &'a str) -> Self {
        let (mut steps, mut word, mut at) = (Vec::new(), "", 0);
        while let Some(byte) = text.as_bytes().get(at) {
            match (byte, steps.last_mut()) {
                (b'{', _) => steps.push(Step::Field("")),
                (b'[', _) => steps.push(Step::Item(0)),
                (b'}' | b']', _) => {
                    steps.pop();
                }
                (b':', Some(step)) => *step = Step::Field(word),
                (b',', Some(Step::Item(n))) => *n += 1,
                (b',', Some(step)) => *step = Step::Field(""),
                (b'"', _) => {
                    word = string(&text[at + 1..]);
                    at += word.len() + 1;
                }
                _ => {}
            }
            at += 1;
        }
        Self(steps)
    }

    /// The first steps of the path.
    pub(super) fn truncated(mut self, steps: usize) -> Self {
        self.0.truncate(steps);
        self
    }
}

/// The text up to the closing quote.
fn string(text: &str) -> &str {
    let mut escaped = false;
    let ends = |byte: u8| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    };
    &text[..text.bytes().position(ends).unwrap_or(text.len())]
}

impl fmt::Display for JsonPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |name: &str| {
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        };
        for (n, step) in self.0.iter().enumerate() {
            match step {
                Step::Item(item) => write!(f, "[{item}]")?,
                Step::Field("") => {}
                Step::Field(name) if !plain(name) => write!(f, "[{name}]")?,
                Step::Field(name) if n == 0 => f.write_str(name)?,
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
        let place = |until: &str| {
            JsonPath::at_the_end_of(&text[..text.find(until).unwrap() + until.len()]).to_string()
        };
        assert_eq!(place("{"), "");
        assert_eq!(place(r#""a":1"#), "a");
        assert_eq!(place(r#""a, "#), "metadata.labels[example.com/x]");
        assert_eq!(place(r#"\\","y":"#), "metadata.labels.y");
        assert_eq!(place(r#""ä"}"#), "metadata.labels");
        assert_eq!(place("[[]"), "b[0]");
        assert_eq!(place("true,2"), "b[1].c[1]");
        assert_eq!(place(r#""d":3"#), "b[1].c[2].d");
        assert_eq!(place("3}"), "b[1].c[2]");
        assert_eq!(JsonPath::at_the_end_of(r#"{"b":[{"c":1"#).truncated(2).to_string(), "b[0]");
        assert_eq!(JsonPath::at_the_end_of(r#"{"a":{"b":1,"unknown""#).to_string(), "a");
        assert_eq!(JsonPath::at_the_end_of("").to_string(), "");
    }
}
