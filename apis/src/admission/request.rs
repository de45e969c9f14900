//! The admission request that is passed to validation and defaulting.

use std::{
    any::{Any, TypeId},
    fmt,
    sync::Arc,
};

use k8s_openapi::api::authentication::v1::UserInfo;

use crate::hash::HashMap;

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
/// separately. A request also carries the configuration that defaults and rules read.
///
/// ```
/// use reknit_apis::{Operation, Request};
///
/// /// Read from a ConfigMap.
/// #[derive(Default)]
/// struct Limits {
///     watts: u32,
/// }
///
/// let request = Request::new(Operation::Create).by("alice").with(Limits { watts: 60 });
/// assert_eq!(request.username(), "alice");
/// assert_eq!(request.config::<Limits>().watts, 60);
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
    values: Values,
}

/// The values that a request carries, by their type.
#[derive(Clone, Default)]
struct Values(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.0.len())
    }
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
            values: Values::default(),
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

    /// Adds a value that defaults and rules read by [`config`](Self::config). Replaces a value of the same type. A test
    /// adds values this way; a webhook adds the values of its ConfigMaps.
    pub fn with<T: Send + Sync + 'static>(mut self, value: impl Into<Arc<T>>) -> Self {
        self.values.0.insert(TypeId::of::<T>(), value.into());
        self
    }

    /// Returns the value of this type, or the default of the type if the request carries none. A webhook adds a value
    /// of each type that was declared by `Webhook::config`. Within one request each call returns the same value.
    pub fn config<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let value = self.values.0.get(&TypeId::of::<T>()).cloned();
        value.and_then(|value| value.downcast().ok()).unwrap_or_default()
    }
}
