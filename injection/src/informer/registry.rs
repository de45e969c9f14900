//! The registry of the process's informers.

use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{Arc, Weak},
};

use kube::{
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use parking_lot::{Mutex, RwLock};
use reknit_apis::{Key, internal::HashMap};
use serde_json::Value;
use tokio::{runtime, time::sleep};
use typemap_rev::{TypeMap, TypeMapKey};

use super::{
    Cached, Informer, InformerHandle, InformerState, NotSynced, Selection, SharedInformer, discovery,
    discovery::{Discovery, RECHECK, Unresolved},
    metrics::MetricFamilies,
};
use crate::{
    cache::Cache,
    client::{ResourcePath, Transport, Writers, resource_name},
    fights::{FieldChange, Fights, Restored, WriteRequest},
    object::{Object, RawObject, ResponseState},
    pass::CurrentPass,
    redaction::Redaction,
    reflector,
};

/// The registry of the process's informers: one for each type, Kind and selection, however often it is requested.
///
/// Unlike the [`Context`](crate::Context) it is `Send`: a reconciler that learns of Kinds at run time opens their
/// informers here. It holds weak references: [`start`](Self::start) starts only the informers that something else still
/// holds, and a running informer stops when its last holder drops it.
#[derive(Clone)]
pub struct Informers(Arc<Registry>);

struct Registry {
    source: ObjectSource,
    families: MetricFamilies,
    by_type: Mutex<TypeMap>,
    members: RwLock<Vec<Weak<dyn Member>>>,
    /// The runtime of the reflectors. `None` until the informers are started.
    runtime: Mutex<Option<runtime::Handle>>,
    discovery: Discovery,
    writers: Writers,
    redaction: Redaction,
}

/// The source of the objects of all informers.
pub(crate) enum ObjectSource {
    Watch(Transport),
    /// These objects, and the objects that the process writes.
    Preloaded {
        objects: Vec<Value>,
        /// The answers about Kinds. Others are guessed.
        kinds: HashMap<GroupVersionKind, Option<(ApiResource, Scope)>>,
    },
}

/// An informer without its type, as the registry uses it.
trait Member: InformerHandle {
    fn start(&self, runtime: &runtime::Handle, transport: &Transport);
    fn resource(&self) -> &ApiResource;
    fn apply_response(&self, response: &ResponseState<'_>) -> bool;
    fn object(&self, key: &Key) -> Option<Object>;
    /// The cached object, unless the informer has only its metadata.
    fn json(&self, key: &Key) -> Option<Value>;
    fn for_each(&self, visit: &mut dyn FnMut(Value));
    fn decode_errors(&self, limit: usize) -> Vec<(Key, String)>;
    fn fights(&self) -> &Fights;
    fn record_write(
        &self,
        controller: &Arc<str>,
        request: &WriteRequest,
        before: &Object,
        response: &RawObject<'_>,
    ) -> Option<Restored>;
    fn describe_change(
        &self,
        request: &WriteRequest,
        before: &Object,
        response: &RawObject<'_>,
    ) -> Option<FieldChange>;
}

/// The cached state of an object that a request is about to change.
pub(crate) struct StateBefore {
    member: Arc<dyn Member>,
    object: Object,
}

impl StateBefore {
    /// Notes that a pass of this controller sends the write.
    pub(crate) fn begin_write(&self, controller: &str) {
        self.member.fights().begin_write(&self.object.state().key(), controller);
    }

    /// Notes that the API server has refused the write.
    pub(crate) fn end_refused_write(&self, controller: &str) {
        self.member.fights().end_unchanged(&self.object.state().key(), controller);
    }

    /// Records the write, whose response was applied. Returns the field that it has restored in a fight.
    pub(crate) fn record_write(
        &self,
        controller: &Arc<str>,
        request: &WriteRequest,
        response: &RawObject<'_>,
    ) -> Option<Restored> {
        self.member.record_write(controller, request, &self.object, response)
    }

    /// Describes the change that the write has made, whose response was applied.
    pub(crate) fn describe_change(
        &self,
        request: &WriteRequest,
        response: &RawObject<'_>,
    ) -> Option<FieldChange> {
        self.member.describe_change(request, &self.object, response)
    }

    /// The group and the resource of the object.
    pub(crate) fn resource(&self) -> [&str; 2] {
        let ApiResource { group, plural, .. } = self.member.resource();
        [group, plural]
    }

    /// Returns true if the write has changed nothing: its response has the version of this state.
    pub(crate) fn is_unchanged(&self, response: &RawObject<'_>) -> bool {
        self.object.is_same_state(&response.state())
    }
}

/// The informers of one type by Kind and selection. `DynamicObject` is a type with several Kinds.
struct OfType<K>(PhantomData<fn() -> K>);

impl<K: Cached> TypeMapKey for OfType<K> {
    type Value = HashMap<(ApiResource, String), Weak<SharedInformer<K>>>;
}

impl Informers {
    pub(crate) fn new(source: ObjectSource, metrics: &prometheus::Registry) -> Self {
        Self(Arc::new(Registry {
            source,
            families: MetricFamilies::new(metrics),
            by_type: Mutex::default(),
            members: RwLock::default(),
            runtime: Mutex::default(),
            discovery: Discovery::default(),
            writers: Writers::default(),
            redaction: Redaction::default(),
        }))
    }

    /// Opens the informer of this type, Kind and selection at run time, and returns it once its first list is in the
    /// cache, so that an object that is not listed yet is never taken for absent. The caller must keep the informer,
    /// which stops when its last clone is dropped.
    ///
    /// ```
    /// use kube::{api::DynamicObject, core::GroupVersionKind};
    /// use reknit_injection::{Informers, select};
    ///
    /// async fn count(informers: &Informers, kind: &GroupVersionKind) -> Result<usize, Box<dyn std::error::Error>> {
    ///     let Some((resource, _scope)) = informers.resolve(kind).await? else { return Ok(0) };
    ///     Ok(informers.open::<DynamicObject>(&resource, select()).await?.len())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of [`Informer::first_list`].
    pub async fn open<K: Cached>(
        &self,
        kind: &K::DynamicType,
        selection: Selection,
    ) -> Result<Informer<K>, NotSynced> {
        let informer = self.get(ApiResource::erase::<K>(kind), selection);
        informer.first_list(None).await?;
        Ok(informer)
    }

    /// Starts all informers that something still holds, such as a controller. An informer that is requested later
    /// starts when it is requested. A second call does nothing. Must be called within a tokio runtime.
    ///
    /// A [`Context`](crate::Context) holds every informer that was requested from it. Drop it first, so that informers
    /// that no controller keeps do not start.
    pub fn start(&self) {
        let runtime = runtime::Handle::current();
        if self.0.runtime.lock().replace(runtime.clone()).is_none() {
            runtime.spawn(check_kinds(Arc::downgrade(&self.0)));
        }
        for member in self.members() {
            self.start_member(&*member);
        }
    }

    /// Returns the name and the progress of each informer, in the order of the names.
    pub fn states(&self) -> Vec<(String, InformerState)> {
        let mut states: Vec<_> =
            self.members().map(|member| (member.name().to_owned(), member.state())).collect();
        states.sort_by(|(name, _), (other, _)| name.cmp(other));
        states
    }

    /// Returns the resource of a Kind and its scope, or `None` if the API server does not know the Kind. The answer is
    /// remembered: of a Kind that was not found for five seconds, of others as long as it is used. Once the informers
    /// are started, it is checked again every ten seconds.
    ///
    /// Preloaded informers send no request: the plural is guessed as kube does, and a Kind is cluster-scoped if a
    /// preloaded object of it has no namespace.
    ///
    /// # Errors
    ///
    /// The API server did not respond, or refused the request.
    pub async fn resolve(&self, kind: &GroupVersionKind) -> Result<Option<(ApiResource, Scope)>, Unresolved> {
        let found = match &self.0.source {
            ObjectSource::Watch(transport) => self.0.discovery.find(transport, kind).await?,
            ObjectSource::Preloaded { objects, kinds } => {
                let known = kinds.get(kind).cloned();
                known.unwrap_or_else(|| Some(discovery::guess(kind, objects)))
            }
        };
        if let Some(recording) = CurrentPass::recording() {
            recording.add(|reads| reads.add_resolved(kind, found.as_ref()));
        }
        Ok(found)
    }

    /// Returns the resource of a Kind as [`resolve`](Self::resolve) does. If the API server does not serve this version, the
    /// Kind is looked for in the other versions of its group, in the preferred one first: an object that a stored reference
    /// names still exists when its version is no longer served. The fields of the other version may differ.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`resolve`](Self::resolve).
    pub async fn resolve_in_any_version(
        &self,
        kind: &GroupVersionKind,
    ) -> Result<Option<(ApiResource, Scope)>, Unresolved> {
        let found = self.resolve(kind).await?;
        if found.is_some() {
            return Ok(found);
        }
        for version in self.served_versions(kind).await? {
            let other = GroupVersionKind { version, ..kind.clone() };
            let found = self.resolve(&other).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    async fn served_versions(&self, kind: &GroupVersionKind) -> Result<Vec<String>, Unresolved> {
        match &self.0.source {
            ObjectSource::Watch(transport) => self.0.discovery.versions(transport, kind).await,
            ObjectSource::Preloaded { kinds, .. } => {
                let of_kind =
                    kinds.keys().filter(|other| (&other.group, &other.kind) == (&kind.group, &kind.kind));
                Ok(of_kind.map(|other| other.version.clone()).collect())
            }
        }
    }

    /// Returns the informer of this type, Kind and selection. It starts at once if the informers are started, and its
    /// cache may not be synced yet.
    pub(crate) fn get<K: Cached>(&self, kind: ApiResource, selection: Selection) -> Informer<K> {
        let key = (kind.clone(), selection.to_string());
        let mut by_type = self.0.by_type.lock();
        let informers = by_type.entry::<OfType<K>>().or_default();
        if let Some(informer) = informers.get(&key).and_then(Weak::upgrade) {
            return Informer(informer);
        }
        let informer = self.create::<K>(kind, selection);
        informers.retain(|_, informer| informer.strong_count() > 0);
        informers.insert(key, Arc::downgrade(&informer.0));
        drop(by_type);
        self.add_member(&informer);
        informer
    }

    fn create<K: Cached>(&self, kind: ApiResource, selection: Selection) -> Informer<K> {
        let name = name_of::<K>(&kind, &selection);
        let metrics = self.0.families.of(&name);
        let preloaded = matches!(self.0.source, ObjectSource::Preloaded { .. });
        let (writers, redaction) = (self.0.writers.clone(), self.0.redaction.clone());
        let informer =
            Informer::of(Cache::new(name, kind, selection, metrics, writers, redaction, preloaded));
        if let ObjectSource::Preloaded { objects, .. } = &self.0.source {
            objects.iter().for_each(|object| informer.0.cache.preload(object));
            informer.0.cache.progress.mark_preloaded();
        }
        informer
    }

    fn add_member<K: Cached>(&self, informer: &Informer<K>) {
        let member: Arc<dyn Member> = informer.0.clone();
        let mut members = self.0.members.write();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&member));
        drop(members);
        self.start_member(&*member);
    }

    /// Starts the informer if the informers are started and not preloaded.
    fn start_member(&self, member: &dyn Member) {
        if let (ObjectSource::Watch(transport), Some(runtime)) = (&self.0.source, &*self.0.runtime.lock()) {
            member.start(runtime, transport);
        }
    }

    async fn check_kinds(&self) {
        if let ObjectSource::Watch(transport) = &self.0.source {
            let is_open = |kind: &ApiResource| self.members().any(|member| member.resource() == kind);
            self.0.discovery.check(transport, is_open).await;
        }
    }

    fn members(&self) -> impl Iterator<Item = Arc<dyn Member>> + use<> {
        let members: Vec<_> = self.0.members.read().iter().filter_map(Weak::upgrade).collect();
        members.into_iter()
    }

    fn informers_of<'a>(
        &'a self,
        path: &'a ResourcePath<'_>,
    ) -> impl Iterator<Item = Arc<dyn Member>> + use<'a> {
        self.members().filter(move |member| path.is_of(member.resource()))
    }

    /// The cached state of the object of this path. If several informers have it, the largest: others may hold only the
    /// metadata.
    pub(crate) fn state_before(&self, path: &ResourcePath<'_>) -> Option<StateBefore> {
        let key = path.key()?;
        let cached = |member: Arc<dyn Member>| {
            let object = member.object(&key)?;
            Some(StateBefore { member, object })
        };
        self.informers_of(path).filter_map(cached).max_by_key(|before| before.object.len())
    }

    pub(crate) fn has_informer_of(&self, path: &ResourcePath<'_>) -> bool {
        self.informers_of(path).next().is_some()
    }

    /// Applies a response to the informers of its resource. Returns false if there are none, or if the response
    /// contains an object of another Kind.
    pub(crate) fn apply_response(&self, path: &ResourcePath<'_>, response: &ResponseState<'_>) -> bool {
        let mut shows_state = false;
        for member in self.informers_of(path) {
            shows_state |= member.apply_response(response);
        }
        shows_state
    }
}

