//! The context: the registry of everything that the constructors of controllers share.

mod inject;
mod shutdown;

use std::{any::type_name, cell::RefCell, fmt, marker::PhantomData, rc::Rc, sync::Arc};

use kube::{Client, api::DynamicObject, discovery::ApiResource};
use serde_json::Value;
use typemap_rev::{TypeMap, TypeMapKey};

pub use self::{
    inject::{Inject, Missing},
    shutdown::{Shutdown, ShutdownTrigger},
};
use crate::{
    client::{Transport, read_own_writes},
    informer::{Cached, Feed, Informer, Informers, ObjectSource, Selection},
};

struct Slot<T>(PhantomData<fn() -> T>);

impl<T: Clone + Send + Sync + 'static> TypeMapKey for Slot<T> {
    type Value = Held<T>;
}

/// A value, and the informers that whoever has it may read.
#[derive(Clone)]
struct Held<T> {
    value: T,
    reads: Vec<Arc<dyn Feed>>,
}

/// What every constructor gets: the client, the informers, and one of each thing that controllers share.
///
/// It lives while controllers are constructed, and no reconciler can keep it, since it is not `Send`: whatever a pass
/// may read is a field of the reconciler, visible there. Clones are one Context.
///
/// A controller waits for the first list of each informer that its Context was [asked for](Self::asked), by itself or
/// within a type that is [`Inject`], so that no pass takes for absent what is only not there yet. In a process each
/// constructor has a Context [of its own](Self::apart), and waits for nobody else's informers.
///
/// ```compile_fail,E0277
/// fn keeps(cx: reknit_injection::Context) -> impl Send {
///     cx
/// }
/// ```
///
/// Asking for an informer, or for anything that is [`Inject`], cannot fail:
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
///     spaces: Informer<Pod>,
/// }
///
/// fn reconciler(cx: &Context) -> Result<Reconciler, Missing> {
///     let flags: Flags = cx.provided()?;
///     let spaces = cx.informer(select().namespace(&flags.namespace).label("kind", "cloud-ide"));
///     Ok(Reconciler { services: cx.get(), spaces })
/// }
/// ```
#[derive(Clone)]
pub struct Context(Rc<Inner>);

struct Inner {
    shared: Rc<Shared>,
    /// By this constructor.
    asked: RefCell<Vec<Arc<dyn Feed>>>,
}

/// What all constructors share.
struct Shared {
    transport: Transport,
    client: Client,
    component: String,
    system_namespace: Option<String>,
    metrics: prometheus::Registry,
    shutdown: Shutdown,
    informers: Informers,
    values: RefCell<TypeMap>,
    making: RefCell<Vec<&'static str>>,
    /// All that was asked for, so that whoever asks again gets the same, handlers and all.
    kept: RefCell<Vec<Arc<dyn Feed>>>,
}

/// A [`Context`] in the making.
#[must_use]
pub struct Builder {
    component: String,
    transport: Transport,
    given: Option<Vec<Value>>,
    system_namespace: Option<String>,
    metrics: prometheus::Registry,
    shutdown: Shutdown,
}

impl Builder {
    /// Where the process keeps its ConfigMaps and leases; none where it was not told.
    pub fn system_namespace(mut self, namespace: Option<String>) -> Self {
        self.system_namespace = namespace;
        self
    }

    /// Where what is measured is registered; a registry of its own unless told.
    pub fn metrics(mut self, registry: prometheus::Registry) -> Self {
        self.metrics = registry;
        self
    }

    /// What says that the process is to end; never unless told.
    pub fn shutdown(mut self, shutdown: Shutdown) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// Informers hold exactly these objects, each of its Kind and selection, and what is written; they never watch.
    pub fn preloaded(mut self, objects: Vec<Value>) -> Self {
        self.given = Some(objects);
        self
    }

    /// The Context. To be called within a tokio runtime.
    pub fn build(self) -> Context {
        let source =
            self.given.map_or_else(|| ObjectSource::Watch(self.transport.clone()), ObjectSource::Preloaded);
        let informers = Informers::new(source, &self.metrics);
        let transport = read_own_writes(&self.transport, &informers);
        let shared = Shared {
            client: transport.client(),
            transport,
            component: self.component,
            system_namespace: self.system_namespace,
            metrics: self.metrics,
            shutdown: self.shutdown,
            informers,
            values: RefCell::new(TypeMap::new()),
            making: RefCell::default(),
            kept: RefCell::default(),
        };
        Context::of(Rc::new(shared))
    }
}

impl Context {
    fn of(shared: Rc<Shared>) -> Self {
        Self(Rc::new(Inner { shared, asked: RefCell::default() }))
    }

    /// One for this component of a system: its name is that of its leases, logs and `loglevel.<component>`.
    pub fn builder(component: &str, transport: impl Into<Transport>) -> Builder {
        Builder {
            component: component.into(),
            transport: transport.into(),
            given: None,
            system_namespace: None,
            metrics: prometheus::Registry::new(),
            shutdown: Shutdown::never(),
        }
    }

