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
    /// All objects gone that a selector selects.
    DeleteCollection,
}

impl Verb {
    pub(super) fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List)
    }

    /// Whether there is an object afterwards.
    pub(super) fn leaves_one(self) -> bool {
        matches!(self, Self::Create | Self::Update | Self::Patch)
    }
}

/// It shows as RBAC names it: `deletecollection`.
impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A request that was to change something. It shows as `patch addressableservices/status default/x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// What was to be done.
    pub verb: Verb,
    /// `pods`, `addressableservices/status`.
    pub resource: String,
    /// To which object; one that was to be created has the name or the `generateName` that it was sent with, and a
    /// collection has no name.
    pub key: Key,
    /// Which objects of a collection were to be deleted, by their labels; none for all.
    pub selector: Option<String>,
    /// Whether it is server-side apply, which is a patch.
    pub applies: bool,
    /// What was sent.
    pub body: Value,
    /// The object as it was to be afterwards, also where the request was [made to fail](super::ApiServer::fail). None
    /// where it was to be gone, and where the server refused of itself.
    pub meant: Option<Value>,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.verb, self.resource, self.key)?;
        self.selector.iter().try_for_each(|selector| write!(f, "?{selector}"))
    }
}
