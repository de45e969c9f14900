//! The reads of one Kind by one controller: by target to find observers, and by observer to forget reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use kube::{
    ResourceExt,
    core::{Expression, Selector, SelectorExt},
};
use parking_lot::{Mutex, MutexGuard};
use reknit_apis::{
    Key,
    internal::{HashMap, HashSet},
};
use reknit_injection::{Cached, Change, Informer, internal::KeyEvent};

use crate::{
    Queue,
    inspect::Related,
    queue::{Cause, Source, StateChange, resource_of},
};

/// A key as text, shared by all entries with that key.
type KeyText = Arc<str>;
/// A label selector as text, as [`text_of_selector`] returns it.
type SelectorText = Arc<str>;
/// The namespace to which a selector applies; `None` for a cluster-scoped Kind, or for all namespaces.
type Namespace = Option<Arc<str>>;

/// The maximum length of the text of a target in bytes. Users may choose the name that is read, and no rule bounds it.
const MAX_TARGET: usize = 512;
/// The length to which a longer text is cut. [`CUT`] and a hash of the whole text follow.
const CUT_TARGET: usize = 128;
/// Marks a text that is cut. No name of an object contains a percent sign.
const CUT: &str = "…%";
/// The maximum length of the text of a selector in bytes. A read by a longer one counts as a read of all objects.
pub(super) const MAX_SELECTOR: usize = 16 << 10;

/// The reads of one Kind by one controller. All clones share one index.
#[derive(Clone, Default)]
pub(crate) struct Tracker(Arc<Mutex<Index>>);

impl Tracker {
    /// Returns the index, to record reads.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Index> {
        self.0.lock()
    }

    /// Enqueues the observers of each object of this informer that changes.
    pub(crate) fn enqueue_observers_on_change<T: Cached>(
        &self,
        informer: &Informer<T>,
        relation: &'static str,
        queue: Queue,
    ) {
        let (tracker, source) = (self.clone(), Source::new(relation, informer));
        informer.on_key_event(move |event| tracker.enqueue_observers(event, &source, &queue));
    }

    /// Enqueues the observers of each object of this informer whose change is relevant.
    pub(crate) fn enqueue_observers_where<T: Cached>(
        &self,
        informer: &Informer<T>,
        queue: Queue,
        is_relevant: impl Fn(&Change<T>) -> bool + Send + Sync + 'static,
    ) {
        let (tracker, source) = (self.clone(), Source::new(Source::TRACKED, informer));
        informer.on(move |change| {
            if is_relevant(change) {
                let states: Vec<&T> = match change {
                    Change::Added(object) | Change::Deleted { last: object } => vec![&**object],
                    Change::Updated { old, new } => vec![&***old, &**new],
                };
                let labels: Vec<_> = states.iter().map(|state| state.labels().clone()).collect();
                let Some(state) = states.first() else { return };
                let (key, namespace) = (text_of(&Key::of(*state)), state.namespace());
                let observers = tracker.lock().observers(&key, namespace.as_deref(), &labels);
                add_observers(observers, &Cause::other(&source, change), &queue);
            }
        });
    }

    /// Enqueues the observers of the object of this event.
    pub(super) fn enqueue_observers(&self, event: &KeyEvent<'_>, source: &Arc<Source>, queue: &Queue) {
        let key = text_of(event.key());
        let observers = self.observers(event, &key);
        if observers.is_empty() {
            return;
        }
        let cause = Cause::Other { source: source.clone(), key, change: StateChange::of(event) };
        add_observers(observers, &cause, queue);
    }

    /// The observers of the object of this event, by its name and by its labels before and after the change.
    pub(super) fn observers(&self, event: &KeyEvent<'_>, key: &KeyText) -> HashSet<KeyText> {
        let has_selectors = self.lock().has_selectors();
        // The labels may have to be decoded, so the lock is not held.
        let labels: Vec<_> = if has_selectors { event.labels().collect() } else { Vec::new() };
        self.lock().observers(key, event.key().namespace.as_deref(), &labels)
    }
}

