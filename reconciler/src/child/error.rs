//! Why a child was not applied.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use reknit_apis::Key;

/// Why [`Owned::apply`](crate::Owned::apply) did not make a child what it is to be.
///
/// It goes through `?` like any error: it is retried with backoff, a conflict silently.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotApplied {
    /// An object of this name is there, and the owner does not control it.
    #[error("{child} already exists and is not controlled by {owner}, but {}", of_whom(.by.as_deref()))]
    Taken {
        /// Kind and key of the object.
        child: String,
        /// Kind and key of the owner.
        owner: String,
        /// What controls the object instead, if anything does.
        by: Option<Box<OwnerReference>>,
    },
    /// The owner is being deleted: a child would at once be deleted too, or be left behind.
    #[error("{owner} is being deleted, so {child} is not applied for it")]
    OwnerDeleted {
        /// Kind and key of the child.
        child: String,
        /// Kind and key of the owner.
        owner: String,
    },
    /// The child names another namespace than its owner is in, where no owner can have it.
    #[error("{child} cannot be controlled by {owner}, which is in another namespace")]
    OtherNamespace {
        /// Kind and key of the child.
        child: String,
        /// Kind and key of the owner.
        owner: String,
    },
    /// The child has no name, or is no JSON object.
    #[error("a {kind} {problem} cannot be applied")]
    Unusable {
        /// The Kind of the child.
        kind: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The API server refused, or was not reached.
    #[error("cannot apply {child}")]
    Refused {
        /// Kind and key of the child.
        child: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

/// Kind and key: `Deployment default/web`.
pub(super) fn said<K: Resource<DynamicType = ()>>(object: &K) -> String {
    named::<K>(&Key::of(object))
}

pub(super) fn named<K: Resource<DynamicType = ()>>(key: &Key) -> String {
    format!("{} {key}", K::kind(&()))
}

fn of_whom(controller: Option<&OwnerReference>) -> String {
    match controller {
        Some(controller) => format!("by {} {} of uid {}", controller.kind, controller.name, controller.uid),
        None => "by nothing".into(),
    }
}
