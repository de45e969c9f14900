//! Builds a controller: the objects that it reads, and the objects whose changes enqueue its keys.

use std::sync::Arc;

use futures::FutureExt;
use kube::{Client, Resource, api::DynamicObject};
use reknit_apis::{Key, Kind, OwnedBy, Scope};
use reknit_injection::{
    Cached, Change, Config, Context, Filter, FromConfigMap, Informer, InformerHandle, Permission, Selection,
    internal::{optional_informer, selection, writers},
    select,
};

use super::{Controller, Parts, watch::Watch};
use crate::{
    Kinds, Owned, OwnedAny, OwnedOptions, PerKey, Queue, ReconcileKey, Recorder, Tracked, TrackedAny,
    driver::KeyDriver,
    events::event_permission,
    finalizer::{FinalizerOptions, plural_and_group},
    inspect::{Inspect, Related},
    metrics::Metrics,
    object_client::ObjectClient,
    owned::owner_key,
    queue::{Cause, Source, resource_of},
    tracker::{DynamicKinds, Tracker, Trackers},
};

/// The type parameter of the [`Builder`] of a controller without a Kind, which reconciles
/// [keys](crate::ReconcileKey).
#[derive(Debug)]
pub enum Keys {}

/// Builds a controller: its options, the objects that it reads, and the objects whose changes enqueue its keys. The
/// [reconciler](Self::reconciler) follows.
///
/// Created by [`Controller::of`], [`Controller::selected`] and [`Controller::named`]. Before its first pass, the
/// controller waits for the first list of every informer that its constructor (`fn controller(cx)` below) got from the
/// [`Context`] or passed to this builder. It does not wait for informers that [`track_any`](Self::track_any) and
/// [`owns_any`](Self::owns_any) open, or for those of other controllers.
///
/// ```
/// use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::{Namespace, Pod}};
/// use reknit_injection::{Context, Informer};
/// use reknit_reconciler::{Controller, Outcome, Owned, ReconcileKind, Result};
///
/// struct Counter {
///     sets: Owned<ReplicaSet>,
///     pods: Informer<Pod>,
/// }
///
/// impl ReconcileKind for Counter {
///     type Kind = Namespace;
///     async fn reconcile_kind(&self, namespace: &Namespace, _status: &mut ()) -> Result<Outcome> {
///         println!("{} owned ReplicaSets, {} Pods in all", self.sets.of(namespace).count(), self.pods.list().count());
///         Ok(Outcome::done())
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     let mut build = Controller::of::<Namespace>(cx);
///     let sets = build.owns::<ReplicaSet>();
///     let pods = cx.get();
///     Ok(build.workers(4).reconciler(Counter { sets, pods }).build())
/// }
/// ```
#[must_use = "a controller that is not built does nothing"]
pub struct Builder<K> {
    pub(super) cx: Context,
    pub(super) parts: Parts,
    /// The selected objects of the Kind.
    pub(super) selection: Selection,
    /// The namespaces of the objects that are tracked and owned.
    pub(super) namespaces: Selection,
    pub(super) trackers: Trackers,
    /// True if some [`Kinds`] names no resource, so that no RBAC rules can be generated.
    pub(super) has_unnamed_kinds: bool,
    pub(super) finalizer: FinalizerOptions,
    pub(super) class: Option<(String, String)>,
    pub(super) inspect: Inspect,
    pub(super) filter: Option<Filter<K>>,
    pub(super) promote: Option<Filter<K>>,
}

impl Controller {
    /// Starts to build a controller of this Kind, named `<plural>.<group>`. If a process has several controllers of one
    /// Kind, all but one need another [name](Builder::name).
    ///
    /// The controller reads, tracks and owns objects in the namespaces that `cx.get::<Selection>()` selects: all
    /// namespaces, or those of the flag `--namespace` of `reknit_sharedmain`. Cluster-scoped objects are always read.
    pub fn of<K: Kind>(cx: &Context) -> Builder<K> {
        let namespaces = cx.get::<Selection>().same_namespaces();
        let objects = if K::Scope::NAMESPACED { namespaces.clone() } else { select() };
        Builder { namespaces, ..Self::selected(cx, objects) }
    }

