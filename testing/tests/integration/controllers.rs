//! Controllers in the process of a test.

use std::{error::Error, panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use reknit_injection::{Clock, Context, select};
use reknit_reconciler::{Controller, Outcome, ReconcileKind, Result};
use reknit_testing::{ControlPlane, Controllers, FakeClock, eventually};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(30);
const TIME: &str = "2001-02-03T04:05:06Z";

/// Writes the time into each ConfigMap that has none.
struct Stamper {
    client: Client,
    clock: Clock,
}

impl ReconcileKind for Stamper {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        if map.data.as_ref().is_some_and(|data| data.contains_key("time")) {
            return Ok(Outcome::skip());
        }
        let namespace = map.metadata.namespace.as_deref().unwrap_or_default();
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({ "data": { "time": self.clock.now().to_string() } }));
        maps.patch(map.metadata.name.as_deref().unwrap_or_default(), &PatchParams::default(), &patch).await?;
        Ok(Outcome::done())
    }
}

fn controller(namespace: &str) -> impl FnOnce(&Context) -> Result<Controller> + use<> {
    let selection = select().namespace(namespace);
    move |cx| {
        let build = Controller::selected::<ConfigMap>(cx, selection);
        let stamper = Stamper { client: build.client(), clock: cx.get() };
        Ok(build.reconciler(stamper).build())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_have_the_permissions_and_the_clock_that_they_are_given() -> Result<(), Box<dyn Error>> {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("controllers").await?;
    let controllers = Controllers::new(plane.client_as(&namespace, "stamper").await?)
        .controller(controller(&namespace))
        .provide(FakeClock::at(TIME).clock())
        .start();
    let unsynced = AssertUnwindSafe(controllers.synced(Duration::from_secs(2))).catch_unwind().await;
    let panic = unsynced.expect_err("the account may not list ConfigMaps");
    let message = panic.downcast_ref::<String>().ok_or("no message")?;
    assert!(message.contains("configmaps") && message.contains("forbidden"), "{message}");

    plane
        .apply_yaml(&format!(
            "{{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {{name: stamper, namespace: {namespace}}},
              rules: [{{apiGroups: [''], resources: [configmaps], verbs: [get, list, watch, patch]}}]}}
---
{{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {{name: stamper, namespace: {namespace}}},
              roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: stamper}},
              subjects: [{{kind: ServiceAccount, name: stamper, namespace: {namespace}}}]}}"
        ))
        .await?;
    controllers.synced(TIMEOUT).await;
    let maps: Api<ConfigMap> = Api::namespaced(plane.client()?, &namespace);
    let map = serde_json::from_value(json!({ "metadata": { "name": "stamped" } }))?;
    maps.create(&PostParams::default(), &map).await?;
    let time = eventually("the time in the ConfigMap", TIMEOUT, async || {
        let data = maps.get("stamped").await.ok()?.data?;
        data.get("time").cloned()
    });
    assert_eq!(time.await, TIME);
    assert_eq!(controllers.stop().await, 0, "dropped reconciles");
    Ok(())
}
