//! The context: the registry of everything that the constructors of controllers share.

mod shutdown;
#[cfg(test)]
mod tests;

use std::{any::type_name, cell::RefCell, marker::PhantomData, rc::Rc, sync::Arc};

use kube::{
    Client,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use reknit_apis::internal::HashMap;
use serde_json::Value;
use typemap_rev::{TypeMap, TypeMapKey};

pub use self::shutdown::{Shutdown, ShutdownTrigger};
use crate::{
    client::{Transport, deliver_own_writes, record_exchanges, record_requests},
    informer::{
        Cached, Informer, InformerHandle, Informers, ObjectSource, OptionalInformer, Selection, select,
    },
    permissions::{Permission, Permissions},
};

/// The key of the `T` in the type map.
struct Slot<T>(PhantomData<fn() -> T>);

impl<T: Clone + Send + Sync + 'static> TypeMapKey for Slot<T> {
    type Value = SharedValue<T>;
}

/// A shared value, and the informers that it may read.
#[derive(Clone)]
struct SharedValue<T> {
    value: T,
    dependencies: Vec<Arc<dyn InformerHandle>>,
}

/// The registry that every constructor gets: the client, the informers, and one value of each type that controllers
/// share.
///
/// A Context exists while controllers are constructed. It is not `Send`, so no reconciler can keep it: whatever a
/// reconcile reads is a field of the reconciler. Clones share one Context.
///
/// A controller waits for the first list of each informer that its Context [handed out](Self::dependencies), directly
/// or within an [`Inject`] type, so no reconcile mistakes an object that is not listed yet for an absent one. Each
/// constructor of a process has a Context [of its own](Self::scoped), and does not wait for the informers of other
/// constructors.
///
/// ```compile_fail,E0277
/// fn keeps(cx: reknit_injection::Context) -> impl Send {
///     cx
/// }
/// ```
///
/// Requesting an informer, or any [`Inject`] type, cannot fail:
///
/// ```no_run
/// use k8s_openapi::api::core::v1::{Pod, Service};
/// use reknit_injection::{Context, Informer, Missing, select};
///
/// #[derive(Clone)]
/// struct Flags {
///     namespace: String,
/// }
///
/// struct Reconciler {
///     services: Informer<Service>,
///     ide_pods: Informer<Pod>,
/// }
///
/// fn reconciler(cx: &Context) -> Result<Reconciler, Missing> {
///     let flags: Flags = cx.provided()?;
///     let ide_pods = cx.informer(select().namespace(&flags.namespace).label("app", "cloud-ide"));
///     Ok(Reconciler { services: cx.get(), ide_pods })
/// }
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("Context {{ component: {:?}, .. }}", self.component())]
pub struct Context(Rc<Inner>);

/// The Context of one constructor.
struct Inner {
    shared: Rc<Shared>,
    /// The informers that this constructor requested.
    dependencies: RefCell<Vec<Arc<dyn InformerHandle>>>,
}

/// The part that all constructors share.
struct Shared {
    transport: Transport,
    client: Client,
    component: String,
    system_namespace: Option<String>,
    metrics: prometheus::Registry,
    shutdown: Shutdown,
    informers: Informers,
    permissions: Permissions,
    values: RefCell<TypeMap>,
    /// The types under construction, the outermost first.
    under_construction: RefCell<Vec<&'static str>>,
    /// Keeps requested informers alive, because `informers` has only weak references to them. A second request then
    /// gets the same informer, with its handlers.
    requested: RefCell<Vec<Arc<dyn InformerHandle>>>,
}

/// A builder of a [`Context`].
#[must_use]
#[derive(derive_more::Debug)]
#[debug("ContextBuilder {{ component: {component:?}, .. }}")]
pub struct ContextBuilder {
    component: String,
    transport: Transport,
    preloaded: Option<Vec<Value>>,
    delivers_own_writes: bool,
    kinds: HashMap<GroupVersionKind, Option<(ApiResource, Scope)>>,
    system_namespace: Option<String>,
    metrics: prometheus::Registry,
    shutdown: Shutdown,
}

impl ContextBuilder {
    /// Sets the namespace of the process's ConfigMaps and leases. The default is none.
    pub fn system_namespace(mut self, namespace: Option<String>) -> Self {
        self.system_namespace = namespace;
        self
    }

    /// Sets the registry of the metrics. The default is a new registry.
    pub fn metrics(mut self, registry: prometheus::Registry) -> Self {
        self.metrics = registry;
        self
    }

