//! Children that confine a user, who rewrites them, on a real API server.

use std::time::{Duration, Instant};

use k8s_openapi::api::{core::v1::ConfigMap, networking::v1::NetworkPolicy};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use reknit_injection::select;
use reknit_reconciler::{Controller, Outcome, Owned, ReconcileKind, Result};
use reknit_testing::{Controllers, eventually};
use serde_json::json;

use crate::{
    Fixture, TIMEOUT,
    fights::{contested, create_owner},
};

/// Wants a NetworkPolicy for each ConfigMap, which admits nothing.
struct Guarding(Owned<NetworkPolicy>);

impl ReconcileKind for Guarding {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []});
        let policy = json!({"metadata": {"name": map.name_any()}, "spec": spec});
        self.0.apply(map, serde_json::from_value(policy)?).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_policy_is_restored_without_delay_however_often_another_client_rewrites_it() {
    let fixture = Fixture::new("fight-policy").await;
    let owner = create_owner(&fixture).await;
    let selection = select().namespace(&fixture.namespace).label("app", "a");
    let controllers = Controllers::new(fixture.client.clone()).controller(move |cx| {
        let mut build = Controller::selected::<ConfigMap>(cx, selection);
        let policies = build.owns();
        Ok(build.reconciler(Guarding(policies)).build())
    });
    let running = controllers.start();
    let policies: Api<NetworkPolicy> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let is_closed = async || {
        let policy = policies.get_opt("owner").await.unwrap();
        policy.is_some_and(|policy| {
            policy.spec.is_some_and(|spec| spec.ingress.is_none_or(|open| open.is_empty()))
        })
    };
    eventually("the policy", TIMEOUT, is_closed).await;
    let (rewrites, start) = (60, Instant::now());
    for n in 0..rewrites {
        let open = Patch::Merge(json!({"spec": {"ingress": [{}]}}));
        policies.patch("owner", &PatchParams::default(), &open).await.unwrap();
        eventually(format!("the policy is restored for the time {n}"), TIMEOUT, is_closed).await;
    }
    println!("restored {rewrites} times in {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(rewrites), "it takes more than a second to restore");
    eventually("the fight is reported all the same", TIMEOUT, async || {
        !contested(&fixture, &owner).await.is_empty()
    })
    .await;
    running.stop().await;
}
