//! The Kinds that a controller finds at run time, and the informers that are open while its keys use them.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::{
    Resource,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use parking_lot::Mutex;
use reknit_apis::{
    Key, dns_label, dns_subdomain,
    internal::{HashMap, HashSet},
};
use reknit_injection::{
    Informer, InformerHandle, Informers, Selection,
    internal::{listed, on_first_lists, on_kind_changed, open_unsynced},
    select,
};
use tokio::{runtime::Handle, time::Instant};

use super::index::{Index, Tracker};
use crate::{
    Error, Kinds, Queue, Result, ResultExt,
    inspect::Related,
    object_client::ObjectKind,
    queue::{Cause, Source},
};

/// The longest backoff of a pass that used an unknown Kind or one that cannot be listed. No watch reports when that
/// changes.
const RETRY_WITHIN: Duration = Duration::from_secs(15);

/// The maximum number of Kinds that the references and templates of a controller's objects can open.
const MAX_KINDS: usize = 100;

/// The maximum number of Kinds that the objects of one namespace can use when one of them opens another Kind.
const MAX_KINDS_OF_NAMESPACE: usize = 25;

/// The maximum size of the objects of these Kinds, as compact JSON.
const MAX_BYTES: usize = 256 << 20;

/// The time after which a Kind that was closed because of the size is opened again.
const CLOSED_FOR: Duration = Duration::from_secs(600);

/// The error of a pass that used a Kind whose objects are not listed yet. Their list enqueues the key.
#[derive(Debug, thiserror::Error)]
#[error("the objects of {kind} of {api_version} are not listed yet")]
pub(crate) struct NotListedYet {
    api_version: String,
    kind: String,
}

/// Finds Kinds at run time for one controller, and keeps their informers open while any of its keys uses them.
#[derive(Clone)]
pub(crate) struct DynamicKinds {
    pub(crate) allowed: Kinds,
    pub(crate) informers: Informers,
    /// The namespaces of the controller.
    pub(crate) namespaces: Selection,
    /// The work queue of the controller.
    pub(crate) queue: Queue,
    pub(crate) used: UsedKinds,
}

/// The versions in which a Kind is looked for.
#[derive(Clone, Copy)]
pub(crate) enum Versions {
    /// Only the version that the reference or the template names.
    Named,
    /// If that version is not served, any other one.
    Any,
}

/// A Kind that the API server serves, and its informer.
pub(crate) struct FoundKind {
    pub(crate) kind: ObjectKind,
    pub(crate) informer: Informer<DynamicObject>,
}

/// The Kinds found at run time that the keys of one controller use.
///
/// The Kinds that the code does not name are limited by number and by size, since the users who write references and
/// templates choose them.
#[derive(Clone, Default)]
pub(crate) struct UsedKinds(Arc<Mutex<HashMap<ApiResource, UsedKind>>>);

/// The reads of a Kind, and its informer while there are any.
#[derive(Default)]
struct UsedKind {
    tracker: Tracker,
    informer: Option<Informer<DynamicObject>>,
    /// True if the code names the Kind, so that it is not limited.
    is_named: bool,
    opened_at: Option<Instant>,
    /// The time until which the Kind stays closed, because the objects were too large.
    closed_until: Option<Instant>,
    /// The informer to which the handler was added. It outlives `informer` if other code of the process keeps it, and
    /// must then not get a second handler.
    with_handler: Option<Weak<dyn InformerHandle>>,
    /// True once a pass reads the objects of that informer. Until then the handler ignores events: the end of the first
    /// list enqueues every key that has recorded a read.
    is_read: Arc<AtomicBool>,
}

impl DynamicKinds {
    /// Creates the Kinds of a builder call. When the API server serves one of them in another way or no longer, its
    /// informer closes, and the keys that use the Kind are enqueued.
    pub(crate) fn new(
        allowed: Kinds,
        informers: Informers,
        namespaces: Selection,
        queue: Queue,
        used: UsedKinds,
    ) -> Self {
        let (changed, changed_queue) = (used.clone(), queue.clone());
        on_kind_changed(&informers, move |kind| {
            let cause = Cause::Kind(kind.kind.as_str().into());
            let observers = changed.close(kind).into_iter();
            observers.for_each(|observer| changed_queue.add_for(observer, cause.clone()));
        });
        Self { allowed, informers, namespaces, queue, used }
    }

    /// The open informers of the controller's Kinds.
    pub(super) fn open_informers(&self) -> Vec<Informer<DynamicObject>> {
        self.used.0.lock().values().filter_map(|used| used.informer.clone()).collect()
    }

