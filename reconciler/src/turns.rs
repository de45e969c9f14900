//! A queue of items by namespace, in which the namespaces take turns.

use std::{
    collections::{BTreeMap, VecDeque, hash_map::Entry},
    sync::Arc,
};

use reknit_apis::internal::HashMap;

use crate::capacity::shrink;

/// Queued items. After an item of one namespace, each other namespace that has any gets its turn, so that no namespace
/// delays another one by more than an item. The items of a namespace keep their order. Items without a namespace share
/// one turn.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    /// The items of each namespace by ticket: the lowest is next.
    namespaces: HashMap<Arc<str>, BTreeMap<u64, T>>,
    /// The namespaces that are in `namespaces`, each once, in the order of their turns.
    order: VecDeque<Arc<str>>,
    last_ticket: u64,
    len: usize,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { namespaces: HashMap::default(), order: VecDeque::new(), last_ticket: 0, len: 0 }
    }
}

impl<T> Turns<T> {
    /// Adds an item, and returns its ticket, by which it can be removed.
    pub(crate) fn push(&mut self, namespace: Option<&str>, item: T) -> u64 {
        let namespace = namespace.unwrap_or_default();
        self.last_ticket += 1;
        self.len += 1;
        match self.namespaces.get_mut(namespace) {
            Some(items) => drop(items.insert(self.last_ticket, item)),
            None => {
                let namespace: Arc<str> = namespace.into();
                self.order.push_back(namespace.clone());
                self.namespaces.insert(namespace, BTreeMap::from([(self.last_ticket, item)]));
            }
        }
        self.last_ticket
    }

    /// Puts an item that was popped back, before the other items of its namespace.
    pub(crate) fn put_back(&mut self, namespace: Option<&str>, item: T) {
        let items = self.namespaces.get_mut(namespace.unwrap_or_default());
        let first = items.and_then(|items| Some((*items.first_key_value()?.0, items)));
        match first {
            // The ticket of the popped item was lower, so the one before is free.
            Some((first, items)) => {
                items.insert(first - 1, item);
                self.len += 1;
            }
            None => {
                self.push(namespace, item);
            }
        }
    }

    /// Removes and returns the next item, if any.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.pop_where(|_| true)
    }

    /// Removes and returns the next item of a namespace for which `admits` returns true. Other namespaces keep their
    /// turns.
    pub(crate) fn pop_where(&mut self, admits: impl Fn(&str) -> bool) -> Option<T> {
        let turn = self.order.iter().position(|namespace| admits(namespace))?;
        let namespace = self.order.remove(turn)?;
        let Entry::Occupied(mut items) = self.namespaces.entry(namespace.clone()) else { return None };
        let (_, item) = items.get_mut().pop_first()?;
        self.len -= 1;
        if items.get().is_empty() {
            items.remove();
            shrink(&mut self.namespaces);
        } else {
            self.order.push_back(namespace);
        }
        Some(item)
    }

    /// Removes and returns the item with this ticket, if it is queued.
    pub(crate) fn remove(&mut self, namespace: Option<&str>, ticket: u64) -> Option<T> {
        let namespace = namespace.unwrap_or_default();
        let items = self.namespaces.get_mut(namespace)?;
        let item = items.remove(&ticket)?;
        self.len -= 1;
        if items.is_empty() {
            self.drop_namespace(namespace);
        }
        Some(item)
    }

    /// Removes and returns the last item of the namespace that has the most.
    pub(crate) fn pop_last_of_longest(&mut self) -> Option<T> {
        let longest =
            self.order.iter().max_by_key(|namespace| self.namespaces.get(*namespace).map(BTreeMap::len));
        let namespace = longest?.clone();
        let (&ticket, _) = self.namespaces.get(&namespace)?.last_key_value()?;
        self.remove(Some(&namespace), ticket)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn drop_namespace(&mut self, namespace: &str) {
        self.namespaces.remove(namespace);
        self.order.retain(|other| **other != *namespace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns_of(items: &[(&str, u32)]) -> Turns<u32> {
        let mut turns = Turns::default();
        for &(namespace, item) in items {
            turns.push(Some(namespace), item);
        }
        turns
    }

    fn pop_all(turns: &mut Turns<u32>) -> Vec<u32> {
        std::iter::from_fn(|| turns.pop()).collect()
    }

    #[test]
    fn namespaces_take_turns_and_each_keeps_the_order_of_its_items() {
        let mut turns = turns_of(&[("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5), ("b", 6)]);
        assert_eq!(turns.pop(), Some(1));
        turns.push(Some("d"), 7);
        assert_eq!(pop_all(&mut turns), [4, 5, 2, 7, 6, 3]);
        assert!(turns.is_empty() && turns.namespaces.is_empty() && turns.order.is_empty());
    }

    #[test]
    fn a_namespace_that_is_passed_over_keeps_its_turn() {
        let mut turns = turns_of(&[("a", 1), ("b", 2), ("b", 3)]);
        assert_eq!(turns.pop_where(|namespace| namespace != "a"), Some(2));
        assert_eq!(turns.pop_where(|namespace| namespace == "c"), None);
        assert_eq!(pop_all(&mut turns), [1, 3]);
    }

    #[test]
    fn an_item_that_is_put_back_is_the_next_of_its_namespace() {
        let mut turns = turns_of(&[("a", 1), ("a", 2), ("b", 3)]);
        let first = turns.pop().unwrap();
        turns.put_back(Some("a"), first);
        assert_eq!((turns.len(), pop_all(&mut turns)), (3, vec![3, 1, 2]));
        turns.put_back(Some("c"), 4);
        assert_eq!(pop_all(&mut turns), [4]);
    }

    #[test]
    fn a_removed_item_leaves_no_turn_behind() {
        let mut turns = Turns::default();
        let (first, second) = (turns.push(None, 1), turns.push(Some("a"), 2));
        assert_eq!((turns.remove(None, first), turns.remove(None, first)), (Some(1), None));
        assert_eq!(turns.remove(Some("b"), second), None);
        assert_eq!((turns.len(), turns.order.len()), (1, 1));
        assert_eq!(pop_all(&mut turns), [2]);
    }

    #[test]
    fn the_longest_namespace_loses_its_last_item() {
        let mut turns = turns_of(&[("a", 1), ("b", 2), ("b", 3), ("c", 4)]);
        assert_eq!(turns.pop_last_of_longest(), Some(3));
        assert_eq!(pop_all(&mut turns), [1, 2, 4]);
        assert_eq!(turns.pop_last_of_longest(), None);
    }
}