    /// One without system namespace. To be called within a tokio runtime.
    pub fn new(component: &str, transport: impl Into<Transport>) -> Self {
        Self::builder(component, transport).build()
    }

    /// For tests: informers hold exactly these objects, each of its Kind and selection, and what is written; they
    /// never watch. To be called within a tokio runtime.
    pub fn preloaded(component: &str, transport: impl Into<Transport>, objects: Vec<Value>) -> Self {
        Self::builder(component, transport).preloaded(objects).build()
    }

    /// The one `T` of this process: what was provided, or else what [`Inject`] makes, once.
    ///
    /// # Panics
    ///
    /// If making a `T` asks for a `T`, with the types on the way.
    pub fn get<T: Inject>(&self) -> T {
        if let Some(held) = self.held() {
            return held;
        }
        let _making = self.making(type_name::<T>());
        let apart = self.apart();
        let made = T::inject(&apart);
        apart.provide(made.clone());
        apart.asked().into_iter().for_each(|feed| self.note(feed));
        made
    }

    /// Gives every later asker this value. It wins over [`Inject`], so that a test replaces a clock by providing one.
    ///
    /// What this Context was [asked for](Self::asked) before may be within it, so whoever asks for the value has asked
    /// for that too.
    pub fn provide<T: Clone + Send + Sync + 'static>(&self, value: T) {
        let held = Held { value, reads: self.asked() };
        self.0.shared.values.borrow_mut().insert::<Slot<T>>(held);
    }

    /// What was [provided](Self::provide), such as a process's own flags; the error names the type that is missing.
    pub fn provided<T: Clone + Send + Sync + 'static>(&self) -> Result<T, Missing> {
        self.held().ok_or(Missing(type_name::<T>()))
    }

    fn held<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        let Held { value, reads } = self.0.shared.values.borrow().get::<Slot<T>>().cloned()?;
        reads.into_iter().for_each(|feed| self.note(feed));
        Some(value)
    }

    /// This Context for another constructor: all is shared, but what it is asked for is counted apart.
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::{Pod, Service};
    /// use reknit_injection::{Context, Informer};
    ///
    /// fn both(cx: &Context) {
    ///     let (one, other) = (cx.apart(), cx.apart());
    ///     let _pods: Informer<Pod> = one.get();
    ///     let _services: Informer<Service> = other.get();
    ///     assert_eq!((one.asked()[0].name(), other.asked()[0].name()), ("pods", "services"));
    /// }
    /// ```
    #[must_use]
    pub fn apart(&self) -> Self {
        Self::of(self.0.shared.clone())
    }

    /// The informers that this Context was asked for, each once: what a controller that is built with it waits for.
    /// What is opened at run time, by [`informers`](Self::informers), is not among them.
    pub fn asked(&self) -> Vec<Arc<dyn Feed>> {
        self.0.asked.borrow().clone()
    }

    #[expect(
        clippy::panic,
        reason = "a mistake in the program, found when it starts; an error would be in every signature"
    )]
    fn making(&self, name: &'static str) -> Making<'_> {
        let mut making = self.0.shared.making.borrow_mut();
        if making.contains(&name) {
            let path = making.join(" → ");
            drop(making);
            panic!("Inject goes round in a circle: {path} → {name}");
        }
        making.push(name);
        Making(&self.0.shared.making)
    }

    /// The client. What is written through it, or read by name, is in the informers when the request returns. Where the
    /// answer to a write does not say what became of the object (the deletion of a collection, an eviction, a change of
    /// `scale`), that costs a list.
    pub fn client(&self) -> Client {
        self.0.shared.client.clone()
    }

    /// What the client is made of: what is written through it is in the informers just the same.
    pub fn transport(&self) -> Transport {
        self.0.shared.transport.clone()
    }

    /// The name of this component.
    pub fn component(&self) -> &str {
        &self.0.shared.component
    }

    /// Where this process keeps its ConfigMaps and leases.
    pub fn system_namespace(&self) -> Option<&str> {
        self.0.shared.system_namespace.as_deref()
    }

    /// Where what is measured is registered.
    pub fn metrics(&self) -> &prometheus::Registry {
        &self.0.shared.metrics
    }

    /// Says whether the process is to end.
    pub fn shutdown(&self) -> Shutdown {
        self.0.shared.shutdown.clone()
    }

    /// All informers, to be kept by what opens them at run time.
    pub fn informers(&self) -> Informers {
        self.0.shared.informers.clone()
    }

    /// The informer of this selection of a Kind: one in the process, however many ask. It is kept for as long as this
    /// Context is, and after that by the controller that is built with it, or by whoever else holds it; one that nobody
    /// holds then never starts.
    pub fn informer<K: Cached<DynamicType = ()>>(&self, selection: Selection) -> Informer<K> {
        self.noted(self.unasked(selection))
    }

    /// The same for a Kind known only at run time.
    pub fn informer_of(&self, kind: &ApiResource, selection: Selection) -> Informer<DynamicObject> {
        self.noted(self.keep(self.0.shared.informers.get_dynamic(kind, selection)))
    }

    /// The same informer for what is waited for as something else, which it [notes](Self::note).
    pub(crate) fn unasked<K: Cached<DynamicType = ()>>(&self, selection: Selection) -> Informer<K> {
        self.keep(self.0.shared.informers.get(&(), selection))
    }

    /// To be waited for by whoever is constructed with this Context.
    pub(crate) fn note(&self, feed: Arc<dyn Feed>) {
        add(&mut self.0.asked.borrow_mut(), feed);
    }

    fn noted<K: Cached>(&self, informer: Informer<K>) -> Informer<K> {
        self.note(informer.feed());
        informer
    }

    fn keep<K: Cached>(&self, informer: Informer<K>) -> Informer<K> {
        add(&mut self.0.shared.kept.borrow_mut(), informer.feed());
        informer
    }
}

