//! Puts a controller together: what wakes it, what it reads, what it does.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use kube::Client;
use reknit_apis::{Key, Kind, OwnedBy, Scope};
use reknit_injection::{Cached, Config, Context, Feed, FromConfigMap, Informer, Selection, select};

use super::{Controller, Parts, controller_builder::ControllerBuilder, watch::Watch};
use crate::{
    Owned, PerKey, Queue, ReconcileKey, ReconcileKind, Recorder, Tracked, TrackedAny, driver::KeyDriver,
    object_client::field_manager, owned::owner_key, tracker::Trackers,
};

/// Stands for the Kind of a controller that has none, only [keys](crate::ReconcileKey).
#[derive(Debug)]
pub enum Keys {}

/// A controller that is being put together: first what it reads and is woken by, then its reconciler, then its
/// options.
///
/// Made by [`Controller::of`], [`Controller::selected`] and [`Controller::named`]. Before its first pass the controller
/// waits for the first list of every informer that its [`Context`] was asked for until it was built, however that was
/// asked, and of those that pass through here. It waits neither for what [`track_any`](Self::track_any) opens at run
/// time nor for what other constructors of the process asked for.
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
///         println!("{} sets, {} pods at all", self.sets.of(namespace).count(), self.pods.list().count());
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
#[must_use = "nothing is watched for a controller that is not built"]
pub struct Builder<K> {
    pub(super) cx: Context,
    pub(super) parts: Parts,
    pub(super) selection: Selection,
    pub(super) trackers: Trackers,
    has_kind: bool,
    kind: PhantomData<fn() -> K>,
}

impl Controller {
    /// A controller of this Kind, named `<plural>.<group>`. Of several over one Kind in a process, all but one need
    /// a [name](ControllerBuilder::name) of their own.
    pub fn of<K: Kind>(cx: &Context) -> Builder<K> {
        Self::selected(cx, select())
    }

    /// A controller of the objects of this Kind that are selected: of one namespace, say, for which it then needs
    /// no ClusterRole.
    ///
    /// ```
    /// use k8s_openapi::api::apps::v1::Deployment;
    /// use reknit_injection::{Context, select};
    /// use reknit_reconciler::{Builder, Controller};
    ///
    /// fn of_one_namespace(cx: &Context, namespace: &str) -> Builder<Deployment> {
    ///     Controller::selected(cx, select().namespace(namespace))
    /// }
    /// ```
    pub fn selected<K: Kind>(cx: &Context, which: Selection) -> Builder<K> {
        let (plural, group) = (K::plural(&()), K::group(&()));
        let name = if group.is_empty() { plural.into_owned() } else { format!("{plural}.{group}") };
        let kind = K::kind(&());
        let mut build = Builder::new(cx, name, &kind.to_lowercase(), which.clone());
        build.parts.kind = if group.is_empty() { kind.into_owned() } else { format!("{group}.{kind}") };
        let informer = cx.informer::<K>(which);
        build.needs(&informer);
        build.has_kind = true;
        build.parts.key_sources.add(move |keys| keys.extend(informer.keys()));
        build
    }

    /// A controller without a Kind of its own: its keys are what its watches make of what they see.
    pub fn named(name: &str, cx: &Context) -> Builder<Keys> {
        Builder::new(cx, name.into(), name, select())
    }
}

impl<K> Builder<K> {
    fn new(cx: &Context, name: String, reporter: &str, selection: Selection) -> Self {
        Self {
            cx: cx.clone(),
            parts: Parts::new(name, Recorder::new(cx, &format!("{reporter}-controller"))),
            selection,
            trackers: Trackers::default(),
            has_kind: false,
            kind: PhantomData,
        }
    }

    /// Wakes keys of this controller when objects of another informer change.
    pub fn watch<T: Cached>(&mut self, informer: &Informer<T>) -> Watch<'_, T> {
        self.needs(informer);
        Watch::new(informer.clone(), &self.parts, !self.has_kind)
    }

    /// A ConfigMap as a value, the same throughout a pass. A changed value wakes every key, slowly.
    pub fn config<T: FromConfigMap>(&mut self) -> Config<T> {
        Config::new(&self.cx, self.parts.enqueue_all())
    }

    /// The client to write with: what it wrote is read at once from every informer that selects it.
    pub fn client(&self) -> Client {
        self.cx.client()
    }

    /// To wake keys from outside the watches.
    pub fn queue(&self) -> Queue {
        self.parts.queue.clone()
    }

    /// To record events other than those that end a pass.
    pub fn recorder(&self) -> Recorder {
        self.parts.recorder.clone()
    }

    /// Sets the number of keys that are reconciled at once. The default is 2; `K_THREADS_PER_CONTROLLER` overrides it.
    pub fn workers(mut self, workers: usize) -> Self {
        self.parts.workers = workers;
        self
    }

    /// Sets the interval at which every key is reconciled although nothing happened, give or take a tenth. The default is
    /// 10 hours; zero means never.
    pub fn resync(mut self, every: Duration) -> Self {
        self.parts.resync = every;
        self
    }

    /// Sets the time after which a reconcile is reported as slow, in the log and as an event. The default is one minute.
    pub fn slow_after(mut self, limit: Duration) -> Self {
        self.parts.limits.slow_after = limit;
        self
    }

    /// Sets the time after which a reconcile is dropped where it stands, which counts as an error. The default is never.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.parts.limits.deadline = Some(limit);
        self
    }

    fn needs<T: Cached>(&mut self, informer: &Informer<T>) {
        self.waits_for(informer.feed());
    }

    fn waits_for(&mut self, feed: Arc<dyn Feed>) {
        if !self.parts.feeds.iter().any(|known| Arc::ptr_eq(known, &feed)) {
            self.parts.feeds.push(feed);
        }
    }

    /// Ends the declaration of what the controller reads.
    pub(super) fn finish(mut self) -> (Context, Parts) {
        self.cx.asked().into_iter().for_each(|feed| self.waits_for(feed));
        (self.cx, self.parts)
    }
}

