//! What an informer holds, and the rules by which lists, watches and own writes change it.
//!
//! Three sources tell of the same objects, each in its own time: a list, whose pages are one snapshot; a watch, which
//! tells everything after that snapshot in order; and the answers to this process's own writes, which come at any
//! moment, before or after their echo in the watch. The rules:
//!
//! - A list is the truth about everything but what this process wrote since the list began. (Lists are consistent
//!   reads: what was written before they began is in them. So a server whose store became younger needs no rule.)
//! - Of two states of an object the one of the higher version is the newer; the older is dropped, the equal one is
//!   an echo. An object of another uid under the same name is another object.
//! - The watch has told everything up to the version `seen`: what a write left at or below it, and is not held, has
//!   been deleted since.
//! - What a write removed is remembered in [`Gone`] until the watch has said so too.
//! - Where a version cannot be read, the order of the watch is trusted, and own writes wait for it.

use std::sync::Arc;

use kube::{Resource, core::ObjectMeta};
use reknit_apis::Key;

use crate::{
    change::Change,
    gone::Gone,
    raw::Decoded,
    table::{Entry, Table},
    version::{Version, raise},
};

/// At most two: an object deleted and created again under its name is both.
pub(crate) type Told<K> = [Option<Change<K>>; 2];

/// The objects, and how far each source has told of them.
pub(crate) struct Store<K> {
    pub(crate) table: Table<K>,
    gone: Gone,
    /// How many lists have begun.
    lists: u32,
    /// Everything up to here has been told by the last list or the watch; empty before the first list.
    seen: String,
    /// The highest version heard of since the last list.
    highest: String,
    /// The last list had no version that can be ordered.
    unordered: bool,
}

/// Which object, and which state of it.
#[derive(Clone, Copy)]
pub(crate) struct State<'a> {
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: &'a str,
    pub(crate) uid: Option<&'a str>,
    pub(crate) version: Option<Version<'a>>,
}

impl<'a> State<'a> {
    pub(crate) fn of(meta: &'a ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.as_deref(),
            name: meta.name.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref(),
            version: Version::of(meta),
        }
    }

    pub(crate) fn key(&self) -> Key {
        Key::new(self.namespace, self.name)
    }
}

/// Whether the one state is older than the other. Without versions nobody knows, and what comes later counts as newer.
fn older(one: Option<Version<'_>>, other: Option<Version<'_>>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one < other)
}

fn same(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.resource_version.is_some() && one.resource_version == other.resource_version && one.uid == other.uid
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self {
            table: Table::default(),
            gone: Gone::default(),
            lists: 0,
            seen: String::new(),
            highest: String::new(),
            unordered: false,
        }
    }
}

impl<K: Resource> Store<K> {
    /// Before the first request of a list is sent.
    pub(crate) fn list_begins(&mut self) {
        self.lists += 1;
        self.gone.list_begins();
    }

    /// An item of the list under way.
    pub(crate) fn listed(&mut self, item: Decoded<K>) -> Told<K> {
        let meta = item.object.meta();
        if self.gone.covers_listed(&State::of(meta)) || self.keeps(meta) {
            return [None, None];
        }
        self.put(item, 0)
    }

    /// Whether what is held stays in spite of this item: it is the same state, or was written since the list began.
    fn keeps(&mut self, item: &ObjectMeta) -> bool {
        let lists = self.lists;
        let Some(held) = self.table.get_mut(&State::of(item).key()) else { return false };
        held.listed = lists;
        let newer = held.written == lists && !older(held.version(), Version::of(item));
        newer || same(held.object.meta(), item)
    }

    /// An item of the list under way that cannot be decoded. What is held of it stays: it must not look absent.
    pub(crate) fn listed_undecodable(&mut self, key: &Key) {
        if let Some(held) = self.table.get_mut(key) {
            held.listed = self.lists;
        }
    }

