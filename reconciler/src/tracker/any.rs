//! The same for references whose Kind is known only at run time.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use kube::{
    Resource,
    api::DynamicObject,
    core::{GroupVersionKind, Selector},
    discovery::Scope,
};
use parking_lot::Mutex;
use reknit_apis::{KReference, Key, Reference};
use reknit_injection::{FeedState, Informer, Informers, select};

use super::{Tracker, Trackers, tracked::matching};
use crate::{Error, Permanent, Queue, Result};

/// How long a pass waits for the first list of a Kind that nobody asked for before.
const PATIENCE: Duration = Duration::from_secs(10);
/// How soon to ask again for a Kind that the API server does not know, or whose objects it did not list: nothing tells that it
/// does by now.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Objects of any Kind for a pass to read by reference; what it read wakes it again, as with
/// [`Tracked`](crate::Tracked).
///
/// Comes from [`Builder::track_any`](crate::Builder::track_any). The first reference to a Kind opens an informer for
/// it, which the controller keeps.
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
    /// The one namespace of the controller, if it is confined to one.
    within: Option<String>,
    queue: Queue,
    trackers: Trackers,
    opened: Arc<Mutex<HashMap<GroupVersionKind, Opened>>>,
}

#[derive(Clone)]
struct Opened {
    informer: Informer<DynamicObject>,
    tracker: Tracker,
    namespaced: bool,
}

impl fmt::Debug for TrackedAny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opened = self.opened.lock();
        let informers: Vec<_> = opened.values().map(|opened| &opened.informer).collect();
        f.debug_struct("TrackedAny")
            .field("within", &self.within)
            .field("informers", &informers)
            .finish_non_exhaustive()
    }
}

/// A Kind that the API server may come to know.
#[derive(Debug, thiserror::Error)]
#[error("the API server does not know {kind} of {api_version}: is its CustomResourceDefinition installed?")]
struct UnknownKind {
    api_version: String,
    kind: String,
}

impl NoNamespace {
    fn of(reference: &Reference, observer: &Key) -> Self {
        Self {
            api_version: reference.api_version.clone(),
            kind: reference.kind.clone(),
            observer: observer.name.clone(),
        }
    }
}

/// A reference out of the namespace that the controller is confined to.
#[derive(Debug, thiserror::Error)]
#[error(
    "the reference to a {kind} of {api_version} leads to the namespace {namespace}, and this controller reads only {within}"
)]
struct Elsewhere {
    api_version: String,
    kind: String,
    namespace: String,
    within: String,
}

impl Elsewhere {
    fn of(reference: &Reference, namespace: &str, within: &str) -> Self {
        Self {
            api_version: reference.api_version.clone(),
            kind: reference.kind.clone(),
            namespace: namespace.into(),
            within: within.into(),
        }
    }
}

impl UnknownKind {
    fn of(reference: &Reference) -> Self {
        Self { api_version: reference.api_version.clone(), kind: reference.kind.clone() }
    }
}

/// A reference from an object without a namespace to one that must have one.
#[derive(Debug, thiserror::Error)]
#[error(
    "the reference to a {kind} of {api_version} names no namespace, and {observer} lies in none: name the namespace"
)]
struct NoNamespace {
    api_version: String,
    kind: String,
    observer: String,
}

/// A Kind whose objects have not been listed yet.
#[derive(Debug, thiserror::Error)]
#[error("the first list of {feed} is not there yet: {why}")]
struct NotSynced {
    feed: String,
    why: String,
}

impl TrackedAny {
    pub(crate) fn new(
        informers: Informers,
        within: Option<String>,
        queue: Queue,
        trackers: Trackers,
    ) -> Self {
        Self { informers, within, queue, trackers, opened: Arc::default() }
    }

    /// The object that the reference names, in the observer's namespace where it says none.
    ///
    /// # Errors
    ///
    /// A malformed reference, one without a namespace from an observer that has none to an object that must have one, or
    /// one into another namespace than that of a controller of one namespace: these are permanent. A Kind that the API
    /// server does not know, and one whose objects cannot be listed, or not within ten seconds: these are asked for again
    /// every half minute at least.
    pub async fn get<O: Resource + Sync>(
        &self,
        observer: &O,
        reference: &KReference,
    ) -> Result<Option<Arc<DynamicObject>>> {
        let reference = Reference::from(reference.clone());
        Ok(self.all(observer, &reference).await?.into_iter().next())
    }