/// Checks what was discovered about Kinds until the registry is dropped.
async fn check_kinds(registry: Weak<Registry>) {
    loop {
        sleep(RECHECK).await;
        let Some(registry) = registry.upgrade() else { return };
        Informers(registry).check_kinds().await;
    }
}

impl std::fmt::Debug for Informers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.members().map(|member| member.name().to_owned())).finish()
    }
}

/// Returns a function that reads the cached state of an object, other than `managedFields`. It returns `None` if no
/// informer has objects of this resource, and does not keep the informers.
pub fn cached_json(
    informers: &Informers,
) -> impl Fn(&ResourcePath<'_>) -> Option<Option<Value>> + Send + Sync + use<> {
    let registry = Arc::downgrade(&informers.0);
    move |path| {
        let (informers, key) = (Informers(registry.upgrade()?), path.key()?);
        let mut members = informers.informers_of(path).peekable();
        members.peek()?;
        Some(members.find_map(|member| member.json(&key)))
    }
}

/// Calls the function with each cached object.
pub fn for_each_cached(informers: &Informers, visit: &mut dyn FnMut(&ApiResource, Value)) {
    informers.members().for_each(|member| member.for_each(&mut |object| visit(member.resource(), object)));
}

/// Returns the keys of objects that cannot be decoded with the reasons, by the names of their informers, and of each
/// informer at most `limit`.
pub fn decode_errors(informers: &Informers, limit: usize) -> BTreeMap<String, BTreeMap<Key, String>> {
    let mut errors = BTreeMap::<_, BTreeMap<_, _>>::new();
    for member in informers.members() {
        let of_member = member.decode_errors(limit);
        if !of_member.is_empty() {
            errors.entry(member.name().to_owned()).or_default().extend(of_member);
        }
    }
    errors
}