    /// The list was read to its end: what it did not show is gone.
    pub(crate) fn list_ends(&mut self, version: &str) -> Vec<Arc<K>> {
        let (snapshot, lists) = (Version::parse(version), self.lists);
        let mut highest = version.to_owned();
        let removed = self.table.retain(|held| {
            let since = held.written == lists && snapshot.is_some() && older(snapshot, held.version());
            if since {
                raise(&mut highest, held.version());
            }
            held.listed == lists || since
        });
        self.unordered = snapshot.is_none();
        self.gone.list_ends(snapshot);
        version.clone_into(&mut self.seen);
        self.highest = highest;
        removed
    }

    /// The watch told of an object that is there.
    pub(crate) fn watched(&mut self, item: Decoded<K>) -> Told<K> {
        let meta = item.object.meta();
        self.passed(Version::of(meta));
        let stale =
            |held: &Entry<K>| older(Version::of(meta), held.version()) || same(held.object.meta(), meta);
        if self.gone.covers(&State::of(meta)) || self.table.namesake(meta).is_some_and(stale) {
            return [None, None];
        }
        self.put(item, 0)
    }

    /// The watch told that an object is gone, or left the selection.
    pub(crate) fn deleted(&mut self, state: &State<'_>) -> Told<K> {
        let key = state.key();
        self.passed(state.version);
        self.gone.confirmed(state);
        if self.table.get(&key).is_some_and(|held| older(state.version, held.version())) {
            return [None, None];
        }
        self.remove(&key)
    }

    /// The watch, or an event of it that says no more, has told everything up to here.
    pub(crate) fn passed(&mut self, version: Option<Version<'_>>) {
        raise(&mut self.seen, version);
        raise(&mut self.highest, version);
    }

    /// The watch has nothing to tell but how far it has come.
    pub(crate) fn bookmark(&mut self, version: &str) {
        let version = Version::parse(version);
        self.passed(version);
        if let Some(version) = version {
            self.gone.passed(version);
        }
    }

    /// This process wrote the object; `admitted` says whether the selection holds it now.
    pub(crate) fn wrote(&mut self, item: Decoded<K>, admitted: bool) -> Told<K> {
        let meta = item.object.meta();
        let state = State::of(meta);
        if !self.is_news(&state) {
            return [None, None];
        }
        if admitted {
            let lists = self.lists;
            raise(&mut self.highest, state.version);
            return self.put(item, lists);
        }
        let key = state.key();
        let concerns = self.table.get(&key).is_some() || self.gone.contains(&key);
        match state.version {
            Some(version) if concerns => self.removed(&key, version),
            _ => [None, None],
        }
    }

    /// Whether the answer to an own write tells more than is known already.
    fn is_news(&self, state: &State<'_>) -> bool {
        if state.version.is_none() || self.unordered {
            return false;
        }
        match self.table.get(&state.key()) {
            Some(held) => held.version().is_some() && older(held.version(), state.version),
            None => !self.has_seen(state.version) && !self.gone.covers(state),
        }
    }

    fn has_seen(&self, version: Option<Version<'_>>) -> bool {
        version.is_some() && version <= Version::parse(&self.seen)
    }

    /// This process removed the object, or took it out of the selection, and knows by which version.
    pub(crate) fn removed(&mut self, key: &Key, by: Version<'_>) -> Told<K> {
        let newer = |held: &Entry<K>| held.version().is_none_or(|version| version > by);
        if self.unordered || self.has_seen(Some(by)) || self.table.get(key).is_some_and(newer) {
            return [None, None];
        }
        self.gone.removed(key, by);
        self.remove(key)
    }

    /// This process deleted the object of this uid; no version was told.
    pub(crate) fn erased(&mut self, key: &Key, uid: &str) -> Told<K> {
        let Some(held) = self.table.get(key) else { return [None, None] };
        let meta = held.object.meta();
        let lingers = meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds > Some(0);
        if self.unordered || lingers || meta.uid.as_deref() != Some(uid) {
            return [None, None];
        }
        let listed = held.listed == self.lists;
        // A list under way may show that the server is younger than a version from before it.
        let last = held.version().filter(|_| listed || held.written == self.lists);
        self.gone.erased(key, uid, last, listed);
        self.remove(key)
    }