    /// Sets the shutdown signal. The default is [`Shutdown::never`].
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// Fills the informers with these objects instead of watching. Each informer has the objects of its Kind and
    /// selection, and the objects that are written through this Context.
    pub fn preloaded(mut self, objects: Vec<Value>) -> Self {
        self.preloaded = Some(objects);
        self
    }

    /// Fills the informers from their lists and watches alone, without the objects in responses.
    #[doc(hidden)]
    pub fn without_own_writes(mut self) -> Self {
        self.delivers_own_writes = false;
        self
    }

    /// Sets the answer about a Kind that is known only at run time, for preloaded informers: its resource and its scope, or
    /// `None` if the API server does not serve it.
    #[doc(hidden)]
    pub fn preloaded_kind(mut self, kind: GroupVersionKind, found: Option<(ApiResource, Scope)>) -> Self {
        self.kinds.insert(kind, found);
        self
    }

    /// Builds the Context. Must be called within a tokio runtime.
    pub fn build(self) -> Context {
        let source = match self.preloaded {
            Some(objects) => ObjectSource::Preloaded { objects, kinds: self.kinds },
            None => ObjectSource::Watch(self.transport.clone()),
        };
        let informers = Informers::new(source, &self.metrics);
        let recorded = record_exchanges(&self.transport);
        let transport = match self.delivers_own_writes {
            true => deliver_own_writes(&recorded, &informers),
            false => recorded,
        };
        let transport = record_requests(&transport);
        let shared = Shared {
            client: transport.client(),
            transport,
            component: self.component,
            system_namespace: self.system_namespace,
            metrics: self.metrics,
            shutdown: self.shutdown,
            informers,
            permissions: Permissions::default(),
            values: RefCell::new(TypeMap::new()),
            under_construction: RefCell::default(),
            requested: RefCell::default(),
        };
        Context::with_shared(Rc::new(shared))
    }
}

impl Context {
    fn with_shared(shared: Rc<Shared>) -> Self {
        Self(Rc::new(Inner { shared, dependencies: RefCell::default() }))
    }

    /// Returns a builder. `component` is the name of this process in its system, such as `controller`. It is in the
    /// names of leases, in logs, and in the key `loglevel.<component>` of `config-logging`.
    pub fn builder(component: &str, transport: impl Into<Transport>) -> ContextBuilder {
        ContextBuilder {
            component: component.into(),
            transport: transport.into(),
            preloaded: None,
            delivers_own_writes: true,
            kinds: HashMap::default(),
            system_namespace: None,
            metrics: prometheus::Registry::new(),
            shutdown: Shutdown::never(),
        }
    }

    /// Creates a Context without a system namespace. Must be called within a tokio runtime.
    pub fn new(component: &str, transport: impl Into<Transport>) -> Self {
        Self::builder(component, transport).build()
    }

    /// Creates a Context for tests, whose informers never watch. Each informer has the objects of its Kind and
    /// selection, and the objects that are written through the Context. Must be called within a tokio runtime.
    pub fn preloaded(component: &str, transport: impl Into<Transport>, objects: Vec<Value>) -> Self {
        Self::builder(component, transport).preloaded(objects).build()
    }

    /// Returns the one `T` of this process: the provided value, or else the value that [`Inject`] creates at the first
    /// request.
    ///
    /// # Panics
    ///
    /// Panics if creating a `T` requests a `T`. The message names the types in between.
    pub fn get<T: Inject>(&self) -> T {
        if let Some(value) = self.find() {
            return value;
        }
        let _guard = self.start_construction(type_name::<T>());
        let scoped = self.scoped();
        let value = T::inject(&scoped);
        scoped.provide(value.clone());
        scoped.dependencies().into_iter().for_each(|informer| self.add_dependency(informer));
        value
    }

