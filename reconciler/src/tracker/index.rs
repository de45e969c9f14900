//! The reads of one Kind, by target to enqueue observers, and by observer to forget them cheaply.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use kube::core::{Selector, SelectorExt};
use reknit_apis::Key;

/// A key as text, shared by all entries that name it.
type Text = Arc<str>;
type Namespace = Option<Text>;

/// The target of a read: an object by name, whether it exists or not, or the objects in a namespace that match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Target {
    Exact(Text),
    Matching(Box<(Namespace, Text)>),
}

/// The least target, where the range of an observer's reads begins.
impl Default for Target {
    fn default() -> Self {
        Self::Exact(Text::default())
    }
}

/// The reads of all observers of one Kind, kept while a pass may depend on them. Most observers read one object, so
/// ordered sets of pairs take a third of the memory of a set for each observer and each target.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Pairs of target and observer.
    pub(super) exact: BTreeSet<(Text, Text)>,
    pub(super) matching: HashMap<Namespace, HashMap<Text, Selected>>,
    /// Pairs of observer and target.
    pub(super) reads: BTreeSet<(Text, Target)>,
    /// The targets of the running passes and of those that failed last.
    latest: HashMap<Text, HashSet<Target>>,
}

#[derive(Debug)]
pub(super) struct Selected {
    selector: Selector,
    observers: HashSet<Text>,
}

impl Index {
    pub(super) fn read(&mut self, observer: &Key, target: &Key) {
        let is_same = target == observer;
        let observer = self.interned(observer);
        // An object and its dependency often have the same name, and then share the text.
        let target = if is_same { observer.clone() } else { self.interned(target) };
        if self.add(&observer, Target::Exact(target.clone())) {
            self.exact.insert((target, observer));
        }
    }

    pub(super) fn read_matching(&mut self, observer: &Key, namespace: Option<&str>, selector: &Selector) {
        let observer = self.interned(observer);
        let (namespace, text): (Namespace, Text) = (namespace.map(Into::into), canonical(selector).into());
        if self.add(&observer, Target::Matching(Box::new((namespace.clone(), text.clone())))) {
            let selected = self.matching.entry(namespace).or_default().entry(text);
            let new = || Selected { selector: selector.clone(), observers: HashSet::new() };
            selected.or_insert_with(new).observers.insert(observer);
        }
    }

    /// Adds the observers that read this object by name.
    pub(super) fn observers_by_name(&self, key: &Key, into: &mut HashSet<Text>) {
        into.extend(pairs_of(&self.exact, &text_of(key)).map(|(_, observer)| observer.clone()));
    }

    /// Returns true if no observer reads anything of the Kind.
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Returns true if any observer reads by labels.
    pub(super) fn has_selectors(&self) -> bool {
        !self.matching.is_empty()
    }

    /// Adds the observers whose selectors match these labels.
    pub(super) fn observers_by_labels(
        &self,
        namespace: Option<&str>,
        labels: &BTreeMap<String, String>,
        into: &mut HashSet<Text>,
    ) {
        let namespace: Namespace = namespace.map(Into::into);
        let selected = self.matching.get(&namespace).into_iter().flat_map(HashMap::values);
        let matching = selected.filter(|selected| selected.selector.matches(labels));
        into.extend(matching.flat_map(|selected| selected.observers.iter().cloned()));
    }

    /// Starts a pass of this observer.
    pub(super) fn begin(&mut self, observer: &Key) {
        if let Some(observer) = first(&self.reads, &text_of(observer)).cloned() {
            self.latest.insert(observer, HashSet::new());
        }
    }

    /// Drops the reads that the last pass did not repeat.
    pub(super) fn retain_latest(&mut self, observer: &Key) {
        let observer = text_of(observer);
        if let Some(latest) = self.latest.remove(&observer) {
            self.remove_where(&observer, |target| !latest.contains(target));
        }
    }

    /// Drops all reads of the observer.
    pub(super) fn forget(&mut self, observer: &Key) {
        let observer = text_of(observer);
        self.latest.remove(&observer);
        self.remove_where(&observer, |_| true);
    }

    /// The stored text of this key, or a new one.
    fn interned(&self, key: &Key) -> Text {
        let text = text_of(key);
        first(&self.reads, &text).or_else(|| first(&self.exact, &text)).cloned().unwrap_or(text)
    }

    /// Returns true if the read is new.
    fn add(&mut self, observer: &Text, target: Target) -> bool {
        if let Some(latest) = self.latest.get_mut(observer) {
            latest.insert(target.clone());
        }
        self.reads.insert((observer.clone(), target))
    }

    fn remove_where(&mut self, observer: &Text, condition: impl Fn(&Target) -> bool) {
        let reads = pairs_of(&self.reads, observer).filter(|(_, target)| condition(target));
        for read in reads.cloned().collect::<Vec<_>>() {
            self.reads.remove(&read);
            match read {
                (observer, Target::Exact(key)) => drop(self.exact.remove(&(key, observer))),
                (observer, Target::Matching(matching)) => {
                    self.remove_matching(&matching.0, &matching.1, &observer);
                }
            }
        }
    }

    fn remove_matching(&mut self, namespace: &Namespace, text: &Text, observer: &Text) {
        let Some(selectors) = self.matching.get_mut(namespace) else { return };
        let Some(selected) = selectors.get_mut(text) else { return };
        selected.observers.remove(observer);
        if selected.observers.is_empty() {
            selectors.remove(text);
        }
        if selectors.is_empty() {
            self.matching.remove(namespace);
        }
    }
}

fn text_of(key: &Key) -> Text {
    [key.namespace.as_deref().unwrap_or_default(), "/", &key.name].concat().into()
}

/// The pairs that begin with this text.
fn pairs_of<'a, T: Default + Ord>(
    pairs: &'a BTreeSet<(Text, T)>,
    text: &Text,
) -> impl Iterator<Item = &'a (Text, T)> {
    let text = text.clone();
    pairs.range((text.clone(), T::default())..).take_while(move |(first, _)| *first == text)
}

/// The stored copy of this text, if a pair begins with it.
fn first<'a, T: Default + Ord>(pairs: &'a BTreeSet<(Text, T)>, text: &Text) -> Option<&'a Text> {
    pairs_of(pairs, text).next().map(|(text, _)| text)
}

/// The same text for selectors that differ only in the order of their requirements.
fn canonical(selector: &Selector) -> String {
    let mut expressions: Vec<_> = selector.clone().into_iter().map(|one| one.to_string()).collect();
    expressions.sort();
    expressions.dedup();
    expressions.join(",")
}