    /// Finds a Kind for this observer if it is allowed, and opens its informer, which may start a watch. The informer
    /// closes again when the result is dropped, unless [`record`](Self::record) keeps it.
    pub(crate) async fn find(
        &self,
        observer: &Key,
        api_version: &str,
        kind: &str,
        versions: Versions,
    ) -> Result<FoundKind> {
        let found = self.find_known(observer, api_version, kind, versions).await?;
        let unknown = || {
            format!(
                "the API server does not know {kind} of {api_version}: is its CustomResourceDefinition installed?"
            )
        };
        found.ok_or_else(unknown).retry_within(RETRY_WITHIN)
    }

    /// Finds a Kind as [`find`](Self::find) does. `None` if the API server does not know it.
    pub(crate) async fn find_known(
        &self,
        observer: &Key,
        api_version: &str,
        kind: &str,
        versions: Versions,
    ) -> Result<Option<FoundKind>> {
        let Some((group, version)) = group_and_version(api_version) else {
            return Err(Error::permanent(format!(
                "{api_version:?} is not an API version such as v1 or apps/v1"
            )));
        };
        let check_allowed = |plural: Option<&str>| match self.allowed.admit(group, plural) {
            true => Ok(()),
            false => Err(Error::permanent(format!(
                "{kind} of {api_version} is not among the Kinds that this controller may use: they are those in the \
                 `Kinds` of its builder call"
            ))),
        };
        check_allowed(None)?; // no request for a Kind of another group
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resolved = match versions {
            Versions::Named => self.informers.resolve(&gvk).await,
            Versions::Any => self.informers.resolve_in_any_version(&gvk).await,
        };
        let Some((resource, scope)) = resolved.retry_within(RETRY_WITHIN)? else { return Ok(None) };
        check_allowed(Some(&resource.plural))?;
        if !self.allowed.names(&resource) {
            self.used.check_room(&resource, observer)?;
        }
        let is_namespaced = scope == Scope::Namespaced;
        let selection = if is_namespaced { self.namespaces.clone() } else { select() };
        let informer = open_unsynced(&self.informers, &resource, selection);
        Ok(Some(FoundKind { kind: ObjectKind { resource, is_namespaced }, informer }))
    }

    /// The namespace to read from; `None` for a cluster-scoped Kind.
    pub(super) fn namespace<'a, O: Resource>(
        &self,
        observer: &'a O,
        named: Option<&'a str>,
        found: &FoundKind,
    ) -> Result<Option<&'a str>> {
        if !found.kind.is_namespaced {
            return Ok(None);
        }
        let ApiResource { api_version, kind, .. } = &found.kind.resource;
        let named = named.filter(|namespace| !namespace.is_empty());
        match named.or(observer.meta().namespace.as_deref()) {
            None => Err(Error::permanent(format!(
                "the reference to a {kind} of {api_version} names no namespace, and {} is cluster-scoped: name the \
                 namespace",
                Key::of(observer).name
            ))),
            Some(namespace) if !self.namespaces.selects_namespace(namespace) => {
                Err(Error::permanent(format!(
                    "the reference to a {kind} of {api_version} leads to the namespace {namespace}, which this \
                     controller does not read"
                )))
            }
            namespace => Ok(namespace),
        }
    }

    /// Records a read of the Kind, and returns its tracker if the objects of the namespace, or all for `None`, are listed.
    /// The first read keeps the informer open, and makes its later events enqueue the observers.
    ///
    /// Never waits. If the first list has neither succeeded nor failed yet, returns [`NotListedYet`], and the list
    /// enqueues the key. A failure is retried like an unknown Kind. The read is recorded before the list is checked, so
    /// that neither its end nor a later change is missed.
    pub(crate) fn record(
        &self,
        found: &FoundKind,
        namespace: Option<&str>,
        read: impl FnOnce(&mut Index),
    ) -> Result<Tracker> {
        let (tracker, is_read) = {
            let mut used = self.used.0.lock();
            let kind = used.entry(found.kind.resource.clone()).or_default();
            read(&mut kind.tracker.lock());
            kind.is_named |= self.allowed.names(&found.kind.resource);
            kind.keep_open(&found.informer, &self.queue, &self.used);
            (kind.tracker.clone(), kind.is_read.clone())
        };
        let not_listed_yet = || {
            let ApiResource { api_version, kind, .. } = found.kind.resource.clone();
            NotListedYet { api_version, kind }
        };
        listed(&found.informer, namespace).ok_or_else(not_listed_yet)?.retry_within(RETRY_WITHIN)?;
        is_read.store(true, Ordering::Release);
        Ok(tracker)
    }
}

