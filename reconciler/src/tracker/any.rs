//! Tracked reads by references whose Kind is known only at run time.

use std::{fmt, sync::Arc, time::Duration};

use kube::{
    Resource,
    api::DynamicObject,
    core::{GroupVersionKind, Selector},
    discovery::Scope,
};
use reknit_apis::{KReference, Key, Reference};
use reknit_injection::{Informer, InformerState, Informers, Selection, select};

use super::{
    tracked::matching,
    trackers::{Tracker, Trackers},
};
use crate::{Error, Permanent, Queue, Result};

/// The time that a pass waits for the first list of a newly opened informer.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time until the retry for a Kind that is unknown or cannot be listed, since no watch reports when it can.
const RETRY_WITHIN: Duration = Duration::from_secs(30);

/// Objects of any Kind for a pass to read by reference. A change of an object that was read enqueues the key, as with
/// [`Tracked`](crate::Tracked).
///
/// Comes from [`Builder::track_any`](crate::Builder::track_any). The first reference to a Kind opens an informer for
/// it. The informer closes when no object of the controller refers to that Kind any more.
///
/// Anyone who can write a reference can make the controller watch a Kind in all the namespaces that it reads. Limit the
/// API groups with [`groups`](Self::groups), or validate references at admission.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use reknit_reconciler::{KReference, Result, TrackedAny};
///
/// async fn sink_exists(sinks: &TrackedAny, pod: &Pod, sink: &KReference) -> Result<bool> {
///     Ok(sinks.get(pod, sink).await?.is_some())
/// }
/// ```
#[derive(Clone)]
pub struct TrackedAny {
    informers: Informers,
    /// The namespaces of the controller.
    namespaces: Selection,
    /// The API groups that references may name; all if `None`.
    groups: Option<Arc<[String]>>,
    queue: Queue,
    trackers: Trackers,
}

impl fmt::Debug for TrackedAny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedAny")
            .field("namespaces", &self.namespaces.selected_namespaces())
            .field("informers", &self.trackers.dynamic_informers())
            .finish_non_exhaustive()
    }
}

/// The error of a reference. `kind` is its Kind and API version, as [`kind_of`] returns it.
#[derive(Debug, thiserror::Error)]
enum ReferenceError {
    #[error("the API server does not know {kind}: is its CustomResourceDefinition installed?")]
    UnknownKind { kind: String },
    #[error(
        "the reference to a {kind} names the API group {group:?}, and this controller follows references only to \
         {allowed:?}: add the group to `.groups(…)` of `track_any()`"
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

impl TrackedAny {
    pub(crate) fn new(informers: Informers, namespaces: Selection, queue: Queue, trackers: Trackers) -> Self {
        Self { informers, namespaces, groups: None, queue, trackers }
    }

    /// Allows only references to Kinds of these API groups. As in RBAC rules, `""` is the core group.
    ///
    /// A reference to any other group is a permanent error, and opens no informer.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_reconciler::{Builder, TrackedAny};
    ///
    /// fn sinks(build: &mut Builder<Pod>) -> TrackedAny {
    ///     build.track_any().groups(["", "serving.knative.dev", "messaging.knative.dev"])
    /// }
    /// ```
    pub fn groups<G: Into<String>>(mut self, groups: impl IntoIterator<Item = G>) -> Self {
        self.groups = Some(groups.into_iter().map(Into::into).collect());
        self
    }

    /// Returns the object that the reference names, in the observer's namespace if it names none.
    ///
    /// # Errors
    ///
    /// These errors are permanent: a malformed reference; an API group that is not [allowed](Self::groups); a
    /// namespaced Kind without a namespace in either the reference or the observer; a namespace that the controller
    /// does not select.
    ///
    /// These are retried at least every half minute: a Kind that the API server does not know; a Kind whose objects
    /// cannot be listed, or not within ten seconds.
    pub async fn get<O: Resource + Sync>(
        &self,
        observer: &O,
        reference: &KReference,
    ) -> Result<Option<Arc<DynamicObject>>> {
        let reference = Reference::from(reference.clone());
        Ok(self.all(observer, &reference).await?.into_iter().next())
    }

