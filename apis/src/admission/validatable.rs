//! Validation of objects at admission.

use super::{field_error::FieldError, request::Request};
use crate::Kind;

/// A Kind with rules that its schema cannot express. A rule that depends on a ConfigMap reads it by
/// [`Request::config`].
///
/// A request whose object has a fault of level [`Error`](crate::Level::Error) is refused. Faults of level
/// [`Warning`](crate::Level::Warning) are returned to the client as warnings.
///
/// ```
/// use reknit_apis::{FieldError, Level, Operation, Request, Validatable, kind};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
/// struct LampSpec {
///     room: String,
///     watts: u32,
/// }
///
/// kind!(Lamp {});
///
/// impl Validatable for Lamp {
///     fn validate(&self, _: &Request) -> FieldError {
///         let mut errors = FieldError::none();
///         if self.spec.room.is_empty() {
///             errors = errors.also(FieldError::missing(["room"]));
///         }
///         if self.spec.watts > 60 {
///             errors = errors.also(FieldError::invalid_value(self.spec.watts, "watts").at(Level::Warning));
///         }
///         errors.via_field("spec")
///     }
///
///     fn validate_update(&self, old: &Self, request: &Request) -> FieldError {
///         match self.spec.room == old.spec.room {
///             true => self.validate(request),
///             false => FieldError::generic("the room of a lamp cannot be changed", ["spec.room"]),
///         }
///     }
/// }
///
/// let lamp = |room: &str| Lamp::new("x", LampSpec { room: room.into(), watts: 100 });
/// let request = Request::new(Operation::Update);
/// assert_eq!(lamp("hall").validate_update(&lamp("hall"), &request).to_string(), "invalid value: 100: spec.watts");
/// assert_eq!(
///     lamp("attic").validate_update(&lamp("hall"), &request).to_string(),
///     "the room of a lamp cannot be changed: spec.room",
/// );
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `Validatable`",
    note = "`impl Validatable for {Self}`, with `fn validate(&self, request: &Request) -> FieldError`"
)]
pub trait Validatable: Kind {
    /// The subresources to validate too, usually `status`. Do not list `scale`: its requests hold a Scale instead of
    /// the Kind, and would all be refused. Limit the replicas in the schema, which `kubectl scale` has to obey too.
    const SUBRESOURCES: &'static [&'static str] = &[];

    /// Decides about the deletion of an object. The API server asks the webhook about deletions only if this is set:
    /// otherwise objects of the Kind without finalizers, and namespaces that contain some, can be deleted while the webhook
    /// is unreachable.
    ///
    /// ```
    /// # use reknit_apis::{FieldError, Request, Validatable, kind};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    /// # #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
    /// # struct LampSpec { room: String }
    /// # kind!(Lamp {});
    /// impl Validatable for Lamp {
    ///     const DELETION_RULE: Option<fn(&Self, &Request) -> FieldError> = Some(Lamp::validate_delete);
    ///
    ///     fn validate(&self, _: &Request) -> FieldError {
    ///         FieldError::none()
    ///     }
    /// }
    ///
    /// impl Lamp {
    ///     fn validate_delete(&self, _: &Request) -> FieldError {
    ///         match &*self.spec.room {
    ///             "cellar" => FieldError::generic("the lamp in the cellar stays on", ["spec.room"]),
    ///             _ => FieldError::none(),
    ///         }
    ///     }
    /// }
    /// ```
    const DELETION_RULE: Option<fn(&Self, &Request) -> FieldError> = None;

    /// Validates an object to create and, unless [`validate_update`](Self::validate_update) is implemented, the new
    /// state of an object to update.
    fn validate(&self, request: &Request) -> FieldError;

    /// Validates an update of an object. `old` has the defaults of today, as `self` does. If the update leaves the spec
    /// alone, the webhook ignores faults that the stored object has too.
    fn validate_update(&self, old: &Self, request: &Request) -> FieldError {
        let _ = old;
        self.validate(request)
    }

    /// Validates an update of one of the [`SUBRESOURCES`](Self::SUBRESOURCES), which `request` names.
    fn validate_subresource(&self, old: &Self, request: &Request) -> FieldError {
        let _ = (old, request);
        FieldError::none()
    }
}
