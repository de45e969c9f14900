//! Defaulting of objects at admission.

use super::request::Request;
use crate::Kind;

/// A Kind with defaults that depend on the request or on a ConfigMap. Other defaults belong in [`Kind::set_defaults`],
/// which is called first.
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
///
/// # Defaults from a ConfigMap
///
/// If the cluster's administrator chooses a default in a ConfigMap, read the ConfigMap's values by [`Request::config`],
/// and declare the type that holds them to the webhook by `Webhook::config`. Such a default is only set at admission:
/// an object that was stored before the webhook or the field existed reaches the reconciler without it. So write the
/// rule as a method that takes the configuration, and let the reconciler call it with its own `Config<T>`:
///
/// ```
/// # use reknit_apis::{Defaultable, Operation, Request, kind};
/// # use serde::{Deserialize, Serialize};
/// #[derive(Default)]
/// struct Sizes {
///     pages: u32,
/// }
///
/// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Book", namespaced)]
/// struct BookSpec {
///     pages: Option<u32>,
/// }
///
/// kind!(Book {});
///
/// impl BookSpec {
///     /// Called by the reconciler, too, with `config.get()`.
///     fn pages(&self, sizes: &Sizes) -> u32 {
///         self.pages.unwrap_or(sizes.pages)
///     }
/// }
///
/// impl Defaultable for Book {
///     fn set_request_defaults(&mut self, _old: Option<&Self>, request: &Request) {
///         self.spec.pages = Some(self.spec.pages(&request.config()));
///     }
/// }
///
/// let mut book = Book::new("x", BookSpec { pages: None });
/// book.set_request_defaults(None, &Request::new(Operation::Create).with(Sizes { pages: 200 }));
/// assert_eq!(book.spec.pages, Some(200));
/// ```
pub trait Defaultable: Kind {
    /// Sets the remaining defaults. `old` is the stored object, if any.
    fn set_request_defaults(&mut self, old: Option<&Self>, request: &Request);
}
