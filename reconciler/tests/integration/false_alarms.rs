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

use crate::{Fixture, autoscalers::autoscale};

/// The number of Deployments that roll out and are scaled.
const ROLLING: u64 = 10;
/// The time between two changes of an image. Some rollouts end before the next one begins, and some do not.
const PAUSE: Duration = Duration::from_secs(5);

/// Applies a Deployment for each ConfigMap, without replicas, and with the image of the ConfigMap or paused, and reconciles
/// again each second. An annotation of the ConfigMap follows the status of the Deployment, as a status that counts up does.
struct Rollouts(Owned<Deployment>, Client);

impl ReconcileKind for Rollouts {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let image = map.data.as_ref().and_then(|data| data.get("image"));
        let template = json!({
            "metadata": {"labels": {"app": map.name_any()}},
            "spec": {"containers": [{
                "name": "main", "image": image.map_or("none", String::as_str),
                "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}},
            }]},
        });
        let selector = json!({"matchLabels": {"app": map.name_any()}});
        let child: Deployment = serde_json::from_value(json!({
            "metadata": {"name": map.name_any()},
            "spec": {"selector": selector, "paused": image.is_none(), "template": template},
        }))?;
        let child = self.0.apply(map, child).await?;
        let observed = child
            .status
            .as_ref()
            .map(|status| format!("{:?} {:?}", status.observed_generation, status.updated_replicas));
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

/// Creates the ConfigMaps `map-0`, `map-1`, and so on.
async fn create_maps(fixture: &Fixture, number: u64) {
    let maps = fixture.maps();
    let created = stream::iter(0..number).map(|n| {
        let map = json!({"metadata": {"name": format!("map-{n}"), "labels": {"app": "a"}}});
        let (maps, map) = (maps.clone(), serde_json::from_value(map).unwrap());
        async move { maps.create(&PostParams::default(), &map).await.map(drop).unwrap() }
    });
    created.buffer_unordered(50).collect::<Vec<_>>().await;
}

/// The revision of a Deployment, which its controller counts up with each rollout.
async fn revision(fixture: &Fixture, deployment: &str) -> u64 {
    let deployment = fixture.deployments().get(deployment).await.unwrap();
    deployment.annotations()["deployment.kubernetes.io/revision"].parse().unwrap()
}

/// Kubernetes' own controllers roll out and scale. `FALSE_ALARM_SECONDS`, of at least 60, and `FALSE_ALARM_OBJECTS` make the
/// test shorter.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes ten minutes: hack/test.sh --all runs it"]
async fn rollouts_an_autoscaler_a_growing_status_and_many_new_objects_are_no_storms_and_no_fights() {
    let (seconds, objects) = (number("FALSE_ALARM_SECONDS", 600), number("FALSE_ALARM_OBJECTS", 10_000));
    let fixture = Fixture::with_nodes("calm").await;
    let running = Controllers::new(fixture.client.clone()).controller(rollouts(&fixture)).start();
    create_maps(&fixture, objects.max(ROLLING)).await;
    let rolling: Vec<_> = (0..ROLLING).map(|n| format!("map-{n}")).collect();
    let (end, mut rounds) = (Instant::now() + Duration::from_secs(seconds), 0);
    while Instant::now() < end {
        rounds += 1;
        for name in &rolling {
            let replicas = 1 + rounds % 5;
            autoscale(&fixture, name, replicas..=replicas).await;
            fixture.merge(name, json!({"data": {"image": format!("image-{}", rounds % 3)}})).await;
        }
        sleep(PAUSE).await;
    }
    let events: Api<StoredEvent> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let is_alarm = |event: &&StoredEvent| {
        matches!(event.reason.as_deref(), Some("ReconcileStorm" | "FieldContested" | "ChildDeleted"))
    };
    let alarms: Vec<_> = events.iter().filter(is_alarm).map(|event| event.note.clone()).collect();
    println!("{rounds} rounds, {objects} objects, {} events", events.len());
    for name in &rolling {
        let is_rescale = |event: &&StoredEvent| {
            event.reason.as_deref() == Some("SuccessfulRescale")
                && event.regarding.as_ref().is_some_and(|object| object.name.as_ref() == Some(name))
        };
        let (rescales, revision) = (events.iter().filter(is_rescale).count(), revision(&fixture, name).await);
        let observed = fixture.maps().get(name).await.unwrap().annotations().get("observed").cloned();
        println!("{name}: {rescales} messages about scaling, revision {revision}, observed {observed:?}");
        assert!(rescales > 0 && revision > 2 && observed.is_some(), "{name} is not scaled and rolled out");
    }
    assert!(alarms.is_empty(), "{alarms:?}");
    running.stop().await;
}
