//! The faults of an object, by field.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
    hash::{DefaultHasher, Hash, Hasher},
};

use kube_core::response::StatusCause;

use super::cause_type::CauseType;

/// The message of a missing field, in Knative's words.
const MISSING: &str = "missing field(s)";
/// The field of a fault of the whole object, as the API server writes it.
const WHOLE_OBJECT: &str = "<nil>";
/// The fields with faults of a level that an error keeps.
const MAX_FIELDS: usize = 100;
/// The bytes of a message, of its details and of a path that an error keeps.
const MAX_TEXT: usize = 1024;
/// The bytes of a field that an error keeps in a path: a key of a map may be long.
const MAX_SEGMENT: usize = 256;

/// The faults of an object, each with the paths of its fields. Empty if the object is valid.
///
/// Each level of validation prepends its own field to the paths of the levels below.
///
/// A user may write an object with a hundred thousand faults, so an error keeps the first 100 fields with an error and the
/// first 100 with a warning, and counts the rest: the last line is then `and 5 more faults`. Of a message, its details and a
/// path it keeps 1 KiB, and of a field in a path 256 bytes.
///
/// ```
/// use reknit_apis::FieldError;
///
/// fn validate_port(port: u16) -> FieldError {
///     if port >= 1024 { FieldError::none() } else { FieldError::out_of_bounds(port, 1024, u16::MAX, "port") }
/// }
///
/// let ports = [80, 8080];
/// let mut errors = FieldError::missing(["host"]);
/// for (index, port) in ports.into_iter().enumerate() {
///     errors = errors.also(validate_port(port).via_field_index("ports", index));
/// }
/// let error = errors.via_field("spec").into_result().unwrap_err();
/// assert_eq!(error.to_string(), "expected 1024 <= 80 <= 65535: spec.ports[0].port\nmissing field(s): spec.host");
/// assert_eq!((&*error.causes()[1].field, &*error.causes()[1].message), ("spec.host", "Required value"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct FieldError {
    faults: Vec<Fault>,
    /// The faults that are not kept.
    more: BTreeMap<Level, Omitted>,
}

/// Faults that are only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Omitted {
    fields: usize,
    /// The hash of all of them, so that errors with other faults differ.
    hash: u64,
}

/// The severity of a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The object is refused.
    #[default]
    Error,
    /// The object is accepted, and the client gets a warning.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fault {
    message: String,
    paths: Vec<String>,
    details: String,
    level: Level,
    cause: CauseType,
}

impl FieldError {
    /// Creates an error without faults.
    pub fn none() -> Self {
        Self::default()
    }

    /// Creates an error of one fault, with any message.
    pub fn generic<P: Into<String>>(message: impl Into<String>, paths: impl IntoIterator<Item = P>) -> Self {
        let paths = paths.into_iter().map(|path| shorten(path.into(), MAX_TEXT)).collect();
        let fault = Fault {
            message: shorten(message.into(), MAX_TEXT),
            paths,
            details: String::new(),
            level: Level::Error,
            cause: CauseType::Invalid,
        };
        Self::none().with(fault)
    }