/// Splits an API version such as `v1` or `apps/v1`. `None` if no API version can have this form.
pub(crate) fn group_and_version(api_version: &str) -> Option<(&str, &str)> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let is_valid = (group.is_empty() || dns_subdomain(group).is_empty()) && dns_label(version).is_empty();
    is_valid.then_some((group, version))
}

impl UsedKind {
    /// Keeps the informer open, and adds a handler to it unless it has one.
    fn keep_open(&mut self, informer: &Informer<DynamicObject>, queue: &Queue, used: &UsedKinds) {
        if self.informer.as_ref().is_some_and(|open| open.is_same_as(informer)) {
            return;
        }
        let handle = informer.handle();
        let with_handler = self.with_handler.as_ref().and_then(Weak::upgrade);
        if with_handler.is_none_or(|informer| !Arc::ptr_eq(&informer, &handle)) {
            self.with_handler = Some(Arc::downgrade(&handle));
            self.is_read = Arc::default();
            self.enqueue_at_first_lists(informer, queue);
            let source = Source::new(Source::TRACKED, informer);
            let (tracker, is_read, queue) = (self.tracker.clone(), self.is_read.clone(), queue.clone());
            let used = Arc::downgrade(&used.0);
            informer.on_key_event(move |event| {
                if is_read.load(Ordering::Acquire) {
                    tracker.enqueue_observers(event, &source, &queue);
                }
                if let Some(used) = used.upgrade() {
                    UsedKinds(used).close_excess(MAX_BYTES, &queue);
                }
            });
        }
        self.informer = Some(informer.clone());
        self.opened_at = Some(Instant::now());
    }

    /// Enqueues the observers when the first list succeeds or fails, unless it has succeeded.
    fn enqueue_at_first_lists(&self, informer: &Informer<DynamicObject>, queue: &Queue) {
        let Ok(runtime) = Handle::try_current() else { return };
        if informer.handle().is_synced() {
            return;
        }
        let (tracker, queue, cause) = (self.tracker.clone(), queue.clone(), Cause::kind_of(informer));
        let enqueue_all = move || {
            let observers = tracker.lock().all_observers();
            observers.into_iter().for_each(|observer| queue.add_for(observer, cause.clone()));
        };
        drop(runtime.spawn(on_first_lists(informer, enqueue_all)));
    }

    /// The informer, if the code does not name the Kind.
    fn limited_informer(&self) -> Option<&Informer<DynamicObject>> {
        self.informer.as_ref().filter(|_| !self.is_named)
    }

    /// Returns true if nothing depends on the entry of the Kind.
    fn is_unused(&self) -> bool {
        let has_handler = self.with_handler.as_ref().is_some_and(|informer| informer.strong_count() > 0);
        let is_closed = self.closed_until.is_some_and(|until| Instant::now() < until);
        !has_handler && !is_closed && self.tracker.lock().is_empty()
    }
}

impl UsedKinds {
    pub(super) fn for_each_index(&self, act: impl Fn(&mut Index)) {
        self.0.lock().values().for_each(|used| act(&mut used.tracker.lock()));
    }

    /// The objects that the latest passes of the observer have read.
    pub(crate) fn reads_of(&self, observer: &Key) -> Vec<Related> {
        let open = |used: &UsedKind| Some((used.tracker.clone(), used.informer.clone()?));
        let open: Vec<_> = self.0.lock().values().filter_map(open).collect();
        open.iter().flat_map(|(tracker, informer)| tracker.reads_of(observer, informer)).collect()
    }

    /// Closes the informers of this Kind, and returns the keys that use it.
    fn close(&self, kind: &GroupVersionKind) -> HashSet<Key> {
        let is_of_kind = |resource: &ApiResource| {
            (&resource.group, &resource.version, &resource.kind) == (&kind.group, &kind.version, &kind.kind)
        };
        let (mut closed, mut observers) = (Vec::new(), HashSet::default());
        for (_, used) in self.0.lock().iter_mut().filter(|(resource, _)| is_of_kind(resource)) {
            closed.extend(used.informer.take());
            observers.extend(used.tracker.lock().all_observers());
        }
        observers // `closed` is dropped without the lock, as in `close_unused`
    }

    /// Closes the informers of Kinds that no key uses any more, and drops their entries.
    pub(super) fn close_unused(&self) {
        let mut used = self.0.lock();
        let unused = used.values_mut().filter(|kind| kind.tracker.lock().is_empty());
        let closed: Vec<_> = unused.filter_map(|kind| kind.informer.take()).collect();
        if !closed.is_empty() {
            drop(used);
            drop(closed); // without the lock: an informer that stops drops its handlers
            used = self.0.lock();
        }
        used.retain(|_, kind| !kind.is_unused());
    }