impl Tracker {
    /// The objects of this informer that the latest passes of the observer have read.
    pub(crate) fn reads_of<T: Cached>(&self, observer: &Key, informer: &Informer<T>) -> Vec<Related> {
        let observer = text_of(observer);
        let targets: Vec<_> = {
            let index = self.lock();
            let targets = pairs_starting_with(&index.reads, &observer).map(|(_, target)| target);
            targets
                .filter_map(|target| Some((index.shown(target)?, matches!(target, Target::Exact(_)))))
                .collect()
        };
        // Without the lock, which handlers take while they hold the lock of the cache.
        let read = |(target, is_exact): (String, bool)| {
            let exists = (is_exact && !is_cut(&target)).then(|| informer.contains(&Key::from(&*target)));
            (target, exists)
        };
        let related = |(target, exists)| Related {
            relation: Source::TRACKED,
            resource: resource_of(informer).into(),
            target,
            exists,
        };
        targets.into_iter().map(read).map(related).collect()
    }
}

fn add_observers(observers: HashSet<KeyText>, cause: &Cause, queue: &Queue) {
    observers.iter().for_each(|observer| queue.add_for(Key::from(&**observer), cause.clone()));
}

/// The target of a read: an object by name, whether it exists or not, the objects in a namespace that match a selector,
/// or only the Kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Target {
    // Stays the first variant: the range of an observer's reads starts at the default, which has to be the least value.
    #[default]
    /// Only the Kind. No change of an object enqueues the observer.
    Kind,
    Exact(KeyText),
    Matching(Box<(Namespace, SelectorText)>),
}

/// The reads of all observers of one Kind, kept while a pass may depend on them. Most observers read one object, so
/// ordered sets of pairs take a third of the memory of a set for each observer and each target.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Pairs of target and observer.
    pub(super) exact: BTreeSet<(KeyText, KeyText)>,
    pub(super) matching: HashMap<Namespace, HashMap<SelectorText, SelectorObservers>>,
    /// Pairs of observer and target.
    pub(super) reads: BTreeSet<(KeyText, Target)>,
    /// The targets that the running pass of an observer has read so far, and whether it is the first that reads them.
    latest: HashMap<KeyText, HashMap<Target, bool>>,
    /// The targets of the last successful pass of an observer, if a later one has failed and read others.
    last_success: HashMap<KeyText, HashSet<Target>>,
}

/// A selector and the observers that read with it.
#[derive(Debug)]
pub(super) struct SelectorObservers {
    selector: Selector,
    observers: HashSet<KeyText>,
}

impl Index {
    /// Records that the observer read the object of this key, whether or not it exists.
    pub(crate) fn record_read(&mut self, observer: &Key, target: &Key) {
        let is_same = target == observer;
        let observer = self.interned(observer);
        // An object and its dependency often have the same name, and then share the text.
        let target =
            if is_same { bounded(observer.clone()) } else { self.interned_text(target_text(target)) };
        if self.add(&observer, Target::Exact(target.clone())) {
            self.exact.insert((target, observer));
        }
    }

    /// Records that the observer uses the Kind, whatever its objects. This alone never enqueues the observer.
    pub(crate) fn use_kind(&mut self, observer: &Key) {
        let observer = self.interned(observer);
        self.add(&observer, Target::Kind);
    }

    pub(super) fn read_matching(&mut self, observer: &Key, namespace: Option<&str>, selector: &Selector) {
        let observer = self.interned(observer);
        let namespace: Namespace = namespace.map(|namespace| bounded(namespace.into()));
        let text = text_of_selector(selector);
        let all_objects = Selector::default();
        let (text, selector) = match text.len() {
            0..=MAX_SELECTOR => (text.into(), selector),
            _ => (SelectorText::default(), &all_objects),
        };
        if self.add(&observer, Target::Matching(Box::new((namespace.clone(), text.clone())))) {
            let entry = self.matching.entry(namespace).or_default().entry(text);
            let new = || SelectorObservers { selector: selector.clone(), observers: HashSet::default() };
            entry.or_insert_with(new).observers.insert(observer);
        }
    }

