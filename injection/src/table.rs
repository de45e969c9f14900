//! The objects an informer holds, by namespace and name.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use reknit_apis::Key;

use crate::{
    arena::{Arena, Slot},
    record::{Packed, Record},
    store::State,
    version::Version,
};

/// One table for each namespace, hashed by the objects' own names: no second copy of a key, and a namespace is
/// listed without looking at the others. Cluster-scoped objects are in the namespace `""`.
#[derive(Default)]
pub(crate) struct Table {
    namespaces: Namespaces,
    records: Arena,
    hasher: DefaultHashBuilder,
    len: usize,
    bytes: usize,
}

type Namespaces = HashMap<Box<str>, HashTable<Entry>>;

/// What is held of an object beside its record.
#[derive(Clone, Copy)]
struct Entry {
    slot: Slot,
    listed: u32,
    written: u32,
}

/// An object and what has to be known about it to order what comes.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    pub(crate) record: Packed<'a>,
    /// The last list that held it.
    pub(crate) listed: u32,
    /// The last list that had begun when this process wrote it; zero if it did not.
    pub(crate) written: u32,
}

impl<'a> Held<'a> {
    fn of(entry: &Entry, records: &'a Arena) -> Self {
        let Entry { slot, listed, written } = *entry;
        Self { record: Packed::at(records.get(slot)), listed, written }
    }

    pub(crate) fn version(&self) -> Option<Version<'a>> {
        self.record.version()
    }
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Of the records together.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Held<'_>> {
        self.find(key.namespace.as_deref().unwrap_or_default(), &key.name)
    }

    /// What is held under this name.
    pub(crate) fn namesake(&self, state: &State<'_>) -> Option<Held<'_>> {
        self.find(state.namespace.unwrap_or_default(), state.name)
    }

    /// The same, and notes that this list held it.
    pub(crate) fn listed(&mut self, state: &State<'_>, list: u32) -> Option<Held<'_>> {
        let Self { namespaces, records, hasher, .. } = self;
        let table = namespaces.get_mut(state.namespace.unwrap_or_default())?;
        let found =
            table.find_mut(hash(hasher, state.name), |held| name(records, held) == state.name.as_bytes())?;
        found.listed = list;
        Some(Held::of(found, records))
    }

    fn find(&self, namespace: &str, wanted: &str) -> Option<Held<'_>> {
        let table = self.namespaces.get(namespace)?;
        let found =
            table.find(hash(&self.hasher, wanted), |held| name(&self.records, held) == wanted.as_bytes());
        found.map(|entry| Held::of(entry, &self.records))
    }

    /// Holds it, and hands out what was held under its name.
    pub(crate) fn put(&mut self, record: &Record, listed: u32, written: u32) -> Option<Record> {
        let Self { namespaces, records, hasher, .. } = self;
        let (state, new) = (record.packed().state(), record.packed().bytes());
        let namespace = state.namespace.unwrap_or_default();
        self.bytes += new.len();
        let table = match namespaces.get_mut(namespace) {
            Some(table) => table,
            None => namespaces.entry(namespace.into()).or_default(),
        };
        let hash = hash(hasher, state.name);
        let Some(held) = table.find_mut(hash, |held| name(records, held) == state.name.as_bytes()) else {
            let entry = Entry { slot: records.put(new), listed, written };
            table.insert_unique(hash, entry, |held| hasher.hash_one(name(records, held)));
            self.len += 1;
            return None;
        };
        let old = Held::of(held, records).record.to_record();
        let old_length = old.packed().bytes().len();
        if old_length == new.len() {
            records.replace(held.slot, new);
        } else {
            records.free(held.slot);
            held.slot = records.put(new);
        }
        (held.listed, held.written) = (listed, written);
        self.bytes -= old_length;
        self.tidy();
        Some(old)
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Record> {
        let Self { namespaces, records, hasher, .. } = self;
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let table = namespaces.get_mut(namespace)?;
        let hash = hash(hasher, &key.name);
        let found = table.find_entry(hash, |held| name(records, held) == key.name.as_bytes()).ok()?;
        let (removed, _) = found.remove();
        if table.is_empty() {
            namespaces.remove(namespace);
        }
        let record = self.forget(removed);
        self.tidy();
        Some(record)
    }

    /// Keeps those of which `keep` is true, and hands out the others.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&Held<'_>) -> bool) -> Vec<Record> {
        let mut removed = Vec::new();
        let Self { namespaces, records, .. } = self;
        namespaces.retain(|_, table| {
            removed.extend(table.extract_if(|held| !keep(&Held::of(held, records))));
            !table.is_empty()
        });
        let removed = removed.into_iter().map(|entry| self.forget(entry)).collect();
        while self.tidy() {}
        removed
    }

    fn forget(&mut self, removed: Entry) -> Record {
        let record = Packed::at(self.records.get(removed.slot)).to_record();
        self.records.free(removed.slot);
        self.len -= 1;
        self.bytes -= record.packed().bytes().len();
        record
    }

    /// Moves the records of one sparse chunk, if there is one: a bounded piece of work for each change.
    fn tidy(&mut self) -> bool {
        let Self { namespaces, records, hasher, .. } = self;
        let Some(chunk) = records.sparse() else { return false };
        let mut slots = records.close(chunk);
        slots.retain(|slot| entry_at(namespaces, records, hasher, *slot).is_some());
        let mut record = Vec::new();
        for slot in slots {
            record.clear();
            record.extend_from_slice(records.get(slot));
            if let Some(entry) = entry_at(namespaces, records, hasher, slot) {
                records.free(slot);
                entry.slot = records.put(&record);
            }
        }
        true
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Packed<'_>> {
        self.namespaces.values().flat_map(|table| self.records_of(table))
    }

    pub(crate) fn within(&self, namespace: &str) -> impl Iterator<Item = Packed<'_>> {
        self.namespaces.get(namespace).into_iter().flat_map(|table| self.records_of(table))
    }

    fn records_of<'a>(&'a self, table: &'a HashTable<Entry>) -> impl Iterator<Item = Packed<'a>> {
        table.iter().map(|held| Held::of(held, &self.records).record)
    }
}