    /// Starts to build a controller of the selected objects of this Kind. It tracks and owns objects in the same
    /// namespaces. A controller of selected namespaces needs no ClusterRole.
    ///
    /// ```
    /// use k8s_openapi::api::apps::v1::Deployment;
    /// use reknit_injection::{Context, select};
    /// use reknit_reconciler::{Builder, Controller};
    ///
    /// fn of_namespaces(cx: &Context, namespaces: Vec<String>) -> Builder<Deployment> {
    ///     Controller::selected(cx, select().namespaces(namespaces))
    /// }
    /// ```
    pub fn selected<K: Kind>(cx: &Context, which: Selection) -> Builder<K> {
        let (kind, group) = (K::kind(&()), K::group(&()));
        let mut build = Builder::new(cx, plural_and_group::<K>(), &kind.to_lowercase(), which.clone());
        build.parts.resource = plural_and_group::<K>();
        build.parts.kind = if group.is_empty() { kind.into_owned() } else { format!("{group}.{kind}") };
        let informer = cx.informer::<K>(which);
        build.depend_on(&informer);
        build.declare_status_writes();
        build.parts.queue.add_key_source(move |keys| keys.extend(informer.keys()));
        build
    }

    /// Starts to build a controller without a Kind, whose keys come from its watches.
    pub fn named(name: &str, cx: &Context) -> Builder<Keys> {
        Builder::new(cx, name.into(), name, select())
    }
}

impl<K> Builder<K> {
    fn new(cx: &Context, name: String, reporter: &str, selection: Selection) -> Self {
        Self {
            cx: cx.clone(),
            parts: Parts::new(
                name,
                Recorder::new(cx, &format!("{reporter}-controller")),
                Queue::of(cx.get(), writers(&cx.informers()).clone()),
                cx.get::<Metrics>().children(),
            ),
            namespaces: selection.same_namespaces(),
            selection,
            trackers: Trackers::default(),
            has_unnamed_kinds: false,
            finalizer: FinalizerOptions::default(),
            class: None,
            inspect: Inspect::default(),
            filter: None,
            promote: None,
        }
    }

