//! Builds a controller: the objects that it reads, and the objects whose changes enqueue its keys.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use kube::{Client, Resource, api::DynamicObject};
use reknit_apis::{Key, Kind, OwnedBy, Scope};
use reknit_injection::{
    Cached, Config, Context, FromConfigMap, Informer, InformerHandle, Selection, Verb, select,
};

use super::{Controller, GlobalResync, Parts, controller_builder::ControllerBuilder, watch::Watch};
use crate::{
    Bindable, Binder, Kinds, Owned, OwnedAny, OwnedOptions, PerKey, Queue, ReconcileKey, ReconcileKind,
    Recorder, Tracked, TrackedAny,
    driver::KeyDriver,
    events::event_permission,
    object_client::field_manager,
    owned::{ChildKind, Writer, owner_key},
    tracker::{DynamicKinds, Trackers},
};

/// The type parameter of the [`Builder`] of a controller without a Kind, which reconciles
/// [keys](crate::ReconcileKey).
#[derive(Debug)]
pub enum Keys {}

/// The first step of building a controller: the objects that it reads, and the objects whose changes enqueue its keys.
/// The reconciler and its options follow.
///
/// Created by [`Controller::of`], [`Controller::selected`] and [`Controller::named`]. Before its first pass, the
/// controller waits for the first list of every informer that its constructor (`fn controller(cx)` below) got from the
/// [`Context`] or passed to this builder. It does not wait for informers that [`track_any`](Self::track_any) opens, or
/// for those of other controllers.
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
    has_kind: bool,
    kind: PhantomData<fn() -> K>,
}

impl Controller {
    /// Starts to build a controller of this Kind, named `<plural>.<group>`. If a process has several controllers of one
    /// Kind, all but one need another [name](ControllerBuilder::name).
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
        let (plural, group) = (K::plural(&()), K::group(&()));
        let name = if group.is_empty() { plural.into_owned() } else { format!("{plural}.{group}") };
        let kind = K::kind(&());
        let mut build = Builder::new(cx, name, &kind.to_lowercase(), which.clone());
        build.parts.kind = if group.is_empty() { kind.into_owned() } else { format!("{group}.{kind}") };
        let informer = cx.informer::<K>(which);
        build.depend_on(&informer);
        build.allow_status_writes();
        build.has_kind = true;
        build.parts.key_sources.add(move |keys| keys.extend(informer.keys()));
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
                Queue::with_clock(cx.get()),
            ),
            namespaces: selection.same_namespaces(),
            selection,
            trackers: Trackers::default(),
            has_kind: false,
            kind: PhantomData,
        }
    }

    /// Enqueues keys when objects of this informer change. The methods of the [`Watch`] map objects to keys.
    pub fn watch<T: Cached>(&mut self, informer: &Informer<T>) -> Watch<'_, T> {
        self.depend_on(informer);
        // Without a Kind the keys come from the watches.
        let is_key_source = !self.has_kind;
        Watch::new(informer.clone(), &self.parts, is_key_source)
    }

    /// Reads a ConfigMap as a value that is constant within a pass. A change of the ConfigMap enqueues every key in the
    /// slow lane.
    pub fn config<T: FromConfigMap>(&mut self) -> Config<T> {
        let resync = self.parts.global_resync();
        self.config_with(move |_| resync.all())
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
    ///     let resync = build.global_resync();
    ///     build.config_with(move |_| resync.filtered(|key| key.namespace.as_deref() == Some("beta")))
    /// }
    /// ```
    pub fn config_with<T: FromConfigMap>(
        &mut self,
        on_changed: impl Fn(&T) + Send + Sync + 'static,
    ) -> Config<T> {
        Config::new(&self.cx, on_changed)
    }

    /// Returns a handle by which code enqueues all keys, or some of them.
    pub fn global_resync(&self) -> GlobalResync {
        self.parts.global_resync()
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

    /// Sets the number of keys that are reconciled at once. The default is 2. The environment variable
    /// `K_THREADS_PER_CONTROLLER` overrides the default and this setting.
    pub fn workers(mut self, workers: usize) -> Self {
        self.parts.workers = workers;
        self
    }

    /// Sets the resync interval, at which every key is reconciled even if nothing changed. It is reduced at random by up
    /// to a tenth. The default is 10 hours; zero means never.
    pub fn resync(mut self, every: Duration) -> Self {
        self.parts.resync = every;
        self
    }

    /// Sets the time after which a reconcile is reported as slow, in the log and as an event. The default is one
    /// minute.
    pub fn slow_after(mut self, limit: Duration) -> Self {
        self.parts.limits.slow_after = limit;
        self
    }

    /// Sets the time after which a reconcile is cancelled: its future is dropped at the current await point. This
    /// counts as an error. By default there is no deadline.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.parts.limits.deadline = Some(limit);
        self
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

    /// Adds the informers that the constructor got from the Context, and returns the parts.
    pub(super) fn finish(mut self) -> (Context, Parts) {
        self.cx.dependencies().into_iter().for_each(|informer| self.depend_on_handle(informer));
        (self.cx, self.parts)
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
        tracker.enqueue_observers_on_change(&informer, self.parts.queue.clone());
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
        self.allow_reads_of(&kinds);
        TrackedAny::new(self.dynamic_kinds(kinds))
    }

    fn dynamic_kinds(&self, kinds: Kinds) -> DynamicKinds {
        let (queue, open) = (self.parts.queue.clone(), self.trackers.dynamic());
        DynamicKinds::new(kinds, self.cx.informers(), self.namespaces.clone(), queue, open)
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
        self.watch(informer).keys(owner_key::<K, T>);
        let tracker = self.trackers.add();
        tracker.enqueue_observers_on_change(informer, self.parts.queue.clone());
        self.allow_children(informer, &options);
        Owned::new(ChildKind::of::<T>(), informer.clone(), self.writer(options), tracker)
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
        self.allow_children_of(&kinds, &options);
        OwnedAny::new(self.dynamic_kinds(kinds), self.writer(options), owner_key::<K, DynamicObject>)
    }

    fn writer(&self, options: OwnedOptions) -> Writer {
        Writer::new(self.client(), field_manager(self.cx.component()), options)
    }

    /// Keeps a value per key between passes, until the object is deleted or this process loses leadership of the
    /// key's bucket.
    pub fn per_key<T: Send + 'static>(&mut self) -> PerKey<T> {
        self.parts.per_key.add()
    }

    /// Sets the reconciler. Its roles and options follow.
    pub fn reconciler<R: ReconcileKind<Kind = K>>(self, reconciler: R) -> ControllerBuilder<R> {
        ControllerBuilder::new(self, reconciler)
    }
}

impl<K: Bindable> Builder<K> {
    /// Finds the subjects of bindings, which are of these Kinds, and injects into them. A change of a subject enqueues
    /// the key of its binding.
    pub fn binder(&mut self, kinds: Kinds) -> Binder<K> {
        let manager = field_manager(self.cx.component());
        kinds.permissions(&[Verb::Patch]).for_each(|patches| self.allows(patches));
        let objects = self.track_any(kinds);
        Binder::new(objects, self.cx.informers(), self.client(), manager)
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
        self.parts.queue.add(key.clone());
        self.parts.key_sources.add(move |keys| keys.push(key.clone()));
    }

    /// Sets the reconciler, and returns the controller.
    pub fn reconciler<R: ReconcileKey>(self, reconciler: R) -> Controller {
        let (cx, parts) = self.finish();
        let (limits, key_sources) = (parts.limits, parts.key_sources.clone());
        Controller::new(&cx, parts, |_| KeyDriver { reconciler, limits, key_sources })
    }
}
