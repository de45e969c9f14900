//! One event of the log as a line: JSON as Knative's components write it, or text for a terminal.
use std::fmt::{self, Write};

use serde_json::Value;
use tracing::{
    Level, Metadata,
    field::{Field, Visit},
};

/// The name of the field that holds an event's text.
const MESSAGE: &str = "message";

/// The fields of a span or an event, in the order they were given. A later value of a name replaces the earlier.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    pub(crate) fn with_room_for(fields: usize) -> Self {
        Self(Vec::with_capacity(fields))
    }

    /// Sets a field. One that has the name of a key of every line is renamed, so that no line has a key twice.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        let name = match name {
            "severity" => "fields.severity",
            "timestamp" => "fields.timestamp",
            "logger" => "fields.logger",
            "caller" => "fields.caller",
            name => name,
        };
        let value = value.into();
        match self.0.iter_mut().find(|(held, _)| *held == name) {
            Some((_, held)) => *held = value,
            None => self.0.push((name, value)),
        }
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|(name, value)| self.set(name, value.clone()));
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.0.iter().position(|(held, _)| *held == name)?;
        Some(self.0.remove(at).1)
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

/// How bad it is, in the words that Knative's components log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    Debug,
    Info,
    Warning,
    Error,
    /// The process ends with it.
    Emergency,
}

impl From<&Level> for Severity {
    fn from(level: &Level) -> Self {
        match *level {
            Level::ERROR => Self::Error,
            Level::WARN => Self::Warning,
            Level::INFO => Self::Info,
            _ => Self::Debug,
        }
    }
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
            Self::Emergency => "EMERGENCY",
        }
    }

    fn color(self) -> &'static str {
        match self {
            Self::Debug => "\x1b[34m",
            Self::Info => "\x1b[32m",
            Self::Warning => "\x1b[33m",
            Self::Error | Self::Emergency => "\x1b[31m",
        }
    }
}

/// Where in the source an event is: the crate, and the file within it.
pub(crate) fn caller(metadata: &Metadata<'_>) -> Option<String> {
    let (file, line) = (metadata.file()?, metadata.line()?);
    let within = file.rsplit_once("src/").map_or(file, |(_, within)| within);
    let krate = metadata.module_path()?.split("::").next()?;
    Some(format!("{krate}/{within}:{line}"))
}

/// What a line tells.
pub(crate) struct Line<'a> {
    pub(crate) severity: Severity,
    pub(crate) time: jiff::Timestamp,
    pub(crate) logger: &'a str,
    pub(crate) caller: Option<String>,
    pub(crate) fields: Fields,
}

impl Line<'_> {
    /// `{"severity":…,"timestamp":…,"logger":…,"caller":…,"message":…, fields}` and a line end.
    pub(crate) fn json(mut self) -> String {
        let message = self.fields.take(MESSAGE).unwrap_or_else(|| "".into());
        let mut line = format!(
            r#"{{"severity":"{}","timestamp":"{:.6}","logger":{}"#,
            self.severity.word(),
            self.time,
            Value::from(self.logger)
        );
        let caller = self.caller.map(|caller| ("caller", caller.into()));
        for (name, value) in caller.into_iter().chain([(MESSAGE, message)]).chain(self.fields.0) {
            let _ = write!(line, ",{}:{value}", Value::from(name));
        }
        line + "}\n"
    }

    /// `12:00:00.000 INFO    message name=value` and a line end.
    pub(crate) fn text(mut self, colors: bool) -> String {
        let message = self.fields.take(MESSAGE).map(|message| plain(&message)).unwrap_or_default();
        let time = self.time.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S%.3f").to_string();
        let (on, dim, off) =
            if colors { (self.severity.color(), "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
        let mut line = format!("{dim}{time}{off} {on}{:<7}{off} {message}", self.severity.word());
        for (name, value) in &self.fields.0 {
            let _ = write!(line, " {dim}{name}={off}{}", plain(value));
        }
        line + "\n"
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line<'static> {
        let mut fields = Fields::default();
        fields.set("knative.dev/key", "default/a");
        fields.set("message", "it \"failed\"\nbadly");
        fields.set("tries", 3);
        let time = jiff::Timestamp::from_millisecond(1_500).unwrap();
        Line {
            severity: Severity::Warning,
            time,
            logger: "controller",
            caller: Some("krate/a.rs:1".into()),
            fields,
        }
    }

    #[test]
    fn json_holds_knatives_fields_on_one_line() {
        assert_eq!(
            line().json(),
            "{\"severity\":\"WARNING\",\"timestamp\":\"1970-01-01T00:00:01.500000Z\",\"logger\":\"controller\",\
             \"caller\":\"krate/a.rs:1\",\"message\":\"it \\\"failed\\\"\\nbadly\",\
             \"knative.dev/key\":\"default/a\",\"tries\":3}\n"
        );
    }

    /// A field may have the name of a key that every line has; a JSON parser keeps only one of two equal keys.
    #[test]
    fn json_has_no_key_twice() {
        let mut line = line();
        for name in ["severity", "timestamp", "logger", "caller"] {
            line.fields.set(name, "mine");
        }
        let json = line.json();
        assert_eq!(json.matches(r#""severity":"#).count(), 1, "{json}");
        let held: std::collections::BTreeMap<String, Value> = serde_json::from_str(&json).unwrap();
        assert_eq!(held["severity"], "WARNING");
        assert_eq!(held["fields.severity"], "mine");
        assert_eq!(json.matches("\":").count(), held.len(), "{json}");
    }

    #[test]
    fn text_is_for_people() {
        let text = line().text(false);
        assert!(
            text.ends_with(" WARNING it \"failed\"\nbadly knative.dev/key=default/a tries=3\n"),
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
}
