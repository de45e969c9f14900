//! Children that a pass applies, creates and deletes.

use std::collections::BTreeMap;

use k8s_openapi::api::{batch::v1::Job, core::v1::ConfigMap};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, PostParams},
};
use reknit_injection::{Cached, Context};
use reknit_reconciler::{Applied, Controller, Owned};
use reknit_testing::ApiServer;
use serde::Serialize;
use serde_json::json;

use crate::{Lamp, lamp};

/// The children of one Kind of the lamp `default/x`, on an API server in memory.
struct Fixture<T: Cached> {
    server: ApiServer,
    children: Owned<T>,
    /// A client whose writes enter the cache.
    client: Api<T>,
}

impl<T: Cached + Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Serialize>
    Fixture<T>
{
    fn new() -> Self {
        let server = ApiServer::new();
        let cx = Context::preloaded("test", server.client(), vec![server.insert(&lamp())]);
        let children = Controller::of::<Lamp>(&cx).owns::<T>();
        let client = Api::namespaced(cx.client(), "default");
        Self { server, children, client }
    }

    fn writes(&self) -> Vec<String> {
        self.server.writes().iter().map(ToString::to_string).collect()
    }
}

fn job() -> Job {
    serde_json::from_value(json!({"metadata": {"name": "child"}})).unwrap()
}

#[tokio::test]
async fn a_deleted_job_is_gone_with_its_pods() {
    let fixture = Fixture::<Job>::new();
    let job = fixture.children.create(&lamp(), job()).await.unwrap();
    fixture.children.delete(&job).await.unwrap();
    assert_eq!(fixture.writes(), ["create jobs default/child", "delete jobs default/child"]);
    assert!(fixture.server.object::<Job>(Some("default"), "child").is_none());
    assert_eq!(fixture.children.of(&lamp()).count(), 0);
}

#[tokio::test]
async fn a_deletion_with_other_options_keeps_the_uid_as_precondition() {
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
    fixture.writes();
    let options = DeleteParams::default().grace_period(5);
    fixture.children.delete_with(&second, options).await.unwrap();
    assert_eq!(fixture.writes(), ["delete jobs default/child"], "in the background by default");
}

fn config_map(data: &[(&str, &str)]) -> ConfigMap {
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
async fn an_apply_that_changes_nothing_on_the_server_leaves_the_child_unchanged() {
    let fixture = Fixture::<ConfigMap>::new();
    fixture.children.apply(&lamp(), config_map(&[("k", "v")])).await.unwrap();
    let mut changed = fixture.server.object::<ConfigMap>(Some("default"), "child").unwrap();
    changed.data.as_mut().unwrap().insert("theirs".into(), "x".into());
    fixture.client.replace("child", &PostParams::default(), &changed).await.unwrap();
    fixture.server.writes();
    let unchanged = fixture.children.apply(&lamp(), config_map(&[("k", "v")])).await.unwrap();
    assert_eq!(fixture.writes().len(), 1, "the new entry could be in an atomic map");
    assert!(matches!(&unchanged, Applied::Unchanged(_)), "{unchanged:?}");
}