impl<K: Kind> Builder<K> {
    /// Objects of another Kind to read: what a pass read wakes its key when it changes. Of a controller of one namespace,
    /// those in that namespace, unless the Kind is cluster-scoped; any others through an informer
    /// [of one's own](Self::track_in).
    pub fn track<T: Cached<DynamicType = (), Scope: Scope>>(&mut self) -> Tracked<T> {
        let namespace = self.selection.in_namespace().filter(|_| T::Scope::NAMESPACED).unwrap_or_default();
        self.track_in(&self.cx.informer(select().namespace(namespace)))
    }

    /// The same through a selected informer.
    pub fn track_in<T: Cached<DynamicType = (), Scope: Scope>>(
        &mut self,
        informer: &Informer<T>,
    ) -> Tracked<T> {
        self.needs(informer);
        let tracker = self.trackers.add();
        tracker.observe(informer, self.parts.queue.clone());
        Tracked::new(informer.clone(), tracker)
    }

    /// Objects of Kinds that only a reference names. Of a controller of one namespace, those in that namespace and
    /// cluster-scoped ones; references elsewhere are permanent errors.
    pub fn track_any(&mut self) -> TrackedAny {
        let namespace = self.selection.in_namespace().map(str::to_owned);
        TrackedAny::new(self.cx.informers(), namespace, self.parts.queue.clone(), self.trackers.clone())
    }

    /// The objects of another Kind that those of this one control, to list and to [apply](Owned::apply): each wakes its
    /// controller when it changes. Of a controller of one namespace, those in that namespace.
    pub fn owns<T>(&mut self) -> Owned<T>
    where
        T: Cached<DynamicType = (), Scope: OwnedBy<K::Scope>>,
    {
        let namespace = self.selection.in_namespace().unwrap_or_default();
        self.owns_in(&self.cx.informer(select().namespace(namespace)))
    }

    /// The same through a selected informer.
    pub fn owns_in<T>(&mut self, informer: &Informer<T>) -> Owned<T>
    where
        T: Cached<DynamicType = (), Scope: OwnedBy<K::Scope>>,
    {
        self.watch(informer).keys(owner_key::<K, T>);
        let tracker = self.trackers.add();
        tracker.observe(informer, self.parts.queue.clone());
        let manager = field_manager(self.cx.component());
        Owned::new(informer.clone(), self.client(), manager, tracker)
    }

    /// What passes keep from one to the next, for each key; it goes with the object, and with the lead over it.
    pub fn per_key<T: Send + 'static>(&mut self) -> PerKey<T> {
        self.parts.per_key.add()
    }

    /// What the controller does; its roles and options follow.
    pub fn reconciler<R: ReconcileKind<Kind = K>>(self, reconciler: R) -> ControllerBuilder<R> {
        ControllerBuilder::new(self, reconciler)
    }
}

impl Builder<Keys> {
    /// A key that there is whatever the watches see: it is woken at the start, when its lead is gained, and with every
    /// resync. For what has to be made where nothing is there yet.
    ///
    /// ```
    /// use reknit_injection::Context;
    /// use reknit_reconciler::{Builder, Controller, Key, Keys};
    ///
    /// fn of_one_secret(cx: &Context) -> Builder<Keys> {
    ///     let mut build = Controller::named("passwords", cx);
    ///     build.always(Key::new("shop", "password"));
    ///     build
    /// }
    /// # let _ = of_one_secret;
    /// ```
    pub fn always(&mut self, key: Key) {
        self.parts.queue.add(key.clone());
        self.parts.key_sources.add(move |keys| keys.push(key.clone()));
    }

    /// What the controller does.
    pub fn reconciler<R: ReconcileKey>(self, reconciler: R) -> Controller {
        let (cx, parts) = self.finish();
        let (limits, key_sources) = (parts.limits, parts.key_sources.clone());
        Controller::new(&cx, parts, |_| KeyDriver { reconciler, limits, key_sources })
    }
}