/// Returns the values that are hidden wherever objects are shown.
pub fn redaction(informers: &Informers) -> &Redaction {
    &informers.0.redaction
}

/// Returns the passes that wrote the last states of objects.
pub fn writers(informers: &Informers) -> &Writers {
    &informers.0.writers
}

/// Calls the handler with each Kind that was [resolved](Informers::resolve) and that the API server now serves in another
/// way, or no longer.
pub fn on_kind_changed(informers: &Informers, handler: impl Fn(&GroupVersionKind) + Send + Sync + 'static) {
    informers.0.discovery.on_changed(Box::new(handler));
}

/// Starts an informer on this runtime, with requests through this transport, before the others are started. A later start
/// of all informers does not start it again.
pub fn start_on<K: Cached>(informer: &Informer<K>, runtime: &runtime::Handle, transport: &Transport) {
    Member::start(&*informer.0, runtime, transport);
}

impl<K: Cached> Member for SharedInformer<K> {
    fn start(&self, runtime: &runtime::Handle, transport: &Transport) {
        self.task.get_or_init(|| {
            self.cache.progress.mark_started();
            self.cache.metrics.last_responses.start(self.cache.selection.parts().len());
            runtime.spawn(reflector::run(self.cache.clone(), transport.clone())).abort_handle()
        });
    }

