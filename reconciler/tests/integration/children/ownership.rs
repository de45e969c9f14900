//! Objects of a child's name that the owner does not control, and terminating objects.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{ConfigMap, Namespace},
    rbac::v1::ClusterRole,
};
use kube::{Api, ResourceExt, api::DeleteParams};
use reknit_injection::{Context, select};
use reknit_reconciler::{Applied, Controller, NotApplied, Owned};
use reknit_testing::{ControllerExt, eventually};
use serde_json::json;

use super::{
    APPLY, NO_REQUESTS, Process, client_with_hook_before_patch, controlled_by, deployments_of,
    desired_deployment, not_applied, set,
};
use crate::{Fixture, TIMEOUT};

#[tokio::test]
async fn an_object_with_another_controller_is_kept_until_it_is_deleted() {
    let uid = "01234567-89ab-cdef-0123-456789abcdef";
    let earlier_owner = controlled_by("ConfigMap", "owner", uid); // an earlier owner with the same name
    for controller in [Some(controlled_by("ServiceAccount", "default", uid)), Some(earlier_owner), None] {
        let fixture = Fixture::new("children").await;
        fixture.create("owner", &[]).await;
        let foreign = fixture.create_foreign_deployment(controller.clone(), json!({})).await;
        let process = Process::start(&fixture, &desired_deployment(3), select()).await;
        let error = process.pass_error().await;
        assert!(
            matches!(not_applied(&error), NotApplied::Taken { by, .. } if by.as_deref() == controller.as_ref()),
            "{error}"
        );
        let expected = format!(
            "Deployment {0}/child already exists and is not controlled by ConfigMap {0}/owner",
            fixture.namespace
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        fixture.assert_unchanged(&foreign).await;
        process.controller.take_queued();
        fixture.deployments().delete("child", &DeleteParams::default()).await.unwrap();
        process.wait_until_owner_is_enqueued("the foreign object is deleted").await;
        assert_eq!(process.pass_requests().await, ["GET child", APPLY]);
    }
}

#[tokio::test]
async fn a_child_that_names_its_owner_twice_is_applied() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let other = fixture.create("other", &[]).await;
    let reference = |of: &ConfigMap| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": of.name_any(), "uid": of.uid()});
    let desired = desired_deployment(3);
    let references = [&owner, &other, &other].map(reference);
    set(&desired, "/metadata", json!({"name": "child", "ownerReferences": references}));
    let process = Process::start(&fixture, &desired, select()).await;
    assert_eq!(process.pass_requests().await, ["GET child", APPLY]);
    let owners: Vec<_> =
        fixture.child().await.owner_references().iter().map(|owner| owner.uid.clone()).collect();
    assert_eq!(owners, [owner.uid().unwrap(), other.uid().unwrap()]);
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
}

#[tokio::test]
async fn the_namespace_of_a_cluster_scoped_child_is_ignored() {
    let fixture = Fixture::new("children").await;
    let owner = Api::<Namespace>::all(fixture.client.clone()).get(&fixture.namespace).await.unwrap();
    let cx = Context::preloaded("applier", fixture.client.clone(), vec![]);
    let roles = Controller::of::<Namespace>(&cx).owns::<ClusterRole>();
    let role = |name: &str| {
        let mut role = ClusterRole::default();
        role.metadata.name = Some(format!("{}-{name}", fixture.namespace));
        role.metadata.namespace = Some("default".into());
        role
    };
    roles.apply(&owner, role("applied")).await.unwrap();
    roles.create(&owner, role("created")).await.unwrap();
    roles.create_or_update(&owner, role("updated"), |_| ()).await.unwrap();
    assert_eq!(roles.of(&owner).count(), 3);
    for role in roles.of(&owner) {
        roles.delete(&role).await.unwrap();
    }
}

#[tokio::test]
async fn an_object_outside_the_selection_is_not_taken_over() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let foreign = fixture.create_foreign_deployment(None, json!({"other": "label"})).await;
    let process = Process::start(&fixture, &desired_deployment(3), select().label("one", "1")).await;
    assert!(matches!(not_applied(&process.pass_error().await), NotApplied::Taken { by: None, .. }));
    fixture.assert_unchanged(&foreign).await;
}

