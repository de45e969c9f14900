//! Who has read what: from a target to its observers, to wake them, and back, to forget one cheaply.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use kube::core::{Selector, SelectorExt};
use reknit_apis::Key;

/// A key as it is written: one allocation, shared by all that name it.
type Text = Arc<str>;
type Namespace = Option<Text>;

/// What an observer read of one Kind: an object by name, whether it is there or not, or those that match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Target {
    Exact(Text),
    Matching(Box<(Namespace, Text)>),
}

/// The least target, where the range of an observer's reads begins.
impl Default for Target {
    fn default() -> Self {
        Self::Exact(Text::default())
    }
}

/// The reads of all observers of one Kind. An observer and its targets are held while a pass that read them may
/// still stand; nothing expires, since nothing outlives its observer. Pairs in ordered sets take a third of the memory
/// that a set for each observer and each target takes, since most hold a single one.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Target and observer.
    exact: BTreeSet<(Text, Text)>,
    matching: HashMap<Namespace, HashMap<Text, Selected>>,
    /// Observer and target.
    reads: BTreeSet<(Text, Target)>,
    /// What the passes under way, and those that failed, have read.
    latest: HashMap<Text, HashSet<Target>>,
}

#[derive(Debug)]
struct Selected {
    selector: Selector,
    observers: HashSet<Text>,
}

impl Index {
    pub(super) fn read(&mut self, observer: &Key, target: &Key) {
        let itself = target == observer;
        let observer = self.interned(observer);
        // what an object depends on often has its name: one copy serves for both
        let target = if itself { observer.clone() } else { self.interned(target) };
        if self.note(&observer, Target::Exact(target.clone())) {
            self.exact.insert((target, observer));
        }
    }

    pub(super) fn read_matching(&mut self, observer: &Key, namespace: Option<&str>, selector: &Selector) {
        let observer = self.interned(observer);
        let (namespace, text): (Namespace, Text) = (namespace.map(Into::into), canonical(selector).into());
        if self.note(&observer, Target::Matching(Box::new((namespace.clone(), text.clone())))) {
            let selected = self.matching.entry(namespace).or_default().entry(text);
            let made = || Selected { selector: selector.clone(), observers: HashSet::new() };
            selected.or_insert_with(made).observers.insert(observer);
        }
    }

    /// Those who read this object, or would have, had it been there.
    pub(super) fn observers_by_name(&self, key: &Key, into: &mut HashSet<Text>) {
        into.extend(of(&self.exact, &written(key)).map(|(_, observer)| observer.clone()));
    }

    /// Whether no observer reads anything of the Kind.
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Whether any observer reads by labels.
    pub(super) fn has_selectors(&self) -> bool {
        !self.matching.is_empty()
    }

    /// Those who read what has such labels.
    pub(super) fn observers_by_labels(
        &self,
        namespace: Option<&str>,
        labels: &BTreeMap<String, String>,
        into: &mut HashSet<Text>,
    ) {
        let namespace: Namespace = namespace.map(Into::into);
        for selected in self.matching.get(&namespace).into_iter().flat_map(HashMap::values) {
            if selected.selector.matches(labels) {
                into.extend(selected.observers.iter().cloned());
            }
        }
    }

    /// A pass of this observer begins.
    pub(super) fn begin(&mut self, observer: &Key) {
        if let Some(observer) = first(&self.reads, &written(observer)).cloned() {
            self.latest.insert(observer, HashSet::new());
        }
    }

    /// The pass ended well: what it did not read decides nothing any more.
    pub(super) fn retain_latest(&mut self, observer: &Key) {
        let observer = written(observer);
        let Some(latest) = self.latest.remove(&observer) else { return };
        let stale: Vec<_> =
            of(&self.reads, &observer).filter(|(_, target)| !latest.contains(target)).cloned().collect();
        stale.iter().for_each(|read| self.unread(read));
    }

    /// The observer reads nothing any more.
    pub(super) fn forget(&mut self, observer: &Key) {
        let observer = written(observer);
        self.latest.remove(&observer);
        let reads: Vec<_> = of(&self.reads, &observer).cloned().collect();
        reads.iter().for_each(|read| self.unread(read));
    }

    /// The copy of this key that is held already, of an observer or of a target, or else a new one.
    fn interned(&self, key: &Key) -> Text {
        let text = written(key);
        first(&self.reads, &text).or_else(|| first(&self.exact, &text)).cloned().unwrap_or(text)
    }

    /// True where the observer did not read that before.
    fn note(&mut self, observer: &Text, target: Target) -> bool {
        if let Some(latest) = self.latest.get_mut(observer) {
            latest.insert(target.clone());
        }
        self.reads.insert((observer.clone(), target))
    }

    fn unread(&mut self, read: &(Text, Target)) {
        self.reads.remove(read);
        let (observer, target) = read;
        match target {
            Target::Exact(key) => {
                self.exact.remove(&(key.clone(), observer.clone()));
            }
            Target::Matching(matching) => {
                let (namespace, text) = &**matching;
                let Some(selectors) = self.matching.get_mut(namespace) else { return };
                if without(selectors.get_mut(text), observer) {
                    selectors.remove(text);
                }
                if selectors.is_empty() {
                    self.matching.remove(namespace);
                }
            }
        }
    }

    /// How many copies of keys are held.
    #[cfg(test)]
    pub(super) fn copies(&self) -> usize {
        let pairs = self.exact.iter().flat_map(|(target, observer)| [target, observer]);
        pairs.map(Arc::as_ptr).collect::<HashSet<_>>().len()
    }

    /// How many objects, selectors and observers there are.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        let matching = self.matching.values().map(HashMap::len).sum();
        let exact: HashSet<_> = self.exact.iter().map(|(target, _)| target).collect();
        let observers: HashSet<_> = self.reads.iter().map(|(observer, _)| observer).collect();
        [exact.len(), matching, observers.len()]
    }
}

fn written(key: &Key) -> Text {
    [key.namespace.as_deref().unwrap_or_default(), "/", &key.name].concat().into()
}

/// The pairs that begin with this text.
fn of<'a, T: Default + Ord>(
    pairs: &'a BTreeSet<(Text, T)>,
    text: &Text,
) -> impl Iterator<Item = &'a (Text, T)> {
    let text = text.clone();
    pairs.range((text.clone(), T::default())..).take_while(move |(first, _)| *first == text)
}

/// The copy of this text that the pairs share, if any begins with it.
fn first<'a, T: Default + Ord>(pairs: &'a BTreeSet<(Text, T)>, text: &Text) -> Option<&'a Text> {
    of(pairs, text).next().map(|(text, _)| text)
}

/// Removes the observer; true where none is left.
fn without(selected: Option<&mut Selected>, observer: &Text) -> bool {
    selected.is_some_and(|selected| {
        selected.observers.remove(observer);
        selected.observers.is_empty()
    })
}

/// Two selectors that say the same in another order are one.
fn canonical(selector: &Selector) -> String {
    let mut expressions: Vec<_> = selector.clone().into_iter().map(|one| one.to_string()).collect();
    expressions.sort();
    expressions.dedup();
    expressions.join(",")
}
