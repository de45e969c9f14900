//! Kinds that are known only at run time, and the informers that are opened for them.

use std::{sync::Arc, time::Duration};

use kube::{
    Resource,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use reknit_apis::Key;
use reknit_injection::{Informer, Informers, Selection, internal::open_unsynced, select};

use super::trackers::{Tracker, Trackers};
use crate::{Error, Queue, Result, ResultExt};

/// The longest wait for the retry of a pass that used an unknown Kind or one that cannot be listed. No watch reports
/// when that changes.
const RETRY_WITHIN: Duration = Duration::from_secs(30);

/// Finds Kinds at run time for one controller, and keeps their informers open while any of its keys uses them.
#[derive(Clone)]
pub(crate) struct DynamicKinds {
    informers: Informers,
    /// The namespaces of the controller.
    namespaces: Selection,
    /// The API groups that may be used; all if `None`.
    groups: Option<Arc<[String]>>,
    queue: Queue,
    trackers: Trackers,
}

/// A Kind that the API server serves, and its informer.
pub(crate) struct FoundKind {
    gvk: GroupVersionKind,
    pub(crate) resource: ApiResource,
    pub(crate) is_namespaced: bool,
    pub(crate) informer: Informer<DynamicObject>,
}

/// The error of a Kind that cannot be used. `kind` is the Kind and its API version: `Service of v1`.
#[derive(Debug, thiserror::Error)]
pub(super) enum KindError {
    #[error("the API server does not know {kind}: is its CustomResourceDefinition installed?")]
    Unknown { kind: String },
    #[error(
        "{kind} is in the API group {group:?}, and this controller is limited to {allowed:?}: add the group to \
         its `.groups(…)`"
    )]
    Group { kind: String, group: String, allowed: Arc<[String]> },
    #[error(
        "the reference to a {kind} leads to the namespace {namespace}, and this controller reads only {selected}"
    )]
    Namespace { kind: String, namespace: String, selected: String },
    #[error(
        "the reference to a {kind} names no namespace, and {observer} is cluster-scoped: name the namespace"
    )]
    NoNamespace { kind: String, observer: String },
}

impl DynamicKinds {
    pub(crate) fn new(informers: Informers, namespaces: Selection, queue: Queue, trackers: Trackers) -> Self {
        Self { informers, namespaces, groups: None, queue, trackers }
    }

    pub(crate) fn set_groups<G: Into<String>>(&mut self, groups: impl IntoIterator<Item = G>) {
        self.groups = Some(groups.into_iter().map(Into::into).collect());
    }

    pub(super) fn namespaces(&self) -> &Selection {
        &self.namespaces
    }

    /// The open informers of all Kinds that are known only at run time.
    pub(super) fn open_informers(&self) -> Vec<Informer<DynamicObject>> {
        self.trackers.dynamic_informers()
    }

    /// The keys of the objects that have read this object.
    pub(super) fn observers(&self, object: &DynamicObject) -> Vec<Key> {
        let kind = object.types.as_ref().and_then(|types| GroupVersionKind::try_from(types).ok());
        kind.map(|kind| self.trackers.dynamic_observers(&kind, object)).unwrap_or_default()
    }

    /// Drops this observer's reads of all Kinds that are known only at run time.
    pub(crate) fn forget(&self, observer: &Key) {
        self.trackers.forget_dynamic(observer);
    }

    /// The work queue of the controller.
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Finds a Kind if its API group is allowed, and returns it with its informer. The informer closes again unless
    /// [`read`](Self::read) follows.
    pub(crate) async fn find(&self, api_version: &str, kind: &str) -> Result<FoundKind> {
        let unknown = || KindError::Unknown { kind: describe(api_version, kind) };
        let found = self.find_known(api_version, kind).await?;
        found.ok_or_else(|| Error::from(unknown()).retry_within(RETRY_WITHIN))
    }

    /// Finds a Kind as [`find`](Self::find) does. `None` if the API server does not know it.
    pub(crate) async fn find_known(&self, api_version: &str, kind: &str) -> Result<Option<FoundKind>> {
        let gvk = self.allowed_kind(api_version, kind).permanent()?;
        let Some((resource, scope)) = self.informers.resolve(&gvk).await? else { return Ok(None) };
        let is_namespaced = scope == Scope::Namespaced;
        let selection = if is_namespaced { self.namespaces.clone() } else { select() };
        let informer = open_unsynced(&self.informers, &resource, selection);
        Ok(Some(FoundKind { gvk, resource, is_namespaced, informer }))
    }

    /// Records a read of the Kind, which keeps its informer open, and returns the tracker of the Kind.
    pub(crate) fn read(&self, found: &FoundKind, read: impl FnOnce(&Tracker)) -> Tracker {
        self.trackers.read_dynamic(found.gvk.clone(), &found.informer, &self.queue, read)
    }

    /// Returns the Kind if its API group is allowed.
    fn allowed_kind(&self, api_version: &str, kind: &str) -> Result<GroupVersionKind, KindError> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if let Some(allowed) =
            self.groups.as_ref().filter(|allowed| allowed.iter().all(|allowed| allowed != group))
        {
            return Err(KindError::Group {
                kind: describe(api_version, kind),
                group: group.into(),
                allowed: allowed.clone(),
            });
        }
        Ok(GroupVersionKind::gvk(group, version, kind))
    }

    /// The namespace to read from; `None` for a cluster-scoped Kind.
    pub(super) fn namespace<'a, O: Resource>(
        &self,
        observer: &'a O,
        named: Option<&'a str>,
        found: &FoundKind,
    ) -> Result<Option<&'a str>, KindError> {
        if !found.is_namespaced {
            return Ok(None);
        }
        let kind = || describe(&found.resource.api_version, &found.resource.kind);
        let named = named.filter(|namespace| !namespace.is_empty());
        match named.or(observer.meta().namespace.as_deref()) {
            None => Err(KindError::NoNamespace { kind: kind(), observer: Key::of(observer).name }),
            Some(namespace) if !self.namespaces.selects_namespace(namespace) => {
                let selected = self.namespaces.selected_namespaces().join(", ");
                Err(KindError::Namespace { kind: kind(), namespace: namespace.into(), selected })
            }
            namespace => Ok(namespace),
        }
    }
}

impl FoundKind {
    /// The Kind as a key of maps.
    pub(crate) fn gvk(&self) -> &GroupVersionKind {
        &self.gvk
    }

    /// Waits for the first list. A failure is retried like an unknown Kind.
    pub(crate) async fn first_list(&self) -> Result<()> {
        let listed = self.informer.first_list().await;
        listed.map_err(|error| Error::from(error).retry_within(RETRY_WITHIN))
    }
}

/// Kind and API version: `Service of v1`.
fn describe(api_version: &str, kind: &str) -> String {
    format!("{kind} of {api_version}")
}

#[cfg(test)]
mod tests {
    use reknit_injection::{Context, Informer};
    use reknit_testing::ApiServer;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_not_listed_yet_is_retried_like_an_unknown_one() {
        let cx = Context::new("test", ApiServer::new().client());
        let gvk = GroupVersionKind::gvk("", "v1", "ConfigMap");
        let resource = ApiResource::from_gvk(&gvk);
        let informer: Informer<DynamicObject> = cx.informer_of(&resource, select());
        let found = FoundKind { gvk, resource, is_namespaced: true, informer };
        let error = found.first_list().await.unwrap_err();
        assert!(!error.is_permanent());
        assert_eq!(error.longest_retry_wait(), Some(RETRY_WITHIN));
    }
}