#[tokio::test]
async fn an_object_that_replaced_the_child_while_the_cache_is_stale_is_not_changed() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let _ = Process::start(&fixture, &desired, select()).await.pass_requests().await;
    let before = fixture.child().await;
    fixture.deployments().delete("child", &DeleteParams::default()).await.unwrap();
    set(&desired, "/spec/replicas", json!(4));
    let process = Process::without_watch(&fixture, &desired, &owner, &before);
    let gone = process.pass().await.unwrap_err();
    assert!(gone.is_conflict(), "the apply to the deleted child is not a conflict: {:?}", not_applied(&gone));
    assert!(fixture.deployments().get_opt("child").await.unwrap().is_none());
    let foreign = fixture.create_foreign_deployment(None, json!({})).await;
    let replaced = process.pass().await.unwrap_err();
    assert!(matches!(not_applied(&replaced), NotApplied::Taken { by: None, .. }), "{replaced}");
    fixture.assert_unchanged(&foreign).await;
}

#[tokio::test]
async fn of_two_owners_that_create_the_same_child_the_later_gets_an_error_in_the_same_pass() {
    let fixture = Fixture::new("children").await;
    let (first, later) = (fixture.create("first", &[]).await, fixture.create("later", &[]).await);
    let child =
        |replicas| serde_json::from_value(desired_deployment(replicas).lock().unwrap().clone()).unwrap();
    for (component, replicas) in [("another", 3), ("another", 4), ("applier", 3), ("applier", 4)] {
        let (deployments, owner) = (deployments_of(component, fixture.client.clone()), first.clone());
        let client = client_with_hook_before_patch(&fixture.client, async move {
            deployments.apply(&owner, child(3)).await.unwrap();
        });
        let refused = deployments_of("applier", client).apply(&later, child(replicas)).await.unwrap_err();
        let NotApplied::Taken { by: Some(by), .. } = refused else { panic!("{component}: {refused:?}") };
        assert_eq!(Some(by.uid), first.uid());
        fixture.deployments().delete("child", &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn a_terminating_owner_gets_new_children_while_only_controllers_finalize_it() {
    let fixture = Fixture::new("children").await;
    let cases = [
        (DeleteParams::background(), true),
        (DeleteParams::foreground(), false),
        (DeleteParams::orphan(), false),
    ];
    for (policy, creates) in cases {
        fixture.create("owner", &["demo.reknit.dev/stays"]).await;
        fixture.maps().delete("owner", &policy).await.unwrap();
        let mut owner = fixture.maps().get("owner").await.unwrap();
        let deployments = deployments_of("applier", fixture.client.clone());
        let child = |replicas| -> Deployment {
            serde_json::from_value(desired_deployment(replicas).lock().unwrap().clone()).unwrap()
        };
        if !creates {
            assert!(!owner.finalizers().is_empty(), "{policy:?}");
            let applied = deployments.apply(&owner, child(3)).await.unwrap_err();
            let created = deployments.create_or_update(&owner, child(3), |_| {}).await.unwrap_err();
            for refused in [applied, created] {
                assert!(matches!(refused, NotApplied::OwnerDeleted { .. }), "{policy:?}: {refused}");
            }
            assert!(fixture.deployments().get_opt("child").await.unwrap().is_none(), "{policy:?}");
            // The garbage collector, which does not run here, removes its finalizer.
            let stays = json!({"metadata": {"finalizers": ["demo.reknit.dev/stays"]}});
            owner = fixture.merge("owner", stays).await;
        }
        let created = deployments.apply(&owner, child(3)).await.unwrap();
        assert!(matches!(created, Applied::Created(_)), "{policy:?}");
        owner.metadata.finalizers = Some(vec!["foregroundDeletion".into(), "demo.reknit.dev/stays".into()]);
        deployments.apply(&owner, child(2)).await.unwrap();
        assert_eq!(fixture.replicas().await, Some(2), "an existing child is updated");
        deployments
            .create_or_update(&owner, child(2), |child| child.spec.as_mut().unwrap().replicas = Some(0))
            .await
            .unwrap();
        assert_eq!(fixture.replicas().await, Some(0), "an existing child is updated");
        let refused = deployments.apply_or_replace(&owner, child(2), |_| true).await.unwrap_err();
        assert!(matches!(refused, NotApplied::OwnerDeleted { .. }), "{refused}");
        assert!(fixture.child().await.metadata.deletion_timestamp.is_none(), "deleted and not replaced");
        fixture.deployments().delete("child", &DeleteParams::background()).await.unwrap();
        fixture.merge("owner", json!({"metadata": {"finalizers": null}})).await;
    }
}

#[tokio::test]
async fn a_child_that_was_just_orphaned_does_not_become_a_child_again() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &["demo.reknit.dev/stays"]).await;
    let child = |replicas| -> Deployment {
        serde_json::from_value(desired_deployment(replicas).lock().unwrap().clone()).unwrap()
    };
    deployments_of("applier", fixture.client.clone()).apply(&owner, child(3)).await.unwrap();
    // No watch updates this cache.
    let cached = serde_json::to_value(fixture.child().await).unwrap();
    let cx = Context::preloaded("applier", fixture.client.clone(), vec![cached]);
    let deployments = Controller::of::<ConfigMap>(&cx).owns::<Deployment>();
    fixture.maps().delete("owner", &DeleteParams::orphan()).await.unwrap();
    let orphaning = fixture.maps().get("owner").await.unwrap();
    let applied = deployments.apply(&orphaning, child(2)).await.unwrap_err();
    let scale = |child: &mut Deployment| child.spec.as_mut().unwrap().replicas = Some(2);
    let updated = deployments.create_or_update(&orphaning, child(2), scale).await.unwrap_err();
    for refused in [applied, updated] {
        assert!(matches!(refused, NotApplied::OwnerDeleted { .. }), "{refused}");
    }
    // As the garbage collector does.
    fixture.change_child(json!({"metadata": {"ownerReferences": null}})).await;
    let stays = json!({"metadata": {"finalizers": ["demo.reknit.dev/stays"]}});
    let orphaned = fixture.merge("owner", stays).await;
    let applied = deployments.apply(&orphaned, child(2)).await.unwrap_err();
    let NotApplied::Refused { source, .. } = applied else { panic!("{applied}") };
    assert!(matches!(&*source, kube::Error::Api(status) if status.code == 409), "{source}");
    // The refused apply has read the child.
    let refused = deployments.create_or_update(&orphaned, child(2), scale).await.unwrap_err();
    assert!(matches!(refused, NotApplied::OwnerDeleted { .. }), "{refused}");
    assert_eq!((fixture.replicas().await, fixture.child().await.owner_references()), (Some(3), &[][..]));
    fixture.merge("owner", json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn a_child_that_cannot_be_created_in_a_terminating_namespace_is_told_from_other_refusals() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let deployments = deployments_of("applier", fixture.client.clone());
    let child = |name: &str| -> Deployment {
        let mut child: Deployment =
            serde_json::from_value(desired_deployment(1).lock().unwrap().clone()).unwrap();
        child.metadata.name = Some(name.into());
        child
    };
    let invalid = deployments.apply(&owner, child("-")).await.unwrap_err();
    assert!(!invalid.is_namespace_terminating(), "{invalid}");
    // No controller runs that would delete the objects of the namespace and then the namespace.
    let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
    namespaces.delete(&fixture.namespace, &DeleteParams::default()).await.unwrap();
    eventually("the refusal of new objects", TIMEOUT, async || {
        let refused = deployments.apply(&owner, child("new")).await.err()?;
        refused.is_namespace_terminating().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_job_that_deletes_itself_and_is_created_again_is_reported() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let cx = Context::preloaded("applier", fixture.client.clone(), vec![]);
    let mut build = Controller::of::<ConfigMap>(&cx);
    let (jobs, recorder): (Owned<Job>, _) = (build.owns(), build.recorder());
    let api: Api<Job> = Api::namespaced(cx.client(), &fixture.namespace); // its writes enter the cache
    let events = async || {
        recorder.flush().await;
        let events = fixture.events_about(&fixture.namespace, &owner.uid().unwrap()).await;
        events.into_iter().filter_map(|event| event.reason).collect::<Vec<_>>()
    };
    let apply = async |name: &str, image: &str, ttl: Option<i32>| {
        let containers = json!([{"name": "main", "image": image}]);
        let template = json!({"spec": {"restartPolicy": "Never", "containers": containers}});
        let spec = json!({"ttlSecondsAfterFinished": ttl, "template": template});
        let job = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        jobs.apply_or_replace(&owner, job, |_| true).await.unwrap();
    };
    // The API server of tests has no controller that deletes a Job after its TTL.
    let delete = async |name| api.delete(name, &DeleteParams::background()).await.map(drop).unwrap();
    apply("stays", "first", None).await;
    delete("stays").await;
    apply("stays", "first", None).await;
    apply("once", "first", Some(60)).await;
    apply("once", "second", Some(60)).await;
    assert_eq!(events().await, [""; 0], "the Job has no TTL, or was replaced");
    delete("once").await;
    apply("once", "second", Some(60)).await;
    assert_eq!(events().await, ["ChildRunsAgain"]);
}

#[tokio::test]
async fn a_terminating_child_is_restored_until_it_is_gone_and_created_again_afterwards() {
    let fixture = Fixture::new("children").await;
    let owner = fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    let _ = process.pass_requests().await;
    let first = fixture.child().await;
    fixture.change_child(json!({"metadata": {"finalizers": ["demo.reknit.dev/stays"]}})).await;
    fixture.deployments().delete("child", &DeleteParams::default()).await.unwrap();
    process
        .wait_for_child("the child to be terminating", |child| {
            child.is_some_and(|child| child.metadata.deletion_timestamp.is_some())
        })
        .await;
    let notes = async || {
        let events = fixture.events_about(&fixture.namespace, &owner.uid().unwrap()).await.into_iter();
        let events = events.filter(|event| event.reason.as_deref() == Some("ChildTerminating"));
        events.filter_map(|event| Some((event.type_?, event.note?))).collect::<BTreeMap<_, _>>()
    };
    let child = format!("Deployment {}/child is being deleted, and", fixture.namespace);
    let waits = format!(
        "{child} waits for its finalizers demo.reknit.dev/stays: it is created again once it is gone"
    );
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    assert_eq!(notes().await, [("Normal".to_owned(), waits.clone())].into());
    fixture.change_child(json!({"spec": {"replicas": 9}})).await;
    process
        .wait_for_child("the other client's replicas", |child| {
            child.is_some_and(|child| child.spec.as_ref().unwrap().replicas == Some(9))
        })
        .await;
    assert_eq!(process.pass_requests().await, [APPLY]);
    let restored = fixture.child().await;
    assert_eq!((restored.uid(), fixture.replicas().await), (first.uid(), Some(3)));
    let warning = format!("{child} another client has changed it: it was restored");
    assert_eq!(notes().await, [("Normal".to_owned(), waits), ("Warning".to_owned(), warning)].into());
    assert_eq!(process.pass_requests().await, NO_REQUESTS);
    set(&desired, "/spec/selector/matchLabels", json!({"app": "other"}));
    set(&desired, "/spec/template/metadata/labels", json!({"app": "other"}));
    let requests = process.pass_requests().await;
    assert_eq!(requests[0], APPLY, "an immutable field, whose refusal is no error: {requests:?}");
    set(&desired, "/spec", desired_deployment(4).lock().unwrap()["spec"].clone());
    process.controller.take_queued();
    fixture.change_child(json!({"metadata": {"finalizers": null}})).await;
    process.wait_until_owner_is_enqueued("the child is gone").await;
    process.wait_for_child("the child to be gone", |child| child.is_none()).await;
    assert_eq!(process.pass_requests().await, ["GET child", APPLY]);
    assert_ne!(fixture.child().await.uid(), first.uid());
    assert_eq!(fixture.replicas().await, Some(4));
}

#[tokio::test]
async fn a_child_without_a_valid_name_or_in_another_namespace_is_refused_without_a_request() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let process = Process::start(&fixture, &desired, select()).await;
    set(&desired, "/metadata", json!({"name": "child", "namespace": "default"}));
    let elsewhere = process.pass().await.unwrap_err();
    assert!(matches!(not_applied(&elsewhere), NotApplied::OtherNamespace { .. }), "{elsewhere}");
    set(&desired, "/metadata", json!({"generateName": "child-"}));
    let nameless = process.pass().await.unwrap_err();
    assert_eq!(
        nameless.to_string(),
        "a Deployment without a name cannot be applied: correct what the reconciler passes"
    );
    for name in ["child/status", "..", "100%"] {
        set(&desired, "/metadata", json!({"name": name}));
        let invalid = process.pass().await.unwrap_err();
        assert_eq!(
            invalid.to_string(),
            format!(
                "a Deployment of the invalid name {name:?} cannot be applied: correct what the reconciler passes"
            )
        );
    }
    assert_eq!(process.take_requests(), NO_REQUESTS);
}
