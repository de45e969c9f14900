//! The same for references whose Kind is known only at run time.

use std::{collections::HashMap, sync::Arc, time::Duration};

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
use crate::{Permanent, Queue, Result};

/// How long a pass waits for the first list of a Kind that nobody asked for before.
const PATIENCE: Duration = Duration::from_secs(10);

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
pub struct TrackedAny {
    informers: Informers,
    queue: Queue,
    trackers: Trackers,
    opened: Mutex<HashMap<GroupVersionKind, Opened>>,
}

#[derive(Clone)]
struct Opened {
    informer: Informer<DynamicObject>,
    tracker: Tracker,
    namespaced: bool,
}

/// A Kind that the API server may come to know.
#[derive(Debug, thiserror::Error)]
#[error("the API server does not know {kind} of {api_version}: is its CustomResourceDefinition installed?")]
struct UnknownKind {
    api_version: String,
    kind: String,
}

impl UnknownKind {
    fn of(reference: &Reference) -> Self {
        Self { api_version: reference.api_version.clone(), kind: reference.kind.clone() }
    }
}

/// A Kind whose objects could not be listed in time.
#[derive(Debug, thiserror::Error)]
#[error("waited {} s for the first list of {feed}: {why}", PATIENCE.as_secs())]
struct NotSynced {
    feed: String,
    why: String,
}

impl TrackedAny {
    pub(crate) fn new(informers: Informers, queue: Queue, trackers: Trackers) -> Self {
        Self { informers, queue, trackers, opened: Mutex::default() }
    }

    /// The object that the reference names, in the observer's namespace where it says none.
    ///
    /// # Errors
    ///
    /// A malformed reference, which is permanent; a Kind that the API server does not know; one whose objects could
    /// not be listed within ten seconds. All but the first may pass, so they are retried.
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
        if let Some(labels) = &reference.selector {
            let selector: Selector = labels.clone().try_into().permanent()?;
            tracker.read_matching(&observer, namespace, &selector);
            first_list(&informer).await?;
            return Ok(matching(&informer, namespace, &selector).collect());
        }
        let target = Key::new(namespace, reference.name.as_deref().unwrap_or_default());
        tracker.read(&observer, target.clone());
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
        let (resource, scope) = found.ok_or_else(|| UnknownKind::of(reference))?;
        let namespaced = scope == Scope::Namespaced;
        let informer = self.informers.get_dynamic(&resource, select());
        let mut all = self.opened.lock();
        let opened = all.entry(kind).or_insert_with(|| {
            let tracker = self.trackers.join();
            tracker.wake(&informer, self.queue.clone());
            Opened { informer, tracker, namespaced }
        });
        Ok(opened.clone())
    }
}

async fn first_list(informer: &Informer<DynamicObject>) -> Result<()> {
    let synced = tokio::time::timeout(PATIENCE, informer.synced()).await;
    if synced.is_ok() {
        return Ok(());
    }
    let feed = informer.feed();
    let why = match feed.state() {
        FeedState::Waiting { why, .. } => why,
        FeedState::NotStarted => "nothing is watched in this process yet".into(),
        FeedState::Synced { .. } => return Ok(()),
    };
    Err(NotSynced { feed: feed.name().into(), why }.into())
}
