//! Tests of storage migration with concurrent changes.

use http::{Method, Request};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry},
};
use kube::{
    Api, Client, CustomResourceExt,
    api::{Patch, PatchParams},
    client::Body,
};
use reknit_testing::{ApiServer, Verb};
use reknit_webhook::migrate_storage;
use serde_json::json;

use crate::lamp::{Lamp, LampSpec, Shade};

const LAMPS: &str = "lamps.tests.reknit.dev";

/// A server with three lamps and their CustomResourceDefinition, whose status lists two stored versions.
fn server_with_lamps() -> ApiServer {
    let server = ApiServer::new();
    let mut definition = Lamp::crd();
    let stored = json!({"storedVersions": ["v1alpha1", "v1"]});
    definition.status = Some(serde_json::from_value(stored).unwrap());
    server.insert(&definition);
    for name in ["a", "b", "c"] {
        let spec = LampSpec { room: "hall".into(), watts: None, owner: None, shade: Shade::default() };
        let mut lamp = Lamp::new(name, spec);
        lamp.metadata.namespace = Some("default".into());
        server.insert(&lamp);
    }
    server
}

fn stored_versions(server: &ApiServer) -> Vec<String> {
    let definition: CustomResourceDefinition = server.object(None, LAMPS).unwrap();
    definition.status.unwrap().stored_versions.unwrap()
}

#[tokio::test]
async fn an_object_that_another_client_writes_meanwhile_counts_as_migrated() {
    let server = server_with_lamps();
    server.fail_times(Verb::Patch, "lamps", 409, 1);
    assert_eq!(migrate_storage(&server.client(), LAMPS).await.unwrap(), 3);
    assert_eq!(server.take_writes().iter().filter(|write| write.resource == "lamps").count(), 3);
    assert_eq!(stored_versions(&server), ["v1"]);
}

#[tokio::test]
async fn objects_are_migrated_to_a_storage_version_that_is_not_served() {
    let server = server_with_lamps();
    let mut definition: CustomResourceDefinition = server.object(None, LAMPS).unwrap();
    let mut next = definition.spec.versions[0].clone();
    (next.name, next.served) = ("v2".into(), false);
    definition.spec.versions[0].storage = false;
    definition.spec.versions.push(next);
    server.insert(&definition);
    assert_eq!(migrate_storage(&server.client(), LAMPS).await.unwrap(), 3);
    assert_eq!(stored_versions(&server), ["v2"]);
}

#[tokio::test]
async fn a_migration_goes_on_past_refused_objects_and_names_them_all() {
    let server = server_with_lamps();
    server.fail_times(Verb::Patch, "lamps", 422, 2);
    let message = migrate_storage(&server.client(), LAMPS).await.unwrap_err().in_full();
    assert!(message.starts_with("failed to update 2 objects: lamps default/a: "), "{message}");
    assert!(message.contains("; lamps default/b: "), "{message}");
    assert!(message.contains("; 1 objects are migrated; mend those objects"), "{message}");
    assert_eq!(server.take_writes().iter().filter(|write| write.resource == "lamps").count(), 3);
    assert_eq!(stored_versions(&server), ["v1alpha1", "v1"]);
    assert_eq!(migrate_storage(&server.client(), LAMPS).await.unwrap(), 3);
    assert_eq!(stored_versions(&server), ["v1"]);
}

#[tokio::test]
async fn an_object_that_is_nested_too_deep_is_migrated_with_the_others() {
    let server = server_with_lamps();
    let mut lamp: Lamp = server.object(Some("default"), "b").unwrap();
    lamp.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
        fields_v1: Some(FieldsV1((0..200).fold(json!({}), |inner, _| json!({ "f:inner": inner })))),
        ..ManagedFieldsEntry::default()
    }]);
    server.insert(&lamp);
    assert_eq!(migrate_storage(&server.client(), LAMPS).await.unwrap(), 3);
    assert_eq!(stored_versions(&server), ["v1"]);
}

#[tokio::test]
async fn a_migration_fails_if_the_definition_changes_during_it() {
    let server = server_with_lamps();
    let server_client = server.client();
    let service = tower::service_fn(move |request: Request<Body>| {
        let server_client = server_client.clone();
        async move {
            if request.method() == Method::PATCH && request.uri().path().ends_with("/lamps/b") {
                let definitions: Api<CustomResourceDefinition> = Api::all(server_client.clone());
                let change = Patch::Merge(json!({"spec": {"names": {"shortNames": ["l"]}}}));
                definitions.patch(LAMPS, &PatchParams::default(), &change).await?;
            }
            server_client.send(request).await
        }
    });
    let client = Client::new(service, "default");
    let message = migrate_storage(&client, LAMPS).await.unwrap_err().in_full();
    assert!(
        message.starts_with("failed to read or update CustomResourceDefinition lamps.tests.reknit.dev: "),
        "{message}"
    );
    assert_eq!(stored_versions(&server), ["v1alpha1", "v1"]);
    assert_eq!(migrate_storage(&server.client(), LAMPS).await.unwrap(), 3);
    assert_eq!(stored_versions(&server), ["v1"]);
}
