//! A handler that records its calls, and reports repeated states.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use kube::ResourceExt;
use reknit_injection::{Cached, Change, Informer};
use reknit_testing::eventually;

use crate::SOON;

/// The calls of a handler, as words such as `+web`, `~web`, `-web`.
#[derive(Clone, Default)]
pub(crate) struct ReportedChanges(Arc<Mutex<Vec<String>>>);

impl ReportedChanges {
    /// Records the changes of an informer, and a complaint for each state that is reported twice.
    pub(crate) fn by<K: Cached>(informer: &Informer<K>) -> Self {
        let reported = Self::default();
        let (words, states) = (reported.clone(), Mutex::new(HashSet::new()));
        informer.on(move |change| {
            let mut words = words.0.lock().unwrap();
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

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub(crate) async fn until(&self, word: &str) {
        eventually(word, SOON, async || {
            self.all().iter().any(|change| change == word).then_some(()).ok_or(self.all().join(" "))
        })
        .await;
    }
}
