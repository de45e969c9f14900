//! The parts of pprof's format that a CPU profile needs.
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reknit_apis::internal::HashMap;

/// A profile, built stack by stack.
pub(super) struct Profile {
    pub(super) message: ProfileMessage,
    strings: HashMap<String, i64>,
    locations: HashMap<(String, i64), u64>,
}

/// A function, and the line that was executed.
pub(super) struct Frame {
    pub(super) name: String,
    /// The mangled name. pprof demangles `name` only if the two are equal.
    pub(super) symbol: String,
    pub(super) file: String,
    pub(super) line: i64,
}

impl Profile {
    pub(super) fn new(start: SystemTime, length: Duration, frequency: i64) -> Self {
        let period = 1_000_000_000 / frequency;
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let message = ProfileMessage {
            // pprof requires the empty string at index 0.
            string_table: vec![String::new()],
            time_nanos: nanos(start.duration_since(UNIX_EPOCH).unwrap_or_default()),
            duration_nanos: nanos(length),
            period,
            ..ProfileMessage::default()
        };
        let strings = HashMap::from_iter([(String::new(), 0)]);
        let mut profile = Self { message, strings, locations: HashMap::default() };
        let samples = profile.value_type("samples", "count");
        let cpu = profile.value_type("cpu", "nanoseconds");
        profile.message.sample_type = vec![samples, cpu];
        profile.message.period_type = Some(cpu);
        profile
    }

    /// Adds a stack with its number of samples, the innermost function first.
    pub(super) fn add(&mut self, frames: impl Iterator<Item = Frame>, thread: &str, count: i64) {
        let location_id = frames.map(|frame| self.location_id(frame)).collect();
        let label = Label { key: self.string_index("thread"), str: self.string_index(thread) };
        let value = vec![count, count.saturating_mul(self.message.period)];
        self.message.sample.push(Sample { location_id, value, label: vec![label] });
    }

    fn value_type(&mut self, what: &str, unit: &str) -> ValueType {
        ValueType { r#type: self.string_index(what), unit: self.string_index(unit) }
    }

    /// Returns the index of a string in the table, and adds the string if it is missing.
    fn string_index(&mut self, text: &str) -> i64 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        let index = self.message.string_table.len() as i64;
        self.message.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    /// Returns the ID of the location of a frame, and adds the location if it is missing. Each location has its own
    /// function entry, with the same ID.
    fn location_id(&mut self, frame: Frame) -> u64 {
        let Frame { name, symbol, file, line } = frame;
        let key = (symbol, line);
        if let Some(id) = self.locations.get(&key) {
            return *id;
        }
        let id = self.message.location.len() as u64 + 1;
        let (name, system_name, filename) =
            (self.string_index(&name), self.string_index(&key.0), self.string_index(&file));
        self.message.function.push(Function { id, name, system_name, filename });
        self.message.location.push(Location { id, line: vec![Line { function_id: id, line }] });
        self.locations.insert(key, id);
        id
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ProfileMessage {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

/// A type and a unit. Strings in all messages below are indexes into the string table.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_string_and_each_location_is_stored_once() {
        let mut profile = Profile::new(UNIX_EPOCH, Duration::from_secs(2), 100);
        let frame = |name: &str, line| Frame {
            name: name.into(),
            symbol: format!("_R{name}"),
            file: "a.rs".into(),
            line,
        };
        profile.add([frame("spin", 7), frame("main", 1)].into_iter(), "worker", 3);
        profile.add([frame("idle", 7), frame("main", 1)].into_iter(), "worker", 1);
        let message = profile.message;
        assert_eq!(message.location.len(), 3);
        let mut strings = message.string_table.clone();
        strings.sort();
        strings.dedup();
        assert_eq!(strings.len(), message.string_table.len());
        assert_eq!(message.sample[0].value, [3, 30_000_000]);
        assert_eq!(message.sample[0].location_id[1], message.sample[1].location_id[1]);
        let name = |id: u64| &message.string_table[message.function[id as usize - 1].name as usize];
        assert_eq!(
            [name(message.sample[0].location_id[0]), name(message.sample[0].location_id[1])],
            ["spin", "main"]
        );
        assert_eq!((message.duration_nanos, message.period), (2_000_000_000, 10_000_000));
    }
}
