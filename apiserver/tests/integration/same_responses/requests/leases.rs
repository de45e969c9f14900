//! Leases, as leader election reads, creates, renews, lists and watches them.

use serde_json::{Value, json};

use super::{super::recorder::Recorder, CONFIG_MAPS, TestResult, object_path};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";

pub(super) async fn leases(server: &mut Recorder) -> TestResult {
    let path = object_path(LEASES, "leader");
    let start = server.get(CONFIG_MAPS).await?["metadata"]["resourceVersion"].clone();
    server.get(&path).await?;
    let renewal = |holder: &str, second: u32| {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "leader"},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": 15,
                "acquireTime": "2026-11-26T08:00:00.000000Z",
                "renewTime": format!("2026-11-26T08:00:{second:02}.000000Z"),
                "leaseTransitions": 0,
            },
        })
    };
    server.post(&format!("{LEASES}?fieldManager=one"), renewal("one", 1)).await?;
    server.post(&format!("{LEASES}?fieldManager=two"), renewal("two", 1)).await?;
    let read = server.get(&path).await?;
    let at = |mut renewal: Value| {
        renewal["metadata"]["resourceVersion"] = read["metadata"]["resourceVersion"].clone();
        renewal
    };
    server.merge_patch(&format!("{path}?fieldManager=one"), at(renewal("one", 2))).await?;
    server.merge_patch(&format!("{path}?fieldManager=two"), at(renewal("two", 3))).await?;
    server
        .merge_patch(&format!("{path}?fieldManager=one"), json!({"spec": {"holderIdentity": null}}))
        .await?;
    server.get(&format!("{path}/status")).await?;
    server.get(&format!("{LEASES}?fieldSelector=metadata.name%3Dleader")).await?;
    server.delete(&path, json!({})).await?;
    let start = start.as_str().unwrap_or_default();
    server.watches(&[format!("{LEASES}?watch=true&resourceVersion={start}")]).await
}
