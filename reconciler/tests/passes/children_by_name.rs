//! Children that a pass looks up by name: restored ones, those of a terminating owner, and those that do not exist.

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use reknit_reconciler::{Applied, NotApplied, controller_reference};
use serde_json::json;

use crate::{
    Lamp,
    children::{Fixture, config_map},
    lamp, terminating,
};

/// Deletes the lamp, creates it anew with another uid, and returns it.
async fn restored_lamp(fixture: &Fixture<Secret>) -> Lamp {
    let lamps: Api<Lamp> = Api::namespaced(fixture.server.client(), "default");
    lamps.delete("x", &DeleteParams::default()).await.unwrap();
    let mut new = lamp();
    new.metadata.uid = None;
    lamps.create(&PostParams::default(), &new).await.unwrap()
}

/// Applies the Secret `child` of a lamp, with the password that it has, or else with this one.
async fn apply_password(fixture: &Fixture<Secret>, lamp: &Lamp, generated: &str) -> String {
    let stored = fixture.children.get(lamp, "child").await.unwrap();
    let stored = stored.and_then(|secret| secret.data.as_ref()?.get("password").cloned());
    let password = stored.unwrap_or_else(|| ByteString(generated.into()));
    let mut secret = Secret::default();
    secret.metadata.name = Some("child".into());
    secret.data = Some([("password".into(), password)].into());
    let applied = fixture.children.apply(lamp, secret).await.unwrap();
    String::from_utf8(applied.data.as_ref().unwrap()["password"].0.clone()).unwrap()
}

#[tokio::test]
async fn a_generated_password_is_kept_in_a_secret_that_was_restored_from_a_backup() {
    let fixture = Fixture::<Secret>::new();
    assert_eq!(apply_password(&fixture, &lamp(), "first").await, "first");
    let former_owner = controller_reference(&lamp());
    for owners in [json!(null), json!([former_owner])] {
        let owner = restored_lamp(&fixture).await;
        let restored = json!({"metadata": {"ownerReferences": owners}});
        fixture.client.patch("child", &PatchParams::default(), &Patch::Merge(restored)).await.unwrap();
        assert_eq!(fixture.children.of(&owner).count(), 0);
        assert_eq!(apply_password(&fixture, &owner, "second").await, "first");
        assert_eq!(fixture.children.of(&owner).count(), 1, "the restored Secret was not adopted");
    }
}

#[tokio::test]
async fn a_child_that_the_cache_lacks_is_read_and_one_of_another_owner_is_refused() {
    let fixture = Fixture::<Secret>::new();
    let get = async |name| fixture.children.get(&lamp(), name).await;
    assert_eq!(get("child").await.unwrap(), None);
    let uncached: Api<Secret> = Api::namespaced(fixture.server.client(), "default");
    let mut secret = Secret::default();
    secret.metadata.name = Some("foreign".into());
    uncached.create(&PostParams::default(), &secret).await.unwrap();
    secret.metadata.name = Some("child".into());
    secret.metadata.owner_references = Some(vec![controller_reference(&lamp())]);
    let created = uncached.create(&PostParams::default(), &secret).await.unwrap();
    assert_eq!(get("child").await.unwrap().and_then(|child| child.uid()), created.uid());
    let foreign = get("foreign").await.unwrap_err();
    assert!(matches!(foreign, NotApplied::Taken { by: None, .. }), "{foreign}");
    let elsewhere = fixture.children.get_in(&lamp(), "elsewhere", "child").await.unwrap_err();
    assert!(matches!(elsewhere, NotApplied::OtherNamespace { .. }), "{elsewhere}");
}