    /// Fails if the observer may not open this Kind.
    fn check_room(&self, resource: &ApiResource, observer: &Key) -> Result<()> {
        let ApiResource { api_version, kind, .. } = resource;
        let used = self.0.lock();
        let entry = used.get(resource);
        if entry.is_some_and(|kind| kind.informer.is_some()) {
            return Ok(());
        }
        if entry.and_then(|kind| kind.closed_until).is_some_and(|until| Instant::now() < until) {
            let message = format!(
                "{kind} of {api_version} is not read: the objects of the Kinds that references or templates have opened \
                 take more than {} MiB, and this Kind was the last one; it is tried again after ten minutes. Name fewer \
                 Kinds, or name this one in the `Kinds` of the controller",
                MAX_BYTES >> 20
            );
            return Err(Error::from(message).reason("KindsTooLarge"));
        }
        let open = used.values().filter(|kind| kind.limited_informer().is_some());
        let of_namespace = observer.namespace.as_deref().map_or(0, |namespace| {
            open.clone().filter(|kind| kind.tracker.lock().has_observers_in(namespace)).count()
        });
        let (users, limit) = match (open.count(), of_namespace) {
            (MAX_KINDS.., _) => ("the objects of the controller", MAX_KINDS),
            (_, MAX_KINDS_OF_NAMESPACE..) => ("the objects of this namespace", MAX_KINDS_OF_NAMESPACE),
            _ => return Ok(()),
        };
        let message = format!(
            "{kind} of {api_version} is not read: the references and templates in {users} use {limit} other Kinds, which is \
             the limit. Name fewer Kinds, or name this one in the `Kinds` of the controller"
        );
        Err(Error::from(message).reason("TooManyKinds"))
    }

    /// If the objects of the limited Kinds are larger than this, closes the Kind that was opened last, and enqueues the
    /// keys that use it.
    fn close_excess(&self, max_bytes: usize, queue: &Queue) {
        // A handler calls this, so it must not wait for a pass that holds the lock and adds a handler.
        let Some(mut used) = self.0.try_lock() else { return };
        let size: usize = used.values().filter_map(UsedKind::limited_informer).map(Informer::bytes).sum();
        if size <= max_bytes {
            return;
        }
        let open = used.values_mut().filter(|kind| kind.limited_informer().is_some());
        let Some(last) = open.max_by_key(|kind| kind.opened_at) else { return };
        last.closed_until = Some(Instant::now() + CLOSED_FOR);
        let (closed, observers) = (last.informer.take(), last.tracker.lock().all_observers());
        drop(used);
        let Some(informer) = closed else { return };
        tracing::warn!(
            informer = informer.name(),
            size,
            limit = max_bytes,
            "the objects of a Kind are not read: they are too large together with those of other Kinds"
        );
        let cause = Cause::kind_of(&informer);
        observers.into_iter().for_each(|observer| queue.add_for(observer, cause.clone()));
    }
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use reknit_injection::Context;
    use reknit_testing::{ApiServer, InformerExt};

    use super::*;

    fn kinds_of(cx: &Context, allowed: Kinds) -> DynamicKinds {
        DynamicKinds::new(allowed, cx.informers(), select(), Queue::new(), UsedKinds::default())
    }

    fn preloaded() -> Context {
        Context::preloaded("test", ApiServer::new().client(), vec![])
    }

    /// Reads this Kind in a pass of the observer.
    async fn read(kinds: &DynamicKinds, observer: &Key, kind: &str) -> Result<FoundKind> {
        let found = kinds.find(observer, "example.com/v1", kind, Versions::Named).await?;
        kinds.record(&found, Some("default"), |reads| reads.use_kind(observer))?;
        Ok(found)
    }

    async fn reason(kinds: &DynamicKinds, observer: &Key, kind: &str) -> String {
        read(kinds, observer, kind)
            .await
            .err()
            .map(|error| error.event_reason().to_owned())
            .unwrap_or_default()
    }

