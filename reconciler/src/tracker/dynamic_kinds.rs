//! Kinds that are known only at run time, and the informers that are opened for them.

use std::{sync::Arc, time::Duration};

use kube::{
    Resource,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use reknit_apis::Key;
use reknit_injection::{Informer, InformerState, Informers, Selection, select};

use super::trackers::{Tracker, Trackers};
use crate::{Error, Permanent, Queue, Result};

/// The time that a pass waits for the first list of a newly opened informer.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time until the retry for a Kind that is unknown or cannot be listed, since no watch reports when it can.
pub(super) const RETRY_WITHIN: Duration = Duration::from_secs(30);

/// Finds Kinds at run time for one controller, and keeps their informers open while a tracked object uses them.
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
    #[error("the reference to a {kind} names no namespace, and {observer} lies in none: name the namespace")]
    NoNamespace { kind: String, observer: String },
    #[error("the first list of {informer} is not there yet: {why}")]
    NotSynced { informer: String, why: String },
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

    /// Drops all reads of such Kinds by this observer.
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
        let gvk = self.allowed_kind(api_version, kind).permanent()?;
        let found = self.informers.resolve(&gvk).await?;
        let unknown = || KindError::Unknown { kind: describe(api_version, kind) };
        let (resource, scope) = found.ok_or_else(|| Error::from(unknown()).retry_within(RETRY_WITHIN))?;
        let is_namespaced = scope == Scope::Namespaced;
        let selection = if is_namespaced { self.namespaces.clone() } else { select() };
        let informer = self.informers.get_dynamic(&resource, selection);
        Ok(FoundKind { gvk, resource, is_namespaced, informer })
    }

    /// Records a read of the Kind, which keeps its informer open, and returns the tracker of the Kind.
    pub(crate) fn read(&self, found: &FoundKind, read: impl FnOnce(&Tracker)) -> Tracker {
        self.trackers.read_dynamic(found.gvk.clone(), &found.informer, &self.queue, read)
    }

    /// The Kind, if its API group is allowed.
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

    /// Waits for the first list, unless the informer already reports why it cannot be listed.
    pub(crate) async fn first_list(&self) -> Result<()> {
        wait_for_first_list(&self.informer).await
    }
}

/// Kind and API version: `Service of v1`.
fn describe(api_version: &str, kind: &str) -> String {
    format!("{kind} of {api_version}")
}

async fn wait_for_first_list(informer: &Informer<DynamicObject>) -> Result<()> {
    if !matches!(informer.state(), InformerState::Waiting { why, .. } if !why.is_empty()) {
        let _ = tokio::time::timeout(FIRST_LIST_TIMEOUT, informer.synced()).await;
    }
    let why = match informer.state() {
        InformerState::Synced { .. } => return Ok(()),
        InformerState::NotStarted => "the informers of this process are not started yet".into(),
        InformerState::Waiting { why, .. } if why.is_empty() => "the API server has not answered yet".into(),
        InformerState::Waiting { why, .. } => why,
    };
    Err(Error::from(KindError::NotSynced { informer: informer.name().into(), why })
        .retry_within(RETRY_WITHIN))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use reknit_injection::Context;
    use reknit_testing::ApiServer;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_not_listed_yet_is_retried_like_an_unknown_one() {
        let cx = Context::new("test", ApiServer::new().client());
        let maps = cx.informers().get_dynamic(&ApiResource::erase::<ConfigMap>(&()), select());
        let error = wait_for_first_list(&maps).await.unwrap_err();
        assert!(!error.is_permanent());
        assert_eq!(error.latest_retry(), Some(RETRY_WITHIN));
    }
}
