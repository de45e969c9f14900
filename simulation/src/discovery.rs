//! Discovery: the resources of an API version, for controllers that learn a Kind only at run time.

use std::{collections::BTreeSet, sync::Arc};

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

/// Answers `GET /api/v1`, `GET /apis/apps` and `GET /apis/apps/v1`, from [`BUILT_IN`] and the CustomResourceDefinitions
/// among the objects. `None` for other requests.
pub(crate) fn answer(request: &Request<Bytes>, objects: &[Arc<Value>]) -> Option<Response<Bytes>> {
    let path: Vec<_> = request.uri().path().split('/').skip(1).collect();
    let found = match path[..] {
        _ if request.method() != Method::GET => return None,
        ["api", version] => resources(version, objects),
        ["apis", group] => versions(group, objects),
        ["apis", group, version] => resources(&format!("{group}/{version}"), objects),
        _ => return None,
    };
    let not_found = || {
        let message = "the server could not find the requested resource";
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
            "message": message})
    };
    let code = if found.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let mut response = Response::new(Bytes::from(found.unwrap_or_else(not_found).to_string()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Some(response)
}

/// The resources of an API version.
fn resources(version: &str, objects: &[Arc<Value>]) -> Option<Value> {
    let built_in = BUILT_IN.into_iter().filter(|(of, ..)| *of == version);
    let built_in = built_in.map(|(_, plural, kind)| resource(plural.into(), kind.into(), true));
    let resources: Vec<_> =
        built_in.chain(objects.iter().filter_map(|object| defined(object, version))).collect();
    (!resources.is_empty()).then(|| {
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
    })
}

/// The served versions of a group.
fn versions(group: &str, objects: &[Arc<Value>]) -> Option<Value> {
    let built_in = BUILT_IN.into_iter().filter_map(|(of, ..)| of.split_once('/'));
    let built_in = built_in.filter(|(of, _)| *of == group).map(|(_, version)| version);
    let definitions = objects.iter().filter(|object| object["kind"] == "CustomResourceDefinition");
    let of_group = definitions.map(|object| &object["spec"]).filter(|spec| spec["group"] == group);
    let versions = of_group.flat_map(|spec| spec["versions"].as_array().into_iter().flatten());
    let served = versions.filter(|version| version["served"] == true);
    let names: BTreeSet<_> = built_in.chain(served.filter_map(|version| version["name"].as_str())).collect();
    let version = |name| json!({"groupVersion": format!("{group}/{name}"), "version": name});
    let versions: Vec<_> = names.into_iter().map(version).collect();
    let preferred = versions.last()?.clone();
    Some(json!({"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": versions,
        "preferredVersion": preferred}))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_of_a_group_are_those_that_are_served() {
        let definition = Arc::new(json!({"kind": "CustomResourceDefinition", "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"kind": "Lamp", "plural": "lamps"},
            "versions": [{"name": "v1", "served": false}, {"name": "v2", "served": true}],
        }}));
        let get = |path: &str| {
            let request = Request::get(path).body(Bytes::new()).unwrap();
            let answer = answer(&request, std::slice::from_ref(&definition)).unwrap();
            let body: Value = serde_json::from_slice(answer.body()).unwrap();
            (answer.status().as_u16(), body)
        };
        let (code, group) = get("/apis/example.com");
        assert_eq!(
            (code, &group["versions"][0]["version"], &group["versions"][1]),
            (200, &json!("v2"), &Value::Null)
        );
        let (_, resources) = get("/apis/example.com/v2");
        assert_eq!(resources["resources"][0]["name"], "lamps");
        for path in ["/apis/example.com/v1", "/apis/example.org"] {
            assert_eq!(get(path).0, 404, "{path}");
        }
    }
}
