//! [`OwnedAny`]: children of Kinds that are known only at run time.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kube::{Resource, api::DynamicObject, discovery::ApiResource};
use parking_lot::Mutex;
use reknit_apis::{
    KReference, Key, Scope,
    internal::{HashMap, HashSet},
};

use super::{
    error::kind_and_key,
    lister::{Owned, WeakOwned},
    options::OwnedOptions,
};
use crate::{
    Error, Recorder, Result,
    metrics::ChildMetrics,
    object_client::ObjectClient,
    queue::{Cause, Source},
    tracker::{DynamicKinds, FoundKind, Tracker, Versions, group_and_version},
};

/// The children of any Kind, such as those that a template in the owner's spec describes. [`kind`](Self::kind) returns
/// the children of one Kind, with all the methods of [`Owned`].
///
/// Comes from [`Builder::owns_any`](crate::Builder::owns_any). The first use of a Kind opens an informer for it. The
/// informer closes when no object of the controller uses that Kind any more.
///
/// A user who can write a template can make the controller watch and create objects of a Kind. The
/// [`Kinds`](crate::Kinds) of the builder call limit this.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::api::{DynamicObject, ObjectMeta};
/// use reknit_reconciler::{Outcome, OwnedAny, Result};
/// use serde_json::json;
///
/// async fn reconcile_channel(channels: &OwnedAny, owner: &ConfigMap) -> Result<Outcome> {
///     let channels = channels.kind(owner, "messaging.knative.dev/v1", "InMemoryChannel").await?;
///     let metadata = ObjectMeta { name: Some("first".into()), ..ObjectMeta::default() };
///     let channel = DynamicObject { types: None, metadata, data: json!({"spec": {}}) };
///     channels.apply(owner, channel).await?;
///     for surplus in channels.of(owner).filter(|channel| channel.metadata.name.as_deref() != Some("first")) {
///         channels.delete(&surplus).await?;
///     }
///     Ok(Outcome::done())
/// }
/// ```
#[derive(Clone)]
pub struct OwnedAny {
    kinds: DynamicKinds,
    client: ObjectClient,
    options: OwnedOptions,
    recorder: Recorder,
    metrics: ChildMetrics,
    /// The key of the object that controls a child.
    owner_key: fn(&DynamicObject) -> Option<Key>,
    /// The children of each Kind that was used. The entries do not keep the informers open: the tracked uses of the
    /// Kinds do.
    opened: Arc<Mutex<HashMap<ApiResource, WeakOwned<DynamicObject>>>>,
}

impl fmt::Debug for OwnedAny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedAny").field("opened", &self.open_children()).finish_non_exhaustive()
    }
}

impl OwnedAny {
    pub(crate) fn new(
        kinds: DynamicKinds,
        client: ObjectClient,
        options: OwnedOptions,
        recorder: Recorder,
        metrics: ChildMetrics,
        owner_key: fn(&DynamicObject) -> Option<Key>,
    ) -> Self {
        Self { kinds, client, options, recorder, metrics, owner_key, opened: Arc::default() }
    }

    /// Returns the children of this Kind. A change of a child enqueues its owner.
    ///
    /// Call it in each pass: the informer of the Kind stays open as long as the last successful pass of any owner, or the
    /// last failed one after it, has used the Kind. The API server reports whether the Kind is namespaced. The children
    /// are written as [`DynamicObject`]s, whose `types` may be `None`.
    ///
    /// # Errors
    ///
    /// These errors are permanent: a Kind that is not among the [`Kinds`](crate::Kinds) of the builder call; a
    /// cluster-scoped Kind if the owner is in a namespace, since the garbage collector would delete such a child.
    ///
    /// Until the objects of a Kind are listed for the first time, the error [is waiting](Error::is_waiting): return it,
    /// and the list enqueues the owner. It is never waited for, since that would delay other objects.
    ///
    /// These are retried with a backoff of at most 15 seconds: a Kind that the API server does not know; a Kind whose
    /// objects cannot be listed, or not within ten seconds. The limits of [`TrackedAny`](crate::TrackedAny::get) for Kinds
    /// that are not named hold here too.
    pub async fn kind<O>(&self, owner: &O, api_version: &str, kind: &str) -> Result<Owned<DynamicObject>>
    where
        O: Resource<DynamicType = (), Scope: Scope> + Sync,
    {
        let found = self.kinds.find(&Key::of(owner), api_version, kind, Versions::Named).await?;
        self.children_of_kind(owner, found)
    }