    /// Returns the objects that the reference names or selects, in the observer's namespace if it names none.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`get`](Self::get).
    pub async fn all<O: Resource + Sync>(
        &self,
        observer: &O,
        reference: &Reference,
    ) -> Result<Vec<Arc<DynamicObject>>> {
        reference.check_trackable().permanent()?;
        let kind = self.allowed_kind(reference).permanent()?;
        let found = self.informers.resolve(&kind).await?;
        let unknown = || ReferenceError::UnknownKind { kind: kind_of(reference) };
        let (resource, scope) = found.ok_or_else(|| Error::from(unknown()).retry_within(RETRY_WITHIN))?;
        let is_namespaced = scope == Scope::Namespaced;
        let namespace = self.namespace(observer, reference, is_namespaced).permanent()?;
        let selection = if is_namespaced { self.namespaces.clone() } else { select() };
        let informer = self.informers.get_dynamic(&resource, selection);
        let observer = Key::of(observer);
        if let Some(labels) = &reference.selector {
            let selector: Selector = labels.clone().try_into().permanent()?;
            let read = |tracker: &Tracker| tracker.read_matching(&observer, namespace, &selector);
            self.trackers.read_dynamic(kind, &informer, &self.queue, read);
            wait_for_first_list(&informer).await?;
            return Ok(matching(&informer, namespace, &selector).collect());
        }
        let target = Key::new(namespace, reference.name.as_deref().unwrap_or_default());
        self.trackers.read_dynamic(kind, &informer, &self.queue, |tracker| tracker.read(&observer, &target));
        wait_for_first_list(&informer).await?;
        Ok(informer.get(&target).into_iter().collect())
    }

    /// Drops all reads by this observer, for a finalizer whose object takes some time to be deleted.
    pub fn forget<O: Resource>(&self, observer: &O) {
        self.trackers.forget_dynamic(&Key::of(observer));
    }

    /// The Kind of the reference, if its API group is allowed.
    fn allowed_kind(&self, reference: &Reference) -> Result<GroupVersionKind, ReferenceError> {
        let Reference { api_version, kind, .. } = reference;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if let Some(allowed) =
            self.groups.as_ref().filter(|allowed| allowed.iter().all(|allowed| allowed != group))
        {
            let (group, allowed) = (group.into(), allowed.clone());
            return Err(ReferenceError::Group { kind: kind_of(reference), group, allowed });
        }
        Ok(GroupVersionKind::gvk(group, version, kind))
    }

    /// The namespace to read from; `None` for a cluster-scoped Kind.
    fn namespace<'a, O: Resource>(
        &self,
        observer: &'a O,
        reference: &'a Reference,
        is_namespaced: bool,
    ) -> Result<Option<&'a str>, ReferenceError> {
        if !is_namespaced {
            return Ok(None);
        }
        let named = reference.namespace.as_deref().filter(|namespace| !namespace.is_empty());
        match named.or(observer.meta().namespace.as_deref()) {
            None => {
                let observer = Key::of(observer).name;
                Err(ReferenceError::NoNamespace { kind: kind_of(reference), observer })
            }
            Some(namespace) if !self.namespaces.selects_namespace(namespace) => {
                let selected = self.namespaces.selected_namespaces().join(", ");
                let (kind, namespace) = (kind_of(reference), namespace.into());
                Err(ReferenceError::Namespace { kind, namespace, selected })
            }
            namespace => Ok(namespace),
        }
    }
}

/// Kind and API version: `Service of v1`.
fn kind_of(reference: &Reference) -> String {
    format!("{} of {}", reference.kind, reference.api_version)
}

/// Waits for the first list, unless the informer already reports why it cannot be listed.
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
    Err(Error::from(ReferenceError::NotSynced { informer: informer.name().into(), why })
        .retry_within(RETRY_WITHIN))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ApiResource;
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
