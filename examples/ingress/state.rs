//! The routes that gateways get, which every replica builds.

use std::collections::BTreeMap;

use reknit::{injection::Inject, prelude::*};
use tokio::sync::watch;

use super::pb;

/// The routes by the keys of their Routes. `None` until they are complete.
pub(crate) type Routes = Option<BTreeMap<Key, pb::HostRoute>>;

/// The routes of this replica. All clones share them.
#[derive(Clone, Default)]
pub(crate) struct State(watch::Sender<Routes>);

/// One for the process: the controller fills it, and the server streams it.
impl Inject for State {
    fn inject(_: &Context) -> Self {
        Self::default()
    }
}

impl State {
    /// Sets the first routes.
    pub(crate) fn fill(&self, routes: BTreeMap<Key, pb::HostRoute>) {
        self.0.send_replace(Some(routes));
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.0.borrow().is_some()
    }

    pub(crate) fn set(&self, key: Key, route: pb::HostRoute) {
        self.change(|routes| routes.insert(key, route.clone()).as_ref() != Some(&route));
    }

    pub(crate) fn remove(&self, key: &Key) {
        self.change(|routes| routes.remove(key).is_some());
    }

    /// Changes the routes. Receivers learn of it if `change` returns true.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<Key, pb::HostRoute>) -> bool) {
        self.0.send_if_modified(|routes| routes.as_mut().is_some_and(change));
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Routes> {
        self.0.subscribe()
    }
}
