//! The rights that a client needs to grant rights to others, by roles and by bindings.

use serde_json::{Value, json};

use crate::{
    collection::Collection, object::metadata, objects::Objects, request::Request, request_info::RequestInfo,
    write::stores_object,
};

const RBAC: &str = "rbac.authorization.k8s.io";

impl Objects {
    /// Returns the right to grant what a binding or a role grants: `bind` on the role, or `escalate`. An update that
    /// changes nothing but what the garbage collector needs grants nothing.
    pub(crate) fn escalation(&self, request: &Request) -> Option<RequestInfo> {
        let Collection { group, namespace, plural, .. } = &request.collection;
        if group != RBAC || !stores_object(request.verb) || request.subresource.is_some() {
            return None;
        }
        let stored = request.name.as_deref().and_then(|name| self.get(&request.collection, name));
        let new = self.requested_state(request)?;
        if stored.is_some_and(|stored| without_collected_fields(stored) == without_collected_fields(&new)) {
            return None;
        }
        let info = |verb, resource: &str, name: &str, grants| RequestInfo {
            verb,
            group: RBAC.into(),
            resource: resource.into(),
            namespace: namespace.clone(),
            name: Some(name.into()).filter(|name: &String| !name.is_empty()),
            grants,
        };
        match plural.as_str() {
            "rolebindings" | "clusterrolebindings" => {
                let role = &new["roleRef"];
                let name = role["name"].as_str().unwrap_or_default();
                let (roles, namespace) = match role["kind"] == "ClusterRole" {
                    true => ("clusterroles", None),
                    false => ("roles", namespace.as_deref()),
                };
                let role = self.get(&Collection::new(RBAC, "v1", roles, namespace), name);
                Some(info("bind", roles, name, role.and_then(|role| known_rules(role))))
            }
            "roles" | "clusterroles" => {
                let name = request.name.as_deref().or(request.body["metadata"]["name"].as_str());
                let grants = match is_aggregated(&new) || stored.is_some_and(|stored| is_aggregated(stored)) {
                    true => full_authority(),
                    false => new["rules"].clone(),
                };
                Some(info("escalate", plural, name.unwrap_or_default(), Some(grants)))
            }
            _ => None,
        }
    }
}

/// Returns the object without the fields that its garbage collection needs.
fn without_collected_fields(object: &Value) -> Value {
    let mut object = object.clone();
    for field in ["ownerReferences", "finalizers"] {
        metadata(&mut object).remove(field);
    }
    object
}

/// The rules of a role. `None` for an aggregated role without rules, since a controller of Kubernetes fills them in.
fn known_rules(role: &Value) -> Option<Value> {
    let has_rules = role["rules"].as_array().is_some_and(|rules| !rules.is_empty());
    (has_rules || !is_aggregated(role)).then(|| role["rules"].clone())
}

fn is_aggregated(role: &Value) -> bool {
    !role["aggregationRule"].is_null()
}

/// The rules of `cluster-admin`, which an aggregated role may come to grant.
fn full_authority() -> Value {
    json!([
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ])
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
    use kube::{
        Api,
        api::{Patch, PatchParams, PostParams},
    };

    use super::*;
    use crate::ApiServer;

    fn cluster_role(name: &str, aggregation: Value, rules: Value) -> ClusterRole {
        let role = json!({"metadata": {"name": name}, "aggregationRule": aggregation, "rules": rules});
        serde_json::from_value(role).unwrap()
    }

    fn get_pods() -> Value {
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])
    }

    /// Records the rights to grant rights that requests need, with what they grant.
    fn record(server: &ApiServer) -> impl Fn() -> Vec<(&'static str, Option<Value>)> {
        let needed = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&needed);
        server.authorize(move |info| {
            if ["bind", "escalate"].contains(&info.verb) {
                record.lock().unwrap().push((info.verb, info.grants.clone()));
            }
            Ok(())
        });
        move || std::mem::take(&mut *needed.lock().unwrap())
    }

    #[tokio::test]
    async fn each_update_of_a_role_grants_its_rules_unless_only_garbage_collection_needs_it() {
        let server = ApiServer::new();
        let (needed, roles) = (record(&server), Api::<ClusterRole>::all(server.client()));
        let role = cluster_role("reader", Value::Null, get_pods());
        roles.create(&PostParams::default(), &role).await.unwrap();
        assert_eq!(needed(), [("escalate", Some(get_pods()))]);
        for (metadata, grants) in [
            (json!({"labels": {"a": "b"}}), true),
            (json!({"labels": {"a": "b"}}), false),
            (json!({"finalizers": ["example.com/x"]}), false),
            (
                json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}),
                false,
            ),
            (json!({"labels": null, "finalizers": null}), true),
        ] {
            let patch = Patch::Merge(json!({ "metadata": metadata }));
            roles.patch("reader", &PatchParams::default(), &patch).await.unwrap();
            let expected = grants.then(|| ("escalate", Some(get_pods())));
            assert_eq!(needed(), Vec::from_iter(expected), "{metadata}");
        }
    }

    #[tokio::test]
    async fn a_role_that_aggregates_or_has_done_so_grants_everything() {
        let server = ApiServer::new();
        let (needed, roles) = (record(&server), Api::<ClusterRole>::all(server.client()));
        let selectors = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
        let mut role = cluster_role("all", selectors, Value::Null);
        roles.create(&PostParams::default(), &role).await.unwrap();
        role.aggregation_rule = None;
        role.metadata.resource_version = roles.get("all").await.unwrap().metadata.resource_version;
        roles.replace("all", &PostParams::default(), &role).await.unwrap();
        assert_eq!(needed(), vec![("escalate", Some(full_authority())); 2]);
    }

    #[tokio::test]
    async fn the_rules_of_an_aggregated_role_are_unknown_until_it_has_some() {
        let selectors = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
        for (role, grants) in [
            (cluster_role("edit", selectors.clone(), Value::Null), None),
            (cluster_role("edit", selectors.clone(), json!([])), None),
            (cluster_role("edit", selectors, get_pods()), Some(get_pods())),
            (cluster_role("edit", Value::Null, json!([])), Some(json!([]))),
        ] {
            let server = ApiServer::new();
            server.insert(&role);
            let (needed, bindings) = (record(&server), Api::<RoleBinding>::namespaced(server.client(), "x"));
            let role_ref =
                json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"});
            let binding = json!({"metadata": {"name": "team"}, "roleRef": role_ref});
            let binding = serde_json::from_value(binding).unwrap();
            bindings.create(&PostParams::default(), &binding).await.unwrap();
            assert_eq!(needed(), [("bind", grants)], "{role:?}");
        }
    }
}