    /// Creates an error for required fields that are missing.
    pub fn missing<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::generic(MISSING, paths).cause(CauseType::Required)
    }

    /// Creates an error for fields that must not be set.
    pub fn disallowed<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::generic("must not set the field(s)", paths).cause(CauseType::Forbidden)
    }

    /// Creates an error for fields of which exactly one must be set, if none is.
    pub fn missing_one_of<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::generic("expected exactly one, got neither", paths).cause(CauseType::Required)
    }

    /// Creates an error for fields of which exactly one must be set, if several are.
    pub fn multiple_one_of<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::generic("expected exactly one, got both", paths)
    }

    /// Creates an error for an invalid value of a field.
    pub fn invalid_value(value: impl Display, path: &str) -> Self {
        Self::generic(format!("invalid value: {value}"), [path])
    }

    /// Creates an error for an invalid item of a list.
    ///
    /// ```
    /// use reknit_apis::FieldError;
    ///
    /// let error = FieldError::invalid_array_value("web!", "names", 2).via_field("spec");
    /// assert_eq!(error.to_string(), "invalid value: web!: spec.names[2]");
    /// ```
    pub fn invalid_array_value(value: impl Display, path: &str, index: usize) -> Self {
        Self::invalid_value(value, "").via_field_index(path, index)
    }

    /// Creates an error for a value outside inclusive bounds.
    pub fn out_of_bounds(value: impl Display, lower: impl Display, upper: impl Display, path: &str) -> Self {
        Self::generic(format!("expected {lower} <= {value} <= {upper}"), [path])
    }

    /// Creates an error for an invalid key in the map at this path.
    pub fn invalid_key_name(key: &str, path: &str) -> Self {
        Self::generic(format!("invalid key name {key:?}"), [path])
    }

    /// Adds details, which are shown on a line of their own.
    pub fn details(mut self, details: impl Into<String>) -> Self {
        let details = shorten(details.into(), MAX_TEXT);
        self.faults.iter_mut().for_each(|fault| fault.details.clone_from(&details));
        self
    }

    /// Sets the type of all faults, which the client reads in the [causes](Self::causes). By default, a
    /// [`generic`](Self::generic) fault is [`Invalid`](CauseType::Invalid).
    ///
    /// ```
    /// use reknit_apis::{CauseType, FieldError};
    ///
    /// let taken = FieldError::generic("8080", ["spec.ports[1]"]).cause(CauseType::Duplicate);
    /// assert_eq!(taken.causes()[0].message, "Duplicate value: 8080");
    /// ```
    pub fn cause(mut self, cause: CauseType) -> Self {
        self.faults.iter_mut().for_each(|fault| fault.cause = cause);
        self
    }

    /// Prepends a field: `port` becomes `spec.port`.
    pub fn via_field(self, field: &str) -> Self {
        self.via(&shorten(field.into(), MAX_SEGMENT))
    }

    /// Prepends the index in a list: `port` becomes `[2].port`.
    pub fn via_index(self, index: usize) -> Self {
        self.via(&format!("[{index}]"))
    }

    /// Prepends the key in a map: `port` becomes `[key].port`.
    pub fn via_key(self, key: &str) -> Self {
        self.via(&format!("[{}]", shorten(key.into(), MAX_SEGMENT)))
    }

    /// Prepends a list field and the index in it: `port` becomes `ports[2].port`.
    pub fn via_field_index(self, field: &str, index: usize) -> Self {
        self.via_index(index).via_field(field)
    }

    /// Prepends a map field and the key in it: `port` becomes `ports[key].port`.
    pub fn via_field_key(self, field: &str, key: &str) -> Self {
        self.via_key(key).via_field(field)
    }

    fn via(mut self, prefix: &str) -> Self {
        for path in self.faults.iter_mut().flat_map(|fault| &mut fault.paths) {
            *path = shorten(join(prefix, path), MAX_TEXT);
        }
        self
    }

    /// Sets the level of all faults.
    pub fn at(mut self, level: Level) -> Self {
        let Self { faults, more } = std::mem::take(&mut self);
        let at_level =
            faults.into_iter().map(|fault| Fault { level, ..fault }).fold(Self::none(), Self::with);
        more.into_values().fold(at_level, |error, omitted| error.omit(level, omitted))
    }

    /// Adds the faults of another error.
    pub fn also(self, other: Self) -> Self {
        let all = other.faults.into_iter().fold(self, Self::with);
        other.more.into_iter().fold(all, |all, (level, omitted)| all.omit(level, omitted))
    }

    /// Keeps only the faults of this level.
    pub fn filter(mut self, level: Level) -> Self {
        self.faults.retain(|fault| fault.level == level);
        self.more.retain(|of, _| *of == level);
        self
    }

    /// Adds a fault with as many of its fields as there is room for.
    fn with(mut self, mut fault: Fault) -> Self {
        let of_level = self.faults.iter().filter(|kept| kept.level == fault.level);
        let room = MAX_FIELDS.saturating_sub(of_level.map(Fault::fields).sum());
        let level = fault.level;
        if fault.fields() <= room {
            self.faults.push(fault);
            return self;
        }
        let omitted = Omitted { fields: fault.fields() - room, hash: hash(&fault) };
        fault.paths.truncate(room);
        if room > 0 {
            self.faults.push(fault);
        }
        self.omit(level, omitted)
    }

    fn omit(mut self, level: Level, omitted: Omitted) -> Self {
        let all = self.more.entry(level).or_default();
        all.fields += omitted.fields;
        all.hash = hash(&(all.hash, omitted.hash));
        self
    }

    /// The number of faults that are not kept, if there are any.
    fn omitted(&self) -> Option<usize> {
        Some(self.more.values().map(|omitted| omitted.fields).sum()).filter(|fields| *fields > 0)
    }

    /// Returns true if there is no fault.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// Returns an error if there is any fault, warnings included.
    ///
    /// # Errors
    ///
    /// Returns this error if it has a fault.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    /// Returns a cause for each field of each fault, as the API server does for faults that it finds itself: kubectl
    /// prints the field and the message of each. The causes are in the order in which the error is displayed.
    ///
    /// The message begins with the text of the [`CauseType`]. The field of a fault without a path is `<nil>`, and so is that
    /// of the last cause if there are more faults than an error keeps.
    pub fn causes(&self) -> Vec<StatusCause> {
        let mut causes = Vec::new();
        for ((message, details, _, cause), paths) in self.paths_by_fault() {
            let (reason, message) = (cause.reason(), cause_message(cause, message, details));
            let fields = if paths.is_empty() { BTreeSet::from([WHOLE_OBJECT]) } else { paths };
            causes.extend(fields.into_iter().map(|field| StatusCause {
                reason: reason.into(),
                message: message.clone(),
                field: field.into(),
            }));
        }
        causes.extend(self.omitted().map(|fields| StatusCause {
            reason: CauseType::Invalid.reason().into(),
            message: more(fields),
            field: WHOLE_OBJECT.into(),
        }));
        causes
    }

    /// The paths of the faults by message, details, level and type, in the order in which they are displayed.
    fn paths_by_fault(&self) -> BTreeMap<(&str, &str, Level, CauseType), BTreeSet<&str>> {
        let mut by_fault = BTreeMap::<_, BTreeSet<&str>>::new();
        for Fault { message, details, paths, level, cause } in &self.faults {
            by_fault
                .entry((&**message, &**details, *level, *cause))
                .or_default()
                .extend(paths.iter().map(String::as_str));
        }
        by_fault
    }
}