    /// Lists this owner's children of every Kind that any owner uses, and of every Kind that the references in `stored`
    /// name. If the owner's status holds references to its children, pass them: they lead to the children of an earlier
    /// template, even after a restart. A Kind whose version is no longer served is read in another one, which the `types` of
    /// its children name. A Kind that the API server no longer knows has no children, and neither has one that is
    /// cluster-scoped by now, if the owner is in a namespace, or a reference whose version cannot exist.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use reknit_reconciler::{KReference, OwnedAny, Result};
    ///
    /// async fn delete_other_kinds(channels: &OwnedAny, owner: &ConfigMap, stored: &[KReference]) -> Result<()> {
    ///     for channel in channels.of(owner, stored).await? {
    ///         let types = channel.types.clone().unwrap_or_default();
    ///         if types.kind != "InMemoryChannel" {
    ///             channels.kind(owner, &types.api_version, &types.kind).await?.delete(&channel).await?;
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`kind`](Self::kind), except for those of a Kind that has no children.
    pub async fn of<'a, O>(
        &self,
        owner: &O,
        stored: impl IntoIterator<Item = &'a KReference>,
    ) -> Result<Vec<Arc<DynamicObject>>>
    where
        O: Resource<DynamicType = (), Scope: Scope> + Sync,
    {
        // This does not count as a use of these Kinds: otherwise owners would keep each other's informers open.
        let mut children: Vec<_> = self.open_children().iter().flat_map(|open| open.of(owner)).collect();
        let kinds = stored.into_iter().map(|child| (&child.api_version, &child.kind));
        for (api_version, kind) in kinds.collect::<BTreeSet<_>>() {
            if group_and_version(api_version).is_none() {
                continue; // the API server has accepted no such child
            }
            let found = self.kinds.find_known(&Key::of(owner), api_version, kind, Versions::Any).await?;
            if let Some(found) = found.filter(can_be_controlled_by::<O>) {
                children.extend(self.children_of_kind(owner, found)?.of(owner));
            }
        }
        let mut uids = HashSet::default();
        children.retain(|child| child.metadata.uid.as_ref().is_none_or(|uid| uids.insert(uid.clone())));
        Ok(children)
    }

    /// The children of the Kinds whose informers are open.
    pub(crate) fn open_children(&self) -> Vec<Owned<DynamicObject>> {
        self.opened.lock().values().filter_map(WeakOwned::upgrade).collect()
    }

    fn children_of_kind<O>(&self, owner: &O, found: FoundKind) -> Result<Owned<DynamicObject>>
    where
        O: Resource<DynamicType = (), Scope: Scope> + Sync,
    {
        if !can_be_controlled_by::<O>(&found) {
            let ApiResource { api_version, kind, .. } = &found.kind.resource;
            return Err(Error::permanent(format!(
                "{kind} of {api_version} is cluster-scoped and cannot be controlled by {}, which is in a namespace",
                kind_and_key(owner)
            )));
        }
        let key = Key::of(owner);
        let tracker = self.kinds.record(&found, key.namespace.as_deref(), |reads| reads.use_kind(&key))?;
        Ok(self.open(&found, tracker))
    }

    /// Returns the children of a Kind, whose informer is open. Adds the handlers to the informer unless an earlier call
    /// has added them.
    fn open(&self, found: &FoundKind, tracker: Tracker) -> Owned<DynamicObject> {
        let mut opened = self.opened.lock();
        let is_current = |children: &Owned<DynamicObject>| {
            children.informer.is_same_as(&found.informer) && children.shared.client.kind == found.kind
        };
        let known = opened.get(&found.kind.resource).and_then(WeakOwned::upgrade);
        if let Some(children) = known.filter(is_current) {
            return children;
        }
        let (client, options) = (self.client.with_kind(found.kind.clone()), self.options.clone());
        let (informer, recorder) = (found.informer.clone(), self.recorder.clone());
        let children = Owned::new(client, informer, options, tracker.clone(), recorder, &self.metrics);
        let (owner_key, queue) = (self.owner_key, self.kinds.queue.clone());
        let source = Source::new(Source::OWNED, &found.informer);
        // The first calls are for the children that exist already. The owners that use the Kind read them after this,
        // so these calls enqueue only other owners: otherwise the pass that opens an informer would enqueue its own key.
        let is_open = Arc::new(AtomicBool::new(false));
        let replayed = is_open.clone();
        found.informer.on(move |change| {
            let is_open = is_open.load(Ordering::Acquire);
            let owners = change.objects().filter_map(|child| owner_key(child));
            owners
                .filter(|owner| is_open || !tracker.lock().has_reads_of(owner))
                .for_each(|owner| queue.add_for(owner, Cause::other(&source, change)));
        });
        replayed.store(true, Ordering::Release);
        opened.retain(|_, children| children.upgrade().is_some());
        opened.insert(found.kind.resource.clone(), children.downgrade());
        children
    }
}

/// Returns true unless the Kind is cluster-scoped and the owner is in a namespace.
fn can_be_controlled_by<O: Resource<Scope: Scope>>(found: &FoundKind) -> bool {
    found.kind.is_namespaced || !O::Scope::NAMESPACED
}
