//! What a Kind says about requests to create, change and delete its objects.

use k8s_openapi::api::authentication::v1::UserInfo;

use crate::{FieldError, Kind};

/// What somebody asks to do with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// To create it.
    Create,
    /// To change it, or one of its subresources.
    Update,
    /// To delete it.
    Delete,
}

/// A request that an object is part of: who asks, and for what.
///
/// ```
/// use reknit_apis::{Operation, Request};
///
/// let request = Request::new(Operation::Create).by("alice");
/// assert_eq!(request.username(), "alice");
/// assert!(!request.dry_run);
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    /// What is to be done.
    pub operation: Operation,
    /// Who asks.
    pub user: UserInfo,
    /// Where the object is; none where the Kind is cluster-scoped.
    pub namespace: Option<String>,
    /// The name of the object; empty where the API server is to make one up.
    pub name: String,
    /// The part that is to be changed, such as `status`; none where it is the object itself.
    pub subresource: Option<String>,
    /// Whether nothing of this will be stored.
    pub dry_run: bool,
}

impl Request {
    /// A request of nobody in particular.
    pub fn new(operation: Operation) -> Self {
        Self {
            operation,
            user: UserInfo::default(),
            namespace: None,
            name: String::new(),
            subresource: None,
            dry_run: false,
        }
    }

    /// The same, asked by this user.
    pub fn by(mut self, username: &str) -> Self {
        self.user.username = Some(username.into());
        self
    }

    /// The name of who asks; empty where there is none.
    pub fn username(&self) -> &str {
        self.user.username.as_deref().unwrap_or_default()
    }
}

/// A Kind with rules that its schema cannot express.
///
/// Complaints of level [`Error`](crate::Level::Error) refuse the request; those of level
/// [`Warning`](crate::Level::Warning) are shown to who asked.
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
///         let mut wrong = FieldError::none();
///         if self.spec.room.is_empty() {
///             wrong = wrong.also(FieldError::missing(["room"]));
///         }
///         if self.spec.watts > 60 {
///             wrong = wrong.also(FieldError::invalid_value(self.spec.watts, "watts").at(Level::Warning));
///         }
///         wrong.via_field("spec")
///     }
///
///     fn validate_update(&self, old: &Self, request: &Request) -> FieldError {
///         match self.spec.room == old.spec.room {
///             true => self.validate(request),
///             false => FieldError::generic("a lamp stays where it is", ["spec.room"]),
///         }
///     }
/// }
///
/// let lamp = |room: &str| Lamp::new("x", LampSpec { room: room.into(), watts: 100 });
/// let request = Request::new(Operation::Update);
/// assert_eq!(lamp("hall").validate_update(&lamp("hall"), &request).to_string(), "invalid value: 100: spec.watts");
/// assert_eq!(
///     lamp("attic").validate_update(&lamp("hall"), &request).to_string(),
///     "a lamp stays where it is: spec.room",
/// );
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what is valid",
    note = "`impl Validatable for {Self}`, with `fn validate(&self, request: &Request) -> FieldError`"
)]
pub trait Validatable: Kind {
    /// The subresources that are validated too: `status`, as a rule. In requests for `scale` the object is a Scale and not
    /// the Kind, so these would all be refused.
    const SUBRESOURCES: &'static [&'static str] = &[];

    /// What is wrong with an object that is to be created, or, unless [`validate_update`](Self::validate_update) says
    /// otherwise, with one as it is to become.
    fn validate(&self, request: &Request) -> FieldError;

    /// What is wrong with a change of an object.
    fn validate_update(&self, old: &Self, request: &Request) -> FieldError {
        let _ = old;
        self.validate(request)
    }

    /// What is wrong with a change of one of the [`SUBRESOURCES`](Self::SUBRESOURCES), which `request` names.
    fn validate_subresource(&self, old: &Self, request: &Request) -> FieldError {
        let _ = (old, request);
        FieldError::none()
    }

    /// What is wrong with deleting the object.
    fn validate_delete(&self, request: &Request) -> FieldError {
        let _ = request;
        FieldError::none()
    }
}

/// A Kind some of whose defaults depend on the request. What does not depend on it belongs to the Kind's own
/// [`Kind::set_defaults`], which is called before.
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
    /// Fills in what is still open, of who asks, what was there before and what is to be done.
    fn set_request_defaults(&mut self, old: Option<&Self>, request: &Request);
}
