//! What happened to an object, without the object.

use std::{collections::BTreeMap, fmt};

use reknit_apis::Key;

use crate::{
    record::{Packed, Record},
    store::{News, State},
};

/// A change of an object as far as it is known without decoding it. Comes from
/// [`Informer::on_touched`](crate::Informer::on_touched).
#[derive(Clone, Copy)]
pub struct Touched<'a> {
    state: State<'a>,
    before: Option<Packed<'a>>,
    after: Option<Packed<'a>>,
    gone: bool,
}

impl<'a> Touched<'a> {
    pub(crate) fn by(news: &'a News) -> Self {
        let (before, after, latest) = match news {
            News::Added(new) => (None, Some(new), new),
            News::Updated { old, new } => (Some(old), Some(new), new),
            News::Deleted { last } => (Some(last), None, last),
        };
        let [before, after] = [before, after].map(|record| record.map(Record::packed));
        Self { state: latest.packed().state(), before, after, gone: after.is_none() }
    }

    pub(crate) fn added(record: Packed<'a>) -> Self {
        Self { state: record.state(), before: None, after: Some(record), gone: false }
    }

    /// By a state that cannot be decoded, and may not even be packed.
    pub(crate) fn undecodable(key: &'a Key, record: Option<&'a Record>) -> Self {
        Self { state: bare(key), before: None, after: record.map(Record::packed), gone: false }
    }

    /// What is gone could not be decoded, and was not held.
    pub(crate) fn vanished(key: &'a Key) -> Self {
        Self { state: bare(key), before: None, after: None, gone: true }
    }

    /// The object.
    pub fn key(&self) -> Key {
        self.state.key()
    }

    /// Whether it is gone, or no longer of the selection.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// The version that it has now; none where it is gone, and none of a state that was found to be undecodable as it
    /// came in.
    pub fn resource_version(&self) -> Option<&'a str> {
        Some(self.state.resource_version).filter(|version| !self.is_gone() && !version.is_empty())
    }

    /// Its labels before the change, where that replaced what was held, and after it, where it is there.
    pub fn labels(&self) -> impl Iterator<Item = BTreeMap<String, String>> + use<'a> {
        [self.before, self.after].into_iter().flatten().map(Packed::labels)
    }
}

fn bare(key: &Key) -> State<'_> {
    let Key { namespace, name } = key;
    State { namespace: namespace.as_deref(), name, uid: None, resource_version: "" }
}

impl fmt::Debug for Touched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = f.debug_struct("Touched");
        said.field("key", &self.key()).field("resource_version", &self.resource_version()).finish()
    }
}
