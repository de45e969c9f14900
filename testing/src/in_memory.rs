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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{DeleteParams, PostParams},
    };
    use parking_lot::Mutex;
    use reknit_apis::Key;
    use reknit_injection::{Context, Informer, select};
    use serde_json::json;

    use crate::ApiServer;

    fn config_map(name: &str) -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"namespace": "shop", "name": name}})).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_informer_follows_the_server_in_memory_and_recovers_from_an_expired_version() {
        let server = ApiServer::new();
        let verbs = Arc::new(Mutex::new(Vec::new()));
        let requests = verbs.clone();
        server.authorize(move |request| {
            requests.lock().push(request.verb);
            Ok(())
        });
        let informer: Informer<ConfigMap> = {
            let cx = Context::new("test", server.client());
            let informer = cx.informer(select().namespace("shop"));
            cx.informers().start();
            informer
        };
        informer.synced().await;
        let exists = async |name| informer.until(&Key::new("shop", name), |map| map.map(drop)).await;
        let maps: Api<ConfigMap> = Api::namespaced(server.client(), "shop");
        maps.create(&PostParams::default(), &config_map("a")).await.unwrap();
        exists("a").await;

        // The watch breaks, and the changes are compacted away before the informer returns.
        server.remove::<ConfigMap>(Some("shop"), "a");
        server.insert(&config_map("b"));
        server.compact();
        server.end_watches();
        exists("b").await;
        informer.until(&Key::new("shop", "a"), |map| map.is_none().then_some(())).await;

        maps.create(&PostParams::default(), &config_map("c")).await.unwrap();
        exists("c").await;
        maps.delete("b", &DeleteParams::default()).await.unwrap();
        informer.until(&Key::new("shop", "b"), |map| map.is_none().then_some(())).await;
        let lists = verbs.lock().iter().filter(|verb| **verb == "list").count();
        assert_eq!(lists, 2, "the first list, and one after the expired version: {:?}", verbs.lock());
    }
}