    /// Holds the object, whatever was held.
    pub(crate) fn put(&mut self, item: Decoded<K>, written: u32) -> Told<K> {
        let new = Arc::new(item.object);
        self.gone.returned(&State::of(new.meta()));
        let listed = if written == 0 { self.lists } else { 0 };
        let entry = Entry { object: new.clone(), bytes: item.bytes, listed, written };
        match self.table.put(entry) {
            None => [Some(Change::Added(new)), None],
            Some(old) if another(old.meta(), new.meta()) => {
                [Some(Change::Deleted { last: old }), Some(Change::Added(new))]
            }
            Some(old) => [Some(Change::Updated { old, new }), None],
        }
    }

    /// Holds no object of this key.
    pub(crate) fn remove(&mut self, key: &Key) -> Told<K> {
        [self.table.remove(key).map(|last| Change::Deleted { last }), None]
    }

    /// How many removals the watch has yet to tell.
    #[cfg(test)]
    #[cfg(test)]
    pub(crate) fn remembers(&self) -> usize {
        self.gone.len()
    }

    /// The highest version heard of: a server whose lists have a lower one has lost something.
    pub(crate) fn highest(&self) -> &str {
        &self.highest
    }
}

fn another(old: &ObjectMeta, new: &ObjectMeta) -> bool {
    old.uid.is_some() && new.uid.is_some() && old.uid != new.uid
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn map(name: &str, uid: &str, version: &str) -> Decoded<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some("n".into());
        object.metadata.name = Some(name.into());
        object.metadata.uid = Some(uid.into());
        object.metadata.resource_version = Some(version.into());
        Decoded { object, bytes: 1 }
    }

    fn a() -> Key {
        Key::new("n", "a")
    }

    fn version(text: &str) -> Version<'_> {
        Version::parse(text).unwrap()
    }

    fn deletion<'a>(uid: &'a str, version: &'a str) -> State<'a> {
        State { namespace: Some("n"), name: "a", uid: Some(uid), version: Version::parse(version) }
    }

    /// As in `+1 ~1>2 -2`.
    fn words(told: impl IntoIterator<Item = Option<Change<ConfigMap>>>) -> String {
        let of = |object: &Arc<ConfigMap>| object.metadata.resource_version.clone().unwrap_or_default();
        let word = |change| match change {
            Change::Added(new) => format!("+{}", of(&new)),
            Change::Updated { old, new } => format!("~{}>{}", of(&old), of(&new)),
            Change::Deleted { last } => format!("-{}", of(&last)),
        };
        told.into_iter().flatten().map(word).collect::<Vec<_>>().join(" ")
    }

    /// A store whose list at version 10 held `a` at version 5.
    fn listed() -> Store<ConfigMap> {
        let mut store = Store::default();
        store.list_begins();
        assert_eq!(words(store.listed(map("a", "u", "5"))), "+5");
        assert!(store.list_ends("10").is_empty());
        store
    }

    fn held(store: &Store<ConfigMap>) -> Option<&str> {
        store.table.get(&a()).and_then(Entry::version).map(Version::as_str)
    }

    #[test]
    fn an_own_write_is_held_at_once_and_its_echo_tells_nobody() {
        let mut store = listed();
        assert_eq!(words(store.wrote(map("a", "u", "12"), true)), "~5>12");
        assert_eq!(words(store.watched(map("a", "u", "11"))), "", "an older event");
        assert_eq!(words(store.watched(map("a", "u", "12"))), "", "the echo");
        assert_eq!(words(store.watched(map("a", "u", "13"))), "~12>13");
    }

    #[test]
    fn an_echo_before_the_answer_leaves_no_news() {
        let mut store = listed();
        assert_eq!(words(store.watched(map("a", "u", "12"))), "~5>12");
        assert_eq!(words(store.wrote(map("a", "u", "12"), true)), "");
        assert_eq!(words(store.wrote(map("a", "u", "11"), true)), "", "an answer that took its time");
    }

    #[test]
    fn an_answer_that_comes_after_the_deletion_brings_nothing_back() {
        let mut store = listed();
        assert_eq!(words(store.deleted(&deletion("u", "14"))), "-5");
        assert_eq!(words(store.wrote(map("a", "u", "12"), true)), "");
        assert_eq!(words(store.wrote(map("a", "v", "15"), true)), "+15", "a new one is news");
    }

    #[test]
    fn a_list_that_began_before_the_write_does_not_undo_it() {
        let mut store = listed();
        store.list_begins();
        assert_eq!(words(store.wrote(map("a", "u", "12"), true)), "~5>12");
        assert_eq!(words(store.wrote(map("b", "w", "13"), true)), "+13");
        assert_eq!(words(store.listed(map("a", "u", "5"))), "");
        assert!(store.list_ends("11").is_empty());
        assert_eq!((held(&store), store.table.len()), (Some("12"), 2));
    }

    #[test]
    fn a_list_that_began_after_the_write_is_the_truth() {
        let mut store = listed();
        assert_eq!(words(store.wrote(map("b", "w", "12"), true)), "+12");
        store.list_begins();
        assert_eq!(words(store.listed(map("a", "u", "5"))), "");
        assert_eq!(store.list_ends("14").len(), 1, "b was deleted meanwhile");
    }

    #[test]
    fn what_was_written_and_deleted_while_the_list_was_read_is_gone() {
        let mut store = listed();
        store.list_begins();
        assert_eq!(words(store.wrote(map("b", "w", "12"), true)), "+12");
        store.listed(map("a", "u", "5"));
        assert_eq!(store.list_ends("14").len(), 1, "the list is of version 14 and does not hold b");
    }

    #[test]
    fn every_deletion_of_a_gap_is_told_with_the_last_object() {
        let mut store = listed();
        store.watched(map("a", "u", "11"));
        store.list_begins();
        let removed = store.list_ends("20");
        assert_eq!(removed.len(), 1);
        assert_eq!(removed[0].metadata.resource_version.as_deref(), Some("11"));
    }

    #[test]
    fn another_object_of_the_same_name_is_told_as_deleted_and_added() {
        let mut store = listed();
        assert_eq!(words(store.watched(map("a", "v", "12"))), "-5 +12");
        assert_eq!(words(store.wrote(map("a", "w", "14"), true)), "-12 +14");
        assert_eq!(words(store.deleted(&deletion("v", "13"))), "", "that was the one before");
        store.list_begins();
        assert_eq!(words(store.listed(map("a", "x", "16"))), "-14 +16");
    }

    #[test]
    fn what_is_known_to_be_deleted_is_not_brought_back_by_the_watch() {
        let mut store = listed();
        assert_eq!(words(store.erased(&a(), "other")), "", "of another uid nothing is known");
        assert_eq!(words(store.erased(&a(), "u")), "-5");
        assert_eq!(words(store.watched(map("a", "u", "11"))), "", "somebody's update before the deletion");
        assert_eq!(words(store.deleted(&deletion("u", "12"))), "");
        assert_eq!(store.remembers(), 0);
        assert_eq!(words(store.watched(map("a", "v", "13"))), "+13");
    }

    #[test]
    fn a_pod_that_is_given_time_to_end_is_there_until_the_watch_says_otherwise() {
        let mut store = listed();
        let mut going = map("a", "u", "11");
        going.object.metadata.deletion_timestamp = serde_json::from_str(r#""2026-01-01T00:00:00Z""#).unwrap();
        going.object.metadata.deletion_grace_period_seconds = Some(30);
        store.watched(going);
        assert_eq!(words(store.erased(&a(), "u")), "");
    }

    #[test]
    fn a_deletion_answered_with_the_object_ends_at_its_version() {
        let mut store = listed();
        assert_eq!(words(store.removed(&a(), version("12"))), "-5");
        assert_eq!(words(store.watched(map("a", "u", "11"))), "");
        assert_eq!(words(store.watched(map("a", "v", "13"))), "+13", "created again");
        assert_eq!(words(store.deleted(&deletion("u", "12"))), "", "the echo, late");
    }

    #[test]
    fn what_leaves_the_selection_by_an_own_write_may_come_back() {
        let mut store = listed();
        assert_eq!(words(store.wrote(map("a", "u", "12"), false)), "-5");
        assert_eq!(words(store.watched(map("a", "u", "11"))), "");
        assert_eq!(words(store.wrote(map("a", "u", "14"), true)), "+14");
        assert_eq!(words(store.deleted(&deletion("u", "12"))), "", "it left, but that was before");
        assert_eq!(held(&store), Some("14"));
    }

    #[test]
    fn a_bookmark_settles_what_is_gone() {
        let mut store = listed();
        store.removed(&a(), version("12"));
        store.bookmark("11");
        assert_eq!(store.remembers(), 1);
        store.bookmark("12");
        assert_eq!(store.remembers(), 0);
        assert_eq!(words(store.wrote(map("a", "u", "12"), true)), "", "seen and gone");
    }

    #[test]
    fn a_list_that_began_before_a_deletion_does_not_undo_it() {
        let mut store = listed();
        store.list_begins();
        assert_eq!(words(store.erased(&a(), "u")), "-5");
        assert_eq!(words(store.listed(map("a", "u", "5"))), "");
        store.list_ends("11");
        assert_eq!((store.table.len(), store.remembers()), (0, 1), "the watch has yet to tell");
        store.deleted(&deletion("u", "12"));
        assert_eq!(store.remembers(), 0);
    }

    #[test]
    fn a_list_that_began_after_a_deletion_is_believed() {
        let mut store = listed();
        store.erased(&a(), "u");
        store.list_begins();
        assert_eq!(words(store.wrote(map("a", "u", "11"), true)), "", "a late answer");
        assert_eq!(words(store.listed(map("a", "u", "5"))), "+5", "whatever the deletion answered");
        store.list_ends("20");
        assert_eq!(store.remembers(), 0);
    }

    #[test]
    fn a_server_whose_store_became_younger_is_followed() {
        let mut store = listed();
        store.watched(map("a", "u", "50"));
        store.wrote(map("b", "w", "60"), true);
        assert_eq!(store.highest(), "60");
        store.list_begins();
        assert_eq!(words(store.listed(map("a", "u", "5"))), "~50>5");
        assert_eq!(store.list_ends("10").len(), 1, "b has never been");
        assert_eq!(store.highest(), "10");
        assert_eq!(words(store.watched(map("a", "u", "11"))), "~5>11");
    }

    #[test]
    fn without_numbers_the_watch_is_trusted_and_own_writes_wait_for_it() {
        let mut store = Store::default();
        store.list_begins();
        store.listed(map("a", "u", "x9"));
        store.list_ends("x9");
        assert_eq!(words(store.wrote(map("a", "u", "x10"), true)), "");
        assert_eq!(words(store.wrote(map("a", "u", "11"), true)), "");
        assert_eq!(words(store.watched(map("a", "u", "x1"))), "~x9>x1");
        assert_eq!(words(store.watched(map("a", "u", "x1"))), "", "the same again is no change");
        assert_eq!(words(store.deleted(&deletion("u", "x2"))), "-x1");
    }

    #[test]
    fn what_cannot_be_decoded_does_not_look_absent() {
        let mut store = listed();
        store.list_begins();
        store.listed_undecodable(&a());
        assert!(store.list_ends("20").is_empty());
        assert_eq!(held(&store), Some("5"));
    }
}
