//! The admission request that is passed to validation and defaulting.

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

/// The attributes of an admission request: operation, user, namespace, name and subresource. The objects are passed
/// separately.
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
    /// The namespace of the object. `None` if the object is cluster-scoped.
    pub namespace: Option<String>,
    /// The name of the object; empty if the API server has yet to generate it.
    pub name: String,
    /// The subresource to change, such as `status`; `None` for the object itself.
    pub subresource: Option<String>,
    /// True for a dry run: the API server does not store the result.
    pub dry_run: bool,
}

impl Request {
    /// Creates a request with only an operation. All other attributes are empty.
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

    /// Sets the username.
    pub fn by(mut self, username: &str) -> Self {
        self.user.username = Some(username.into());
        self
    }

    /// Returns the name of the user; empty if unknown.
    pub fn username(&self) -> &str {
        self.user.username.as_deref().unwrap_or_default()
    }
}
