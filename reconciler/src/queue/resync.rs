//! Enqueues all keys of a controller, or some of them, in the slow lane.

use reknit_apis::Key;

use super::{Cause, Queue, cause::is_user_prompted};

/// The sources of all keys of a controller: the keys of the objects of its Kind or, without a Kind, the keys to which
/// its watches map and those that [`Builder::add_key`](crate::Builder::add_key) added.
pub(super) type KeySources = Vec<Box<dyn Fn(&mut Vec<Key>) + Send + Sync>>;

impl Queue {
    /// Enqueues every key of the controller in the slow lane, for a change that concerns many of its objects and that
    /// no watch reports. Knative: `GlobalResync`. A reconciler that calls it in each pass reconciles all objects for ever,
    /// and is slowed as one that calls [`add`](Self::add) for its own key is.
    pub fn resync(&self) {
        self.resync_where(|_| true);
    }

    /// Enqueues the keys of the controller for which `admits` returns true, as [`resync`](Self::resync) does. Knative:
    /// `FilteredGlobalResync`.
    ///
    /// ```
    /// use reknit_reconciler::Queue;
    ///
    /// fn certificate_renewed(queue: &Queue, namespace: &str) {
    ///     queue.resync_where(|key| key.namespace.as_deref() == Some(namespace));
    /// }
    /// ```
    pub fn resync_where(&self, mut admits: impl FnMut(&Key) -> bool) {
        let (keys, prompted) = (self.all_keys().into_iter().filter(|key| admits(key)), is_user_prompted());
        let cause = Cause::resync();
        keys.for_each(|key| self.add_slow_continuing(key, cause.clone(), prompted));
    }

    /// Enqueues every key of the controller in the slow lane, for this cause.
    pub(crate) fn resync_for(&self, cause: &Cause) {
        self.all_keys().into_iter().for_each(|key| self.add_slow_for(key, cause.clone()));
    }

    /// Adds a source of keys, which pushes its current keys.
    pub(crate) fn add_key_source(&self, source: impl Fn(&mut Vec<Key>) + Send + Sync + 'static) {
        self.0.key_sources.lock().push(Box::new(source));
    }

    /// All current keys of the controller, sorted and without duplicates.
    pub(crate) fn all_keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.0.key_sources.lock().iter().for_each(|source| source(&mut keys));
        keys.sort();
        keys.dedup();
        keys
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use reknit_injection::{Context, Features, Informer, internal::CurrentPass, select};
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
        let queue = build.queue();
        queue.resync();
        assert_eq!(
            queue.take_all(),
            [Key::new("default", "a"), Key::new("default", "b"), Key::new("other", "a")]
        );
        queue.resync_where(|key| key.name == "a");
        queue.add(Key::new("default", "changed"));
        assert_eq!(queue.next().await.unwrap().name, "changed", "the fast lane goes first");
        assert_eq!(queue.take_all(), [Key::new("default", "a"), Key::new("other", "a")]);
        drop(build);
        queue.resync();
        assert_eq!(queue.take_all(), []);
    }

    fn features_informer(cx: &Context) -> Informer<ConfigMap> {
        cx.informer(select().namespace("system").field("metadata.name", "config-features"))
    }

    #[tokio::test]
    async fn a_resync_or_a_change_of_a_config_map_in_a_pass_is_none_from_outside() {
        let cx = context();
        let mut build = builder(&cx);
        let (_config, queue, configs) = (build.config::<Features>(), build.queue(), features_informer(&cx));
        let in_a_row =
            || queue.take_all_with_causes().iter().map(|(_, causes)| causes.in_a_row(9, false)).next();
        let change = |text: &str| {
            let features = map("system", "config-features", &json!({"x": text}));
            configs.insert(serde_json::from_value::<ConfigMap>(features).unwrap());
        };
        change("Enabled");
        assert_eq!(in_a_row(), Some(None), "a user has changed it");
        queue.resync();
        assert_eq!(in_a_row(), Some(None), "the program has called it");
        let pass = CurrentPass::begin(&"web".into(), &Key::new("shop", "a").into(), false);
        pass.set_in_a_row(3);
        let acts = async {
            change("Disabled");
            assert_eq!(in_a_row(), Some(Some(3)), "the pass has changed it");
            queue.resync();
            assert_eq!(in_a_row(), Some(Some(3)), "the pass has called it");
        };
        pass.scope(acts).await;
    }

    #[tokio::test]
    async fn a_change_of_a_config_map_enqueues_every_key_or_those_that_the_callback_selects() {
        let cx = context();
        let (mut whole, mut filtered) = (builder(&cx), builder(&cx));
        let _config = whole.config::<Features>();
        let queue = filtered.queue();
        let _config = filtered.config_with(move |features: &Features| {
            let is_enabled = features.is_enabled("x");
            queue.resync_where(|key| is_enabled && key.namespace.as_deref() == Some("other"));
        });
        let configs = features_informer(&cx);
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