    fn resource(&self) -> &ApiResource {
        &self.cache.kind
    }

    fn apply_response(&self, response: &ResponseState<'_>) -> bool {
        self.cache.apply_response(response)
    }

    fn object(&self, key: &Key) -> Option<Object> {
        self.cache.object(key)
    }

    fn json(&self, key: &Key) -> Option<Value> {
        self.cache.object(key).filter(|_| !K::metadata_api())?.to_value(&self.cache.kind)
    }

    fn for_each(&self, visit: &mut dyn FnMut(Value)) {
        let objects = self.cache.list(None);
        objects.iter().filter_map(|object| object.to_value(&self.cache.kind)).for_each(visit);
    }

    fn decode_errors(&self, limit: usize) -> Vec<(Key, String)> {
        self.cache.decode_errors(limit)
    }

    fn fights(&self) -> &Fights {
        &self.cache.fights
    }

    fn record_write(
        &self,
        controller: &Arc<str>,
        request: &WriteRequest,
        before: &Object,
        response: &RawObject<'_>,
    ) -> Option<Restored> {
        self.cache.record_write(controller, request, before, response)
    }

    fn describe_change(
        &self,
        request: &WriteRequest,
        before: &Object,
        response: &RawObject<'_>,
    ) -> Option<FieldChange> {
        self.cache.describe_change(request, before, response)
    }
}

/// The name of an informer, such as `deployments.apps [namespace=shop]`.
fn name_of<K: Cached>(kind: &ApiResource, selection: &Selection) -> String {
    let resource = resource_name(&kind.group, &kind.plural, "");
    let metadata = if K::metadata_api() { " (metadata)" } else { "" };
    let selection = selection.to_string();
    let selection = if selection.is_empty() { selection } else { format!(" [{selection}]") };
    format!("{resource}{metadata}{selection}")
}