/// Unless it is there already.
fn add(feeds: &mut Vec<Arc<dyn Feed>>, feed: Arc<dyn Feed>) {
    if !feeds.iter().any(|known| Arc::ptr_eq(known, &feed)) {
        feeds.push(feed);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("component", &self.0.shared.component).finish_non_exhaustive()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("component", &self.component).finish_non_exhaustive()
    }
}

/// What is being made now; a panic on the way leaves nothing behind.
struct Making<'a>(&'a RefCell<Vec<&'static str>>);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.borrow_mut().pop();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};

    use super::*;
    use crate::{select, testing::server};

    #[derive(Clone)]
    struct Probe(Informer<Service>);

    impl Inject for Probe {
        fn inject(cx: &Context) -> Self {
            Self(cx.get())
        }
    }

    #[derive(Clone)]
    struct Deep {
        probe: Probe,
        _pods: Informer<Pod>,
        number: u8,
    }

    impl Inject for Deep {
        fn inject(cx: &Context) -> Self {
            Self { probe: cx.get(), _pods: cx.get(), number: cx.provided().unwrap_or(1) }
        }
    }

    #[derive(Clone)]
    struct Egg;

    #[derive(Clone)]
    struct Hen;

    impl Inject for Egg {
        fn inject(cx: &Context) -> Self {
            let _: Hen = cx.get();
            Self
        }
    }

    impl Inject for Hen {
        fn inject(cx: &Context) -> Self {
            let _: Egg = cx.get();
            Self
        }
    }

    fn context() -> Context {
        Context::new("test", server().0)
    }

    #[tokio::test]
    async fn injected_things_are_made_of_injected_things_and_shared() {
        let cx = context();
        cx.provide(9u8);
        let deep: Deep = cx.get();
        assert!(deep.probe.0.same(&cx.get::<Probe>().0) && deep.probe.0.same(&cx.get()));
        assert_eq!(deep.number, 9);
    }

    #[tokio::test]
    async fn what_is_provided_wins() {
        let cx = context();
        let pods = cx.informer::<Pod>(select().namespace("x"));
        cx.provide(pods.clone());
        assert!(cx.get::<Informer<Pod>>().same(&pods));
    }

    #[tokio::test]
    async fn whoever_asks_for_a_value_has_asked_for_the_informers_within_it() {
        let names = |cx: &Context| cx.asked().iter().map(|feed| feed.name().to_owned()).collect::<Vec<_>>();
        let cx = context();
        let (first, second, third) = (cx.apart(), cx.apart(), cx.apart());
        let _: Informer<ConfigMap> = first.get();
        let _: Deep = first.get();
        assert_eq!(names(&first), ["configmaps", "services", "pods"]);
        let _: Deep = second.get();
        assert_eq!(names(&second), ["services", "pods"], "it was made before");
        second.provide("made of services and pods");
        third.provided::<&str>().unwrap();
        assert_eq!(names(&third), ["services", "pods"]);
        assert!(names(&cx).is_empty());
    }

    #[tokio::test]
    async fn a_circle_is_named_and_leaves_the_context_usable() {
        let cx = context();
        let said = catch_unwind(AssertUnwindSafe(|| cx.get::<Hen>())).err().unwrap();
        let said = said.downcast_ref::<String>().unwrap();
        assert!(said.contains("Hen → ") && said.contains("Egg → ") && said.ends_with("Hen"), "{said}");
        let _: Probe = cx.get();
    }

    #[tokio::test]
    async fn what_nobody_provided_is_named() {
        assert_eq!(context().provided::<u8>().unwrap_err().to_string(), "no u8 was provided");
    }

    #[tokio::test]
    async fn a_handler_is_there_for_whoever_asks_for_the_informer_later() {
        let (cx, (told, heard)) = (context(), std::sync::mpsc::channel());
        cx.informer::<Service>(select().namespace("x")).on(move |change| told.send(change.key()).unwrap());
        let mut service = Service::default();
        service.metadata.namespace = Some("x".into());
        cx.informer::<Service>(select().namespace("x")).apply(service);
        assert!(heard.try_recv().is_ok());
    }

    #[tokio::test]
    async fn what_nobody_keeps_never_starts() {
        let informers = {
            let cx = context();
            let _: Deep = cx.get();
            cx.informers()
        };
        informers.start();
        assert!(informers.states().is_empty());
    }
}
