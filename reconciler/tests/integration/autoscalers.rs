//! Real autoscalers, of Deployments whose controllers set replicas, on a real API server.

use std::{ops::RangeInclusive, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use reknit_testing::{Controllers, eventually};
use serde_json::json;

use crate::{
    Fixture, TIMEOUT,
    fights::{Verb, contested, create_owner, scaling},
};

/// Creates or changes the autoscaler of a Deployment. Without metrics, it scales to the nearer end of the range.
pub(crate) async fn autoscale(fixture: &Fixture, deployment: &str, replicas: RangeInclusive<i32>) {
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment});
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": deployment},
        "spec": {"minReplicas": replicas.start(), "maxReplicas": replicas.end(), "scaleTargetRef": target},
    });
    let params = PatchParams::apply("user").force();
    autoscalers(fixture).patch(deployment, &params, &Patch::Apply(autoscaler)).await.unwrap();
}

/// Waits until the autoscaler has scaled its Deployment. It acts at most every 15 seconds.
async fn wait_until_scaled(fixture: &Fixture, deployment: &str) {
    eventually(format!("{deployment} is scaled"), TIMEOUT, async || {
        let status = autoscalers(fixture).get(deployment).await.unwrap().status;
        let time = status.as_ref().and_then(|status| status.last_scale_time.as_ref());
        if time.is_some() { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

fn autoscalers(fixture: &Fixture) -> Api<HorizontalPodAutoscaler> {
    Api::namespaced(fixture.client.clone(), &fixture.namespace)
}

/// Runs a controller that sets two replicas, and an autoscaler that wants at least five. Returns the message about their
/// fight, without the name of the Deployment.
async fn fight_with_autoscaler(verb: Verb) -> String {
    let fixture = Fixture::with_nodes("fight").await;
    let owner = create_owner(&fixture).await;
    let running = Controllers::new(fixture.client.clone()).controller(scaling(&fixture, verb, 2)).start();
    autoscale(&fixture, "owner", 5..=9).await;
    wait_until_scaled(&fixture, "owner").await;
    let reported =
        eventually(format!("{verb:?}: the fight is reported"), Duration::from_secs(60), async || {
            contested(&fixture, &owner).await.into_iter().next()
        });
    let message = reported.await;
    running.stop().await;
    message.replace(&format!("Deployment {}/owner: ", fixture.namespace), "")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fight_with_an_autoscaler_is_reported_within_a_minute_of_its_first_write() {
    let verbs = [Verb::Apply, Verb::Update, Verb::Client, Verb::Scale];
    for message in join_all(verbs.map(fight_with_autoscaler)).await {
        println!("{message}");
        let expected = "kube-controller-manager set spec.replicas to 5, restored to 2, 3 times in ";
        assert!(message.starts_with(expected), "{message}");
    }
}