    /// Enqueues keys when objects of this informer change. The methods of the [`Watch`] map objects to keys.
    pub fn watch<T: Cached>(&mut self, informer: &Informer<T>) -> Watch<'_, T> {
        self.depend_on(informer);
        // Without a Kind the keys come from the watches.
        let is_key_source = self.parts.kind.is_empty();
        Watch::new(informer.clone(), &self.parts.queue, is_key_source)
    }

    /// Watches objects that the controller can do without: it does not wait for them while they are
    /// [unavailable](reknit_injection::InformerState::Unavailable).
    #[doc(hidden)]
    pub fn watch_optional<T: Cached<DynamicType = ()>>(
        &mut self,
        selection: Selection,
    ) -> (Informer<T>, Watch<'_, T>) {
        let informer = optional_informer(&self.cx, selection);
        let is_key_source = self.parts.kind.is_empty();
        (informer.clone(), Watch::new(informer, &self.parts.queue, is_key_source))
    }

    /// Reads a ConfigMap as a value that is constant within a pass. A change of the ConfigMap enqueues every key in the
    /// slow lane.
    pub fn config<T: FromConfigMap>(&mut self) -> Config<T> {
        let queue = self.queue();
        self.config_with(move |_| queue.resync_for(&Cause::config(T::NAME)))
    }

    /// Reads a ConfigMap as [`config`](Self::config) does, but calls `on_changed` with each new value instead of
    /// enqueueing every key. Knative's config stores name this callback `onAfterStore`.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_injection::{Config, Features};
    /// use reknit_reconciler::Builder;
    ///
    /// /// A change enqueues only the Pods of the namespace `beta`.
    /// fn features(build: &mut Builder<Pod>) -> Config<Features> {
    ///     let queue = build.queue();
    ///     build.config_with(move |_| queue.resync_where(|key| key.namespace.as_deref() == Some("beta")))
    /// }
    /// ```
    pub fn config_with<T: FromConfigMap>(
        &mut self,
        on_changed: impl Fn(&T) + Send + Sync + 'static,
    ) -> Config<T> {
        Config::new(&self.cx, on_changed)
    }

    /// The Context of the constructor.
    pub fn context(&self) -> &Context {
        &self.cx
    }

    /// The client for writes. When a write returns, its result is already in the cache of every informer that selects
    /// the object.
    pub fn client(&self) -> Client {
        self.cx.client()
    }

    /// The work queue, to enqueue keys for other reasons than watches.
    pub fn queue(&self) -> Queue {
        self.parts.queue.clone()
    }

    /// The event recorder, for events other than the one in an [`Outcome`](crate::Outcome).
    pub fn recorder(&self) -> Recorder {
        self.cx.allows(event_permission().or_namespaces(self.namespaces.selected_namespaces()));
        self.parts.recorder.clone()
    }

    /// Runs a future once the caches are synced, and before the first pass, in every replica: for example to fill a
    /// snapshot that passes then keep up to date. The first pass waits for it, so it should end soon. A test by table
    /// runs it too.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use k8s_openapi::api::core::v1::{Namespace, Service};
    /// use parking_lot::Mutex;
    /// use reknit_injection::Informer;
    /// use reknit_reconciler::{Builder, Key};
    ///
    /// type Snapshot = Arc<Mutex<Vec<Key>>>;
    ///
    /// fn primed(build: &mut Builder<Namespace>, services: Informer<Service>) -> Snapshot {
    ///     let snapshot = Snapshot::default();
    ///     let primed = snapshot.clone();
    ///     build.on_synced(async move { primed.lock().extend(services.keys()) });
    ///     snapshot
    /// }
    /// ```
    pub fn on_synced(&mut self, act: impl Future<Output = ()> + Send + 'static) {
        self.parts.on_synced.lock().push(act.boxed());
    }

    /// Makes the controller wait for the informer's first list before it starts.
    fn depend_on<T: Cached>(&mut self, informer: &Informer<T>) {
        self.depend_on_handle(informer.handle());
    }

    fn depend_on_handle(&mut self, informer: Arc<dyn InformerHandle>) {
        if !self.parts.informers.iter().any(|known| Arc::ptr_eq(known, &informer)) {
            self.parts.informers.push(informer);
        }
    }

    /// Ends the construction, which now knows all informers that the constructor got from the Context, and the name.
    pub(super) fn finish(&mut self) {
        self.parts.inspect = Arc::new(std::mem::take(&mut self.inspect));
        self.cx.dependencies().into_iter().for_each(|informer| self.depend_on_handle(informer));
        if self.has_unnamed_kinds {
            self.cx.permissions().add_unnamed_kinds(&self.parts.name);
        }
    }
}

impl<K: Kind> Builder<K> {
    /// Tracks objects of another Kind: when an object changes that a pass has read, the key of that pass is
    /// enqueued.
    ///
    /// A controller of selected namespaces reads only objects in them, unless the Kind is cluster-scoped.
    pub fn track<T: Cached<DynamicType = (), Scope: Scope>>(&mut self) -> Tracked<T> {
        let informer = self.cx.informer(self.selection_of::<T>());
        self.depend_on(&informer);
        let tracker = self.trackers.add();
        tracker.enqueue_observers_on_change(&informer, Source::TRACKED, self.parts.queue.clone());
        self.tracked(informer, tracker)
    }

    /// Tracks objects of another Kind as [`track`](Self::track) does, but enqueues nothing for changes that are not
    /// relevant, as a predicate of controller-runtime does. Every change is relevant that a pass could tell apart.
    ///
    /// ```
    /// use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
    /// use reknit_injection::Change;
    /// use reknit_reconciler::{Builder, Tracked};
    ///
    /// /// Ignores updates that leave the endpoints as they are.
    /// fn slices(build: &mut Builder<Pod>) -> Tracked<EndpointSlice> {
    ///     build.track_where(|change: &Change<EndpointSlice>| match change {
    ///         Change::Updated { old, new } => old.endpoints != new.endpoints,
    ///         _ => true,
    ///     })
    /// }
    /// ```
    pub fn track_where<T: Cached<DynamicType = (), Scope: Scope>>(
        &mut self,
        is_relevant: impl Fn(&Change<T>) -> bool + Send + Sync + 'static,
    ) -> Tracked<T> {
        let informer = self.cx.informer(self.selection_of::<T>());
        self.depend_on(&informer);
        let tracker = self.trackers.add();
        tracker.enqueue_observers_where(&informer, self.parts.queue.clone(), is_relevant);
        self.tracked(informer, tracker)
    }