/// Returns the message of a cause in the form of the API server, such as `Invalid value: 80: must be even`.
fn cause_message(cause: CauseType, message: &str, details: &str) -> String {
    let text = cause.text();
    // Some messages begin with the text of their type: `invalid value: 80`.
    let begins_with_text = message.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text));
    let rest = if begins_with_text { message[text.len()..].trim_start_matches(": ") } else { message };
    let parts = [text, rest, details];
    let shown = parts.into_iter().filter(|part| !part.is_empty() && *part != MISSING);
    shown.collect::<Vec<_>>().join(": ")
}

impl Fault {
    /// The number of its fields. The whole object counts as one.
    fn fields(&self) -> usize {
        self.paths.len().max(1)
    }
}

fn more(fields: usize) -> String {
    format!("and {fields} more fault{}", if fields == 1 { "" } else { "s" })
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Cuts a text that is longer than this many bytes.
fn shorten(mut text: String, max_bytes: usize) -> String {
    if text.len() > max_bytes {
        text.truncate(text.floor_char_boundary(max_bytes));
        text.push('…');
    }
    text
}

/// Joins a prefix and a path with a dot. An index or key in brackets follows its field without a dot.
fn join(prefix: &str, path: &str) -> String {
    let mut joined = String::new();
    for segment in prefix.split('.').chain(path.split('.')) {
        let is_bracketed = segment.starts_with('[') && segment.ends_with(']');
        if !joined.is_empty() && !segment.is_empty() && !is_bracketed {
            joined.push('.');
        }
        joined.push_str(segment);
    }
    joined
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, ((message, details, ..), paths)) in self.paths_by_fault().into_iter().enumerate() {
            let separator = if index > 0 { "\n" } else { "" };
            let paths: Vec<&str> = paths.into_iter().collect();
            write!(f, "{separator}{message}: {}", paths.join(", "))?;
            if !details.is_empty() {
                write!(f, "\n{details}")?;
            }
        }
        self.omitted().map_or(Ok(()), |fields| write!(f, "\n{}", more(fields)))
    }
}

