//! Who has read what: from a target to its observers, to wake them, and back, to forget one cheaply.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use kube::{
    Resource,
    core::{Selector, SelectorExt},
};
use reknit_apis::Key;

type Namespace = Option<Arc<str>>;

/// What an observer read of one Kind: an object by name, whether it is there or not, or those that match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Target {
    Exact(Arc<Key>),
    Matching(Namespace, Arc<str>),
}

/// The reads of all observers of one Kind. An observer and its targets are held while a pass that read them may
/// still stand; nothing expires, since nothing outlives its observer.
#[derive(Debug, Default)]
pub(super) struct Index {
    exact: HashMap<Arc<Key>, HashSet<Arc<Key>>>,
    matching: HashMap<Namespace, HashMap<Arc<str>, Selected>>,
    observers: HashMap<Arc<Key>, Reads>,
}

#[derive(Debug)]
struct Selected {
    selector: Selector,
    observers: HashSet<Arc<Key>>,
}

/// What one observer read, and in which of its passes last.
#[derive(Debug, Default)]
struct Reads {
    pass: u64,
    targets: HashMap<Target, u64>,
}

impl Index {
    pub(super) fn read(&mut self, observer: &Key, target: Key) {
        let observer = self.interned(observer);
        let target = match self.exact.get_key_value(&target) {
            Some((known, _)) => known.clone(),
            None => Arc::new(target),
        };
        if self.note(&observer, Target::Exact(target.clone())) {
            self.exact.entry(target).or_default().insert(observer);
        }
    }

    pub(super) fn read_matching(&mut self, observer: &Key, namespace: Option<&str>, selector: &Selector) {
        let observer = self.interned(observer);
        let (namespace, text): (Namespace, Arc<str>) =
            (namespace.map(Into::into), canonical(selector).into());
        if self.note(&observer, Target::Matching(namespace.clone(), text.clone())) {
            let selected = self.matching.entry(namespace).or_default().entry(text);
            let made = || Selected { selector: selector.clone(), observers: HashSet::new() };
            selected.or_insert_with(made).observers.insert(observer);
        }
    }

    /// Those who read this object, or would have, had it been there.
    pub(super) fn observers_of<T: Resource>(&self, object: &T, into: &mut HashSet<Arc<Key>>) {
        into.extend(self.exact.get(&Key::of(object)).into_iter().flatten().cloned());
        if self.matching.is_empty() {
            return;
        }
        let meta = object.meta();
        let namespace: Namespace = meta.namespace.as_deref().map(Into::into);
        let empty = Default::default();
        let labels = meta.labels.as_ref().unwrap_or(&empty);
        for selected in self.matching.get(&namespace).into_iter().flat_map(HashMap::values) {
            if selected.selector.matches(labels) {
                into.extend(selected.observers.iter().cloned());
            }
        }
    }

    /// A pass of this observer begins.
    pub(super) fn begin(&mut self, observer: &Key) {
        if let Some(reads) = self.observers.get_mut(observer) {
            reads.pass += 1;
        }
    }

    /// The pass ended well: what it did not read decides nothing any more.
    pub(super) fn settle(&mut self, observer: &Key) {
        let Some(reads) = self.observers.get_mut(observer) else { return };
        let pass = reads.pass;
        let stale: Vec<_> =
            reads.targets.extract_if(|_, last| *last != pass).map(|(target, _)| target).collect();
        if reads.targets.is_empty() {
            self.observers.remove(observer);
        }
        for target in stale {
            self.unread(observer, &target);
        }
    }

    /// The observer reads nothing any more.
    pub(super) fn forget(&mut self, observer: &Key) {
        let Some(reads) = self.observers.remove(observer) else { return };
        for target in reads.targets.into_keys() {
            self.unread(observer, &target);
        }
    }

    /// One copy of each observer's key, however many targets it reads.
    fn interned(&self, observer: &Key) -> Arc<Key> {
        match self.observers.get_key_value(observer) {
            Some((known, _)) => known.clone(),
            None => Arc::new(observer.clone()),
        }
    }

    /// True where the observer did not read that before.
    fn note(&mut self, observer: &Arc<Key>, target: Target) -> bool {
        let reads = self.observers.entry(observer.clone()).or_default();
        reads.targets.insert(target, reads.pass).is_none()
    }

    fn unread(&mut self, observer: &Key, target: &Target) {
        match target {
            Target::Exact(key) => {
                if without(self.exact.get_mut(key), observer) {
                    self.exact.remove(key);
                }
            }
            Target::Matching(namespace, text) => {
                let Some(selectors) = self.matching.get_mut(namespace) else { return };
                if without(selectors.get_mut(text).map(|selected| &mut selected.observers), observer) {
                    selectors.remove(text);
                }
                if selectors.is_empty() {
                    self.matching.remove(namespace);
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        let matching = self.matching.values().map(HashMap::len).sum();
        [self.exact.len(), matching, self.observers.len()]
    }
}

/// Removes the observer; true where none is left.
fn without(observers: Option<&mut HashSet<Arc<Key>>>, observer: &Key) -> bool {
    observers.is_some_and(|observers| {
        observers.remove(observer);
        observers.is_empty()
    })
}

/// Two selectors that say the same in another order are one.
fn canonical(selector: &Selector) -> String {
    let mut expressions: Vec<_> = selector.clone().into_iter().map(|one| one.to_string()).collect();
    expressions.sort();
    expressions.dedup();
    expressions.join(",")
}
