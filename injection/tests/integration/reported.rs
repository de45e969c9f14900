//! A handler that records the reported changes, and finds states that are reported twice.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use kube::ResourceExt;
use reknit_injection::{Cached, Change, Informer};
use reknit_testing::eventually;

use crate::TIME_LIMIT;

/// The changes reported by an informer as words: `+web` if `web` was added, `~web` updated, `-web` deleted.
#[derive(Clone, Default)]
pub(crate) struct ReportedChanges(Arc<Mutex<Vec<String>>>);

impl ReportedChanges {
    /// Records the changes of an informer, and the sentence `<key> was reported twice` for each repeated state.
    pub(crate) fn by<K: Cached>(informer: &Informer<K>) -> Self {
        let reported = Self::default();
        let (recorded, states) = (reported.clone(), Mutex::new(HashSet::new()));
        informer.on(move |change| {
            let mut words = recorded.0.lock().unwrap();
            let (sign, new) = match change {
                Change::Added(new) => ('+', Some(new)),
                Change::Updated { new, .. } => ('~', Some(new)),
                Change::Deleted { .. } => ('-', None),
            };
            words.push(format!("{sign}{}", change.key().name));
            if let Some(new) = new
                && !states.lock().unwrap().insert((new.uid(), new.resource_version()))
            {
                words.push(format!("{} was reported twice", change.key()));
            }
        });
        reported
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Returns and removes the words so far.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Waits until this word is recorded.
    pub(crate) async fn until(&self, word: &str) {
        eventually(word, TIME_LIMIT, async || {
            self.all().iter().any(|change| change == word).then_some(()).ok_or(self.all().join(" "))
        })
        .await;
    }
}
