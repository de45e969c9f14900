//! Tests of runs, missed runs, suspension, and deletion.

use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::Time};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;

use super::{ACTIVE, Backup, active, reason, with_pending_pods};
use crate::support::cronjob::program::CronJob;

#[tokio::test]
async fn a_due_run_becomes_a_job_that_completes() {
    let backup = Backup::start(json!({})).await;
    let status = backup.pass_at(0, 59).await;
    assert_eq!(status.last_schedule_time, None);
    assert_eq!(reason(&status, "Available"), "AllJobsCompleted");
    backup.wait_for_jobs(&[]).await;

    backup.set_clock(1, 0);
    backup.wait_for_jobs(&[(1, "Complete")]).await;
    let hour = Some(Time(backup.hour(1)));
    let status = backup
        .wait_for_status("has completed its Job", |status| {
            status.last_schedule_time == hour && status.active.is_empty()
        })
        .await;
    assert_eq!(reason(&status, "Progressing"), "NoJobsActive");

    let job = backup.api::<Job>().get(&backup.name(1)).await.unwrap();
    assert_eq!((&*job.labels()["app"], &*job.annotations()["team"]), ("backup", "storage"));
    let owner = &job.owner_references()[0];
    assert_eq!((&*owner.kind, &*owner.name, owner.controller), ("CronJob", "backup", Some(true)));
    backup.stop().await;
}

#[tokio::test]
async fn of_missed_runs_only_the_last_is_made_up_for() {
    let backup = Backup::start(json!({})).await;
    backup.pass_at(5, 10).await;
    backup.wait_for_jobs(&[(5, "Complete")]).await;
    backup.pass_at(5, 50).await;
    backup.wait_for_jobs(&[(5, "Complete")]).await;
    backup.stop().await;
}

#[tokio::test]
async fn a_run_that_missed_its_starting_deadline_is_dropped() {
    let backup = Backup::start(json!({"startingDeadlineSeconds": 600})).await;
    let status = backup.pass_at(1, 10).await;
    assert_eq!(status.last_schedule_time, None);
    backup.wait_for_jobs(&[]).await;
    backup.pass_at(2, 9).await;
    backup.wait_for_jobs(&[(2, "Complete")]).await;
    backup.stop().await;
}

#[tokio::test]
async fn a_suspended_cron_job_runs_again_when_it_is_resumed() {
    let backup = Backup::start(with_pending_pods(json!({}))).await;
    backup.pass_at(1, 0).await;
    backup.wait_for_jobs(&[(1, ACTIVE)]).await;

    let status = backup.patch(json!({"suspend": true})).await;
    assert_eq!(reason(&status, "Available"), "Suspended");
    let status = backup.pass_at(3, 0).await;
    assert_eq!(active(&status), [backup.name(1)], "an active Job continues");
    backup.wait_for_jobs(&[(1, ACTIVE)]).await;

    backup.patch(json!({"suspend": false})).await;
    backup.wait_for_jobs(&[(1, ACTIVE), (3, ACTIVE)]).await;
    backup.stop().await;
}

#[tokio::test]
async fn a_deleted_cron_job_is_deleted_with_its_jobs_and_pods() {
    let backup = Backup::start(with_pending_pods(json!({}))).await;
    backup.pass_at(1, 0).await;
    backup.pass_at(2, 0).await;
    backup.wait_for_jobs(&[(1, ACTIVE), (2, ACTIVE)]).await;
    backup.api::<CronJob>().delete("backup", &DeleteParams::background()).await.unwrap();
    backup.wait_for_jobs(&[]).await;
    backup.stop().await;
}
