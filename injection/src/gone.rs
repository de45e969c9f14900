//! Objects that this process removed, while the watch has yet to say so.

use std::collections::HashMap;

use reknit_apis::Key;

use crate::{
    store::State,
    version::{Version, raise},
};

/// More are not remembered: without it, a late event shows an object for a moment that is gone already.
const MOST: usize = 10_000;

/// Keys that were removed before the watch told of it. What the watch still has to say about their past is no news.
#[derive(Default)]
pub(crate) struct Gone(HashMap<Key, Removal>);

#[derive(Default)]
struct Removal {
    /// At this version nothing was there; empty if that is not known.
    until: String,
    erased: Option<Erased>,
    /// Removed before the list under way began, so that what it holds is from after.
    before_list: bool,
}

/// An object whose deletion was confirmed without a version: nothing about it is news, whatever its version.
struct Erased {
    uid: String,
    /// The last version that was held; empty if it is not known whether the server still knows it.
    last: String,
    /// Whether the list under way holds it.
    listed: bool,
}

impl Removal {
    fn covers(&self, state: &State<'_>) -> bool {
        let before = state.version().is_some_and(|v| Some(v) <= Version::parse(&self.until));
        before || self.erased.as_ref().is_some_and(|erased| state.uid == Some(&erased.uid))
    }
}

impl Gone {
    /// By this version the object was gone. It may be about an earlier removal than is known.
    pub(crate) fn removed(&mut self, key: &Key, by: Version<'_>) {
        if let Some(removal) = self.at(key) {
            raise(&mut removal.until, Some(by));
        }
    }

    /// The object of this uid is gone, which was last held at this version; `listed` says whether by the list under
    /// way.
    pub(crate) fn erased(&mut self, key: &Key, uid: &str, last: Option<Version<'_>>, listed: bool) {
        let Some(removal) = self.at(key) else { return };
        raise(&mut removal.until, last);
        let last = last.map_or("", Version::as_str).to_owned();
        removal.erased = Some(Erased { uid: uid.into(), last, listed });
    }

    fn at(&mut self, key: &Key) -> Option<&mut Removal> {
        if self.0.len() >= MOST && !self.0.contains_key(key) {
            return None;
        }
        let removal = self.0.entry(key.clone()).or_default();
        if removal.before_list {
            *removal = Removal::default();
        }
        Some(removal)
    }

    /// Whether a state of this key is from before its removal.
    pub(crate) fn covers(&self, state: &State<'_>) -> bool {
        !self.0.is_empty() && self.0.get(&state.key()).is_some_and(|removal| removal.covers(state))
    }

    /// The same for an item of the list under way.
    pub(crate) fn covers_listed(&mut self, state: &State<'_>) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let Some(removal) = self.0.get_mut(&state.key()) else { return false };
        if let Some(erased) = &mut removal.erased {
            erased.listed |= state.uid == Some(&erased.uid);
        }
        !removal.before_list && removal.covers(state)
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// The key is held again.
    pub(crate) fn returned(&mut self, state: &State<'_>) {
        if !self.0.is_empty() {
            self.0.remove(&state.key());
        }
    }

    /// The watch told of this deletion.
    pub(crate) fn confirmed(&mut self, state: &State<'_>) {
        if self.0.is_empty() {
            return;
        }
        let key = state.key();
        let Some(removal) = self.0.get_mut(&key) else { return };
        removal.erased.take_if(|erased| state.uid == Some(&erased.uid));
        if state.version().is_none_or(|v| Some(v) >= Version::parse(&removal.until)) {
            self.0.remove(&key);
        }
    }

    /// The watch has told everything up to this version.
    pub(crate) fn passed(&mut self, version: Version<'_>) {
        self.0
            .retain(|_, removal| removal.erased.is_some() || Version::parse(&removal.until) > Some(version));
    }

    /// A list begins. What was removed before cannot be in it, and is remembered only for late answers to writes.
    pub(crate) fn list_begins(&mut self) {
        self.0.values_mut().for_each(|removal| removal.before_list = true);
    }

    /// A list of this version was read to its end. What the watch will not tell any more is settled.
    pub(crate) fn list_ends(&mut self, version: Option<Version<'_>>) {
        let later = |than: &str| version.is_some_and(|version| Version::parse(than) > Some(version));
        self.0.retain(|_, removal| {
            removal.erased.take_if(|erased| !erased.listed && !later(&erased.last));
            !removal.before_list && (removal.erased.is_some() || later(&removal.until))
        });
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