    fn tracked<T: Cached<DynamicType = (), Scope: Scope>>(
        &mut self,
        informer: Informer<T>,
        tracker: Tracker,
    ) -> Tracked<T> {
        let (read, reads) = (informer.clone(), tracker.clone());
        self.inspect.add_related(move |key| reads.reads_of(key, &read));
        Tracked::new(informer, tracker)
    }

    /// Tracks objects of these Kinds, which are known only at run time, from references to them. A reference to any
    /// other Kind is a permanent error.
    ///
    /// A controller of selected namespaces reads objects in them and cluster-scoped objects. A reference to another
    /// namespace is a permanent error. The generated rules of such a controller do not permit to read cluster-scoped
    /// Kinds: declare these by [`allows`](Self::allows).
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Pod;
    /// use reknit_reconciler::{Builder, Kinds, TrackedAny};
    ///
    /// fn sinks(build: &mut Builder<Pod>) -> TrackedAny {
    ///     build.track_any(Kinds::of([("", "services"), ("serving.knative.dev", "services")]))
    /// }
    /// ```
    pub fn track_any(&mut self, kinds: Kinds) -> TrackedAny {
        self.declare_reads_of(&kinds);
        TrackedAny::new(self.dynamic_kinds(kinds))
    }

    fn dynamic_kinds(&self, kinds: Kinds) -> DynamicKinds {
        let (queue, used) = (self.parts.queue.clone(), self.trackers.dynamic.clone());
        DynamicKinds::new(kinds, self.cx.informers(), self.namespaces.clone(), queue, used)
    }

    /// The objects of this Kind in the namespaces of the controller.
    fn selection_of<T: Resource<Scope: Scope>>(&self) -> Selection {
        if T::Scope::NAMESPACED { self.namespaces.clone() } else { select() }
    }

    /// Returns the owned objects of Kind `T`, to list and [apply](Owned::apply) them. An owned object has an object of
    /// the controller's Kind as its controller. A change of an owned object enqueues the key of its owner. A controller
    /// of selected namespaces sees only owned objects in them.
    pub fn owns<T>(&mut self) -> Owned<T>
    where
        T: Cached<DynamicType = (), Scope: Scope + OwnedBy<K::Scope>>,
    {
        self.owns_with(OwnedOptions::default())
    }

    /// Returns the owned objects as [`owns`](Self::owns) does, with these options.
    ///
    /// ```
    /// use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
    /// use reknit_injection::Verb;
    /// use reknit_reconciler::{Builder, Owned, OwnedOptions};
    ///
    /// /// The reconciler creates and deletes Pods and never changes them.
    /// fn pods(build: &mut Builder<ReplicaSet>) -> Owned<Pod> {
    ///     build.owns_with(OwnedOptions::default().verbs([Verb::Create, Verb::Delete]))
    /// }
    /// ```
    pub fn owns_with<T>(&mut self, options: OwnedOptions) -> Owned<T>
    where
        T: Cached<DynamicType = (), Scope: Scope + OwnedBy<K::Scope>>,
    {
        self.owns_in(&self.cx.informer(self.selection_of::<T>()), options)
    }

