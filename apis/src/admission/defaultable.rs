//! Defaulting of objects at admission.

use super::request::Request;
use crate::Kind;

/// A Kind with defaults that depend on the request. Other defaults belong in [`Kind::set_defaults`], which is called
/// first.
///
/// ```
/// use reknit_apis::{Defaultable, Operation, Request, kind};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Note", namespaced)]
/// struct NoteSpec {
///     author: Option<String>,
/// }
///
/// kind!(Note {});
///
/// impl Defaultable for Note {
///     fn set_request_defaults(&mut self, _old: Option<&Self>, request: &Request) {
///         self.spec.author.get_or_insert_with(|| request.username().to_owned());
///     }
/// }
///
/// let mut note = Note::new("x", NoteSpec { author: None });
/// note.set_request_defaults(None, &Request::new(Operation::Create).by("alice"));
/// assert_eq!(note.spec.author.as_deref(), Some("alice"));
/// ```
pub trait Defaultable: Kind {
    /// Sets the remaining defaults, from the stored object, if any, and the request.
    fn set_request_defaults(&mut self, old: Option<&Self>, request: &Request);
}
