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
    raw::Raw,
    record::{Packed, Record, Records},
    selection::Selection,
    store::{News, Store},
    touched::Touched,
    undecodable::{DecodeError, Undecodable},
    waiters::Waiters,
};

pub(crate) type Handler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;
type OnTouched = Box<dyn Fn(&Touched<'_>) + Send + Sync>;
type OnUndecodable = Box<dyn Fn(&Key, &str) + Send + Sync>;

/// What an informer holds, fed by its list and watch, by own writes, and by hand.
///
/// Two locks: readers share `store` for a moment; whoever changes it holds `told` from the change until everybody
/// was told, so that all are told in one order, may read meanwhile, and an own write has been told once it returns.
/// That of `undecodable` is held for a moment too, and never together with that of `store`.
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
    /// An API server. Otherwise what is given and written counts, and handlers that come late are not told of that.
    pub(crate) follows: bool,
    /// Somebody is told of objects, or of those that cannot be decoded, so that all are decoded as they come in.
    decodes: AtomicBool,
}

/// Everybody who is told.
struct Told<K> {
    /// Before the handlers, which may read them.
    indexes: Vec<Handler<K>>,
    handlers: Vec<Handler<K>>,
    on_touched: Vec<OnTouched>,
    on_undecodable: Vec<OnUndecodable>,
}

