//! Enqueues all keys of a controller, or some of them, outside its resync interval.

use std::sync::Weak;

use reknit_apis::Key;

use super::KeySources;
use crate::Queue;

/// Enqueues the keys of a controller, for a change that concerns many of its objects and that no watch reports.
/// Comes from [`Builder::global_resync`](crate::Builder::global_resync). Knative: `GlobalResync`,
/// `FilteredGlobalResync`.
///
/// The keys go to the slow lane, so they do not delay keys whose objects change meanwhile. As with every enqueued key,
/// only the process that leads a key reconciles it. A call has no effect once the controller is gone.
///
/// ```
/// use reknit_reconciler::GlobalResync;
///
/// fn certificate_renewed(resync: &GlobalResync, namespace: &str) {
///     resync.filtered(|key| key.namespace.as_deref() == Some(namespace));
/// }
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("GlobalResync {{ queue: {queue:?}, .. }}")]
pub struct GlobalResync {
    sources: Weak<KeySources>,
    queue: Queue,
}

impl GlobalResync {
    pub(super) fn new(sources: Weak<KeySources>, queue: Queue) -> Self {
        Self { sources, queue }
    }

    /// Enqueues all keys of the controller.
    pub fn all(&self) {
        self.filtered(|_| true);
    }

    /// Enqueues the keys for which `admits` returns true.
    pub fn filtered(&self, mut admits: impl FnMut(&Key) -> bool) {
        let keys = self.sources.upgrade().map(|sources| sources.keys()).unwrap_or_default();
        keys.into_iter().filter(|key| admits(key)).for_each(|key| self.queue.add_slow(key));
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use reknit_injection::{Context, Features, Informer, select};
    use reknit_testing::{ApiServer, InformerExt};
    use serde_json::{Value, json};

    use super::*;
    use crate::{Builder, Controller};

    fn map(namespace: &str, name: &str, data: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {"namespace": namespace, "name": name, "resourceVersion": "1"}})
    }

    /// A Context with the ConfigMaps `default/a`, `default/b` and `other/a`.
    fn context() -> Context {
        let maps = [("default", "a"), ("default", "b"), ("other", "a")];
        let maps = maps.map(|(namespace, name)| map(namespace, name, &json!({}))).to_vec();
        let builder = Context::builder("test", ApiServer::new().client()).preloaded(maps);
        builder.system_namespace(Some("system".into())).build()
    }

    /// A controller of the ConfigMaps in the namespaces `default` and `other`.
    fn builder(cx: &Context) -> Builder<ConfigMap> {
        Controller::selected(cx, select().namespaces(["default", "other"]))
    }

    #[tokio::test]
    async fn all_keys_or_those_that_a_filter_admits_are_enqueued_in_the_slow_lane() {
        let build = builder(&context());
        let (resync, queue) = (build.global_resync(), build.queue());
        resync.all();
        assert_eq!(
            queue.take_all(),
            [Key::new("default", "a"), Key::new("default", "b"), Key::new("other", "a")]
        );
        resync.filtered(|key| key.name == "a");
        queue.add(Key::new("default", "changed"));
        assert_eq!(queue.next().await.unwrap().name, "changed", "the fast lane goes first");
        assert_eq!(queue.take_all(), [Key::new("default", "a"), Key::new("other", "a")]);
        drop(build);
        resync.all();
        assert_eq!(queue.take_all(), []);
    }

    #[tokio::test]
    async fn a_change_of_a_config_map_enqueues_every_key_or_those_that_the_callback_selects() {
        let cx = context();
        let (mut whole, mut filtered) = (builder(&cx), builder(&cx));
        let _config = whole.config::<Features>();
        let resync = filtered.global_resync();
        let _config = filtered.config_with(move |features: &Features| {
            let is_enabled = features.is_enabled("x");
            resync.filtered(|key| is_enabled && key.namespace.as_deref() == Some("other"));
        });
        let configs: Informer<ConfigMap> =
            cx.informer(select().namespace("system").field("metadata.name", "config-features"));
        let set = |text: &str| {
            let features = map("system", "config-features", &json!({"x": text}));
            configs.insert(serde_json::from_value::<ConfigMap>(features).unwrap());
        };
        set("disabled");
        assert_eq!((whole.queue().take_all().len(), filtered.queue().take_all().len()), (3, 0));
        set("Enabled");
        assert_eq!(whole.queue().take_all().len(), 3);
        assert_eq!(filtered.queue().take_all(), [Key::new("other", "a")]);
    }
}
