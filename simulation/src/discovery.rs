//! Discovery: the resources of an API version, for controllers that learn a Kind only at run time.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value, json};

/// The built-in Kinds that references usually name: their API version, plural and Kind.
const BUILT_IN: [(&str, &str, &str); 9] = [
    ("v1", "configmaps", "ConfigMap"),
    ("v1", "pods", "Pod"),
    ("v1", "secrets", "Secret"),
    ("v1", "services", "Service"),
    ("apps/v1", "daemonsets", "DaemonSet"),
    ("apps/v1", "deployments", "Deployment"),
    ("apps/v1", "statefulsets", "StatefulSet"),
    ("batch/v1", "cronjobs", "CronJob"),
    ("batch/v1", "jobs", "Job"),
];

/// Answers `GET /api/v1` and `GET /apis/apps/v1`, from [`BUILT_IN`] and the CustomResourceDefinitions among the objects.
/// `None` for other requests.
pub(crate) fn answer(request: &Request<Bytes>, objects: &[Arc<Value>]) -> Option<Response<Bytes>> {
    let path = request.uri().path();
    let version = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?;
    let parts = if path.starts_with("/apis/") { 2 } else { 1 };
    if request.method() != Method::GET || version.split('/').count() != parts {
        return None;
    }
    let built_in = BUILT_IN.into_iter().filter(|(of, ..)| *of == version);
    let built_in = built_in.map(|(_, plural, kind)| resource(plural.into(), kind.into(), true));
    let resources: Vec<_> =
        built_in.chain(objects.iter().filter_map(|object| defined(object, version))).collect();
    let (code, body) = match resources.is_empty() {
        true => {
            let message = "the server could not find the requested resource";
            let reason = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                "code": 404, "message": message});
            (StatusCode::NOT_FOUND, reason)
        }
        false => {
            let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
                "resources": resources});
            (StatusCode::OK, list)
        }
    };
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Some(response)
}

/// The resource of a CustomResourceDefinition that serves this version of its group.
fn defined(object: &Value, version: &str) -> Option<Value> {
    let spec = Some(&object["spec"]).filter(|_| object["kind"] == "CustomResourceDefinition")?;
    let version = version.strip_prefix(spec["group"].as_str()?)?.strip_prefix('/')?;
    let mut versions = spec["versions"].as_array()?.iter();
    versions.find(|other| other["name"] == version && other["served"] == true)?;
    let names = &spec["names"];
    Some(resource(names["plural"].clone(), names["kind"].clone(), spec["scope"] == "Namespaced"))
}

fn resource(plural: Value, kind: Value, namespaced: bool) -> Value {
    let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    json!({"name": plural, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": verbs})
}
