//! The pass of a controller without a Kind.

use std::{pin::pin, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use reknit_apis::Key;
use reknit_injection::internal::with_pinned_config;

use super::Pass;
use crate::{Outcome, ReconcileKey, Result, controller::KeySources, limits::Limits};

pub(crate) struct KeyDriver<R> {
    pub(crate) reconciler: R,
    pub(crate) limits: Limits,
    pub(crate) key_sources: Arc<KeySources>,
}

impl<R: ReconcileKey> Pass for KeyDriver<R> {
    fn pass<'a>(&'a self, key: &'a Key, leading: bool) -> BoxFuture<'a, Result<Outcome>> {
        if !leading {
            return std::future::ready(Ok(Outcome::skip())).boxed();
        }
        with_pinned_config(async move {
            let slow = |limit| tracing::warn!(?limit, "the pass is slow");
            let result = self.limits.apply(pin!(self.reconciler.reconcile_key(key)), slow).await;
            if let Some(event) = result.as_ref().ok().and_then(Outcome::recorded) {
                let (reason, message) = (&event.reason, &event.message);
                tracing::info!(reason, message, "there is no object for this event");
            }
            result
        })
        .boxed()
    }

    fn promoted(&self) -> Vec<Key> {
        self.key_sources.keys()
    }

    /// The key may come from a source that does not repeat it.
    fn is_owed(&self, _: &Key, _: bool) -> bool {
        true
    }
}
