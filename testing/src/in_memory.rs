//! Test access to controllers and informers without an API server.

use reknit_apis::Key;
use reknit_injection::{Cached, Informer};
use reknit_reconciler::{Controller, Outcome, Result};
use serde::Serialize;

/// Runs a [`Controller`] step by step.
pub trait ControllerExt {
    /// Takes the keys from the queue and returns them sorted.
    fn take_queued(&self) -> Vec<Key>;

    /// Reconciles a key now, as its leader, without the queue. Events are published when this returns.
    ///
    /// # Errors
    ///
    /// The error of the reconcile.
    fn once(&self, key: &Key) -> impl Future<Output = Result<Outcome>> + Send;

    /// Reconciles a key as a process that does not lead it.
    ///
    /// # Errors
    ///
    /// The error of the reconcile.
    fn once_following(&self, key: &Key) -> impl Future<Output = Result<Outcome>> + Send;
}

impl ControllerExt for Controller {
    fn take_queued(&self) -> Vec<Key> {
        reknit_reconciler::internal::take_queued(self)
    }

    fn once(&self, key: &Key) -> impl Future<Output = Result<Outcome>> + Send {
        reknit_reconciler::internal::reconcile_once(self, key, true)
    }

    fn once_following(&self, key: &Key) -> impl Future<Output = Result<Outcome>> + Send {
        reknit_reconciler::internal::reconcile_once(self, key, false)
    }
}

/// Changes the objects of an [`Informer`] as a watch would.
pub trait InformerExt<K> {
    /// Caches an object, whatever its version, and calls the handlers. If the selection does not admit the object,
    /// removes it instead.
    ///
    /// # Panics
    ///
    /// Panics if the object cannot be written as JSON and read again.
    fn insert(&self, object: K)
    where
        K: Serialize;

    /// Removes the object of this key and calls the handlers.
    fn remove(&self, key: &Key);
}

impl<K: Cached> InformerExt<K> for Informer<K> {
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    fn insert(&self, object: K)
    where
        K: Serialize,
    {
        if let Err(error) = reknit_injection::internal::insert(self, &object) {
            panic!("failed to insert the object into the cache: {error}");
        }
    }

    fn remove(&self, key: &Key) {
        reknit_injection::internal::remove(self, key);
    }
}
