//! The subresources `scale` and `approval`.

use http::Method;
use serde_json::{Value, json};

use super::{CONFIG_MAPS, TestResult, object_path};
use crate::same_responses::recorder::Recorder;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
const STATEFUL_SETS: &str = "/apis/apps/v1/namespaces/shop/statefulsets";
const REPLICATION_CONTROLLERS: &str = "/api/v1/namespaces/shop/replicationcontrollers";
const FLEETS: &str = "/apis/compare.reknit.dev/v1/namespaces/shop/fleets";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const TIME: &str = "2026-01-01T00:00:00Z";

/// A request for a certificate in PEM, as base64.
const PEM: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIR01HNENBUUF3RERFS01BZ0dBMVVFQXd3QllUQlpNQk1HQnlx\
    R1NNNDlBZ0VHQ0NxR1NNNDlBd0VIQTBJQQpCT2hmRUZFUU9KcEZNVUp2d2QrWlZlaVJSc2Z1bmtnUThEZlkvM1NwbFVQZS8xUEIy\
    cUd5VVRiRk9EK2phVmJsCnVKOWg4b205eXJRMWpTQmhHYjR5cTdLZ0FEQUtCZ2dxaGtqT1BRUURBZ05JQURCRkFpRUF2RE12TVBV\
    Wk9GenQKYWgvKzcwdk11WkhEYmRCT1RYMjVCamRHdlNrT1RxY0NJRk5HejNvdTY3R2NFMEhzTkFJbm0rdDJBNWFLakQrYwpaY0ZL\
    Smc0WjQzajIKLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==";

/// An object with replicas, whose Pods have the label `app=a`.
fn scaled(api_version: &str, kind: &str, selector: Value) -> Value {
    let template = json!({
        "metadata": {"labels": {"app": "a", "tier": "web"}},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    });
    let spec = json!({"replicas": 2, "selector": selector, "template": template});
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "scaled"}, "spec": spec})
}

pub(super) async fn scales(server: &mut Recorder) -> TestResult {
    let selector = json!({
        "matchLabels": {"app": "a"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["web", "db"]},
            {"key": "a", "operator": "DoesNotExist"},
            {"key": "app", "operator": "Exists"},
        ],
    });
    let deployment = object_path(DEPLOYMENTS, "scaled");
    let scale = object_path(DEPLOYMENTS, "scaled/scale");
    server.post(DEPLOYMENTS, scaled("apps/v1", "Deployment", selector)).await?;
    server.compare_metadata_only();
    let first = server.get(&scale).await?;
    server.merge_patch(&format!("{scale}?fieldManager=scaler"), json!({"spec": {"replicas": 3}})).await?;
    server.get(&deployment).await?;
    server.compare_metadata_only();
    let path = format!("{deployment}?fieldManager=me");
    let applied = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 9}});
    server.apply(&path, applied).await?;
    server.put(&scale, first).await?;
    server.json_patch(&scale, json!([{"op": "replace", "path": "/spec/replicas", "value": 4}])).await?;
    server.merge_patch(&scale, json!({"spec": {"replicas": 4}})).await?;
    let mut read = server.get(&scale).await?;
    read["spec"]["replicas"] = json!(5);
    read["status"]["replicas"] = json!(77);
    read["metadata"]["labels"] = json!({"a": "b"});
    server.put(&scale, read).await?;
    let metadata = json!({"name": "scaled"});
    let unconditional = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": metadata, "spec": {"replicas": 6}});
    server.put(&scale, unconditional.clone()).await?;
    server.merge_patch(&scale, json!({"spec": {"replicas": -1}})).await?;
    server.merge_patch(&scale, json!({"metadata": {"name": "other"}})).await?;
    server.merge_patch(&scale, json!({"spec": {"replicas": 0}})).await?;
    server.merge_patch(&object_path(DEPLOYMENTS, "none/scale"), json!({"spec": {"replicas": 4}})).await?;
    server.get(&object_path(DEPLOYMENTS, "none/scale")).await?;
    server.delete(&scale, json!({})).await?;
    server.post(&scale, unconditional).await?;
    server.delete(&deployment, json!({})).await?;
    for (path, api_version, kind, selector) in [
        (STATEFUL_SETS, "apps/v1", "StatefulSet", json!({"matchLabels": {"app": "a"}})),
        (REPLICATION_CONTROLLERS, "v1", "ReplicationController", json!({"tier": "web", "app": "a"})),
    ] {
        let mut object = scaled(api_version, kind, selector);
        object["metadata"]["labels"] = json!({"tier": "web", "app": "a"}); // a default of ReplicationControllers
        server.post(path, object).await?;
        server.compare_metadata_only();
        server.merge_patch(&object_path(path, "scaled/scale"), json!({"spec": {"replicas": 1}})).await?;
        server.delete(&object_path(path, "scaled"), json!({"propagationPolicy": "Background"})).await?;
    }
    server.get(&object_path(CONFIG_MAPS, "a/scale")).await?;
    Ok(())
}

