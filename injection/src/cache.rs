//! A store and everybody who is told of its changes.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kube::discovery::ApiResource;
use parking_lot::{Mutex, RwLock};
use reknit_apis::Key;

use crate::{
    change::{Change, Old},
    feed::Progress,
    informer::Cached,
    metrics::Meters,
    raw::{Incoming, Raw},
    record::{Json, Packed, Record, Records},
    selection::Selection,
    store::{News, Store},
    undecodable::Undecodable,
    waiters::Waiters,
};

pub(crate) type Handler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;
type OnUndecodable = Box<dyn Fn(&Key, &str) + Send + Sync>;

/// What an informer holds, fed by its list and watch, by own writes, and by hand.
///
/// Two locks: readers share `store` for a moment; whoever changes it holds `told` from the change until everybody
/// was told, so that all are told in one order, may read meanwhile, and an own write has been told once it returns.
pub(crate) struct Cache<K> {
    pub(crate) name: String,
    pub(crate) kind: Arc<ApiResource>,
    pub(crate) selection: Selection,
    pub(crate) progress: Progress,
    pub(crate) waiters: Waiters,
    pub(crate) meters: Meters,
    store: RwLock<Store>,
    told: Mutex<Told<K>>,
    /// Of its own lock: handlers may ask.
    undecodable: RwLock<Undecodable>,
    /// Handlers that come late are told what is held.
    pub(crate) replays: AtomicBool,
}

/// Everybody who is told.
struct Told<K> {
    /// Before the handlers, which may read them.
    indexes: Vec<Handler<K>>,
    handlers: Vec<Handler<K>>,
    on_undecodable: Vec<OnUndecodable>,
}

fn typed<K: Cached>(record: Packed<'_>, kind: &ApiResource) -> Option<Arc<K>> {
    again(record.text(kind), kind, || record.state().key())
}

/// What is held could be decoded when it came in, and so it can be again.
fn again<K: Cached>(
    text: serde_json::Result<Json>,
    kind: &ApiResource,
    key: impl FnOnce() -> Key,
) -> Option<Arc<K>> {
    let tell = |error: &serde_json::Error| {
        tracing::error!(
            kind = kind.kind,
            key = %key(),
            column = error.column(),
            "an object that was decoded before cannot be decoded again"
        );
    };
    text.and_then(|text| text.decode()).map(Arc::new).inspect_err(tell).ok()
}

impl<K: Cached> Cache<K> {
    pub(crate) fn new(name: String, kind: ApiResource, selection: Selection, meters: Meters) -> Self {
        let told = Told { indexes: Vec::new(), handlers: Vec::new(), on_undecodable: Vec::new() };
        Self {
            name,
            kind: Arc::new(kind),
            selection,
            progress: Progress::not_started(),
            waiters: Waiters::default(),
            meters,
            store: RwLock::default(),
            told: Mutex::new(told),
            undecodable: RwLock::default(),
            replays: AtomicBool::new(false),
        }
    }