    /// The observers that read this object by its name, or by labels that one of these sets has.
    fn observers(
        &self,
        key: &KeyText,
        namespace: Option<&str>,
        labels: &[BTreeMap<String, String>],
    ) -> HashSet<KeyText> {
        let target = bounded(key.clone());
        let by_name = pairs_starting_with(&self.exact, &target).map(|(_, observer)| observer.clone());
        let mut observers: HashSet<_> = by_name.collect();
        if !labels.is_empty() {
            let in_namespace = namespace.and_then(|namespace| self.matching.get(&Some(namespace.into())));
            let selectors =
                in_namespace.into_iter().chain(self.matching.get(&None)).flat_map(HashMap::values);
            let matching =
                selectors.filter(|entry| labels.iter().any(|labels| entry.selector.matches(labels)));
            observers.extend(matching.flat_map(|entry| entry.observers.iter().cloned()));
        }
        observers
    }

    /// The keys whose pass used an object of the Kind, or the Kind itself.
    pub(super) fn all_observers(&self) -> HashSet<Key> {
        self.reads.iter().map(|(observer, _)| Key::from(&**observer)).collect()
    }

    /// Returns true if no observer reads anything of the Kind.
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Returns true if this observer reads anything of the Kind, or uses it.
    pub(crate) fn has_reads_of(&self, observer: &Key) -> bool {
        stored_text(&self.reads, &text_of(observer)).is_some()
    }

    /// Returns true if an observer in this namespace reads anything of the Kind, or uses it.
    pub(super) fn has_observers_in(&self, namespace: &str) -> bool {
        let prefix = format!("{namespace}/");
        let first = self.reads.range((KeyText::from(&*prefix), Target::default())..).next();
        first.is_some_and(|(observer, _)| observer.starts_with(&prefix))
    }

    /// Returns true if any observer reads by labels.
    fn has_selectors(&self) -> bool {
        !self.matching.is_empty()
    }

    /// Starts to record the reads of a pass. An earlier pass that has not ended was dropped, and counts as failed.
    pub(super) fn begin_pass(&mut self, observer: &Key) {
        self.pass_failed(observer);
        if let Some(observer) = stored_text(&self.reads, &text_of(observer)).cloned() {
            self.latest.insert(observer, HashMap::default());
        }
    }

    /// Ends a successful pass: drops the reads that it did not repeat.
    pub(super) fn pass_succeeded(&mut self, observer: &Key) {
        let observer = text_of(observer);
        self.last_success.remove(&observer);
        if let Some(latest) = self.latest.remove(&observer) {
            self.remove_where(&observer, |target| !latest.contains_key(target));
        }
    }

    /// Ends a failed pass: drops the reads that neither it nor the last successful pass did. It may have stopped before it
    /// repeated those of the latter.
    pub(super) fn pass_failed(&mut self, observer: &Key) {
        let Some((observer, latest)) = self.latest.remove_entry(&text_of(observer)) else { return };
        let last_success = match self.last_success.remove(&observer) {
            Some(last_success) => last_success,
            None if !latest.values().any(|is_new| *is_new) => return,
            None => {
                let reads = pairs_starting_with(&self.reads, &observer).map(|(_, target)| target);
                reads.filter(|target| latest.get(target) != Some(&true)).cloned().collect()
            }
        };
        self.remove_where(&observer, |target| !latest.contains_key(target) && !last_success.contains(target));
        self.last_success.insert(observer, last_success);
    }

    /// Drops all reads of the observer.
    pub(super) fn forget(&mut self, observer: &Key) {
        let observer = text_of(observer);
        self.latest.remove(&observer);
        self.last_success.remove(&observer);
        self.remove_where(&observer, |_| true);
    }

    /// The stored text of this key, or a new one.
    fn interned(&self, key: &Key) -> KeyText {
        self.interned_text(text_of(key))
    }

    fn interned_text(&self, text: KeyText) -> KeyText {
        stored_text(&self.reads, &text).or_else(|| stored_text(&self.exact, &text)).cloned().unwrap_or(text)
    }

