//! Children that a pass applies, creates and deletes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::{
    api::{batch::v1::Job, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use prometheus::{Registry, proto::Metric};
use reknit_injection::{Cached, Context};
use reknit_reconciler::{Applied, Controller, NotApplied, Owned, controller_reference};
use reknit_testing::ApiServer;
use serde::Serialize;
use serde_json::json;

use crate::{Lamp, lamp};

/// The children of one Kind of the lamp `default/x`, on an API server in memory.
pub(crate) struct Fixture<T: Cached> {
    pub(crate) server: ApiServer,
    pub(crate) children: Owned<T>,
    /// A client whose writes enter the cache.
    pub(crate) client: Api<T>,
    /// The same in another namespace.
    elsewhere: Api<T>,
    registry: Registry,
}

impl<T: Cached + Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Serialize>
    Fixture<T>
{
    pub(crate) fn new() -> Self {
        let server = ApiServer::new();
        let cx = Context::preloaded("test", server.client(), vec![server.insert(&lamp())]);
        let children = Controller::of::<Lamp>(&cx).owns::<T>();
        let [client, elsewhere] = ["default", "elsewhere"].map(|name| Api::namespaced(cx.client(), name));
        Self { server, children, client, elsewhere, registry: cx.metrics().clone() }
    }

    /// The applied children by effect.
    fn counts(&self) -> BTreeMap<String, f64> {
        let families = self.registry.gather();
        let children = families.iter().find(|family| family.name() == "reknit_children_total").unwrap();
        let count = |series: &Metric| {
            let result = series.get_label().iter().find(|label| label.name() == "result").unwrap();
            (result.value().into(), series.get_counter().get_value())
        };
        children.get_metric().iter().map(count).collect()
    }

    pub(crate) fn take_writes(&self) -> Vec<String> {
        self.server.take_writes().iter().map(ToString::to_string).collect()
    }
}

fn job() -> Job {
    serde_json::from_value(json!({"metadata": {"name": "child"}})).unwrap()
}

#[tokio::test]
async fn a_deleted_job_is_gone_from_the_api_server_and_from_the_cache() {
    let fixture = Fixture::<Job>::new();
    let job = fixture.children.create(&lamp(), job()).await.unwrap();
    fixture.children.delete(&job).await.unwrap();
    assert_eq!(fixture.take_writes(), ["create jobs default/child", "delete jobs default/child"]);
    assert!(fixture.server.object::<Job>(Some("default"), "child").is_none());
    assert_eq!(fixture.children.of(&lamp()).count(), 0);
}

#[tokio::test]
async fn a_child_counts_as_deleted_only_if_the_api_server_says_that_it_does_not_exist() {
    for (message, is_gone) in [
        ("jobs.batch \"child\" not found", true),
        ("the server could not find the requested resource", false),
    ] {
        let fixture = Fixture::<Job>::new();
        let job = fixture.children.create(&lamp(), job()).await.unwrap();
        let refusal =
            json!({"kind": "Status", "status": "Failure", "message": message, "reason": "NotFound"});
        fixture.server.answer(move |method, _, _| {
            (*method == http::Method::DELETE).then(|| (http::StatusCode::NOT_FOUND, refusal.clone()))
        });
        assert_eq!(fixture.children.delete(&job).await.is_ok(), is_gone, "{message}");
    }
}

#[tokio::test]
async fn a_deletion_with_options_has_the_uid_as_precondition_and_runs_in_the_background_by_default() {
    let fixture = Fixture::<Job>::new();
    let first = fixture.children.create(&lamp(), job()).await.unwrap();
    fixture
        .children
        .delete_with(&first, DeleteParams { dry_run: true, ..DeleteParams::default() })
        .await
        .unwrap();
    fixture.children.delete_with(&first, DeleteParams::foreground()).await.unwrap();
    let terminating = fixture.children.of(&lamp()).next().unwrap();
    assert_eq!(terminating.finalizers(), ["foregroundDeletion"]);
    fixture.children.delete_with(&first, DeleteParams::background()).await.unwrap();
    let second = fixture.children.create(&lamp(), job()).await.unwrap();
    let conflict = fixture.children.delete_with(&first, DeleteParams::orphan()).await.unwrap_err();
    assert!(matches!(conflict, kube::Error::Api(status) if status.code == 409));
    fixture.take_writes();
    let options = DeleteParams::default().grace_period(5);
    fixture.children.delete_with(&second, options).await.unwrap();
    assert_eq!(
        fixture.take_writes(),
        ["delete jobs default/child"],
        "the Job was not deleted with the propagation policy `Background`, which is not displayed"
    );
}

#[tokio::test]
async fn an_object_in_another_namespace_with_the_owner_reference_of_a_child_is_not_a_child() {
    let fixture = Fixture::<Job>::new();
    let child = fixture.children.create(&lamp(), job()).await.unwrap();
    let mut copy = Job::clone(&child);
    copy.metadata = ObjectMeta {
        name: child.metadata.name.clone(),
        owner_references: child.metadata.owner_references.clone(),
        ..ObjectMeta::default()
    };
    fixture.elsewhere.create(&PostParams::default(), &copy).await.unwrap();
    let children: Vec<_> = fixture.children.of(&lamp()).map(|child| child.namespace()).collect();
    assert_eq!(children, [Some("default".to_owned())]);
}

pub(crate) fn config_map(data: &[(&str, &str)]) -> ConfigMap {
    let data: BTreeMap<_, _> = data.iter().copied().collect();
    serde_json::from_value(json!({"metadata": {"name": "child"}, "data": data})).unwrap()
}

#[tokio::test]
async fn an_apply_tells_whether_it_created_or_changed_the_child() {
    let fixture = Fixture::<ConfigMap>::new();
    let (first, second) = (config_map(&[("k", "v")]), config_map(&[("k", "w")]));
    let created = fixture.children.apply(&lamp(), first.clone()).await.unwrap();
    assert!(matches!(&created, Applied::Created(_)), "{created:?}");
    assert_eq!(created.data, first.data);
    let unchanged = fixture.children.apply(&lamp(), first.clone()).await.unwrap();
    assert_eq!(unchanged, Applied::Unchanged(created.into_object()));
    let updated = fixture.children.apply(&lamp(), second.clone()).await.unwrap();
    let Applied::Updated { old, new } = updated else { panic!("{updated:?}") };
    assert_eq!((&old.data, &new.data), (&first.data, &second.data));
}

#[tokio::test]
async fn children_are_counted_by_effect_and_one_that_another_client_changed_is_restored() {
    let fixture = Fixture::<ConfigMap>::new();
    for value in ["v", "v", "w"] {
        fixture.children.apply(&lamp(), config_map(&[("k", value)])).await.unwrap();
    }
    let mut changed = fixture.server.object::<ConfigMap>(Some("default"), "child").unwrap();
    changed.data.as_mut().unwrap().insert("k".into(), "theirs".into());
    fixture.client.replace("child", &PostParams::default(), &changed).await.unwrap();
    fixture.children.apply(&lamp(), config_map(&[("k", "w")])).await.unwrap();
    let expected = [("created", 1.0), ("restored", 1.0), ("unchanged", 1.0), ("updated", 1.0)];
    assert_eq!(fixture.counts(), expected.map(|(effect, count)| (effect.into(), count)).into());
}

#[tokio::test]
async fn a_change_of_another_client_that_the_cache_lacks_does_not_count_as_an_update() {
    let fixture = Fixture::<ConfigMap>::new();
    let apply = || async { fixture.children.apply(&lamp(), config_map(&[("k", "v")])).await.unwrap() };
    apply().await;
    let uncached: Api<ConfigMap> = Api::namespaced(fixture.server.client(), "default");
    let cases = [("theirs", "theirs", "unchanged"), ("k", "theirs", "restored")];
    for (field, other, effect) in cases {
        let before = fixture.counts();
        for (api, data) in
            [(&fixture.client, json!({field: "x"})), (&uncached, json!({other: "y", "more": field}))]
        {
            api.patch("child", &PatchParams::default(), &Patch::Merge(json!({"data": data}))).await.unwrap();
        }
        apply().await;
        let mut expected = before;
        *expected.entry(effect.into()).or_default() += 1.0;
        assert_eq!(fixture.counts(), expected, "{field}");
    }
}

#[tokio::test]
async fn an_item_that_another_client_adds_to_a_list_beside_those_of_a_child_does_not_count_as_restored() {
    let fixture = Fixture::<ConfigMap>::new();
    let mut child = config_map(&[("k", "v")]);
    child.metadata.finalizers = Some(vec!["reknit.dev/ours".into()]);
    let apply = || async { fixture.children.apply(&lamp(), child.clone()).await.unwrap() };
    apply().await;
    let uncached: Api<ConfigMap> = Api::namespaced(fixture.server.client(), "default");
    let others = json!({"metadata": {"finalizers": ["reknit.dev/ours", "reknit.dev/theirs"]}});
    for (api, change) in [(&fixture.client, json!({"data": {"theirs": "x"}})), (&uncached, others)] {
        api.patch("child", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }
    let applied = apply().await;
    assert_eq!(applied.finalizers().len(), 2, "the API server has merged the list");
    let expected = [("created", 1.0), ("unchanged", 1.0)];
    let counts = fixture.counts().into_iter().filter(|(_, count)| *count > 0.0);
    assert_eq!(
        counts.collect::<BTreeMap<_, _>>(),
        expected.map(|(effect, count)| (effect.into(), count)).into()
    );
}

#[tokio::test]
async fn an_apply_that_changes_nothing_on_the_server_leaves_the_child_unchanged() {
    let fixture = Fixture::<ConfigMap>::new();
    fixture.children.apply(&lamp(), config_map(&[("k", "v")])).await.unwrap();
    let mut changed = fixture.server.object::<ConfigMap>(Some("default"), "child").unwrap();
    changed.data.as_mut().unwrap().insert("theirs".into(), "x".into());
    fixture.client.replace("child", &PostParams::default(), &changed).await.unwrap();
    fixture.server.take_writes();
    let unchanged = fixture.children.apply(&lamp(), config_map(&[("k", "v")])).await.unwrap();
    assert_eq!(
        fixture.take_writes().len(),
        1,
        "no request, although only the server knows whether the apply would remove the new entry"
    );
    assert!(matches!(&unchanged, Applied::Unchanged(_)), "{unchanged:?}");
}

/// Sets an entry of the child's data by `create_or_update`.
async fn set_entry(
    fixture: &Fixture<ConfigMap>,
    key: &str,
    value: &str,
) -> Result<Applied<ConfigMap>, NotApplied> {
    let edit = |map: &mut ConfigMap| {
        map.data.get_or_insert_default().insert(key.into(), value.into());
    };
    fixture.children.create_or_update(&lamp(), config_map(&[("new", "yes")]), edit).await
}

#[tokio::test]
async fn a_child_is_created_once_and_updated_only_if_it_differs() {
    let fixture = Fixture::<ConfigMap>::new();
    let created = set_entry(&fixture, "k", "v").await.unwrap();
    assert!(matches!(&created, Applied::Created(_)), "{created:?}");
    assert_eq!(created.data, config_map(&[("new", "yes"), ("k", "v")]).data);
    assert_eq!(created.owner_references(), [controller_reference(&lamp())]);
    let mut changed = fixture.client.get("child").await.unwrap();
    changed.data.as_mut().unwrap().remove("new");
    changed.data.as_mut().unwrap().insert("theirs".into(), "x".into());
    fixture.client.replace("child", &PostParams::default(), &changed).await.unwrap();
    fixture.take_writes();

    assert!(matches!(set_entry(&fixture, "k", "v").await.unwrap(), Applied::Unchanged(_)));
    assert_eq!(fixture.take_writes(), [""; 0]);
    let updated = set_entry(&fixture, "k", "w").await.unwrap();
    assert!(matches!(&updated, Applied::Updated { .. }), "{updated:?}");
    assert_eq!(updated.data, config_map(&[("k", "w"), ("theirs", "x")]).data, "another field was not kept");
    assert_eq!(fixture.take_writes(), ["update configmaps default/child"]);
}

/// Lets the API server drop each later change of the child, and returns the number of these requests.
fn drop_changes(fixture: &Fixture<ConfigMap>) -> Arc<AtomicUsize> {
    let requests = Arc::new(AtomicUsize::new(0));
    let (counter, child) =
        (requests.clone(), fixture.server.object::<ConfigMap>(Some("default"), "child").unwrap());
    let child = serde_json::to_value(&child).unwrap();
    fixture.server.answer(move |method, path, _| {
        let is_change = [http::Method::PATCH, http::Method::PUT].contains(method) && path.ends_with("/child");
        is_change.then(|| {
            counter.fetch_add(1, Ordering::Relaxed);
            (http::StatusCode::OK, child.clone())
        })
    });
    requests
}

#[tokio::test(start_paused = true)]
async fn values_that_the_api_server_does_not_store_are_sent_again_after_ten_minutes() {
    for is_applied in [true, false] {
        let fixture = Fixture::<ConfigMap>::new();
        let pass = async |value: &str| match is_applied {
            true => fixture.children.apply(&lamp(), config_map(&[("k", value)])).await.unwrap(),
            false => set_entry(&fixture, "k", value).await.unwrap(),
        };
        pass("v").await;
        let requests = drop_changes(&fixture);
        let count_after_pass = async || {
            pass("w").await;
            requests.load(Ordering::Relaxed)
        };
        assert_eq!([count_after_pass().await, count_after_pass().await], [1, 1]);
        tokio::time::advance(Duration::from_secs(600)).await;
        assert_eq!([count_after_pass().await, count_after_pass().await], [2, 2]);
    }
}

#[tokio::test]
async fn an_update_overwrites_neither_a_newer_child_nor_an_object_without_this_owner() {
    let fixture = Fixture::<ConfigMap>::new();
    let mut child = ConfigMap::clone(&set_entry(&fixture, "k", "v").await.unwrap());
    child.data = config_map(&[("newer", "yes")]).data;
    let other_client: Api<ConfigMap> = Api::namespaced(fixture.server.client(), "default");
    other_client.replace("child", &PostParams::default(), &child).await.unwrap();
    let Err(NotApplied::Refused { source, .. }) = set_entry(&fixture, "k", "w").await else { panic!() };
    assert!(matches!(*source, kube::Error::Api(status) if status.code == 409));

    let mut foreign = config_map(&[]);
    foreign.metadata.namespace = Some("default".into());
    for is_cached in [false, true] {
        let fixture = Fixture::<ConfigMap>::new();
        fixture.server.insert(&foreign);
        if is_cached {
            fixture.client.get("child").await.unwrap();
        }
        let taken = set_entry(&fixture, "k", "v").await.unwrap_err();
        assert!(matches!(taken, NotApplied::Taken { by: None, .. }), "{taken}");
    }
}

/// Answers patches of the orphan `b` so, and checks that the others are adopted.
async fn claim_without_b(answer: (u16, serde_json::Value)) -> String {
    let fixture = Fixture::<ConfigMap>::new();
    for name in ["a", "b", "c"] {
        let mut orphan = config_map(&[]);
        orphan.metadata.name = Some(name.into());
        fixture.client.create(&PostParams::default(), &orphan).await.unwrap();
    }
    let answer = (http::StatusCode::from_u16(answer.0).unwrap(), answer.1);
    fixture.server.answer(move |method, path, _| {
        (*method == http::Method::PATCH && path.ends_with("/b")).then(|| answer.clone())
    });
    let error = fixture.children.claim(&lamp(), |_| true).await.unwrap_err().in_full();
    assert!(error.starts_with("failed to change the owner references of ConfigMap default/b: "), "{error}");
    assert_eq!(fixture.children.of(&lamp()).count(), 2);
    error
}

#[tokio::test]
async fn an_orphan_whose_patch_fails_does_not_keep_others_from_being_adopted() {
    for (code, reason) in [(422, "Invalid"), (500, "InternalError"), (503, "ServiceUnavailable")] {
        let status =
            json!({"kind": "Status", "status": "Failure", "message": "no", "reason": reason, "code": code});
        claim_without_b((code, status)).await;
    }
}

#[tokio::test]
async fn an_object_whose_controller_has_the_name_of_a_namespace_as_uid_is_no_orphan_of_that_namespace() {
    let fixture = Fixture::<ConfigMap>::new();
    for (name, uid) in [("a", "/default"), ("b", "in default"), ("c", "uid-x"), ("d", "uid uid-x")] {
        let mut forged = config_map(&[]);
        forged.metadata.name = Some(name.into());
        forged.metadata.owner_references = Some(vec![OwnerReference {
            uid: uid.into(),
            controller: Some(true),
            ..controller_reference(&lamp())
        }]);
        fixture.elsewhere.create(&PostParams::default(), &forged).await.unwrap();
    }
    fixture.client.create(&PostParams::default(), &config_map(&[])).await.unwrap();
    fixture.take_writes();
    let claimed = fixture.children.claim(&lamp(), |_| true).await.unwrap();
    assert_eq!(claimed.iter().map(|child| child.name_any()).collect::<Vec<_>>(), ["child"]);
    assert_eq!(fixture.take_writes(), ["patch configmaps default/child"]);
}

#[tokio::test]
async fn an_orphan_whose_owner_references_admission_removes_is_reported() {
    let mut stored = config_map(&[]);
    stored.metadata.name = Some("b".into());
    stored.metadata.namespace = Some("default".into());
    let error = claim_without_b((200, serde_json::to_value(&stored).unwrap())).await;
    assert!(error.contains("the API server stored others: exempt the object"), "{error}");
}

#[tokio::test]
async fn an_orphan_whose_version_is_not_served_for_a_while_counts_as_refused_and_not_as_gone() {
    for (message, is_gone) in
        [("configmaps \"a\" not found", true), ("the server could not find the requested resource", false)]
    {
        let fixture = Fixture::<ConfigMap>::new();
        fixture.client.create(&PostParams::default(), &config_map(&[])).await.unwrap();
        let refusal =
            json!({"kind": "Status", "status": "Failure", "message": message, "reason": "NotFound"});
        fixture.server.answer(move |method, _, _| {
            (*method == http::Method::PATCH).then(|| (http::StatusCode::NOT_FOUND, refusal.clone()))
        });
        assert_eq!(fixture.children.claim(&lamp(), |_| true).await.is_ok(), is_gone, "{message}");
    }
}

#[tokio::test]
async fn an_orphan_is_not_adopted_for_an_owner_that_only_the_cache_still_has() {
    let fixture = Fixture::<ConfigMap>::new();
    fixture.children.apply(&lamp(), config_map(&[("k", "v")])).await.unwrap();
    // As after `kubectl delete --cascade=orphan`.
    let orphaned = json!({"metadata": {"ownerReferences": null}});
    fixture.client.patch("child", &PatchParams::default(), &Patch::Merge(orphaned)).await.unwrap();
    let lamps: Api<Lamp> = Api::namespaced(fixture.server.client(), "default");
    lamps.delete("x", &DeleteParams::default()).await.unwrap();
    fixture.take_writes();
    let applied = fixture.children.apply(&lamp(), config_map(&[("k", "w")])).await.unwrap_err();
    let updated = fixture.children.create_or_update(&lamp(), config_map(&[]), |_| {}).await.unwrap_err();
    for error in [applied, updated] {
        assert!(matches!(error, NotApplied::OwnerDeleted { .. }), "{error}");
    }
    assert_eq!(fixture.take_writes(), [""; 0]);
}

#[tokio::test]
async fn a_claimed_child_gets_the_new_version_of_its_owner_once() {
    let fixture = Fixture::<ConfigMap>::new();
    let mut child = config_map(&[]);
    let owner = controller_reference(&lamp());
    let former = OwnerReference { api_version: "tests.reknit.dev/v1alpha1".into(), ..owner.clone() };
    let other = OwnerReference {
        uid: "other".into(),
        api_version: "v1alpha1".into(),
        controller: None,
        ..owner.clone()
    };
    child.metadata.owner_references = Some(vec![former, other.clone()]);
    fixture.client.create(&PostParams::default(), &child).await.unwrap();
    fixture.take_writes();
    for writes in [vec!["patch configmaps default/child"], vec![]] {
        let claimed = fixture.children.claim(&lamp(), |_| true).await.unwrap();
        assert_eq!(fixture.take_writes(), writes);
        assert_eq!(claimed[0].metadata.owner_references, Some(vec![owner.clone(), other.clone()]));
    }
}
