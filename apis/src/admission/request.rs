//! An admission request, as validation and defaulting see it.

use k8s_openapi::api::authentication::v1::UserInfo;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Creates the object.
    Create,
    /// Changes the object or one of its subresources.
    Update,
    /// Deletes the object.
    Delete,
}

/// An admission request without its objects.
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
    /// The operation.
    pub operation: Operation,
    /// The user who makes the request.
    pub user: UserInfo,
    /// The namespace of the object; `None` for a cluster-scoped Kind.
    pub namespace: Option<String>,
    /// The name of the object; empty if the API server has yet to generate it.
    pub name: String,
    /// The subresource to change, such as `status`; `None` for the object itself.
    pub subresource: Option<String>,
    /// True if the result will not be stored.
    pub dry_run: bool,
}

impl Request {
    /// Creates a request by an unknown user.
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

    /// Sets the name of the user.
    pub fn by(mut self, username: &str) -> Self {
        self.user.username = Some(username.into());
        self
    }

    /// The name of the user; empty if unknown.
    pub fn username(&self) -> &str {
        self.user.username.as_deref().unwrap_or_default()
    }
}