    /// Adds the read. Returns true if it is new.
    fn add(&mut self, observer: &KeyText, target: Target) -> bool {
        let is_new = self.reads.insert((observer.clone(), target.clone()));
        self.latest.entry(observer.clone()).or_default().entry(target).or_insert(is_new);
        is_new
    }

    /// The target as the console shows it. `None` for a Kind alone.
    fn shown(&self, target: &Target) -> Option<String> {
        match target {
            Target::Kind => None,
            Target::Exact(text) => Some(text.to_string()),
            Target::Matching(matching) => {
                let (namespace, text) = &**matching;
                let entry = self.matching.get(namespace)?.get(text)?;
                let selector = sorted(&entry.selector, Expression::to_string);
                Some(namespace.as_ref().map_or_else(|| selector.clone(), |of| format!("{of}/ {selector}")))
            }
        }
    }

    fn remove_where(&mut self, observer: &KeyText, condition: impl Fn(&Target) -> bool) {
        let reads = pairs_starting_with(&self.reads, observer).filter(|(_, target)| condition(target));
        for read in reads.cloned().collect::<Vec<_>>() {
            self.reads.remove(&read);
            match read {
                (_, Target::Kind) => {}
                (observer, Target::Exact(key)) => drop(self.exact.remove(&(key, observer))),
                (observer, Target::Matching(matching)) => {
                    self.remove_matching(&matching.0, &matching.1, &observer);
                }
            }
        }
    }

    fn remove_matching(&mut self, namespace: &Namespace, selector: &SelectorText, observer: &KeyText) {
        let Some(selectors) = self.matching.get_mut(namespace) else { return };
        let Some(entry) = selectors.get_mut(selector) else { return };
        entry.observers.remove(observer);
        if entry.observers.is_empty() {
            selectors.remove(selector);
        }
        if selectors.is_empty() {
            self.matching.remove(namespace);
        }
    }
}

pub(super) fn text_of(key: &Key) -> KeyText {
    match &key.namespace {
        Some(namespace) => [namespace, "/", &key.name].concat().into(),
        None => key.name.as_str().into(),
    }
}

/// The text of a key that is read.
fn target_text(key: &Key) -> KeyText {
    bounded(text_of(key))
}

/// The text, or if it is long, its start and a hash. Two texts that become the same enqueue each other's observers, which
/// does no harm.
fn bounded(text: KeyText) -> KeyText {
    if text.len() <= MAX_TARGET {
        return text;
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{}{CUT}{:016x}", &text[..text.floor_char_boundary(CUT_TARGET)], hasher.finish()).into()
}

/// Returns true if [`bounded`] has cut this text.
fn is_cut(text: &str) -> bool {
    text.contains(CUT)
}

/// The pairs whose first element is this text.
fn pairs_starting_with<'a, T: Default + Ord>(
    pairs: &'a BTreeSet<(KeyText, T)>,
    text: &KeyText,
) -> impl Iterator<Item = &'a (KeyText, T)> {
    let text = text.clone();
    pairs.range((text.clone(), T::default())..).take_while(move |(first, _)| *first == text)
}

/// The stored copy of this text, if it is the first element of a pair.
fn stored_text<'a, T: Default + Ord>(
    pairs: &'a BTreeSet<(KeyText, T)>,
    text: &KeyText,
) -> Option<&'a KeyText> {
    pairs_starting_with(pairs, text).next().map(|(text, _)| text)
}

/// The selector as text. Selectors have the same text only if they differ in nothing but the order of their requirements,
/// also if they contain keys and values that no label has. So the strings are quoted.
fn text_of_selector(selector: &Selector) -> String {
    sorted(selector, |expression| format!("{expression:?}"))
}

/// The texts of the requirements of the selector, in order.
fn sorted(selector: &Selector, text: impl Fn(&Expression) -> String) -> String {
    let mut expressions: Vec<_> = selector.clone().into_iter().map(|expression| text(&expression)).collect();
    expressions.sort();
    expressions.dedup();
    expressions.join(",")
}
