//! Watches a selection of a Kind and keeps it.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    iter,
    pin::pin,
    sync::{Arc, OnceLock},
};

use futures::future::BoxFuture;
use kube::{Resource, core::PartialObjectMeta};
use reknit_apis::Key;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{runtime, task::AbortHandle};

use crate::{
    cache::Cache,
    change::Change,
    feed::{Feed, FeedState},
    index::Index,
    list_watch,
    raw::given,
    record::Records,
    touched::Touched,
    transport::Transport,
    undecodable::DecodeError,
};

/// What an informer can hold: any type that kube can watch. Nobody implements it by hand.
pub trait Cached: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static {}

impl<K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Cached for K {}

/// Only the metadata of a Kind, for a fraction of the memory: `cx.get::<Informer<Metadata<Pod>>>()`.
pub type Metadata<K> = PartialObjectMeta<K>;

/// Holds the objects of a selection of a Kind as the API server last told of them, and what this process has
/// written since.
///
/// Reading never waits and never fails; it is meant for passes, which run once all that the controller's constructor
/// asked for is [synced](Self::synced). What [`Context::client`](crate::Context::client) wrote, or read by name, is there
/// as soon as the request returns. Clones are one informer; it stops when the last of them is dropped.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::{Pod, Service};
/// use reknit_apis::Key;
/// use reknit_injection::{Context, Informer, select};
///
/// fn look(cx: &Context) {
///     let services: Informer<Service> = cx.get();
///     let web = services.get(&Key::new("shop", "web"));
///
///     let spaces = cx.informer::<Pod>(select().namespace("ide").label("kind", "cloud-ide"));
///     let running = spaces.list().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
/// #   let _ = (web, running);
/// }
/// ```
pub struct Informer<K: Cached>(pub(crate) Arc<Handle<K>>);

/// What the handles of one informer share; its task ends with it.
pub(crate) struct Handle<K: Cached> {
    pub(crate) cache: Arc<Cache<K>>,
    task: OnceLock<AbortHandle>,
}

impl<K: Cached> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Cached> Debug for Informer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer").field("name", &self.0.cache.name).field("len", &self.len()).finish()
    }
}

impl<K: Cached> Informer<K> {
    pub(crate) fn of(cache: Cache<K>) -> Self {
        Self(Arc::new(Handle { cache: Arc::new(cache), task: OnceLock::new() }))
    }

