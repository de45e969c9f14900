//! The sources of causes: the informers whose changes enqueue keys.

use std::sync::Arc;

use reknit_injection::{
    Cached, Informer,
    internal::{can_be_left, selection},
};

/// The objects of one informer whose changes enqueue keys, and the relation by which they do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(super) relation: &'static str,
    /// The resource, such as `services` or `deployments.apps`.
    pub(super) resource: String,
    /// True if an object also counts as deleted once it leaves the selection of the informer.
    pub(super) can_be_left: bool,
}

impl Source {
    /// The objects that passes read through a tracker.
    pub(crate) const TRACKED: &str = "tracked";
    /// The objects that are controlled by the object of the key.
    pub(crate) const OWNED: &str = "owned";
    /// The objects that a watch maps to keys.
    pub(crate) const WATCHED: &str = "watched";

    pub(crate) fn new<T: Cached>(relation: &'static str, informer: &Informer<T>) -> Arc<Self> {
        let can_be_left = can_be_left(selection(informer));
        Arc::new(Self { relation, resource: resource_of(informer).into(), can_be_left })
    }
}

#[cfg(test)]
impl Source {
    pub(super) fn of(relation: &'static str, resource: &str) -> Arc<Self> {
        Arc::new(Self { relation, resource: resource.into(), can_be_left: false })
    }
}

/// A child that another client has deleted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeletedChild<'a> {
    pub(crate) resource: &'a str,
    /// `namespace/name`, or `name`.
    pub(crate) key: &'a str,
    /// True if it may also have left the selection of the informer.
    pub(crate) may_have_left: bool,
}

/// The resource of the informer, without its selection.
pub(crate) fn resource_of<T: Cached>(informer: &Informer<T>) -> &str {
    informer.name().split(' ').next().unwrap_or_default()
}
