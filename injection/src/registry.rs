//! All informers of the process.

use std::{
    collections::HashMap,
    marker::PhantomData,
    sync::{Arc, Weak},
};

use kube::{
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use parking_lot::{Mutex, RwLock};
use reknit_apis::Key;
use serde_json::Value;
use tokio::runtime;
use typemap_rev::{TypeMap, TypeMapKey};

use crate::{
    cache::Cache,
    feed::{Feed, FeedState},
    informer::{Cached, Handle, Informer},
    intake::AnswerTo,
    metrics::Families,
    raw::Raw,
    resource_path::ResourcePath,
    selection::Selection,
    transport::Transport,
};

/// The informers of the process: one for each type, Kind and selection, however many ask for it.
///
/// Unlike the [`Context`](crate::Context) it can be kept and sent: a reconciler that learns of Kinds at run time
/// opens their informers here. It holds informers weakly: what nobody else keeps never starts, and stops if it did.
#[derive(Clone)]
pub struct Informers(Arc<Registry>);

struct Registry {
    source: Source,
    families: Families,
    held: Mutex<TypeMap>,
    members: RwLock<Vec<Weak<dyn Member>>>,
    started: Mutex<Option<runtime::Handle>>,
    resolved: Mutex<Resolved>,
}

/// The Kinds that discovery has found.
type Resolved = HashMap<GroupVersionKind, (ApiResource, Scope)>;

/// Where objects come from.
pub(crate) enum Source {
    Watch(Transport),
    /// Exactly these, and what is written.
    Given(Vec<Value>),
}

/// An informer, whatever its type.
trait Member: Feed {
    fn start(&self, runtime: &runtime::Handle, transport: &Transport);
    fn resource(&self) -> &ApiResource;
    /// Whether it is of this Kind.
    fn wrote(&self, raw: &Raw<'_>, text: &str, request: AnswerTo) -> bool;
    fn found(&self, raw: &Raw<'_>, text: &str);
    fn gone_by(&self, key: &Key, version: &str);
    fn erased(&self, key: &Key, uid: Option<&str>);
}

/// The informers whose objects have one type, by Kind (several where it is `DynamicObject`) and selection.
struct OfType<K>(PhantomData<fn() -> K>);

impl<K: Cached> TypeMapKey for OfType<K> {
    type Value = HashMap<(ApiResource, String), Weak<Handle<K>>>;
}

impl Informers {
    pub(crate) fn new(source: Source, metrics: &prometheus::Registry) -> Self {
        Self(Arc::new(Registry {
            source,
            families: Families::new(metrics),
            held: Mutex::default(),
            members: RwLock::default(),
            started: Mutex::default(),
            resolved: Mutex::default(),
        }))
    }

    /// The informer of this type, Kind and selection; if all are started, it starts at once.
    pub fn get<K: Cached>(&self, kind: &K::DynamicType, selection: Selection) -> Informer<K> {
        self.open(ApiResource::erase::<K>(kind), selection)
    }

    /// The same for a Kind known only at run time; [`resolve`](Self::resolve) finds it.
    pub fn get_dynamic(&self, kind: &ApiResource, selection: Selection) -> Informer<DynamicObject> {
        self.open(kind.clone(), selection)
    }

    /// Starts all informers that somebody keeps, and from now on each new one at once. Called within a tokio
    /// runtime; a second call does nothing. A [`Context`](crate::Context) keeps what was asked of it: drop it before.
    pub fn start(&self) {
        let runtime = runtime::Handle::current();
        *self.0.started.lock() = Some(runtime);
        for member in self.members() {
            self.start_if_due(&*member);
        }
    }

    /// How far each informer has come, with its name, in the order of their names.
    pub fn states(&self) -> Vec<(String, FeedState)> {
        let mut states: Vec<_> = self.members().map(|m| (m.name().to_owned(), m.state())).collect();
        states.sort_by(|(one, _), (other, _)| one.cmp(other));
        states
    }

    pub(crate) fn source(&self) -> &Source {
        &self.0.source
    }

    pub(crate) fn resolved(&self) -> &Mutex<Resolved> {
        &self.0.resolved
    }

    fn open<K: Cached>(&self, kind: ApiResource, selection: Selection) -> Informer<K> {
        let slot = (kind.clone(), selection.to_string());
        let mut held = self.0.held.lock();
        let of_type = held.entry::<OfType<K>>().or_default();
        if let Some(handle) = of_type.get(&slot).and_then(Weak::upgrade) {
            return Informer(handle);
        }
        let informer = self.make::<K>(kind, selection);
        of_type.retain(|_, handle| handle.strong_count() > 0);
        of_type.insert(slot, Arc::downgrade(&informer.0));
        drop(held);
        self.join(&informer);
        informer
    }

    fn make<K: Cached>(&self, kind: ApiResource, selection: Selection) -> Informer<K> {
        let name = name_of::<K>(&kind, &selection);
        let meters = self.0.families.of(&name);
        let follows = matches!(self.0.source, Source::Watch(_));
        let informer = Informer::of(Cache::new(name, kind, selection, meters, follows));
        if let Source::Given(objects) = &self.0.source {
            objects.iter().for_each(|object| informer.0.cache.preload(object));
            informer.0.cache.progress.complete();
        }
        informer
    }

    fn join<K: Cached>(&self, informer: &Informer<K>) {
        let member: Arc<dyn Member> = informer.0.clone();
        let mut members = self.0.members.write();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(&member));
        drop(members);
        self.start_if_due(&*member);
    }

    fn start_if_due(&self, member: &dyn Member) {
        if let (Source::Watch(transport), Some(runtime)) = (&self.0.source, &*self.0.started.lock()) {
            member.start(runtime, transport);
        }
    }

    fn members(&self) -> impl Iterator<Item = Arc<dyn Member>> + use<> {
        let members: Vec<_> = self.0.members.read().iter().filter_map(Weak::upgrade).collect();
        members.into_iter()
    }

    /// The informers that the resource of this path concerns.
    fn concerned<'a>(&self, path: &'a ResourcePath<'_>) -> impl Iterator<Item = Arc<dyn Member>> + use<'a> {
        self.members().filter(move |member| path.is_of(member.resource()))
    }

    /// Whether a write to this path can be news to anybody.
    pub(crate) fn concerns(&self, path: &ResourcePath<'_>) -> bool {
        self.concerned(path).next().is_some()
    }

    /// An answer to a write of this process, and its text. Whether it says what became of the object.
    pub(crate) fn wrote(
        &self,
        path: &ResourcePath<'_>,
        raw: &Raw<'_>,
        text: &str,
        request: AnswerTo,
    ) -> bool {
        let mut says = false;
        for member in self.concerned(path) {
            says |= member.wrote(raw, text, request);
        }
        says
    }

    /// An item of a list that was read after a write, and its text.
    pub(crate) fn found(&self, path: &ResourcePath<'_>, raw: &Raw<'_>, text: &str) {
        self.concerned(path).for_each(|member| member.found(raw, text));
    }

    /// A list of this version, read after a write, does not hold the object.
    pub(crate) fn gone_by(&self, path: &ResourcePath<'_>, key: &Key, version: &str) {
        self.concerned(path).for_each(|member| member.gone_by(key, version));
    }

    /// A deletion by this process that the API server confirmed, naming the object's uid.
    pub(crate) fn erased(&self, path: &ResourcePath<'_>, key: &Key, uid: Option<&str>) {
        self.concerned(path).for_each(|member| member.erased(key, uid));
    }
}

impl std::fmt::Debug for Informers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.members().map(|member| member.name().to_owned())).finish()
    }
}

impl<K: Cached> Member for Handle<K> {
    fn start(&self, runtime: &runtime::Handle, transport: &Transport) {
        Handle::start(self, runtime, transport);
    }

    fn resource(&self) -> &ApiResource {
        &self.cache.kind
    }

    fn wrote(&self, raw: &Raw<'_>, text: &str, request: AnswerTo) -> bool {
        self.cache.wrote(raw, text, request)
    }

    fn found(&self, raw: &Raw<'_>, text: &str) {
        self.cache.found(raw, text);
    }

    fn gone_by(&self, key: &Key, version: &str) {
        self.cache.gone_by(key, version);
    }

    fn erased(&self, key: &Key, uid: Option<&str>) {
        self.cache.erased(key, uid);
    }
}

/// `deployments.apps [namespace=shop]`
fn name_of<K: Cached>(kind: &ApiResource, selection: &Selection) -> String {
    let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
    let metadata = if K::metadata_api() { " (metadata)" } else { "" };
    let selection = selection.to_string();
    let selection = if selection.is_empty() { selection } else { format!(" [{selection}]") };
    format!("{}{group}{metadata}{selection}", kind.plural)
}