    /// Provides this value to every later request. It takes precedence over [`Inject`], so a test replaces the clock by
    /// providing another clock.
    ///
    /// Because the value might hold any informer that this Context has [handed out](Self::dependencies) so far, all of
    /// these become dependencies of each constructor that requests the value.
    pub fn provide<T: Clone + Send + Sync + 'static>(&self, value: T) {
        let shared_value = SharedValue { value, dependencies: self.dependencies() };
        self.0.shared.values.borrow_mut().insert::<Slot<T>>(shared_value);
    }

    /// Returns a value that was [provided](Self::provide), such as the program's own flags. The error names the missing
    /// type.
    pub fn provided<T: Clone + Send + Sync + 'static>(&self) -> Result<T, Missing> {
        self.find().ok_or(Missing(type_name::<T>()))
    }

    fn find<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        let SharedValue { value, dependencies } = self.0.shared.values.borrow().get::<Slot<T>>().cloned()?;
        dependencies.into_iter().for_each(|informer| self.add_dependency(informer));
        Some(value)
    }

    /// Returns a Context for another constructor, with its own list of dependencies. Both Contexts share everything
    /// else.
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::{Pod, Service};
    /// use reknit_injection::{Context, Informer};
    ///
    /// fn both(cx: &Context) {
    ///     let (first, second) = (cx.scoped(), cx.scoped());
    ///     let _pods: Informer<Pod> = first.get();
    ///     let _services: Informer<Service> = second.get();
    ///     assert_eq!((first.dependencies()[0].name(), second.dependencies()[0].name()), ("pods", "services"));
    /// }
    /// ```
    #[must_use]
    pub fn scoped(&self) -> Self {
        Self::with_shared(self.0.shared.clone())
    }

    /// Returns the informers that this Context has handed out, each once. A controller that is built with this Context
    /// waits for them. Informers that are opened at run time, through [`informers`](Self::informers), are not
    /// dependencies.
    pub fn dependencies(&self) -> Vec<Arc<dyn InformerHandle>> {
        self.0.dependencies.borrow().clone()
    }

    #[expect(
        clippy::panic,
        reason = "a mistake in the program, found at its start; an error would be in every signature"
    )]
    fn start_construction(&self, name: &'static str) -> ConstructionGuard<'_> {
        let mut types = self.0.shared.under_construction.borrow_mut();
        if types.contains(&name) {
            let path = types.join(" → ");
            drop(types);
            panic!("cyclic Inject: {path} → {name}");
        }
        types.push(name);
        ConstructionGuard(&self.0.shared.under_construction)
    }

    /// Returns the client. An object that is written through it, or read by name, is in the informers when the request
    /// returns. If the response to a write does not contain the object (the deletion of a collection, an eviction, a
    /// change of `scale`), the object is read back by a list.
    pub fn client(&self) -> Client {
        self.0.shared.client.clone()
    }

    /// Returns the transport of the client. Objects that are written through it are in the informers too.
    pub fn transport(&self) -> Transport {
        self.0.shared.transport.clone()
    }

    /// Returns the name of this component.
    pub fn component(&self) -> &str {
        &self.0.shared.component
    }

    /// Returns the namespace of this process's ConfigMaps and leases.
    pub fn system_namespace(&self) -> Option<&str> {
        self.0.shared.system_namespace.as_deref()
    }

    /// Returns the registry of the metrics.
    pub fn metrics(&self) -> &prometheus::Registry {
        &self.0.shared.metrics
    }

    /// Returns the shutdown signal.
    pub fn shutdown(&self) -> Shutdown {
        self.0.shared.shutdown.clone()
    }

    /// Returns the registry of informers, for code that opens informers at run time.
    pub fn informers(&self) -> Informers {
        self.0.shared.informers.clone()
    }

    /// Declares a permission for requests that your own code sends through the [client](Self::client), for example in a
    /// task. The RBAC rules that are generated from the program contain it.
    ///
    /// For requests of a controller, call `allows` of the controller's builder instead, which restricts the permission
    /// to the controller's namespaces. Informers declare what they need themselves.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Node;
    /// use reknit_injection::{Context, Permission, Verb};
    ///
    /// fn task(cx: &Context) {
    ///     cx.allows(Permission::of::<Node>([Verb::Patch]));
    /// }
    /// # let _ = task;
    /// ```
    pub fn allows(&self, permission: Permission) {
        self.0.shared.permissions.add(permission);
    }

    /// Returns the permissions that constructors have declared so far, of all Contexts of the process.
    #[doc(hidden)]
    pub fn permissions(&self) -> Permissions {
        self.0.shared.permissions.clone()
    }

    /// Returns the informer of this Kind and selection, of which the process has only one. The Context keeps the
    /// informer while the Context exists, and each controller that is built with the Context keeps it afterwards.
    /// Informers start once all controllers are built; one that nothing keeps by then never starts.
    pub fn informer<K: Cached<DynamicType = ()>>(&self, selection: Selection) -> Informer<K> {
        self.add_as_dependency(self.informer_without_dependency(selection))
    }

    /// Returns the informer of a Kind that is known only at run time, as [`informer`](Self::informer) does.
    pub fn informer_of(&self, kind: &ApiResource, selection: Selection) -> Informer<DynamicObject> {
        self.allows(Permission::of_informer(kind, &selection));
        self.add_as_dependency(self.keep(self.0.shared.informers.get(kind.clone(), selection)))
    }

    /// Returns the informer without making it a dependency. The caller [adds](Self::add_dependency) a wrapper of the
    /// informer instead.
    pub(crate) fn informer_without_dependency<K: Cached<DynamicType = ()>>(
        &self,
        selection: Selection,
    ) -> Informer<K> {
        let kind = ApiResource::erase::<K>(&());
        self.allows(Permission::of_informer(&kind, &selection));
        self.keep(self.0.shared.informers.get(kind, selection))
    }

    /// Adds an informer whose first list the controller awaits before its first pass.
    pub(crate) fn add_dependency(&self, informer: Arc<dyn InformerHandle>) {
        add_once(&mut self.0.dependencies.borrow_mut(), informer);
    }

    fn add_as_dependency<K: Cached>(&self, informer: Informer<K>) -> Informer<K> {
        self.add_dependency(informer.handle());
        informer
    }

    fn keep<K: Cached>(&self, informer: Informer<K>) -> Informer<K> {
        add_once(&mut self.0.shared.requested.borrow_mut(), informer.handle());
        informer
    }
}