    /// The objects that the reference names or selects, in the observer's namespace where it says none.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub async fn all<O: Resource + Sync>(
        &self,
        observer: &O,
        reference: &Reference,
    ) -> Result<Vec<Arc<DynamicObject>>> {
        reference.check_trackable().permanent()?;
        let Opened { informer, tracker, namespaced } = self.open(reference).await?;
        let home = observer.meta().namespace.as_deref();
        let namespace = reference.namespace.as_deref().filter(|said| !said.is_empty()).or(home);
        let namespace = namespace.filter(|_| namespaced);
        let observer = Key::of(observer);
        if namespaced && namespace.is_none() {
            return Err(NoNamespace::of(reference, &observer)).permanent();
        }
        if let (Some(within), Some(namespace)) = (&self.within, namespace)
            && within != namespace
        {
            return Err(Elsewhere::of(reference, namespace, within)).permanent();
        }
        if let Some(labels) = &reference.selector {
            let selector: Selector = labels.clone().try_into().permanent()?;
            tracker.read_matching(&observer, namespace, &selector);
            first_list(&informer).await?;
            return Ok(matching(&informer, namespace, &selector).collect());
        }
        let target = Key::new(namespace, reference.name.as_deref().unwrap_or_default());
        tracker.read(&observer, &target);
        first_list(&informer).await?;
        Ok(informer.get(&target).into_iter().collect())
    }

    /// Tracks nothing more for this observer: for a finalizer whose object takes a while to go.
    pub fn forget<O: Resource>(&self, observer: &O) {
        for opened in self.opened.lock().values() {
            opened.tracker.forget(&Key::of(observer));
        }
    }

    async fn open(&self, reference: &Reference) -> Result<Opened> {
        let (group, version) = reference.api_version.split_once('/').unwrap_or(("", &reference.api_version));
        let kind = GroupVersionKind::gvk(group, version, &reference.kind);
        if let Some(opened) = self.opened.lock().get(&kind) {
            return Ok(opened.clone());
        }
        let found = self.informers.resolve(&kind).await?;
        let (resource, scope) =
            found.ok_or_else(|| Error::from(UnknownKind::of(reference)).retry_within(ASK_AGAIN))?;
        let namespaced = scope == Scope::Namespaced;
        let within = self.within.as_deref().filter(|_| namespaced).unwrap_or_default();
        let informer = self.informers.get_dynamic(&resource, select().namespace(within));
        let mut all = self.opened.lock();
        let opened = all.entry(kind).or_insert_with(|| {
            let tracker = self.trackers.join();
            tracker.wake(&informer, self.queue.clone());
            Opened { informer, tracker, namespaced }
        });
        Ok(opened.clone())
    }
}

/// Waits for the first list, unless it is known already what stands in its way.
async fn first_list(informer: &Informer<DynamicObject>) -> Result<()> {
    if !matches!(informer.state(), FeedState::Waiting { why, .. } if !why.is_empty()) {
        let _ = tokio::time::timeout(PATIENCE, informer.synced()).await;
    }
    let why = match informer.state() {
        FeedState::Synced { .. } => return Ok(()),
        FeedState::NotStarted => "nothing is watched in this process yet".into(),
        FeedState::Waiting { why, .. } if why.is_empty() => "the API server takes its time".into(),
        FeedState::Waiting { why, .. } => why,
    };
    Err(Error::from(NotSynced { feed: informer.name().into(), why }).retry_within(ASK_AGAIN))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ApiResource;
    use reknit_injection::Context;
    use reknit_testing::ApiServer;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_not_listed_is_asked_for_again_as_soon_as_what_is_not_known() {
        let cx = Context::new("test", ApiServer::new().client());
        let maps = cx.informers().get_dynamic(&ApiResource::erase::<ConfigMap>(&()), select());
        let error = first_list(&maps).await.unwrap_err();
        assert!(!error.is_permanent());
        assert_eq!(error.latest_retry(), Some(ASK_AGAIN));
    }
}
