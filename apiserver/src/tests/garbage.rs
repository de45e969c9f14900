//! The garbage collector and namespaces that terminate.

use http::{Method, Request};
use serde_json::{Value, json};

use crate::{ApiServer, Reply};

const PATH: &str = "/api/v1/namespaces/shop/configmaps";

/// Sends a request and returns the response.
fn send(server: &ApiServer, method: Method, uri: &str, body: &Value) -> Value {
    let content_type =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(uri).header("Content-Type", content_type);
    match server.handle(&request.body(body.to_string()).unwrap()) {
        Reply::Response(response) => serde_json::from_slice(response.body()).unwrap(),
        Reply::Watch(_) => panic!("{uri} is no watch"),
    }
}

/// Creates an object with these owners, and returns a reference to it that blocks the deletion of the owner.
fn create(server: &ApiServer, name: &str, owners: &[&Value]) -> Value {
    let body = json!({"metadata": {"name": name, "ownerReferences": owners}});
    let uid = send(server, Method::POST, PATH, &body)["metadata"]["uid"].clone();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "blockOwnerDeletion": true})
}

fn delete(server: &ApiServer, name: &str, policy: &str) {
    send(server, Method::DELETE, &format!("{PATH}/{name}"), &json!({"propagationPolicy": policy}));
}

fn names(server: &ApiServer) -> Vec<String> {
    let list = send(server, Method::GET, PATH, &Value::Null);
    let names = list["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]);
    names.map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn dependents_of_a_deleted_owner_go_one_step_at_a_time() {
    let server = ApiServer::new();
    let a = create(&server, "a", &[]);
    let b = create(&server, "b", &[&a]);
    create(&server, "c", &[&b]);
    assert!(!server.collect_garbage());
    delete(&server, "a", "Background");
    assert_eq!(names(&server), ["b", "c"]);
    assert!(server.collect_garbage());
    assert_eq!(names(&server), ["c"]);
    assert!(server.collect_garbage() && !server.collect_garbage());
    assert!(names(&server).is_empty());
}

#[test]
fn an_owner_that_is_deleted_in_the_foreground_goes_after_its_dependents() {
    let server = ApiServer::new().with_garbage_collector();
    let a = create(&server, "a", &[]);
    create(&server, "b", &[&a]);
    let held = json!({"metadata": {"name": "held", "ownerReferences": [a], "finalizers": ["x.io/held"]}});
    send(&server, Method::POST, PATH, &held);
    delete(&server, "a", "Foreground");
    assert_eq!(names(&server), ["a", "held"]);
    send(&server, Method::PATCH, &format!("{PATH}/held"), &json!({"metadata": {"finalizers": null}}));
    assert!(names(&server).is_empty());
}

#[test]
fn objects_that_own_each_other_are_deleted_in_the_foreground() {
    let server = ApiServer::new().with_garbage_collector();
    let a = create(&server, "a", &[]);
    let b = create(&server, "b", &[&a]);
    send(&server, Method::PATCH, &format!("{PATH}/a"), &json!({"metadata": {"ownerReferences": [b]}}));
    delete(&server, "a", "Foreground");
    assert!(names(&server).is_empty());
}

#[test]
fn orphans_and_objects_with_another_owner_stay() {
    let server = ApiServer::new().with_garbage_collector();
    let (a, b) = (create(&server, "a", &[]), create(&server, "b", &[]));
    create(&server, "orphan", &[&a]);
    create(&server, "shared", &[&b, &a]);
    delete(&server, "a", "Orphan");
    let owners = |name: &str| {
        send(&server, Method::GET, &format!("{PATH}/{name}"), &Value::Null)["metadata"]["ownerReferences"]
            .clone()
    };
    assert_eq!(owners("orphan"), Value::Null);
    assert_eq!(owners("shared"), json!([b]));
    delete(&server, "b", "Background");
    assert_eq!(names(&server), ["orphan"]);
}

#[test]
fn a_cluster_scoped_object_with_an_owner_in_a_namespace_stays() {
    let server = ApiServer::new().with_garbage_collector();
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "first"}});
    send(&server, Method::POST, PATH, &owner);
    let (path, a) = ("/api/v1/nodes", create(&server, "a", &[]));
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "ownerReferences": [a]}});
    send(&server, Method::POST, path, &node);
    delete(&server, "a", "Background");
    let node = send(&server, Method::GET, &format!("{path}/n"), &Value::Null);
    assert_eq!(node["metadata"]["ownerReferences"], json!([a]));
}

#[test]
fn a_namespace_goes_after_its_objects_and_refuses_new_ones() {
    let server = ApiServer::new().with_required_namespaces();
    let refused = send(&server, Method::POST, PATH, &json!({"metadata": {"name": "a"}}));
    assert_eq!(refused["message"], "namespaces \"shop\" not found");
    send(
        &server,
        Method::POST,
        "/api/v1/namespaces",
        &json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}}),
    );
    create(&server, "a", &[]);
    send(&server, Method::DELETE, "/api/v1/namespaces/shop", &Value::Null);
    let refused = send(&server, Method::POST, PATH, &json!({"metadata": {"name": "b"}}));
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    assert!(server.collect_garbage());
    assert!(names(&server).is_empty());
    assert!(server.collect_garbage() && !server.collect_garbage());
    assert_eq!(send(&server, Method::GET, "/api/v1/namespaces/shop", &Value::Null)["code"], 404);
}
