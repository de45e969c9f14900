//! The error of [`Owned::apply`](crate::Owned::apply).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use reknit_apis::Key;

use super::owner::Owner;
use crate::{error::describe, object_client::has_cause_namespace_terminating};

/// The reason why [`Owned::apply`](crate::Owned::apply) did not apply a child, or
/// [`create_or_update`](crate::Owned::create_or_update) did not write it.
///
/// Returned through `?`, it is retried with backoff like any other error. A [refusal](Self::Refused) that
/// is a [conflict](crate::Error::is_conflict) is retried without an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotApplied {
    /// An object of this name exists and is not controlled by the owner.
    #[error(
        "{child} already exists and is not controlled by {owner}, but {}: delete it, or, if {owner} is to adopt it, make \
         {owner} its controller in metadata.ownerReferences",
        controlled_by(.by.as_deref())
    )]
    Taken {
        /// Kind and key of the object.
        child: String,
        /// Kind and key of the owner.
        owner: String,
        /// The object's controller, if it has one.
        by: Option<Box<OwnerReference>>,
    },
    /// The owner is gone, or is being deleted and no controller finalizes it: a new child would be garbage-collected at once,
    /// or left behind. For an owner that a controller finalizes, `foregroundDeletion` forbids a new child, and `orphan` any
    /// write of a child, until the garbage collector has removed that finalizer.
    #[error("{owner} is gone or being deleted, so {child} is not applied for it: {advice}")]
    OwnerDeleted {
        /// Kind and key of the child.
        child: String,
        /// Kind and key of the owner.
        owner: String,
        /// The reason, and what to do.
        advice: &'static str,
    },
    /// The child names another namespace than its owner's, where an owner reference would not be valid.
    #[error(
        "{child} cannot be controlled by {owner}, which is in another namespace: let the reconciler set the namespace of \
         {owner}"
    )]
    OtherNamespace {
        /// Kind and key of the child.
        child: String,
        /// Kind and key of the owner.
        owner: String,
    },
    /// The child has no name, or one that is invalid or too long for its Kind, has no namespace, or does not serialize to a JSON
    /// object.
    #[error("a {kind} {problem} cannot be applied: correct what the reconciler passes")]
    Unusable {
        /// The Kind of the child.
        kind: String,
        /// The fault, which follows the Kind in the message.
        problem: String,
    },
    /// The API server refused the request, or could not be reached.
    #[error("cannot apply {child}: {}", describe(.source.as_ref()))]
    Refused {
        /// Kind and key of the child.
        child: String,
        /// The error of the client.
        #[source]
        source: Box<kube::Error>,
    },
}

impl NotApplied {
    /// Returns true if the API server refused to create the child because its namespace is being deleted. A finalizer
    /// must not wait for such a child: the namespace is deleted only after the owner.
    pub fn is_namespace_terminating(&self) -> bool {
        let Self::Refused { source, .. } = self else { return false };
        has_cause_namespace_terminating(source)
    }

    pub(super) fn refused(child: String, source: kube::Error) -> Self {
        Self::Refused { child, source: Box::new(source) }
    }

    pub(super) fn owner_deleted(child: String, owner: &impl Owner, advice: &'static str) -> Self {
        Self::OwnerDeleted { child, owner: kind_and_key(owner), advice }
    }
}

/// Kind and key of an object: `Deployment default/web`.
pub(super) fn kind_and_key<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!("{} {}", K::kind(&()), Key::of(object))
}

fn controlled_by(controller: Option<&OwnerReference>) -> String {
    match controller {
        Some(controller) => format!("by {} {} of uid {}", controller.kind, controller.name, controller.uid),
        None => "by nothing".into(),
    }
}
