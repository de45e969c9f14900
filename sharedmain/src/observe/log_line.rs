//! Log lines: JSON as Knative's components write it, or text for a terminal.
use std::{
    borrow::Cow,
    fmt::{self, Write},
};

use reknit_apis::internal::visible;
use serde_json::Value;
use tracing::{
    Level, Metadata,
    field::{Field, Visit},
};

/// The name of the field with the text of an event.
const MESSAGE: &str = "message";
/// The maximum bytes of a text in a line. An error of the API server repeats a value of a tenant, of up to 1.5 MB, and a
/// failed reconcile logs it at each retry.
const MAX_TEXT: usize = 32 * 1024;

/// The fields of a span or an event, in order. A value replaces an earlier one with the same name.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    pub(super) fn with_capacity(fields: usize) -> Self {
        Self(Vec::with_capacity(fields))
    }

    /// Sets a field. If its name is a key that every line has, the name gets the prefix `fields.`, so that no line has
    /// a key twice.
    pub(super) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        let name = match name {
            "severity" => "fields.severity",
            "timestamp" => "fields.timestamp",
            "logger" => "fields.logger",
            "caller" => "fields.caller",
            name => name,
        };
        let mut value = value.into();
        if let Value::String(text) = &mut value {
            shorten(text);
        }
        match self.0.iter_mut().find(|(other, _)| *other == name) {
            Some((_, previous)) => *previous = value,
            None => self.0.push((name, value)),
        }
    }

    pub(super) fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, value)| self.set(name, value.clone()));
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        let index = self.0.iter().position(|(other, _)| *other == name)?;
        Some(self.0.remove(index).1)
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field.name(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value);
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), value);
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), value);
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), value);
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field.name(), value);
    }
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let chain = std::iter::successors(value.source(), |e| e.source());
        self.set(field.name(), chain.fold(value.to_string(), |text, source| format!("{text}: {source}")));
    }
}

/// The severity of a line, in the words of Knative's components, and the escape sequence of its color.
#[derive(Debug, Clone, Copy)]
pub(super) struct Severity {
    word: &'static str,
    color: &'static str,
}

impl Severity {
    /// The severity of the last line of a process that fails.
    pub(super) const EMERGENCY: Self = Self { word: "EMERGENCY", color: "\x1b[31m" };
}

impl From<&Level> for Severity {
    fn from(level: &Level) -> Self {
        match *level {
            Level::ERROR => Self { word: "ERROR", color: "\x1b[31m" },
            Level::WARN => Self { word: "WARNING", color: "\x1b[33m" },
            Level::INFO => Self { word: "INFO", color: "\x1b[32m" },
            _ => Self { word: "DEBUG", color: "\x1b[34m" },
        }
    }
}

/// Cuts a text that is too long, and adds its length.
fn shorten(text: &mut String) {
    let bytes = text.len();
    if bytes > MAX_TEXT {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
        let _ = write!(text, "… ({bytes} bytes)");
    }
}

/// Returns the source location of an event: the crate, the file in it, and the line.
pub(super) fn caller(metadata: &Metadata<'_>) -> Option<String> {
    let (file, line) = (metadata.file()?, metadata.line()?);
    let file = file.rsplit_once("src/").map_or(file, |(_, file)| file);
    let krate = metadata.module_path()?.split("::").next()?;
    Some(format!("{krate}/{file}:{line}"))
}

/// The contents of a line.
pub(super) struct Line<'a> {
    pub(super) severity: Severity,
    pub(super) time: jiff::Timestamp,
    pub(super) logger: &'a str,
    pub(super) caller: Option<String>,
    pub(super) fields: Fields,
}

impl Line<'_> {
    /// Formats `{"severity":…,"timestamp":…,"logger":…,"caller":…,"message":…, fields}` and a newline.
    pub(super) fn json(mut self) -> String {
        let message = self.fields.take(MESSAGE).unwrap_or_else(|| "".into());
        let (severity, time, logger) = (self.severity.word, self.time, Value::from(self.logger));
        let mut line = format!(r#"{{"severity":"{severity}","timestamp":"{time:.6}","logger":{logger}"#);
        let caller = self.caller.map(|caller| ("caller", caller.into()));
        for (name, value) in caller.into_iter().chain([(MESSAGE, message)]).chain(self.fields.0) {
            let _ = write!(line, ",{}:{value}", Value::from(name));
        }
        without_controls(line) + "}\n"
    }

    /// Formats `12:00:00.000 INFO    message name=value` and a newline.
    pub(super) fn text(mut self, has_colors: bool) -> String {
        let message = self.fields.take(MESSAGE).map(|message| plain(&message)).unwrap_or_default();
        let time = self.time.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S%.3f").to_string();
        let Severity { word, color } = self.severity;
        let (color, dim, reset) = if has_colors { (color, "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
        let mut line = format!("{dim}{time}{reset} {color}{word:<7}{reset} {message}");
        for (name, value) in &self.fields.0 {
            let _ = write!(line, " {dim}{name}={reset}{}", plain(value));
        }
        line + "\n"
    }
}

/// Returns a string without quotes, and any other value as JSON, without characters that control a terminal. Further lines are
/// indented, so that none passes for a line of the log.
fn plain(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), Into::into);
    visible(&text).replace('\n', "\n    ")
}

