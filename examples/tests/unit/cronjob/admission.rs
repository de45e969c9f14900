//! Tests of the webhook.

use std::sync::LazyLock;

use reknit::{
    prelude::*,
    testing::nothing,
    webhook::{Admitted, Denied, TestRequest},
};
use serde_json::{Value, json};

use super::backup_job;
use crate::support::cronjob::{
    cron_job,
    program::{CronJob, webhook},
};

const LONG_NAME: &str = "this-name-is-way-too-long-and-should-fail-validation-because-it-is-way-too-long";

/// Built once for all tests, because it builds the schema of CronJob, which contains the large one of a pod template.
static WEBHOOK: LazyLock<Webhook> = LazyLock::new(|| nothing().webhook(webhook));

async fn admit(request: TestRequest) -> Result<Admitted, Denied> {
    WEBHOOK.admit(request).await
}

async fn create(object: &CronJob) -> Result<Admitted, Denied> {
    admit(TestRequest::create(object)).await
}

async fn refusal(object: &CronJob) -> String {
    create(object).await.unwrap_err().to_string()
}

#[tokio::test]
async fn fields_that_are_not_set_get_defaults() {
    let spec = create(&backup_job(json!({}))).await.unwrap().object["spec"].clone();
    assert_eq!(spec["concurrencyPolicy"], "Allow");
    assert_eq!(spec["suspend"], false);
    assert_eq!(spec["successfulJobsHistoryLimit"], 3);
    assert_eq!(spec["failedJobsHistoryLimit"], 1);
    assert_eq!(spec["startingDeadlineSeconds"], Value::Null);
}

#[tokio::test]
async fn fields_that_are_set_are_kept() {
    let fields = json!({
        "concurrencyPolicy": "Forbid", "suspend": true, "successfulJobsHistoryLimit": 5, "failedJobsHistoryLimit": 2,
        "startingDeadlineSeconds": 60,
    });
    let spec = create(&backup_job(fields.clone())).await.unwrap().object["spec"].clone();
    for (field, value) in fields.as_object().unwrap() {
        assert_eq!(&spec[field], value, "{field}");
    }
}

#[tokio::test]
async fn a_name_must_leave_room_for_the_time_of_a_run() {
    create(&cron_job("valid-cronjob-name", json!({}))).await.unwrap();
    create(&cron_job(&"n".repeat(52), json!({}))).await.unwrap();
    for name in [LONG_NAME, &"n".repeat(53)] {
        let refusal = refusal(&cron_job(name, json!({}))).await;
        assert!(refusal.contains("metadata.name"), "{refusal}");
        assert!(refusal.contains("must be no more than 52 characters"), "{refusal}");
    }
}

#[tokio::test]
async fn a_schedule_must_be_valid() {
    create(&backup_job(json!({"schedule": "*/5 * * * *"}))).await.unwrap();
    let refusal = refusal(&backup_job(json!({"schedule": "invalid-cron-schedule"}))).await;
    assert!(refusal.contains("spec.schedule"), "{refusal}");
    assert!(refusal.contains("expected exactly 5 fields, found 1: invalid-cron-schedule"), "{refusal}");
}

#[tokio::test]
async fn updates_follow_the_same_rules_and_all_faults_are_reported() {
    let old = cron_job("valid-cronjob-name", json!({"schedule": "*/5 * * * *"}));
    let invalid = cron_job(LONG_NAME, json!({"schedule": "invalid-cron-schedule"}));
    let refusal = admit(TestRequest::update(&old, &invalid)).await.unwrap_err().to_string();
    assert!(refusal.contains("metadata.name") && refusal.contains("spec.schedule"), "{refusal}");
    let valid = cron_job("valid-cronjob-name", json!({"schedule": "0 0 * * *"}));
    admit(TestRequest::update(&old, &valid)).await.unwrap();
}

#[tokio::test]
async fn a_misspelt_field_is_refused() {
    let mut misspelt = json!(backup_job(json!({})));
    misspelt["spec"]["suspended"] = json!(true);
    let refusal = admit(TestRequest::create(misspelt)).await.unwrap_err().to_string();
    assert!(refusal.contains("unknown field \"spec.suspended\""), "{refusal}");
}