impl std::error::Error for FieldError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_has_the_reason_and_the_words_of_the_api_server() {
        let cause = |fault: FieldError| {
            let cause = fault.causes().remove(0);
            format!("{} {}: {}", cause.reason, cause.field, cause.message)
        };
        assert_eq!(cause(FieldError::missing(["a"])), "FieldValueRequired a: Required value");
        assert_eq!(
            cause(FieldError::disallowed(["a"])),
            "FieldValueForbidden a: Forbidden: must not set the field(s)"
        );
        assert_eq!(
            cause(FieldError::invalid_value(3, "a").details("must be even")),
            "FieldValueInvalid a: Invalid value: 3: must be even"
        );
        assert_eq!(
            cause(FieldError::generic("red", ["a"]).cause(CauseType::NotSupported)),
            "FieldValueNotSupported a: Unsupported value: red"
        );
    }

    #[test]
    fn each_field_of_a_fault_has_a_cause_and_a_fault_without_a_field_has_one_too() {
        let fields =
            |fault: FieldError| fault.causes().into_iter().map(|cause| cause.field).collect::<Vec<_>>();
        assert_eq!(
            fields(FieldError::missing_one_of(["ref", "uri"]).via_field("sink")),
            ["sink.ref", "sink.uri"]
        );
        assert_eq!(fields(FieldError::generic("too large", Vec::<String>::new())), ["<nil>"]);
        assert_eq!(fields(FieldError::missing(["a"]).also(FieldError::missing(["a"]))), ["a"]);
    }

    #[test]
    fn an_error_keeps_a_hundred_fields_of_each_level_and_counts_the_rest() {
        let warnings = (0..150).map(|index| FieldError::missing(["a"]).via_index(index).at(Level::Warning));
        let errors = (0..100_000).map(|index| FieldError::missing(["b"]).via_field_index("list", index));
        let all = warnings.chain(errors).fold(FieldError::none(), FieldError::also).via_field("spec");
        let (warnings, errors) = (all.clone().filter(Level::Warning), all.filter(Level::Error));
        assert!(warnings.to_string().ends_with("\nand 50 more faults"), "{warnings}");
        let message = errors.to_string();
        assert!(
            message.starts_with("missing field(s): spec.list[0].b") && message.len() < 3_000,
            "{message}"
        );
        assert!(message.ends_with("\nand 99900 more faults"), "{message}");
        let causes = errors.causes();
        assert_eq!((causes.len(), &*causes[100].field), (101, "<nil>"));
        assert_eq!(causes[100].message, "and 99900 more faults");
        let together = errors.also(warnings).at(Level::Warning).filter(Level::Warning);
        assert!(together.to_string().ends_with("\nand 100050 more faults"), "{together}");
        let one = FieldError::missing((0..101).map(|index| index.to_string()));
        assert!(one.to_string().ends_with("\nand 1 more fault"), "{one}");
    }

    /// An update is compared with the stored object by its faults.
    #[test]
    fn errors_that_differ_in_a_fault_that_is_not_kept_differ() {
        let errors = |last| (0..200).chain([last]).map(|index| FieldError::missing(["a"]).via_index(index));
        let [one, same, other] =
            [200, 200, 201].map(|last| errors(last).fold(FieldError::none(), FieldError::also));
        assert!(one == same && one != other && one.to_string() == other.to_string());
    }

    #[test]
    fn long_texts_are_cut_in_messages_details_and_paths() {
        let long = "ä".repeat(1 << 20);
        let error = FieldError::invalid_value(&long, "a").details(&long).via_key(&long).via_field(&long);
        let named = FieldError::invalid_key_name(&long, &long);
        let text = error.also(named).to_string();
        assert!(text.len() < 5_000 && text.matches('…').count() >= 5, "{}", text.len());
    }
}
