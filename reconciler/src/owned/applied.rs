//! [`Applied`]: the effect of applying a child.

use std::{ops::Deref, sync::Arc};

use kube::Resource;
use reknit_apis::to_json;
use serde::Serialize;
use serde_json::Value;

use crate::metrics::ChildResult;

/// The effect of [`Owned::apply`](crate::Owned::apply) on a child. It holds the resulting object, and dereferences to
/// it.
///
/// Corresponds to controller-runtime's `controllerutil.OperationResult`. Use it to decide which event to record:
///
/// ```
/// use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
/// use reknit_reconciler::{Applied, Event, Outcome, Owned, Result};
///
/// async fn expose(services: &Owned<Service>, deployment: &Deployment, service: Service) -> Result<Outcome> {
///     let done = Outcome::done();
///     Ok(match services.apply(deployment, service).await? {
///         Applied::Created(_) => done.event(Event::normal("Created", "created the Service")),
///         Applied::Updated { old, new } if old.spec != new.spec => {
///             done.event(Event::normal("Updated", "updated the spec of the Service"))
///         }
///         Applied::Updated { .. } | Applied::Unchanged(_) => done,
///     })
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied<T> {
    /// The child did not exist and was created.
    Created(Arc<T>),
    /// The child differs from the cached one.
    Updated {
        /// The child as it was cached before the call. If another client wrote the child in between, the differences
        /// to `new` include that change.
        old: Arc<T>,
        /// The child as the API server answered.
        new: Arc<T>,
    },
    /// The child was already as desired, or is being deleted and could not be changed.
    Unchanged(Arc<T>),
}

impl<T> Applied<T> {
    /// Returns the resulting object.
    pub fn into_object(self) -> Arc<T> {
        match self {
            Self::Created(object) | Self::Unchanged(object) | Self::Updated { new: object, .. } => object,
        }
    }
}

impl<T> Applied<T> {
    pub(super) fn result(&self) -> ChildResult {
        match self {
            Self::Created(_) => ChildResult::Created,
            Self::Updated { .. } => ChildResult::Updated,
            Self::Unchanged(_) => ChildResult::Unchanged,
        }
    }
}

impl<T: Resource + Serialize> Applied<T> {
    /// The effect of a request whose answer is `new`. `old` is the cached child, if it existed.
    pub(super) fn of(old: Option<Arc<T>>, new: Arc<T>) -> Self {
        match old {
            None => Self::Created(new),
            Some(old) if is_same(&*old, &*new) => Self::Unchanged(new),
            Some(old) => Self::Updated { old, new },
        }
    }
}

impl<T> Deref for Applied<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Created(object) | Self::Unchanged(object) | Self::Updated { new: object, .. } => object,
        }
    }
}

/// Returns true if the objects are equal apart from what a controller does not apply: their status, which may have
/// changed since `old` was cached, and what the API server changes with each write.
fn is_same<T: Resource + Serialize>(old: &T, new: &T) -> bool {
    old.meta().resource_version == new.meta().resource_version
        || matches!((applied_part(old), applied_part(new)), (Some(old), Some(new)) if old == new)
}

fn applied_part<T: Serialize>(object: &T) -> Option<Value> {
    let mut object = to_json(object).ok()?;
    let fields = object.as_object_mut()?;
    for name in ["status", "apiVersion", "kind"] {
        fields.remove(name);
    }
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    for name in ["resourceVersion", "managedFields", "generation"] {
        metadata.remove(name);
    }
    Some(object)
}