    /// What is held, for as long as `read` takes.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Store) -> T) -> T {
        read(&self.store.read())
    }

    /// Changes what is known, but nothing that is held.
    pub(crate) fn write<T>(&self, write: impl FnOnce(&mut Store) -> T) -> T {
        write(&mut self.store.write())
    }

    /// Changes what is held and tells of it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Store) -> T)
    where
        T: IntoIterator<Item = Option<News<K>>>,
    {
        let told = self.told.lock();
        let changes = change(&mut self.store.write());
        for change in changes.into_iter().flatten().filter_map(|news| self.as_change(news)) {
            self.tell(&told, &change);
        }
    }

    fn as_change(&self, news: News<K>) -> Option<Change<K>> {
        Some(match news {
            News::Added(new) => Change::Added(new),
            News::Updated { old, new } => Change::Updated { old: self.past(old, &new), new },
            News::Deleted { last } => Change::Deleted { last: self.typed(last.packed())? },
        })
    }

    /// Should it not decode again, nothing is known of how it differed.
    fn past(&self, old: Record, new: &Arc<K>) -> Old<K> {
        let (kind, new) = (self.kind.clone(), new.clone());
        Old::new(move || typed(old.packed(), &kind).unwrap_or(new))
    }

    /// The object of this key. It is written out while nobody can change it, and decoded after that.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        let text = self.read(|store| store.table.get(key).map(|held| held.record.text(&self.kind)))?;
        again(text, &self.kind, || key.clone())
    }

    pub(crate) fn typed(&self, record: Packed<'_>) -> Option<Arc<K>> {
        typed(record, &self.kind)
    }

    fn tell(&self, told: &Told<K>, change: &Change<K>) {
        let (objects, bytes) = self.read(|store| (store.table.len(), store.table.bytes()));
        self.meters.changed(objects, bytes);
        for handler in told.indexes.iter().chain(&told.handlers) {
            self.call(handler, change);
        }
        self.waiters.wake(|| change.key());
    }

    fn call(&self, handler: &Handler<K>, change: &Change<K>) {
        if catch_unwind(AssertUnwindSafe(|| handler(change))).is_err() {
            tracing::error!(informer = self.name, key = %change.key(), "a handler panicked");
        }
    }

    pub(crate) fn on(&self, handler: Handler<K>) {
        let mut told = self.told.lock();
        if self.replays.load(Ordering::Relaxed) {
            self.replay(&handler);
        }
        told.handlers.push(handler);
    }

    /// Like a handler, but told of what is held in any case, and before all handlers.
    pub(crate) fn on_index(&self, handler: Handler<K>) {
        let mut told = self.told.lock();
        self.replay(&handler);
        told.indexes.push(handler);
    }

    fn replay(&self, handler: &Handler<K>) {
        let mut held: Records = self.read(|store| store.table.all().collect());
        while let Some(object) = held.next(|record| self.typed(record)) {
            object.into_iter().for_each(|object| self.call(handler, &Change::Added(object)));
        }
    }

    pub(crate) fn on_undecodable(&self, handler: OnUndecodable) {
        let mut told = self.told.lock();
        let all: Vec<_> =
            self.undecodable.read().all().map(|(key, why)| (key.clone(), why.to_owned())).collect();
        for (key, why) in &all {
            self.call_undecodable(&handler, key, why);
        }
        told.on_undecodable.push(handler);
    }

    fn call_undecodable(&self, handler: &OnUndecodable, key: &Key, why: &str) {
        if catch_unwind(AssertUnwindSafe(|| handler(key, why))).is_err() {
            tracing::error!(informer = self.name, %key, "a handler panicked");
        }
    }

    /// The object, if it can be decoded; if not, those who want to know are told, once a version.
    pub(crate) fn decode(&self, raw: &Raw<'_>) -> Option<Incoming<K>> {
        let decoded = raw.decode::<K>(&self.kind, self.selection.keeps_managed_fields());
        match decoded {
            Ok(decoded) => {
                self.undecodable(|all| all.forget(|| raw.key()));
                Some(decoded)
            }
            Err(why) => {
                let told = self.told.lock();
                let news = self.undecodable.write().is_news(raw, &why);
                if news {
                    self.tell_undecodable(&told, raw, &why);
                }
                None
            }
        }
    }

    fn tell_undecodable(&self, told: &Told<K>, raw: &Raw<'_>, why: &str) {
        let key = raw.key();
        tracing::error!(informer = self.name, %key, error = why, "cannot decode an object, going on without it");
        for handler in &told.on_undecodable {
            self.call_undecodable(handler, &key, why);
        }
    }

    pub(crate) fn undecodable(&self, change: impl FnOnce(&mut Undecodable)) {
        change(&mut self.undecodable.write());
    }

    pub(crate) fn undecodable_keys(&self) -> Vec<Key> {
        self.undecodable.read().all().map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn why_undecodable(&self, key: &Key) -> Option<String> {
        self.undecodable.read().why(key)
    }
}
