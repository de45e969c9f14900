//! Changes that resemble a storm or a fight and are none, on a real API server.

use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap, events::v1::Event as StoredEvent};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use reknit_injection::{Context, select};
use reknit_reconciler::{Controller, Outcome, Owned, ReconcileKind, Result};
use reknit_testing::Controllers;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::Fixture;

/// Applies a Deployment for each ConfigMap, with the image of the ConfigMap and without replicas, and reconciles again each
/// second. An annotation of the ConfigMap follows the status of the Deployment, as a status that counts up does.
struct Rollouts(Owned<Deployment>, Client);

impl ReconcileKind for Rollouts {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let image = map.data.as_ref().and_then(|data| data.get("image")).map_or("none", String::as_str);
        let template = json!({
            "metadata": {"labels": {"app": "a"}},
            "spec": {"containers": [{
                "name": "main", "image": image, "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
            }]},
        });
        let child: Deployment = serde_json::from_value(json!({
            "metadata": {"name": map.name_any()},
            "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template},
        }))?;
        let child = self.0.apply(map, child).await?;
        let observed = child.status.as_ref().and_then(|status| status.observed_generation);
        let observed = observed.map(|observed| observed.to_string());
        if map.annotations().get("observed") != observed.as_ref() {
            let maps: Api<ConfigMap> = Api::namespaced(self.1.clone(), &map.namespace().unwrap_or_default());
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"observed": observed}}}));
            maps.patch(&map.name_any(), &PatchParams::default(), &patch).await?;
        }
        Ok(Outcome::after(Duration::from_secs(1)))
    }
}

fn rollouts(fixture: &Fixture) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let namespace = fixture.namespace.clone();
    move |cx| {
        let mut build =
            Controller::selected::<ConfigMap>(cx, select().namespace(&namespace).label("app", "a"));
        let (children, client) = (build.owns(), build.client());
        Ok(build.workers(8).reconciler(Rollouts(children, client)).build())
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// `FALSE_ALARM_SECONDS` and `FALSE_ALARM_OBJECTS` make the test shorter.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes ten minutes: hack/test.sh --all runs it"]
async fn rollouts_an_autoscaler_a_growing_status_and_many_new_objects_are_no_storms_and_no_fights() {
    let (seconds, objects) = (number("FALSE_ALARM_SECONDS", 600), number("FALSE_ALARM_OBJECTS", 10_000));
    let fixture = Fixture::new("calm").await;
    let running = Controllers::new(fixture.client.clone()).controller(rollouts(&fixture)).start();
    let (maps, deployments) = (fixture.maps(), fixture.deployments());
    stream::iter(0..objects)
        .map(|n| {
            let map = json!({"metadata": {"name": format!("map-{n}"), "labels": {"app": "a"}}});
            let (maps, map) = (maps.clone(), serde_json::from_value(map).unwrap());
            async move { maps.create(&PostParams::default(), &map).await.map(drop).unwrap() }
        })
        .buffer_unordered(50)
        .collect::<Vec<_>>()
        .await;
    let as_manager = |name: &str| PatchParams { field_manager: Some(name.into()), ..PatchParams::default() };
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut n = 0;
    while Instant::now() < end {
        n += 1;
        sleep(Duration::from_millis(100)).await;
        if deployments.get_opt("map-0").await.unwrap().is_none() {
            continue;
        }
        let scale = Patch::Merge(json!({"spec": {"replicas": 1 + n % 5}}));
        deployments.patch("map-0", &as_manager("horizontal-pod-autoscaler"), &scale).await.unwrap();
        let status = Patch::Merge(json!({"status": {"observedGeneration": n, "replicas": n % 5}}));
        deployments.patch_status("map-0", &as_manager("deployment-controller"), &status).await.unwrap();
        if n % 20 == 0 {
            fixture.merge("map-0", json!({"data": {"image": format!("image-{}", n % 40)}})).await;
        }
    }
    let events: Api<StoredEvent> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let alarms: Vec<_> = events
        .iter()
        .filter(|event| {
            matches!(event.reason.as_deref(), Some("ReconcileStorm" | "FieldContested" | "ChildDeleted"))
        })
        .map(|event| event.note.clone())
        .collect();
    let observed = maps.get("map-0").await.unwrap().annotations().get("observed").cloned();
    assert!(observed.is_some(), "the growing status is not counted");
    println!("{n} rounds, {objects} objects, {} events", events.len());
    assert!(alarms.is_empty(), "{alarms:?}");
    running.stop().await;
}
