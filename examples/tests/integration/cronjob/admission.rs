//! Tests of the webhook, as the API server calls it.

use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use reknit::testing::WebhookServer;
use serde_json::json;

use crate::{
    environment::plane_with_nodes,
    support::cronjob::{
        cron_job,
        program::{CronJob, webhook},
    },
};

/// Serves the webhook for a namespace of its own.
async fn serve() -> (WebhookServer, Api<CronJob>) {
    let plane = plane_with_nodes().await;
    let namespace = plane.namespace("admission").await.unwrap();
    let server = plane.serve_webhook(&namespace, webhook).await.unwrap();
    (server, Api::namespaced(plane.client().unwrap(), &namespace))
}

/// The code of a refusal, and its causes: field and reason.
fn refusal(error: kube::Error) -> (u16, Vec<(String, String)>) {
    let kube::Error::Api(status) = error else { panic!("{error}") };
    let causes = status.details.map(|details| details.causes).unwrap_or_default();
    (status.code, causes.into_iter().map(|cause| (cause.field, cause.reason)).collect())
}

fn invalid(field: &str) -> (String, String) {
    (field.into(), "FieldValueInvalid".into())
}

#[tokio::test]
async fn the_webhook_sets_defaults_and_refuses_invalid_objects_by_field() {
    let (_server, cron_jobs) = serve().await;
    let params = PostParams::default();
    let created = cron_jobs.create(&params, &cron_job("backup", json!({}))).await.unwrap();
    let spec = created.spec;
    assert_eq!(spec.suspend, Some(false));
    assert_eq!((spec.successful_jobs_history_limit, spec.failed_jobs_history_limit), (Some(3), Some(1)));

    let long_name = "n".repeat(53);
    let error =
        cron_jobs.create(&params, &cron_job(&long_name, json!({"schedule": "often"}))).await.unwrap_err();
    assert_eq!(refusal(error), (422, vec![invalid("metadata.name"), invalid("spec.schedule")]));

    let patch = Patch::Merge(json!({"spec": {"schedule": "61 * * * *"}}));
    let error = cron_jobs.patch("backup", &PatchParams::default(), &patch).await.unwrap_err();
    assert_eq!(refusal(error), (422, vec![invalid("spec.schedule")]));
}