/// Returns the informer of objects that a controller can do without: the controller does not wait for them while they are
/// unavailable.
pub fn optional_informer<K: Cached<DynamicType = ()>>(cx: &Context, selection: Selection) -> Informer<K> {
    let informer = cx.informer_without_dependency(selection);
    cx.add_dependency(Arc::new(OptionalInformer(informer.clone())));
    informer
}

/// Adds the informer unless the list already contains it.
fn add_once(informers: &mut Vec<Arc<dyn InformerHandle>>, informer: Arc<dyn InformerHandle>) {
    if !informers.iter().any(|known| Arc::ptr_eq(known, &informer)) {
        informers.push(informer);
    }
}

/// A guard that removes the innermost type under construction, also after a panic.
struct ConstructionGuard<'a>(&'a RefCell<Vec<&'static str>>);

impl Drop for ConstructionGuard<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().pop();
    }
}

/// A type that the [`Context`] creates once, at the first request.
///
/// ```
/// use k8s_openapi::api::core::v1::Service;
/// use reknit_injection::{Context, Informer, Inject};
///
/// #[derive(Clone)]
/// struct Prober {
///     services: Informer<Service>,
/// }
///
/// impl Inject for Prober {
///     fn inject(cx: &Context) -> Self {
///         Self { services: cx.get() }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "the Context cannot create a `{Self}`",
    note = "`impl Inject for {Self}`, or `Main::provide(value)` in main, or `cx.provide(value)` in a constructor that runs before, and `cx.provided::<{Self}>()?` here",
    note = "`Tracked`, `Owned` and `Config` belong to one controller: `build.track()`, `build.owns()`, `build.config()`"
)]
pub trait Inject: Clone + Send + Sync + 'static {
    /// Creates the value from other values of the Context.
    fn inject(cx: &Context) -> Self;
}

/// The error if a requested value was not provided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {0} was provided")]
pub struct Missing(pub(crate) &'static str);

/// The informer of all objects of the Kind, in all namespaces. It does not follow the flag `--namespace`: for that, use
/// `cx.informer(cx.get())`.
impl<K: Cached<DynamicType = ()>> Inject for Informer<K> {
    fn inject(cx: &Context) -> Self {
        cx.informer(select())
    }
}

/// Selects the namespaces of the process's controllers, which are all namespaces by default. The flag `--namespace` of
/// `reknit_sharedmain` provides another selection, and so may a test.
impl Inject for Selection {
    fn inject(_: &Context) -> Self {
        select()
    }
}

impl Inject for Client {
    fn inject(cx: &Context) -> Self {
        cx.client()
    }
}

impl Inject for Informers {
    fn inject(cx: &Context) -> Self {
        cx.informers()
    }
}

impl Inject for Shutdown {
    fn inject(cx: &Context) -> Self {
        cx.shutdown()
    }
}
