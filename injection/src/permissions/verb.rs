//! The verbs of requests, as RBAC names them.

use std::fmt;

/// The verb of a request, as RBAC names it. Generated rules list their verbs in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Lists objects.
    List,
    /// Watches objects.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes some fields of an object. Server-side apply is a patch, and also needs `create` if the object is new.
    Patch,
    /// Deletes an object.
    Delete,
    /// Deletes all objects that a selector selects.
    DeleteCollection,
}

/// Formats the verb as RBAC names it: `deletecollection`.
impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}
