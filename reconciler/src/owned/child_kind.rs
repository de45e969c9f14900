//! The Kind of the children that an [`Owned`](crate::Owned) lists and writes.

use kube::{
    Resource,
    api::DynamicObject,
    core::{ApiResource, Request},
};
use reknit_apis::{Key, Scope};

/// A Kind of children, which is known at compile time or only at run time.
#[derive(Clone, Debug)]
pub(crate) struct ChildKind {
    pub(super) resource: ApiResource,
    pub(super) is_namespaced: bool,
}

impl ChildKind {
    pub(crate) fn new(resource: ApiResource, is_namespaced: bool) -> Self {
        Self { resource, is_namespaced }
    }

    pub(crate) fn of<T: Resource<DynamicType = (), Scope: Scope>>() -> Self {
        Self::new(ApiResource::erase::<T>(&()), T::Scope::NAMESPACED)
    }

    /// Returns a builder of requests for the child of this key.
    pub(super) fn request_builder(&self, key: &Key) -> Request {
        Request::new(DynamicObject::url_path(&self.resource, key.namespace.as_deref()))
    }

    /// Kind and key of a child: `Deployment default/web`.
    pub(super) fn with_key(&self, key: &Key) -> String {
        format!("{} {key}", self.resource.kind)
    }
}
