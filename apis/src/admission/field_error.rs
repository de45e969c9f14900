//! What is wrong with an object, told by the fields it is wrong in.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display},
};

/// Complaints about fields, each with the paths of the fields it is about; none, if nothing is wrong.
///
/// Each level of an object's validation adds its own field to the paths that come from below.
///
/// ```
/// use reknit_apis::FieldError;
///
/// fn validate_port(port: u16) -> FieldError {
///     if port >= 1024 { FieldError::none() } else { FieldError::out_of_bounds(port, 1024, u16::MAX, "port") }
/// }
///
/// let ports = [80, 8080];
/// let mut wrong = FieldError::missing(["host"]);
/// for (index, port) in ports.into_iter().enumerate() {
///     wrong = wrong.also(validate_port(port).via_field_index("ports", index));
/// }
/// let error = wrong.via_field("spec").into_result().unwrap_err();
/// assert_eq!(error.to_string(), "expected 1024 <= 80 <= 65535: spec.ports[0].port\nmissing field(s): spec.host");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct FieldError {
    complaints: Vec<Complaint>,
}

/// Whether a complaint stands in the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The object is refused.
    #[default]
    Error,
    /// The object is accepted, and its author told.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Complaint {
    message: String,
    paths: Vec<String>,
    details: String,
    level: Level,
}

impl FieldError {
    /// Nothing is wrong.
    pub fn none() -> Self {
        Self::default()
    }

    /// A complaint in words of your own.
    pub fn generic<P: Into<String>>(message: impl Into<String>, paths: impl IntoIterator<Item = P>) -> Self {
        let paths = paths.into_iter().map(Into::into).collect();
        let complaint =
            Complaint { message: message.into(), paths, details: String::new(), level: Level::Error };
        Self { complaints: vec![complaint] }
    }

    /// Fields that must be there.
    pub fn missing<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::generic("missing field(s)", paths)
    }

    /// Fields that must not be there.
    pub fn disallowed<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::generic("must not set the field(s)", paths)
    }

    /// None of these fields is there, where one must be.
    pub fn missing_one_of<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::generic("expected exactly one, got neither", paths)
    }

    /// Several of these fields are there, where one must be.
    pub fn multiple_one_of<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::generic("expected exactly one, got both", paths)
    }

    /// A value that the field cannot have.
    pub fn invalid_value(value: impl Display, path: &str) -> Self {
        Self::generic(format!("invalid value: {value}"), [path])
    }

    /// A value beyond the bounds, which themselves are allowed.
    pub fn out_of_bounds(value: impl Display, lower: impl Display, upper: impl Display, path: &str) -> Self {
        Self::generic(format!("expected {lower} <= {value} <= {upper}"), [path])
    }

    /// A key that the map at this path cannot have.
    pub fn invalid_key_name(key: &str, path: &str) -> Self {
        Self::generic(format!("invalid key name {key:?}"), [path])
    }

    /// The same, with what may help shown on a line of its own.
    pub fn details(mut self, details: impl Into<String>) -> Self {
        let details = details.into();
        for complaint in &mut self.complaints {
            complaint.details.clone_from(&details);
        }
        self
    }

    /// The same, seen from one field further out: `port` becomes `spec.port`.
    pub fn via_field(self, field: &str) -> Self {
        self.via(&[field])
    }

    /// The same, seen from the list that holds it: `port` becomes `[2].port`.
    pub fn via_index(self, index: usize) -> Self {
        self.via(&[&format!("[{index}]")])
    }

    /// The same, seen from the map that holds it: `port` becomes `[key].port`.
    pub fn via_key(self, key: &str) -> Self {
        self.via(&[&format!("[{key}]")])
    }

    /// The same, seen from the field that is the list that holds it: `port` becomes `ports[2].port`.
    pub fn via_field_index(self, field: &str, index: usize) -> Self {
        self.via_index(index).via_field(field)
    }

    /// The same, seen from the field that is the map that holds it: `port` becomes `ports[key].port`.
    pub fn via_field_key(self, field: &str, key: &str) -> Self {
        self.via_key(key).via_field(field)
    }

    fn via(mut self, prefix: &[&str]) -> Self {
        for path in self.complaints.iter_mut().flat_map(|complaint| &mut complaint.paths) {
            *path = join(prefix.iter().copied().chain([path.as_str()]));
        }
        self
    }

    /// The same complaints, all at this level.
    pub fn at(mut self, level: Level) -> Self {
        for complaint in &mut self.complaints {
            complaint.level = level;
        }
        self
    }

    /// These complaints and those.
    pub fn also(mut self, other: Self) -> Self {
        self.complaints.extend(other.complaints);
        self
    }

    /// Only the complaints of this level.
    pub fn filter(mut self, level: Level) -> Self {
        self.complaints.retain(|complaint| complaint.level == level);
        self
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.complaints.is_empty()
    }

    /// An error, if anything is wrong, warnings included.
    ///
    /// # Errors
    ///
    /// These complaints.
    pub fn into_result(self) -> Result<(), Self> {
        if self.is_empty() { Ok(()) } else { Err(self) }
    }

    /// The complaints as they are shown: equal ones of a level joined, in the order of their texts.
    fn merged(&self) -> BTreeMap<(&str, &str, Level), BTreeSet<&str>> {
        let mut merged = BTreeMap::<_, BTreeSet<&str>>::new();
        for Complaint { message, details, paths, level } in &self.complaints {
            merged
                .entry((&**message, &**details, *level))
                .or_default()
                .extend(paths.iter().map(String::as_str));
        }
        merged
    }
}

/// Joins the steps of a path with dots, but for indexes and keys, which follow what they belong to at once.
fn join<'a>(steps: impl IntoIterator<Item = &'a str>) -> String {
    let mut path = String::new();
    for step in steps.into_iter().flat_map(|steps| steps.split('.')) {
        let is_index = step.starts_with('[') && step.ends_with(']');
        if !path.is_empty() && !step.is_empty() && !is_index {
            path.push('.');
        }
        path.push_str(step);
    }
    path
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, ((message, details, _), paths)) in self.merged().into_iter().enumerate() {
            let line_end = if number > 0 { "\n" } else { "" };
            let paths: Vec<&str> = paths.into_iter().collect();
            write!(f, "{line_end}{message}: {}", paths.join(", "))?;
            if !details.is_empty() {
                write!(f, "\n{details}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for FieldError {}