    /// Returns the owned objects as [`owns`](Self::owns) does, within the selection of this informer.
    pub fn owns_in<T>(&mut self, informer: &Informer<T>, options: OwnedOptions) -> Owned<T>
    where
        T: Cached<DynamicType = (), Scope: Scope + OwnedBy<K::Scope>>,
    {
        self.watch(informer).by_owner().keys(owner_key::<K, T>);
        let tracker = self.trackers.add();
        tracker.enqueue_observers_on_change(informer, Source::OWNED, self.parts.queue.clone());
        let writes = Permission::of::<T>(options.verbs_of_writes().iter().copied());
        let namespaces = selection(informer).selected_namespaces();
        self.declare_children([writes.or_namespaces(namespaces)]);
        self.declare_bindings(&options, namespaces);
        let (recorder, metrics) = (self.parts.recorder.clone(), &self.parts.children);
        let client = ObjectClient::of::<T>(&self.cx);
        let owned = Owned::new(client, informer.clone(), options, tracker, recorder, metrics);
        let (owners, children) = (self.cx.informer::<K>(self.selection.clone()), owned.clone());
        self.inspect.add_related(move |key| {
            let owner = owners.get(key);
            owner.map_or_else(Vec::new, |owner| {
                Related::children(resource_of(&children.informer), children.of(&*owner))
            })
        });
        owned
    }

    /// Returns the owned objects of these Kinds, which are known only at run time. While the passes of any owner use a
    /// Kind, a change of an owned object of that Kind enqueues its owner's key. The use of any other Kind is a permanent
    /// error.
    ///
    /// A controller of selected namespaces sees only owned objects in them.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use reknit_reconciler::{Builder, Kinds, OwnedAny, OwnedOptions};
    ///
    /// fn channels(build: &mut Builder<ConfigMap>) -> OwnedAny {
    ///     build.owns_any(Kinds::of([("messaging.knative.dev", "inmemorychannels")]), OwnedOptions::default())
    /// }
    /// ```
    pub fn owns_any(&mut self, kinds: Kinds, options: OwnedOptions) -> OwnedAny {
        let namespaces = self.namespaces.selected_namespaces();
        let writes = kinds.permissions(options.verbs_of_writes());
        self.declare_children(writes.map(|writes| writes.or_namespaces(namespaces)));
        self.declare_bindings(&options, namespaces);
        self.declare_reads_of(&kinds);
        let (kinds, client) = (self.dynamic_kinds(kinds), ObjectClient::of::<K>(&self.cx));
        let (recorder, metrics) = (self.parts.recorder.clone(), self.parts.children.clone());
        let owned = OwnedAny::new(kinds, client, options, recorder, metrics, owner_key::<K, DynamicObject>);
        let (owners, children) = (self.cx.informer::<K>(self.selection.clone()), owned.clone());
        self.inspect.add_related(move |key| {
            let owner = owners.get(key);
            owner.map_or_else(Vec::new, |owner| {
                let of_kind = |owned: &Owned<DynamicObject>| {
                    Related::children(resource_of(&owned.informer), owned.of(&*owner))
                };
                children.open_children().iter().flat_map(of_kind).collect()
            })
        });
        owned
    }

    /// Keeps a value per key between passes, until the object is deleted or this process loses leadership of the
    /// key's bucket.
    pub fn per_key<T: Send + 'static>(&mut self) -> PerKey<T> {
        self.parts.per_key.add()
    }
}

impl Builder<Keys> {
    /// Adds a key that exists independently of the watches, for objects that the reconciler creates although no watched
    /// object requires them. It is enqueued at the start, when this process becomes the leader of its bucket, and at
    /// every resync.
    ///
    /// ```
    /// use reknit_injection::Context;
    /// use reknit_reconciler::{Builder, Controller, Key, Keys};
    ///
    /// fn of_one_secret(cx: &Context) -> Builder<Keys> {
    ///     let mut build = Controller::named("passwords", cx);
    ///     build.add_key(Key::new("shop", "password"));
    ///     build
    /// }
    /// # let _ = of_one_secret;
    /// ```
    pub fn add_key(&mut self, key: Key) {
        if !self.parts.selects.is_empty() {
            self.parts.selects.push(' ');
        }
        self.parts.selects.push_str(&key.to_string());
        self.parts.queue.add_for(key.clone(), Cause::Start);
        self.parts.queue.add_key_source(move |keys| keys.push(key.clone()));
    }

    /// Sets the reconciler, and returns the controller.
    pub fn reconciler<R: ReconcileKey>(mut self, reconciler: R) -> Controller {
        self.finish();
        let Self { cx, parts, .. } = self;
        Controller::new(&cx, parts, |parts, _| KeyDriver {
            reconciler,
            limits: parts.limits,
            queue: parts.queue.clone(),
        })
    }
}