/// Writes the characters that control a terminal as escapes of JSON. They are all in strings: a JSON text has no others,
/// and those of ASCII are escaped in it.
pub(crate) fn without_controls(json: String) -> String {
    if let Cow::Borrowed(_) = visible(&json) {
        return json;
    }
    let escaped = |c: char| match visible(c.encode_utf8(&mut [0; 4])) {
        Cow::Borrowed(same) => same.to_owned(),
        Cow::Owned(_) => format!("\\u{:04x}", u32::from(c)),
    };
    json.chars().map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example_line() -> Line<'static> {
        let mut fields = Fields::default();
        fields.set("knative.dev/key", "default/a");
        fields.set("message", "it \"failed\"\nbadly");
        fields.set("tries", 3);
        let time = jiff::Timestamp::from_millisecond(1_500).unwrap();
        Line {
            severity: Severity::from(&Level::WARN),
            time,
            logger: "controller",
            caller: Some("krate/a.rs:1".into()),
            fields,
        }
    }

    #[test]
    fn json_has_the_keys_of_knative_on_one_line() {
        assert_eq!(
            example_line().json(),
            "{\"severity\":\"WARNING\",\"timestamp\":\"1970-01-01T00:00:01.500000Z\",\"logger\":\"controller\",\
             \"caller\":\"krate/a.rs:1\",\"message\":\"it \\\"failed\\\"\\nbadly\",\
             \"knative.dev/key\":\"default/a\",\"tries\":3}\n"
        );
    }

    /// Most JSON parsers keep only one of two equal keys.
    #[test]
    fn json_has_no_key_twice() {
        let mut line = example_line();
        for name in ["severity", "timestamp", "logger", "caller"] {
            line.fields.set(name, "mine");
        }
        let json = line.json();
        assert_eq!(json.matches(r#""severity":"#).count(), 1, "{json}");
        let parsed: std::collections::BTreeMap<String, Value> = serde_json::from_str(&json).unwrap();
        assert_eq!(parsed["severity"], "WARNING");
        assert_eq!(parsed["fields.severity"], "mine");
        assert_eq!(json.matches("\":").count(), parsed.len(), "{json}");
    }

    #[test]
    fn text_has_the_message_and_the_fields() {
        let has_colors = false;
        let text = example_line().text(has_colors);
        assert!(
            text.ends_with(" WARNING it \"failed\"\n    badly knative.dev/key=default/a tries=3\n"),
            "{text}"
        );
    }

    #[test]
    fn a_later_value_replaces_an_earlier_one() {
        let mut fields = Fields::default();
        fields.set("a", 1);
        let mut later = Fields::default();
        later.set("a", 2);
        fields.extend(&later);
        assert_eq!(fields.0, [("a", Value::from(2))]);
    }

    #[test]
    fn text_contains_no_escape_sequences_of_others() {
        let mut line = example_line();
        line.fields.set("message", "deleted\x1b[1A\x1b[2Knothing happened");
        line.fields.set("status", serde_json::json!({"message": "\u{9b}31m"}));
        let text = line.text(false);
        assert!(!text.trim_end().contains(char::is_control), "{text:?}");
        assert!(text.contains(r"deleted\u{1b}[1A"), "{text:?}");
    }

    /// A text of a tenant may have 1.5 MB.
    #[test]
    fn a_long_text_is_cut_and_its_length_given() {
        let mut fields = Fields::default();
        fields.set("error", "ä".repeat(1_000_000));
        let (_, value) = &fields.0[0];
        let text = value.as_str().unwrap();
        assert!(text.len() < MAX_TEXT + 50 && text.ends_with("ä… (2000000 bytes)"), "{}", text.len());
    }

    /// `kubectl logs` prints the lines on a terminal.
    #[test]
    fn json_contains_no_escape_sequences_of_others() {
        let mut line = example_line();
        let text = "\u{9b}2J\u{202e}\x1b[31m äß";
        line.fields.set("status", serde_json::json!({"message": text}));
        let json = line.json();
        assert!(!json.contains(['\u{9b}', '\u{202e}', '\x1b']), "{json:?}");
        let parsed: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(parsed["status"]["message"], text);
    }
}
