//! The faults of an object, by field.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
};

use kube_core::response::StatusCause;

use super::cause_type::CauseType;

/// The message of a missing field, in Knative's words.
const MISSING: &str = "missing field(s)";
/// The field of a fault of the whole object, as the API server writes it.
const WHOLE_OBJECT: &str = "<nil>";

/// The faults of an object, each with the paths of its fields. Empty if the object is valid.
///
/// Each level of validation prepends its own field to the paths of the levels below.
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

#[derive(Clone, Debug, PartialEq, Eq)]
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
        let paths = paths.into_iter().map(Into::into).collect();
        let fault = Fault {
            message: message.into(),
            paths,
            details: String::new(),
            level: Level::Error,
            cause: CauseType::Invalid,
        };
        Self { faults: vec![fault] }
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
        let details = details.into();
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
        self.via(field)
    }

    /// Prepends the index in a list: `port` becomes `[2].port`.
    pub fn via_index(self, index: usize) -> Self {
        self.via(&format!("[{index}]"))
    }

    /// Prepends the key in a map: `port` becomes `[key].port`.
    pub fn via_key(self, key: &str) -> Self {
        self.via(&format!("[{key}]"))
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
            *path = join(prefix, path);
        }
        self
    }

    /// Sets the level of all faults.
    pub fn at(mut self, level: Level) -> Self {
        self.faults.iter_mut().for_each(|fault| fault.level = level);
        self
    }

    /// Adds the faults of another error.
    pub fn also(mut self, other: Self) -> Self {
        self.faults.extend(other.faults);
        self
    }

    /// Keeps only the faults of this level.
    pub fn filter(mut self, level: Level) -> Self {
        self.faults.retain(|fault| fault.level == level);
        self
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
    /// The message begins with the text of the [`CauseType`]. The field of a fault without a path is `<nil>`.
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
        Ok(())
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
}
