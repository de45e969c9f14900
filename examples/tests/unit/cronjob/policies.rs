//! Table tests of suspension and of the concurrency policies.

use reknit::testing::{Verb, Want, each_permission_is_needed, table};
use serde_json::json;

use super::{
    passes::{KEY, now, requeue_after_minutes},
    *,
};
use crate::{permissions::failed_status_writes, support::cronjob::program::controller};

/// The second run of an hourly CronJob with this policy, while the first is active.
fn second_run(policy: &str) -> reknit::testing::Given {
    now("11:00", backup_job(json!({"concurrencyPolicy": policy}))).and(job("10:00"))
}

/// The status after the second run was created.
fn second_created() -> CronJob {
    let created = ("Progressing", "True", "JobCreated", "Created job backup-1767610800");
    with_status(backup_job(json!({})), &[job("10:00")], Some("10:00"), &[created, ACTIVE[1], ACTIVE[2]])
}

#[tokio::test]
async fn a_policy_decides_about_a_run_while_another_is_active() {
    table(controller)
        .row(
            "Allow creates a second Job",
            KEY,
            second_run("Allow"),
            requeue_after_minutes(60).create(&job("11:00")).status(&second_created()),
        )
        .row(
            "Forbid skips the run",
            KEY,
            second_run("Forbid"),
            requeue_after_minutes(60).status(&with_status(
                backup_job(json!({})),
                &[job("10:00")],
                Some("10:00"),
                &ACTIVE,
            )),
        )
        .row(
            "Forbid creates the missed run after the other has finished",
            KEY,
            now("11:30", backup_job(json!({"concurrencyPolicy": "Forbid"})))
                .and(finished("10:00", "Complete")),
            requeue_after_minutes(30).create(&job("11:00")).status(&with_status(
                backup_job(json!({})),
                &[],
                Some("10:00"),
                &[
                    ("Progressing", "True", "JobCreated", "Created job backup-1767610800"),
                    NOT_DEGRADED,
                    AVAILABLE,
                ],
            )),
        )
        .row(
            "Replace deletes the active Job",
            KEY,
            second_run("Replace"),
            requeue_after_minutes(60)
                .delete::<Job>(&format!("default/{}", name("10:00")))
                .create(&job("11:00"))
                .status(&second_created()),
        )
        .row(
            "Replace keeps finished Jobs",
            KEY,
            now("11:00", backup_job(json!({"concurrencyPolicy": "Replace"})))
                .and(finished("10:00", "Complete")),
            requeue_after_minutes(60).create(&job("11:00")).status(&with_status(
                backup_job(json!({})),
                &[],
                Some("10:00"),
                &[
                    ("Progressing", "True", "JobCreated", "Created job backup-1767610800"),
                    NOT_DEGRADED,
                    AVAILABLE,
                ],
            )),
        )
        .run()
        .await;
}

#[tokio::test]
async fn a_job_that_cannot_be_replaced_is_an_error_and_no_second_one_is_created() {
    let effects = second_run("Replace").failing(Verb::Delete, "jobs", 500).reconcile(controller, KEY).await;
    assert!(!effects.result.as_ref().unwrap_err().is_permanent());
    assert!(effects.writes().iter().all(|write| !write.starts_with("create ")), "{:?}", effects.writes());
}

#[tokio::test]
async fn a_suspended_cron_job_creates_no_job_and_still_cleans_up() {
    let suspended = || backup_job(json!({"suspend": true, "successfulJobsHistoryLimit": 0}));
    table(controller)
        .row(
            "a missed run is not created",
            KEY,
            now("10:01", suspended()),
            Want::done().status(&with_status(
                suspended(),
                &[],
                None,
                &[NOT_PROGRESSING, NOT_DEGRADED, SUSPENDED],
            )),
        )
        .row(
            "active Jobs continue",
            KEY,
            now("12:00", suspended()).and(job("10:00")),
            Want::done().status(&with_status(
                suspended(),
                &[job("10:00")],
                Some("10:00"),
                &[PROGRESSING, NOT_DEGRADED, SUSPENDED],
            )),
        )
        .row(
            "finished Jobs are deleted",
            KEY,
            now("12:00", suspended()).and(finished("10:00", "Complete")),
            Want::done().delete::<Job>(&format!("default/{}", name("10:00"))).status(&with_status(
                suspended(),
                &[],
                Some("10:00"),
                &[NOT_PROGRESSING, NOT_DEGRADED, SUSPENDED],
            )),
        )
        .run()
        .await;
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(|| failed_status_writes(controller, "cronjobs", KEY, || second_run("Replace")))
        .await;
}
