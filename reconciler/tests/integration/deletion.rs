//! Deletion of children on a real API server.

use k8s_openapi::api::{batch::v1::Job, core::v1::ConfigMap};
use kube::{Api, ResourceExt, api::DeleteParams};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Owned};
use serde_json::json;

use crate::Fixture;

#[tokio::test]
async fn a_deleted_job_gets_the_finalizer_orphan_only_if_the_caller_asks_for_it() {
    let fixture = Fixture::new("deletion").await;
    let owner = fixture.create("owner", &[]).await;
    let cx = Context::preloaded("test", fixture.client.clone(), vec![]);
    let jobs: Owned<Job> = Controller::of::<ConfigMap>(&cx).owns();
    let stored: Api<Job> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let containers = json!([{"name": "a", "image": "a"}]);
    let job = json!({
        "metadata": {"generateName": "child-"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": containers}}},
    });
    let job: Job = serde_json::from_value(job).unwrap();

    let created = jobs.create(&owner, job.clone()).await.unwrap();
    jobs.delete(&created).await.unwrap();
    assert!(stored.get_opt(&created.name_any()).await.unwrap().is_none());

    let created = jobs.create(&owner, job).await.unwrap();
    jobs.delete_with(&created, DeleteParams::orphan()).await.unwrap();
    let terminating = stored.get(&created.name_any()).await.unwrap();
    assert_eq!(terminating.finalizers(), ["orphan"]);
}
