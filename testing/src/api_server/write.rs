//! A request that was to change something.

use std::fmt;

use reknit_apis::Key;
use serde_json::Value;

/// What a request asks for, as RBAC names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// One object.
    Get,
    /// Many objects.
    List,
    /// A new object.
    Create,
    /// An object in place of another.
    Update,
    /// Some fields of an object.
    Patch,
    /// An object gone.
    Delete,
}

impl Verb {
    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List)
    }
}

/// A request that was to change something. It shows as `patch addressableservices/status default/x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// What was to be done.
    pub verb: Verb,
    /// `pods`, `addressableservices/status`.
    pub resource: String,
    /// To which object; one that was to be created has the name or the `generateName` that it was sent with.
    pub key: Key,
    /// What was sent.
    pub body: Value,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", format!("{:?}", self.verb).to_lowercase(), self.resource, self.key)
    }
}
