//! The driver of a controller without a Kind.

use std::pin::pin;

use futures::{FutureExt, future::BoxFuture};
use reknit_apis::Key;
use reknit_injection::internal::with_pinned_config;

use super::{Driver, PassMode};
use crate::{
    Outcome, Queue, ReconcileKey, Result,
    limits::{Limits, SlowPass},
};

pub(crate) struct KeyDriver<R> {
    pub(crate) reconciler: R,
    pub(crate) limits: Limits,
    pub(crate) queue: Queue,
}

impl<R: ReconcileKey> Driver for KeyDriver<R> {
    fn run_pass<'a>(&'a self, key: &'a Key, mode: PassMode) -> BoxFuture<'a, Result<Outcome>> {
        if mode == PassMode::Observing {
            return std::future::ready(Ok(Outcome::skip())).boxed();
        }
        with_pinned_config(async move {
            let result = self.limits.apply(pin!(self.reconciler.reconcile_key(key)), SlowPass::log).await;
            if let Some(event) = result.as_ref().ok().and_then(Outcome::recorded_event) {
                let (reason, message) = (&event.reason, &event.message);
                tracing::info!(
                    reason,
                    message,
                    "the event is only logged: a controller without a Kind has no object for it"
                );
            }
            result
        })
        .boxed()
    }

    fn keys_to_promote(&self) -> Vec<Key> {
        self.queue.all_keys()
    }

    /// Every key may be missed, since it may come from a source that does not enqueue it again, or from an object that is
    /// deleted by now.
    fn is_missed_by_promotion(&self, _: &Key, _: bool) -> bool {
        true
    }
}