#[tokio::test]
async fn a_terminating_owner_gets_new_children_while_only_controllers_finalize_it() {
    for (finalizers, creates) in
        [(&["a.io/x"][..], true), (&[], false), (&["a.io/x", "foregroundDeletion"], false)]
    {
        let fixture = Fixture::<ConfigMap>::new();
        let owner = terminating(finalizers);
        let applied = fixture.children.apply(&owner, config_map(&[("k", "v")])).await;
        match creates {
            true => assert!(matches!(applied, Ok(Applied::Created(_)))),
            false => assert!(matches!(applied, Err(NotApplied::OwnerDeleted { .. }))),
        }
        fixture.children.apply(&lamp(), config_map(&[("k", "v")])).await.unwrap();
        fixture.take_writes();
        fixture.children.apply(&owner, config_map(&[("k", "w")])).await.unwrap();
        let set = |map: &mut ConfigMap| map.data = Some([("k".into(), "x".into())].into());
        fixture.children.create_or_update(&owner, config_map(&[]), set).await.unwrap();
        assert_eq!(
            fixture.take_writes(),
            ["patch configmaps default/child", "update configmaps default/child"],
            "{finalizers:?}"
        );
    }
}

#[tokio::test]
async fn a_child_that_was_just_orphaned_does_not_become_a_child_again() {
    let fixture = Fixture::<ConfigMap>::new();
    fixture.children.apply(&lamp(), config_map(&[("k", "v")])).await.unwrap();
    let orphaning = terminating(&["a.io/x", "orphan"]);
    let refused = fixture.children.apply(&orphaning, config_map(&[("k", "w")])).await.unwrap_err();
    assert!(matches!(refused, NotApplied::OwnerDeleted { .. }), "{refused}");
    let uncached: Api<ConfigMap> = Api::namespaced(fixture.server.client(), "default");
    let orphaned = json!({"metadata": {"ownerReferences": null}});
    uncached.patch("child", &PatchParams::default(), &Patch::Merge(orphaned)).await.unwrap();
    let refused = fixture.children.apply(&terminating(&["a.io/x"]), config_map(&[("k", "w")])).await;
    let Err(NotApplied::Refused { source, .. }) = refused else { panic!("{refused:?}") };
    assert!(matches!(&*source, kube::Error::Api(status) if status.code == 409), "{source}");
    assert_eq!(uncached.get("child").await.unwrap().owner_references(), []);
}

#[tokio::test]
async fn a_terminating_owner_without_permission_to_read_it_adopts_no_child() {
    let fixture = Fixture::<ConfigMap>::new();
    fixture.children.apply(&lamp(), config_map(&[("k", "v")])).await.unwrap();
    let orphaned = json!({"metadata": {"ownerReferences": null}});
    fixture.client.patch("child", &PatchParams::default(), &Patch::Merge(orphaned)).await.unwrap();
    fixture.take_writes();
    let forbidden = json!({"kind": "Status", "status": "Failure", "message": "no", "code": 403});
    fixture.server.answer(move |method, path, _| {
        let is_owner = *method == http::Method::GET && path.contains("/lamps/");
        is_owner.then(|| (http::StatusCode::FORBIDDEN, forbidden.clone()))
    });
    let owner = terminating(&["a.io/x"]);
    let refused = fixture.children.apply(&owner, config_map(&[("k", "w")])).await.unwrap_err();
    assert!(matches!(refused, NotApplied::OwnerDeleted { .. }), "{refused}");
    assert_eq!(fixture.take_writes(), [""; 0]);
}

#[tokio::test]
async fn a_new_stateful_set_has_a_name_that_leaves_room_for_those_of_its_pods() {
    let fixture = Fixture::<StatefulSet>::new();
    let set = |length| -> StatefulSet {
        serde_json::from_value(json!({"metadata": {"name": "s".repeat(length)}})).unwrap()
    };
    fixture.children.apply(&lamp(), set(52)).await.unwrap();
    let refused = fixture.children.apply(&lamp(), set(53)).await.unwrap_err();
    assert!(matches!(refused, NotApplied::Unusable { .. }), "{refused}");
    assert_eq!(fixture.take_writes().len(), 1);
    let mut existing = set(53);
    existing.metadata.owner_references = Some(vec![controller_reference(&lamp())]);
    fixture.client.create(&PostParams::default(), &existing).await.unwrap();
    fixture.children.apply(&lamp(), set(53)).await.unwrap();
}
