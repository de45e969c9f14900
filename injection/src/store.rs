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

use reknit_apis::Key;

use crate::{
    gone::Gone,
    record::Record,
    table::{Held, Table},
    version::{Version, raise},
};

/// At most two: an object deleted and created again under its name is both.
pub(crate) type Told = [Option<News>; 2];

/// A change of what is held.
pub(crate) enum News {
    Added(Record),
    Updated { old: Record, new: Record },
    Deleted { last: Record },
}

/// The objects, and how far each source has told of them.
#[derive(Default)]
pub(crate) struct Store {
    pub(crate) table: Table,
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
    /// As it is written, whether or not it can be ordered.
    pub(crate) resource_version: &'a str,
}

impl<'a> State<'a> {
    pub(crate) fn key(&self) -> Key {
        Key::new(self.namespace, self.name)
    }

    pub(crate) fn version(&self) -> Option<Version<'a>> {
        Version::parse(self.resource_version)
    }
}

/// Whether the one state is older than the other. Without versions nobody knows, and what comes later counts as newer.
fn older(one: Option<Version<'_>>, other: Option<Version<'_>>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one < other)
}

impl Store {
    /// Before the first request of a list is sent.
    pub(crate) fn list_begins(&mut self) {
        self.lists += 1;
        self.gone.list_begins();
    }

    /// An item of the list under way.
    pub(crate) fn listed(&mut self, item: Record) -> Told {
        if self.knows_listed(&item.packed().state()) {
            return [None, None];
        }
        self.put(item, 0)
    }

    /// Whether an item of the list under way is no news: it is the state that is held, or what is held was written
    /// since the list began. To be asked before the item is decoded: if it cannot be, what is held does not look
    /// absent.
    pub(crate) fn knows_listed(&mut self, item: &State<'_>) -> bool {
        if self.gone.covers_listed(item) {
            return true;
        }
        let lists = self.lists;
        let Some(held) = self.table.listed(item, lists) else { return false };
        held.record.is(item) || (held.written == lists && !older(held.version(), item.version()))
    }

    /// The list was read to its end: what it did not show is gone.
    pub(crate) fn list_ends(&mut self, version: &str) -> Vec<Record> {
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
    pub(crate) fn watched(&mut self, item: Record) -> Told {
        let state = item.packed().state();
        let known = self.knows_watched(&state);
        self.passed(state.version());
        if known { [None, None] } else { self.put(item, 0) }
    }

    /// Whether what the watch tells is no news: an echo, or older than what is held. To be asked before it is decoded;
    /// until that is done it has not [`passed`](Self::passed), since the answer to an own write may come in between.
    pub(crate) fn knows_watched(&self, item: &State<'_>) -> bool {
        let stale = |held: Held<'_>| held.record.is(item) || older(item.version(), held.version());
        self.gone.covers(item) || self.table.namesake(item).is_some_and(stale)
    }

    /// The watch told that an object is gone, or left the selection.
    pub(crate) fn deleted(&mut self, state: &State<'_>) -> Told {
        let key = state.key();
        self.passed(state.version());
        self.gone.confirmed(state);
        if self.table.get(&key).is_some_and(|held| older(state.version(), held.version())) {
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
    pub(crate) fn wrote(&mut self, item: Record, admitted: bool) -> Told {
        let state = item.packed().state();
        if !self.is_news(&state) {
            return [None, None];
        }
        if admitted {
            let lists = self.lists;
            raise(&mut self.highest, state.version());
            return self.put(item, lists);
        }
        let key = state.key();
        let concerns = self.table.get(&key).is_some() || self.gone.contains(&key);
        match state.version() {
            Some(version) if concerns => self.removed(&key, version),
            _ => [None, None],
        }
    }

    /// Whether the answer to an own write tells more than is known already.
    fn is_news(&self, state: &State<'_>) -> bool {
        if state.version().is_none() || self.unordered {
            return false;
        }
        match self.table.namesake(state) {
            Some(held) => held.version().is_some() && older(held.version(), state.version()),
            None => !self.has_seen(state.version()) && !self.gone.covers(state),
        }
    }

    fn has_seen(&self, version: Option<Version<'_>>) -> bool {
        version.is_some() && version <= Version::parse(&self.seen)
    }

    /// The answer to a write of this process shows the object as it was last, and that it is gone. Its version is that
    /// of the deletion; but where the write took away the last finalizer it is the one before, which may have been
    /// seen.
    pub(crate) fn ended(&mut self, last: &State<'_>) -> Told {
        let key = last.key();
        let told = last.version().map_or([None, None], |version| self.removed(&key, version));
        match last.uid {
            Some(uid) if matches!(told, [None, None]) => self.erased(&key, uid),
            _ => told,
        }
    }

    /// This process removed the object, or took it out of the selection, and knows by which version.
    pub(crate) fn removed(&mut self, key: &Key, by: Version<'_>) -> Told {
        let newer = |held: Held<'_>| held.version().is_none_or(|version| version > by);
        if self.unordered || self.has_seen(Some(by)) || self.table.get(key).is_some_and(newer) {
            return [None, None];
        }
        self.gone.removed(key, by);
        self.remove(key)
    }

    /// This process deleted the object of this uid; by which version was not told.
    pub(crate) fn erased(&mut self, key: &Key, uid: &str) -> Told {
        let Some(held) = self.table.get(key) else { return [None, None] };
        if self.unordered || held.record.lingers() || held.record.state().uid != Some(uid) {
            return [None, None];
        }
        let listed = held.listed == self.lists;
        // A list under way may show that the server is younger than a version from before it.
        let last = held.version().filter(|_| listed || held.written == self.lists);
        self.gone.erased(key, uid, last, listed);
        self.remove(key)
    }

    /// Holds the object, whatever was held.
    pub(crate) fn put(&mut self, new: Record, written: u32) -> Told {
        let state = new.packed().state();
        self.gone.returned(&state);
        let listed = if written == 0 { self.lists } else { 0 };
        match self.table.put(&new, listed, written) {
            None => [Some(News::Added(new)), None],
            Some(old) if another(old.packed().state().uid, state.uid) => {
                [Some(News::Deleted { last: old }), Some(News::Added(new))]
            }
            Some(old) => [Some(News::Updated { old, new }), None],
        }
    }

    /// Holds no object of this key.
    pub(crate) fn remove(&mut self, key: &Key) -> Told {
        [self.table.remove(key).map(|last| News::Deleted { last }), None]
    }

    /// How many removals the watch has yet to tell.
    #[cfg(test)]
    pub(crate) fn remembers(&self) -> usize {
        self.gone.len()
    }

    /// The highest version heard of: a server whose lists have a lower one has lost something.
    pub(crate) fn highest(&self) -> &str {
        &self.highest
    }
}

fn another(old: Option<&str>, new: Option<&str>) -> bool {
    old.is_some() && new.is_some() && old != new
}

#[cfg(test)]
mod tests;