    /// The object of this key, as it is now. One that cannot be decoded is logged, and none.
    ///
    /// Objects are held as compact JSON and decoded when they are read, in one to three microseconds: read once and
    /// keep the `Arc` for as long as it is needed.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.0.cache.get(key)
    }

    /// The same for whoever must not take an object that cannot be decoded for one that is absent or up to date.
    ///
    /// # Errors
    ///
    /// The state that the API server was last heard to hold cannot be decoded. What [`get`](Self::get) answers is then
    /// the last one that could be, if there was one, and a write that builds on that fails with a conflict.
    pub fn newest(&self, key: &Key) -> Result<Option<Arc<K>>, DecodeError> {
        self.0.cache.newest(key)
    }

    /// All objects, as they are at one moment, in no particular order. Each is decoded when the iterator comes to it.
    ///
    /// Until then there is a copy of their compact JSON, which is as large as what the informer holds of them
    /// ([`bytes`](Self::bytes)): that of the namespace, for [`list_in`](Self::list_in).
    pub fn list(&self) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.typed(self.0.cache.read(|store| store.table.all().collect()))
    }

    /// Those of one namespace, without looking at the others.
    pub fn list_in(&self, namespace: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.typed(self.0.cache.read(|store| store.table.within(namespace).collect()))
    }

    /// Those whose labels match, of one namespace or of all. What does not match is not decoded, but copied as for
    /// [`list`](Self::list).
    pub fn list_labelled<F>(
        &self,
        namespace: Option<&str>,
        matches: F,
    ) -> impl Iterator<Item = Arc<K>> + use<K, F>
    where
        F: Fn(&BTreeMap<String, String>) -> bool,
    {
        let mut records: Records = self.0.cache.read(|store| match namespace {
            Some(namespace) => store.table.within(namespace).collect(),
            None => store.table.all().collect(),
        });
        let cache = self.0.cache.clone();
        let next =
            move || records.next(|record| matches(&record.labels()).then(|| cache.typed(record)).flatten());
        iter::from_fn(next).flatten()
    }

    fn typed(&self, mut records: Records) -> impl Iterator<Item = Arc<K>> + use<K> {
        let cache = self.0.cache.clone();
        iter::from_fn(move || records.next(|record| cache.typed(record))).flatten()
    }

    /// The keys of all objects, as they are at one moment, in no particular order; also of those that cannot be
    /// decoded. Nothing is decoded for it.
    pub fn keys(&self) -> Vec<Key> {
        let mut keys: Vec<_> =
            self.0.cache.read(|store| store.table.all().map(|record| record.state().key()).collect());
        let undecodable = self.0.cache.undecodable_keys();
        keys.extend(
            undecodable.into_iter().filter(|key| self.0.cache.read(|store| store.table.get(key).is_none())),
        );
        keys
    }

    /// How many objects it holds.
    pub fn len(&self) -> usize {
        self.0.cache.read(|store| store.table.len())
    }

    /// Whether it holds an object of this key. Nothing is decoded for it.
    pub fn contains(&self, key: &Key) -> bool {
        self.0.cache.read(|store| store.table.get(key).is_some())
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many bytes they take: compact JSON, without what was dropped and without what they have in common.
    pub fn bytes(&self) -> usize {
        self.0.cache.read(|store| store.table.bytes())
    }

    /// Ends once it holds everything that its first list told; at once if it does already.
    pub async fn synced(&self) {
        Feed::synced(&*self.0).await;
    }

    /// How far it has come.
    pub fn state(&self) -> FeedState {
        self.0.cache.progress.state()
    }

    /// The resource and the selection, as logs name it.
    pub fn name(&self) -> &str {
        &self.0.cache.name
    }

    /// Waits until `seen` has an answer. It is shown the present state first, and then again after each change of
    /// this object; `None` is "absent". Changes in quick succession may be shown as one.
    ///
    /// It waits for as long as it takes: put a `tokio::time::timeout` around it, or drop it.
    pub async fn until<T>(&self, key: &Key, mut seen: impl FnMut(Option<&K>) -> Option<T>) -> T {
        let waiting = self.0.cache.waiters.join(key);
        loop {
            let mut changed = pin!(waiting.changed.notified());
            changed.as_mut().enable();
            if let Some(answer) = seen(self.get(key).as_deref()) {
                return answer;
            }
            changed.await;
        }
    }

    /// Calls `handler` with each change, one at a time and in order. It is first told that each object held was `Added`,
    /// unless the informer is [preloaded](crate::Context::preloaded).
    ///
    /// Handlers run wherever the change came from, which may be the task of an own write: they must not block, and
    /// may read this informer but neither feed it nor add handlers to it. One that holds a clone of it keeps it at work
    /// for as long as the process runs. One that panics is logged and called again with the next change.
    pub fn on(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.0.cache.on(Box::new(handler));
    }

    /// Calls `handler` with each change as [`on`](Self::on) does, and under the same rules, but without the objects:
    /// for whoever only wants to know which ones to look at. That a state cannot be decoded counts as a change too.
    ///
    /// As long as nobody asks for objects ([`on`](Self::on), [`index`](Self::index),
    /// [`on_undecodable`](Self::on_undecodable)), one that appears is not decoded before somebody reads it.
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::Secret;
    /// use reknit_injection::{Context, Informer};
    ///
    /// fn tell(cx: &Context) {
    ///     let secrets: Informer<Secret> = cx.get();
    ///     secrets.on_touched(|touched| match touched.is_gone() {
    ///         false => println!("{} is there, or has changed", touched.key()),
    ///         true => println!("{} is gone", touched.key()),
    ///     });
    /// }
    /// ```
    pub fn on_touched(&self, handler: impl Fn(&Touched<'_>) + Send + Sync + 'static) {
        self.0.cache.on_touched(Box::new(handler));
    }

    /// Calls `handler` with the key of an object that cannot be decoded, and why, once for each version of it. If a
    /// version before could be decoded, that is what the informer goes on holding. It is logged as well, here or by
    /// whoever reads the object first.
    pub fn on_undecodable(&self, handler: impl Fn(&Key, &str) + Send + Sync + 'static) {
        self.0.cache.on_undecodable(Box::new(handler));
    }

    /// An index by what `values` finds in an object: nothing, one value or several.
    pub fn index<V>(&self, values: impl Fn(&K) -> V + Send + Sync + 'static) -> Index<K>
    where
        V: IntoIterator<Item = String> + 'static,
    {
        let (index, follow) = Index::of(self.clone(), values);
        self.0.cache.on_index(follow);
        index
    }

    /// Whether both are one informer: of the same type, Kind and selection in this process.
    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Holds this object, whatever was held, and tells the handlers: for tests. An object that is not of the
    /// selection is forgotten instead; one that cannot be written as JSON and read again is logged.
    pub fn apply(&self, object: K)
    where
        K: Serialize,
    {
        let cache = &self.0.cache;
        match given(&object, &cache.kind) {
            Ok((record, object)) => cache.apply(record, object),
            Err(error) => {
                tracing::error!(informer = cache.name, error, "cannot hold an object given by hand")
            }
        }
    }

    /// Holds no object of this key, and tells the handlers: for tests.
    pub fn forget(&self, key: &Key) {
        self.0.cache.forget(key);
    }

    /// Itself, for those who need not know what it holds.
    pub fn feed(&self) -> Arc<dyn Feed> {
        self.0.clone()
    }
}

impl<K: Cached> Handle<K> {
    pub(crate) fn start(&self, runtime: &runtime::Handle, transport: &Transport) {
        self.task.get_or_init(|| {
            self.cache.progress.started();
            runtime.spawn(list_watch::run(self.cache.clone(), transport.clone())).abort_handle()
        });
    }
}

impl<K: Cached> Drop for Handle<K> {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl<K: Cached> Feed for Handle<K> {
    fn name(&self) -> &str {
        &self.cache.name
    }

    fn state(&self) -> FeedState {
        self.cache.progress.state()
    }

    fn synced(&self) -> BoxFuture<'static, ()> {
        let (cache, mut synced) = (self.cache.clone(), self.cache.progress.synced());
        Box::pin(async move {
            // The sender is in the cache, so this cannot fail.
            let _ = synced.wait_for(|synced| *synced).await;
            drop(cache);
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio::sync::Barrier;

    use super::*;
    use crate::{
        Context,
        scripted::{self, server},
        select,
    };

    fn map(namespace: &str, name: &str, labels: &[(&str, &str)]) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some(namespace.into());
        map.metadata.name = Some(name.into());
        map.metadata.labels = Some(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        map
    }

    fn context() -> Context {
        Context::new("test", server().0)
    }

    #[tokio::test]
    async fn one_informer_for_each_type_kind_and_selection() {
        let cx = context();
        let all: Informer<ConfigMap> = cx.get();
        assert!(all.same(&cx.informer(select())));
        let chosen = cx.informer::<ConfigMap>(select().namespace("x").label("a", "1").label("b", "2"));
        assert!(chosen.same(&cx.informer(select().label("b", "2").label("a", "1").namespace("x"))));
        assert!(!chosen.same(&all));
        assert!(!all.same(&cx.informer(select().keeping_managed_fields())));
        assert_eq!(chosen.name(), "configmaps [namespace=x labels=a=1,b=2]");
    }

    #[tokio::test]
    async fn an_object_that_leaves_the_selection_leaves_the_store() {
        let chosen = context().informer::<ConfigMap>(select().label("a", "1"));
        chosen.apply(map("x", "m", &[("a", "1")]));
        assert_eq!(chosen.len(), 1);
        chosen.apply(map("x", "m", &[]));
        assert!(chosen.is_empty());
    }

    #[tokio::test]
    async fn a_namespace_is_listed_by_itself() {
        let maps = context().informer::<ConfigMap>(select());
        for (namespace, name) in [("x", "a"), ("x", "b"), ("y", "a")] {
            maps.apply(map(namespace, name, &[]));
        }
        assert_eq!((maps.list_in("x").count(), maps.list_in("z").count(), maps.list().count()), (2, 0, 3));
    }

    #[tokio::test]
    async fn an_index_follows_and_is_up_to_date_when_handlers_are_told() {
        let maps = context().informer::<ConfigMap>(select());
        maps.apply(map("x", "early", &[("app", "web")]));
        let by_app =
            maps.index(|map| map.metadata.labels.as_ref().and_then(|labels| labels.get("app").cloned()));
        let (seen, index) = (Arc::new(Mutex::new(Vec::new())), by_app);
        let counts = seen.clone();
        maps.on(move |_| counts.lock().unwrap().push((index.get("web").count(), index.get("db").count())));
        maps.apply(map("x", "late", &[("app", "web")]));
        maps.apply(map("x", "late", &[("app", "db")]));
        maps.apply(map("x", "late", &[("app", "db"), ("more", "y")]));
        maps.forget(&Key::new("x", "late"));
        maps.forget(&Key::new("x", "early"));
        assert_eq!(*seen.lock().unwrap(), [(1, 0), (2, 0), (1, 1), (1, 1), (1, 0), (0, 0)]);
    }

    #[tokio::test]
    async fn what_was_read_or_written_before_the_start_is_told_to_who_asks_after_that() {
        let (client, mut server) = server();
        let cx = Context::new("test", client);
        let maps = cx.informer::<ConfigMap>(select());
        let api: kube::Api<ConfigMap> = kube::Api::namespaced(cx.client(), "n");
        let answer = async { server.next().await.answer(200, scripted::map("a", "5")) };
        tokio::join!(api.get("a"), answer).0.unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        maps.on(move |change| told.send(change.key()).unwrap());
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), [Key::new("n", "a")]);
    }

    #[tokio::test]
    async fn a_handler_that_panics_stops_nobody() {
        let maps = context().informer::<ConfigMap>(select());
        let seen = Arc::new(Mutex::new(Vec::new()));
        maps.on(|_| panic!("as planned"));
        let keys = seen.clone();
        maps.on(move |change| keys.lock().unwrap().push(change.key().name));
        maps.apply(map("x", "a", &[]));
        maps.apply(map("x", "b", &[]));
        assert_eq!(*seen.lock().unwrap(), ["a", "b"]);
    }

    #[tokio::test]
    async fn a_handler_reads_what_it_is_told_of() {
        let maps = context().informer::<ConfigMap>(select());
        let (seen, reader) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&maps.0));
        let found = seen.clone();
        maps.on(move |change| {
            let held = reader.upgrade().map(Informer).and_then(|maps| maps.get(&change.key()));
            found.lock().unwrap().push(held.is_some());
        });
        maps.apply(map("x", "a", &[]));
        maps.forget(&Key::new("x", "a"));
        assert_eq!(*seen.lock().unwrap(), [true, false]);
    }

    #[tokio::test]
    async fn until_is_shown_what_is_and_then_what_becomes_of_it() {
        let maps = context().informer::<ConfigMap>(select());
        maps.apply(map("x", "a", &[("phase", "new")]));
        let (waits, key) = (Arc::new(Barrier::new(2)), Key::new("x", "a"));
        let (other, started) = (maps.clone(), waits.clone());
        let waiting = tokio::spawn(async move {
            let mut phases = Vec::new();
            let phase = |map: &ConfigMap| map.metadata.labels.as_ref().and_then(|l| l.get("phase").cloned());
            started.wait().await;
            let seen = |now: Option<&ConfigMap>| {
                phases.push(now.and_then(phase));
                now.is_none().then(|| std::mem::take(&mut phases))
            };
            other.until(&key, seen).await
        });
        waits.wait().await;
        for change in 0..3 {
            tokio::task::yield_now().await;
            match change {
                0 => maps.apply(map("x", "other", &[("phase", "not shown")])),
                1 => maps.apply(map("x", "a", &[("phase", "running")])),
                _ => maps.forget(&Key::new("x", "a")),
            }
        }
        let shown = waiting.await.unwrap();
        assert_eq!(shown, [Some("new".into()), Some("running".into()), None]);
    }
}