    /// A client of an API server that never answers.
    fn silent_client() -> Client {
        let answer = |_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_does_not_come_is_not_waited_for_and_enqueues_the_keys_when_it_is_overdue() {
        let cx = Context::new("test", silent_client());
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        cx.informers().start();
        let informer: Informer<DynamicObject> = cx.informer_of(&resource, select());
        let found = FoundKind { kind: ObjectKind { resource, is_namespaced: true }, informer };
        let (kinds, key, start) = (kinds_of(&cx, Kinds::any()), Key::new("default", "x"), Instant::now());
        let record = || kinds.record(&found, None, |reads| reads.use_kind(&key)).err().unwrap();
        let waiting = record().context("reading the sink");
        assert!(waiting.is_waiting() && !waiting.is_permanent(), "{waiting:#}");
        assert_eq!((start.elapsed(), kinds.queue.take_all()), (Duration::ZERO, vec![]));

        let claimed = kinds.queue.next().await.unwrap();
        assert_eq!(
            (&*claimed, &*claimed.causes.to_string()),
            (&key, "the state of the Kind configmaps changed")
        );
        assert_eq!(start.elapsed().as_secs(), 10);
        let overdue = record();
        assert!(!overdue.is_waiting() && !overdue.is_permanent(), "{overdue:#}");
        assert!(overdue.to_string().ends_with("the API server has not answered yet"), "{overdue:#}");
        assert_eq!(*overdue.retry_wait().end(), RETRY_WITHIN);
    }

    #[tokio::test]
    async fn the_objects_of_a_namespace_open_a_limited_number_of_kinds_and_leave_room_for_other_namespaces() {
        let kinds = kinds_of(&preloaded(), Kinds::of([("example.com", "nameds")]).or_any());
        let (hostile, honest) = (Key::new("hostile", "x"), Key::new("honest", "x"));
        for n in 0..MAX_KINDS_OF_NAMESPACE {
            read(&kinds, &hostile, &format!("Kind{n}")).await.unwrap();
        }
        assert_eq!(reason(&kinds, &Key::new("hostile", "y"), "Another").await, "TooManyKinds");
        read(&kinds, &hostile, "Named").await.unwrap();
        read(&kinds, &honest, "Another").await.unwrap();
        read(&kinds, &hostile, "Another").await.unwrap();
        for n in MAX_KINDS_OF_NAMESPACE + 1..MAX_KINDS {
            read(&kinds, &Key::new(&format!("hostile{}", n % 9), "x"), &format!("Kind{n}")).await.unwrap();
        }
        let error = read(&kinds, &honest, "OneMore").await.err().unwrap();
        assert_eq!(
            error.to_string(),
            "OneMore of example.com/v1 is not read: the references and templates in the objects of the controller use \
             100 other Kinds, which is the limit. Name fewer Kinds, or name this one in the `Kinds` of the controller"
        );
        kinds.used.for_each_index(|index| index.forget(&hostile));
        kinds.used.close_unused();
        read(&kinds, &honest, "OneMore").await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_kind_that_was_opened_last_closes_if_the_objects_are_too_large() {
        let cx = preloaded();
        let kinds = kinds_of(&cx, Kinds::of([("example.com", "nameds")]).or_any());
        let (first_key, last_key) = (Key::new("honest", "x"), Key::new("hostile", "x"));
        for kind in ["Named", "First"] {
            read(&kinds, &first_key, kind).await.unwrap();
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        let insert = |found: &FoundKind, size: usize| {
            let mut object = DynamicObject::new("o", &found.kind.resource).within("default");
            object.data["data"] = "x".repeat(size).into();
            found.informer.insert(object);
            kinds.queue.take_all();
            kinds.used.close_excess(1000, &kinds.queue);
        };
        insert(&read(&kinds, &first_key, "Named").await.unwrap(), 2000);
        insert(&read(&kinds, &last_key, "Last").await.unwrap(), 500);
        assert_eq!(reason(&kinds, &last_key, "Last").await, "");
        insert(&read(&kinds, &first_key, "First").await.unwrap(), 500);
        assert_eq!(kinds.queue.take_all(), std::slice::from_ref(&last_key));
        assert_eq!(reason(&kinds, &last_key, "Last").await, "KindsTooLarge");
        assert_eq!(reason(&kinds, &first_key, "First").await, "");
        tokio::time::advance(CLOSED_FOR).await;
        assert_eq!(reason(&kinds, &last_key, "Last").await, "", "it is tried again");
    }

    #[tokio::test]
    async fn nothing_is_kept_of_a_kind_that_no_key_uses_any_more() {
        let (cx, key) = (preloaded(), Key::new("default", "x"));
        let kinds = kinds_of(&cx, Kinds::any());
        for n in 0..1000 {
            read(&kinds, &key, &format!("Kind{n}")).await.unwrap();
            kinds.used.for_each_index(|index| index.forget(&key));
            kinds.used.close_unused();
        }
        assert_eq!(kinds.used.0.lock().len(), 0);
        assert_eq!(cx.informers().states(), []);
    }
}
