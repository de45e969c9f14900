//! Children that a pass applies, creates and deletes.

use k8s_openapi::api::batch::v1::Job;
use kube::{Resource, ResourceExt, api::DeleteParams};
use reknit_injection::{Cached, Context};
use reknit_reconciler::{Controller, Owned};
use reknit_testing::ApiServer;
use serde::Serialize;
use serde_json::json;

use crate::{Lamp, lamp};

/// The children of one Kind of the lamp `default/x`, on an API server in memory.
struct Fixture<T: Cached> {
    server: ApiServer,
    children: Owned<T>,
}

impl<T: Cached + Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Serialize>
    Fixture<T>
{
    fn new() -> Self {
        let server = ApiServer::new();
        let cx = Context::preloaded("test", server.client(), vec![server.insert(&lamp())]);
        let children = Controller::of::<Lamp>(&cx).owns::<T>();
        Self { server, children }
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
