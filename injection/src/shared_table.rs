//! A bounded table whose room the namespaces share.

use std::hash::Hash;

use reknit_apis::{Key, internal::HashMap};

/// A table with a maximum number of entries. In a full one, a new entry takes the place of one of the namespace that has the
/// most: a tenant with many entries takes no room from others, and does not push out his own first ones.
#[derive(Debug)]
pub struct SharedTable<K, V, const MAX: usize> {
    entries: HashMap<K, V>,
    /// The number of entries by namespace, and under the empty name that of cluster-scoped objects.
    by_namespace: HashMap<Box<str>, usize>,
}

/// The key of an entry.
pub trait Namespaced {
    /// The namespace, or an empty text for a cluster-scoped object.
    fn namespace(&self) -> &str;
}

impl Namespaced for Key {
    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }
}

impl<K, V, const MAX: usize> Default for SharedTable<K, V, MAX> {
    fn default() -> Self {
        Self { entries: HashMap::default(), by_namespace: HashMap::default() }
    }
}

impl<K: Namespaced + Clone + Eq + Hash, V, const MAX: usize> SharedTable<K, V, MAX> {
    /// Returns true if each new entry needs the place of another one.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= MAX
    }

    /// Returns true if there is an entry with this key, or room for one. Of the namespace that has to make room, the entry with
    /// the lowest usefulness is dropped.
    pub fn has_room_for<U: Ord>(&mut self, key: &K, usefulness: impl Fn(&V) -> U) -> bool {
        !self.is_full() || self.entries.contains_key(key) || self.evict_for(key, usefulness)
    }

    fn evict_for<U: Ord>(&mut self, new: &K, usefulness: impl Fn(&V) -> U) -> bool {
        let own = self.by_namespace.get(new.namespace()).copied().unwrap_or_default();
        let largest = self.by_namespace.iter().max_by_key(|(_, count)| **count);
        let Some((largest, _)) = largest.filter(|(_, most)| own + 1 < **most) else { return false };
        let of_largest = self.entries.iter().filter(|(key, _)| key.namespace() == &**largest);
        let least = of_largest.min_by_key(|(_, value)| usefulness(value)).map(|(key, _)| key.clone());
        least.is_some_and(|least| self.remove(&least))
    }

    fn remove(&mut self, key: &K) -> bool {
        let is_removed = self.entries.remove(key).is_some();
        if is_removed && let Some(count) = self.by_namespace.get_mut(key.namespace()) {
            *count -= 1;
            if *count == 0 {
                self.by_namespace.remove(key.namespace());
            }
        }
        is_removed
    }

    /// Returns the entry with this key, for which there [is room](Self::has_room_for).
    pub fn entry(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        self.entries.entry(key).or_insert_with_key(|key| {
            count(&mut self.by_namespace, key.namespace());
            new()
        })
    }

    /// Returns the entry with this key, if there is one.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key)
    }

    /// Returns all entries without their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values()
    }

    /// Drops the entries for which this returns false.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&mut V) -> bool) {
        let number = self.entries.len();
        self.entries.retain(|_, value| is_kept(value));
        if self.entries.len() < number {
            self.by_namespace.clear();
            self.entries.keys().for_each(|key| count(&mut self.by_namespace, key.namespace()));
        }
    }
}

fn count(by_namespace: &mut HashMap<Box<str>, usize>, namespace: &str) {
    match by_namespace.get_mut(namespace) {
        Some(count) => *count += 1,
        None => _ = by_namespace.insert(namespace.into(), 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &mut SharedTable<Key, u32, 4>, namespace: &str, name: &str, usefulness: u32) -> bool {
        let key = Key::new(namespace, name);
        let has_room = table.has_room_for(&key, |usefulness| *usefulness);
        if has_room {
            table.entry(key, || usefulness);
        }
        has_room
    }

    fn usefulness(table: &SharedTable<Key, u32, 4>) -> Vec<u32> {
        let mut sorted: Vec<_> = table.values().copied().collect();
        sorted.sort_unstable();
        sorted
    }

    #[test]
    fn a_namespace_gives_its_least_useful_entries_to_namespaces_with_fewer() {
        let mut table = SharedTable::default();
        for (name, usefulness) in [("a", 3), ("b", 1), ("c", 2), ("d", 4)] {
            assert!(add(&mut table, "large", name, usefulness));
        }
        assert!(!add(&mut table, "large", "e", 9), "its own entries");
        assert!(add(&mut table, "large", "a", 9), "there is one");
        assert!(add(&mut table, "small", "a", 0) && add(&mut table, "small", "b", 0));
        assert_eq!(usefulness(&table), [0, 0, 3, 4]);
        assert!(!add(&mut table, "small", "c", 0), "each has two");
        assert!(add(&mut table, "third", "a", 5), "one of two");
        table.retain(|usefulness| *usefulness > 3);
        assert!(!table.is_full() && add(&mut table, "large", "f", 6) && add(&mut table, "large", "g", 7));
        let expected = usefulness(&table).len();
        assert_eq!(table.by_namespace.values().sum::<usize>(), expected, "{table:?}");
    }
}
