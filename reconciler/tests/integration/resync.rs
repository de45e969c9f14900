//! The reconcile of all objects after a change of a ConfigMap, on a real API server.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_injection::{Config, Context, Features, Shutdown, select};
use reknit_leadership::Leadership;
use reknit_reconciler::{Controller, Outcome, ReconcileKind, Result, Run};
use reknit_testing::eventually;
use serde_json::json;

use crate::{Fixture, TIMEOUT};

/// Records, by the name of the object, whether the feature `x` was enabled in its last pass.
struct FeatureReader {
    features: Config<Features>,
    last: Arc<Mutex<BTreeMap<String, bool>>>,
}

impl ReconcileKind for FeatureReader {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let name = map.metadata.name.clone().unwrap_or_default();
        self.last.lock().unwrap().insert(name, self.features.get().is_enabled("x"));
        Ok(Outcome::done())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_config_map_reconciles_every_object_with_the_new_value() {
    let fixture = Fixture::new("global-resync").await;
    for name in ["a", "b", "c"] {
        fixture.create(name, &[]).await;
        fixture.merge(name, json!({"metadata": {"labels": {"read": "features"}}})).await;
    }
    fixture.create("config-features", &[]).await;
    let last = Arc::<Mutex<BTreeMap<String, bool>>>::default();
    let (controller, informers) = {
        let builder = Context::builder("reader", fixture.client.clone());
        let cx = builder.system_namespace(Some(fixture.namespace.clone())).build();
        let selection = select().namespace(&fixture.namespace).label("read", "features");
        let mut build = Controller::selected::<ConfigMap>(&cx, selection);
        let reader = FeatureReader { features: build.config(), last: last.clone() };
        (build.reconciler(reader).build(), cx.informers())
    };
    informers.start();
    let (stop, shutdown) = Shutdown::new();
    let run = Run { leadership: Leadership::always(), stop: shutdown, drain: Duration::ZERO, workers: None };
    tokio::spawn(async move { controller.run(run).await });

    for (text, is_enabled) in [("Disabled", false), ("Enabled", true), ("Disabled", false)] {
        fixture.merge("config-features", json!({"data": {"x": text}})).await;
        let expected = ["a", "b", "c"].map(|name| (name.to_owned(), is_enabled)).into();
        eventually(format!("passes of all objects with {text}"), TIMEOUT, async || {
            let last = last.lock().unwrap();
            if *last == expected { Ok(()) } else { Err(format!("{last:?}")) }
        })
        .await;
    }
    drop(stop);
}