impl<K: Cached> Cache<K> {
    pub(crate) fn new(
        name: String,
        kind: ApiResource,
        selection: Selection,
        meters: Meters,
        follows: bool,
    ) -> Self {
        let told = Told {
            indexes: Vec::new(),
            handlers: Vec::new(),
            on_touched: Vec::new(),
            on_undecodable: Vec::new(),
        };
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
            follows,
            decodes: AtomicBool::new(false),
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
        T: IntoIterator<Item = Option<News>>,
    {
        self.change_to(None, change);
    }

    /// The same where the new state may have been decoded.
    pub(crate) fn change_to<T>(&self, mut new: Option<Arc<K>>, change: impl FnOnce(&mut Store) -> T)
    where
        T: IntoIterator<Item = Option<News>>,
    {
        let told = self.told.lock();
        let changes = change(&mut self.store.write());
        for news in changes.into_iter().flatten() {
            self.settle(&news);
            self.tell(&told, &news, &mut new);
        }
    }

    /// Before anybody is told, and looks; and after it is held, so that nobody finds neither.
    fn settle(&self, news: &News) {
        match news {
            News::Added(new) | News::Updated { new, .. } => {
                self.undecodable(|all| all.superseded(&new.packed().state()));
            }
            News::Deleted { last } => {
                self.undecodable(|all| all.forget(|| last.packed().state().key()));
            }
        }
    }

    /// Indexes come first, since whoever is told may read them.
    fn tell(&self, told: &Told<K>, news: &News, new: &mut Option<Arc<K>>) {
        let (objects, bytes) = self.read(|store| (store.table.len(), store.table.bytes()));
        self.meters.changed(objects, bytes);
        let touched = Touched::by(news);
        if self.decodes.load(Ordering::Relaxed) {
            match self.as_change(news, new) {
                Ok(change) => {
                    told.indexes.iter().chain(&told.handlers).for_each(|handler| self.call(handler, &change));
                }
                Err(_) if touched.is_gone() => {} // nobody was told that it was there
                Err(why) => self.tell_undecodable(told, &touched.key(), &why),
            }
        }
        self.tell_touched(told, &touched);
        self.waiters.wake(|| touched.key());
    }

    /// What came in before anybody was told of objects may turn out only now to be undecodable: then nobody was told of
    /// it, and what replaces it is new.
    fn as_change(&self, news: &News, new: &mut Option<Arc<K>>) -> Result<Change<K>, String> {
        let decode = |record: &Record| record.packed().decode(&self.kind).map(Arc::new);
        let mut latest = |record: &Record| new.take().map_or_else(|| decode(record), Ok);
        Ok(match news {
            News::Added(new) => Change::Added(latest(new)?),
            News::Updated { old, new } if old.packed().is_decodable() => {
                let new = latest(new)?;
                Change::Updated { old: self.past(old.clone(), &new), new }
            }
            News::Updated { old, new } => match (decode(old), latest(new)?) {
                (Ok(old), new) => Change::Updated { old: old.into(), new },
                (Err(_), new) => Change::Added(new),
            },
            News::Deleted { last } => Change::Deleted { last: decode(last)? },
        })
    }

    /// Should it not decode again, nothing is known of how it differed.
    fn past(&self, old: Record, new: &Arc<K>) -> Old<K> {
        let (kind, new) = (self.kind.clone(), new.clone());
        Old::new(move || old.packed().decode(&kind).map_or(new, Arc::new))
    }

    /// The object of this key; none as well where it cannot be decoded, and nothing is held of before that.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        if let Ok(object) = self.held(key)? {
            return Some(object);
        }
        let record = self.read(|store| store.table.get(key).map(|held| held.record.to_record()))?;
        self.typed(record.packed()) // which says why it cannot be
    }

    /// The same, but an error where the newest state cannot be decoded.
    pub(crate) fn newest(&self, key: &Key) -> Result<Option<Arc<K>>, DecodeError> {
        if let Some(refused) = self.undecodable.read().error(key) {
            return Err(refused);
        }
        let uid = || {
            self.read(|store| store.table.get(key).and_then(|held| held.record.state().uid.map(Into::into)))
        };
        self.held(key).transpose().map_err(|why| DecodeError { why, uid: uid() })
    }

    /// It is written out while nobody can change it, and decoded after that.
    fn held(&self, key: &Key) -> Option<Result<Arc<K>, String>> {
        let text = self.read(|store| store.table.get(key).map(|held| held.record.text(&self.kind)))?;
        Some(text.and_then(|text| text.decode(&self.kind)).map(Arc::new))
    }

    /// The object of this record. If it cannot be decoded, that is logged once a version.
    pub(crate) fn typed(&self, record: Packed<'_>) -> Option<Arc<K>> {
        let tell = |why: &String| {
            let state = record.state();
            if self.undecodable.write().is_found(&state) {
                self.log_undecodable(&state.key(), why);
            }
        };
        record.decode(&self.kind).map(Arc::new).inspect_err(tell).ok()
    }

    fn call(&self, handler: &Handler<K>, change: &Change<K>) {
        self.caught(|| change.key(), || handler(change));
    }

    fn tell_touched(&self, told: &Told<K>, touched: &Touched<'_>) {
        for handler in &told.on_touched {
            self.caught(|| touched.key(), || handler(touched));
        }
    }

    fn caught(&self, key: impl FnOnce() -> Key, handle: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(handle)).is_err() {
            tracing::error!(informer = self.name, key = %key(), "a handler panicked");
        }
    }

    pub(crate) fn on(&self, handler: Handler<K>) {
        let mut told = self.told.lock();
        self.decodes.store(true, Ordering::Relaxed);
        if self.follows {
            self.replay(&handler);
        }
        told.handlers.push(handler);
    }

    /// Like a handler, but told of what is held in any case, and before all handlers.
    pub(crate) fn on_index(&self, handler: Handler<K>) {
        let mut told = self.told.lock();
        self.decodes.store(true, Ordering::Relaxed);
        self.replay(&handler);
        told.indexes.push(handler);
    }

    pub(crate) fn on_touched(&self, handler: OnTouched) {
        let mut told = self.told.lock();
        if self.follows {
            let call = |touched: Touched<'_>| self.caught(|| touched.key(), || handler(&touched));
            let mut held: Records = self.read(|store| store.table.all().collect());
            while held.next(|record| call(Touched::added(record))).is_some() {}
            self.undecodable_keys().iter().for_each(|key| call(Touched::undecodable(key, None)));
        }
        told.on_touched.push(handler);
    }

    fn replay(&self, handler: &Handler<K>) {
        let mut held: Records = self.read(|store| store.table.all().collect());
        while let Some(object) = held.next(|record| self.typed(record)) {
            object.into_iter().for_each(|object| self.call(handler, &Change::Added(object)));
        }
    }

    pub(crate) fn on_undecodable(&self, handler: OnUndecodable) {
        let mut told = self.told.lock();
        self.decodes.store(true, Ordering::Relaxed);
        let mut all: Vec<_> =
            self.undecodable.read().all().map(|(key, why)| (key.clone(), why.to_owned())).collect();
        let mut held: Records = self.read(|store| store.table.all().collect());
        let why = |record: Packed<'_>| match record.is_decodable() {
            true => None,
            false => record.decode::<K>(&self.kind).err().map(|why| (record.state().key(), why)),
        };
        while let Some(undecodable) = held.next(why) {
            all.extend(undecodable);
        }
        all.iter().for_each(|(key, why)| self.call_undecodable(&handler, key, why));
        told.on_undecodable.push(handler);
    }

    fn call_undecodable(&self, handler: &OnUndecodable, key: &Key, why: &str) {
        self.caught(|| key.clone(), || handler(key, why));
    }

    /// Whether every state of this object is decoded as it comes in.
    pub(crate) fn decodes(&self, raw: &Raw<'_>) -> bool {
        self.decodes.load(Ordering::Relaxed) || self.undecodable.read().concerns(|| raw.key())
    }

    /// This state cannot be decoded: those who want to know are told, once a version.
    pub(crate) fn refuse(&self, raw: &Raw<'_>, record: Option<&Record>, why: &str) {
        let told = self.told.lock();
        let news = self.undecodable.write().is_news(raw, why);
        if news {
            let key = raw.key();
            self.log_undecodable(&key, why);
            self.tell_undecodable(&told, &key, why);
            self.tell_touched(&told, &Touched::undecodable(&key, record));
        }
    }

    /// What could not be decoded and is not there any more: those who were told that it is hear of that from the store
    /// where it holds a state from before. Of these it holds none.
    pub(crate) fn vanished(&self, keys: &[Key]) {
        if keys.is_empty() {
            return;
        }
        let told = self.told.lock();
        keys.iter().for_each(|key| self.tell_touched(&told, &Touched::vanished(key)));
    }

    fn tell_undecodable(&self, told: &Told<K>, key: &Key, why: &str) {
        told.on_undecodable.iter().for_each(|handler| self.call_undecodable(handler, key, why));
    }

    fn log_undecodable(&self, key: &Key, why: &str) {
        tracing::error!(informer = self.name, %key, error = why, "cannot decode an object, going on without it");
    }

    pub(crate) fn undecodable<T>(&self, change: impl FnOnce(&mut Undecodable) -> T) -> T {
        change(&mut self.undecodable.write())
    }

    pub(crate) fn undecodable_keys(&self) -> Vec<Key> {
        self.undecodable.read().all().map(|(key, _)| key.clone()).collect()
    }
}