/// Whose record this is; of one that was freed nobody's.
fn entry_at<'a>(
    namespaces: &'a mut Namespaces,
    records: &Arena,
    hasher: &DefaultHashBuilder,
    slot: Slot,
) -> Option<&'a mut Entry> {
    let State { namespace, name, .. } = Packed::at(records.get(slot)).state();
    let table = namespaces.get_mut(namespace.unwrap_or_default())?;
    table.find_mut(hash(hasher, name), |held| held.slot == slot)
}

fn name<'a>(records: &'a Arena, held: &Entry) -> &'a [u8] {
    Packed::at(records.get(held.slot)).name()
}

fn hash(hasher: &DefaultHashBuilder, name: &str) -> u64 {
    hasher.hash_one(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::record::Parts;

    fn record(namespace: &str, name: &str, rest: &str) -> Record {
        let namespace = Some(namespace).filter(|n| !n.is_empty());
        let state = State { namespace, name, uid: None, resource_version: "1" };
        Record::of(&Parts { state, lingers: false, metadata: b"", rest: rest.as_bytes() }).unwrap()
    }

    #[test]
    fn it_counts_what_it_holds_and_lets_go_of_empty_namespaces() {
        let mut table = Table::default();
        let put =
            |table: &mut Table, namespace, name: &str, rest| table.put(&record(namespace, name, rest), 0, 0);
        for n in 0..100 {
            assert!(put(&mut table, ["", "a", "b"][n % 3], &format!("m{n:03}"), "").is_none());
        }
        let before = table.bytes();
        assert!(put(&mut table, "a", "m001", "more").is_some(), "the same name again replaces");
        assert_eq!((table.len(), table.bytes()), (100, before + 4));
        assert_eq!((table.all().count(), table.within("a").count(), table.within("").count()), (100, 33, 34));
        assert!(table.get(&Key::new("a", "m001")).is_some() && table.get(&Key::new("b", "m001")).is_none());
        assert!(
            table.remove(&Key::new("a", "m001")).is_some() && table.remove(&Key::new("a", "m001")).is_none()
        );
        let removed = table.retain(|held| held.record.state().namespace.is_none());
        assert_eq!((removed.len(), table.len(), table.namespaces.len()), (65, 34, 1));
        assert_eq!(table.bytes(), table.all().map(|record| record.bytes().len()).sum::<usize>());
    }

    #[test]
    fn whatever_moves_inside_each_object_is_found_as_it_was_put() {
        let (mut table, mut truth) = (Table::default(), BTreeMap::new());
        let mut random = StdRng::seed_from_u64(3);
        for _ in 0..20_000 {
            let key =
                Key::new(["a", "b"][random.random_range(0..2)], &format!("m{}", random.random_range(0..400)));
            let namespace = key.namespace.clone().unwrap();
            if random.random_bool(0.2) {
                assert_eq!(table.remove(&key).is_some(), truth.remove(&key).is_some());
                continue;
            }
            let rest = "x".repeat(random.random_range(0..600));
            let old = table.put(&record(&namespace, &key.name, &rest), 0, 0);
            let old = old.map(|old| old.packed().bytes().to_vec());
            let before = truth.insert(key.clone(), rest);
            assert_eq!(
                old,
                before.map(|rest| record(&namespace, &key.name, &rest).packed().bytes().to_vec())
            );
        }
        assert_eq!(table.len(), truth.len());
        for (key, rest) in &truth {
            let held = table.get(key).unwrap().record;
            assert_eq!(
                held.bytes(),
                record(key.namespace.as_deref().unwrap(), &key.name, rest).packed().bytes()
            );
        }
    }
}