pub(super) async fn scales_of_custom_resources(server: &mut Recorder) -> TestResult {
    let (fleet, scale) = (object_path(FLEETS, "a"), object_path(FLEETS, "a/scale"));
    let body = json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Fleet", "metadata": {"name": "a"}, "spec": {}});
    server.post(FLEETS, body).await?;
    server.get(&scale).await?;
    server.merge_patch(&fleet, json!({"spec": {"ships": {"count": 1}}})).await?;
    let first = server.get(&scale).await?;
    let status = json!({"status": {"ships": 1, "selector": "app=a"}});
    server.merge_patch(&object_path(FLEETS, "a/status"), status).await?;
    server.get(&scale).await?;
    server.put(&scale, first).await?;
    server.merge_patch(&scale, json!({"spec": {"replicas": 3}})).await?;
    server.merge_patch(&scale, json!({"spec": {"replicas": 6}})).await?;
    server.merge_patch(&scale, json!({"spec": {"replicas": -1}})).await?;
    server.get(&fleet).await?;
    server.get(&object_path(FLEETS, "none/scale")).await?;
    server.delete(&fleet, json!({})).await?;
    Ok(())
}

pub(super) async fn approvals(server: &mut Recorder) -> TestResult {
    let body = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "a"},
        "spec": {"request": PEM, "signerName": "compare.reknit.dev/a", "usages": ["client auth"]},
        "status": {"conditions": [condition("Approved")]},
    });
    server.post(REQUESTS, body).await?;
    server.compare_without_spec();
    let (request, approval) = (object_path(REQUESTS, "a"), object_path(REQUESTS, "a/approval"));
    let status = object_path(REQUESTS, "a/status");
    let failed = json!({"status": {"conditions": [condition("Failed")]}});
    let approved = json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {"usages": ["server auth"]},
        "status": {"conditions": [condition("Approved")]},
    });
    let nothing = json!({"status": {"conditions": []}});
    for (method, path, body) in [
        (Method::PATCH, &status, &approved),
        (Method::PATCH, &request, &approved),
        (Method::GET, &approval, &Value::Null),
        (Method::PATCH, &approval, &approved),
        (Method::PATCH, &approval, &nothing),
        (Method::PATCH, &status, &nothing),
        (Method::PATCH, &status, &failed),
        (Method::DELETE, &approval, &json!({})),
        (Method::POST, &approval, &approved),
        (Method::GET, &request, &Value::Null),
    ] {
        let body = Some(body).filter(|body| !body.is_null());
        let is_patch = method == Method::PATCH;
        let content_type = if is_patch { "application/merge-patch+json" } else { "application/json" };
        server.send(method, path, content_type, body).await?;
        server.compare_without_spec();
    }
    server.get(&object_path(CONFIG_MAPS, "a/approval")).await?;
    server.delete(&request, json!({})).await?;
    Ok(())
}

fn condition(kind: &str) -> Value {
    json!({
        "type": kind, "status": "True", "reason": "Test", "message": "by the test", "lastUpdateTime": TIME,
        "lastTransitionTime": TIME,
    })
}
