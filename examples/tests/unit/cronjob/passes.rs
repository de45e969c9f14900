//! Table tests of single passes: runs, deadlines, history limits, and errors.

use std::time::Duration;

use reknit::{
    prelude::*,
    testing::{Given, Verb, Want, given, table},
};
use serde_json::{Value, json};

use super::*;
use crate::support::cronjob::program::controller;

pub(super) const KEY: &str = "default/backup";
const CREATED_AT_TEN: Report<'_> = ("Progressing", "True", "JobCreated", "Created job backup-1767607200");

/// The CronJob at a time of the day.
pub(super) fn now(time: &str, object: CronJob) -> Given {
    given(object).provide(FakeClock::at(&at(time).to_string()).clock())
}

pub(super) fn requeue_after_minutes(minutes: u64) -> Want {
    Want::outcome(&Outcome::after(Duration::from_secs(minutes * 60)))
}

/// The status of a CronJob whose Job of ten o'clock has just been created.
fn created_at_ten(spec: Value) -> CronJob {
    with_status(backup_job(spec), &[], None, &[CREATED_AT_TEN, NOT_DEGRADED, AVAILABLE])
}

fn degraded(reason: &'static str, message: &'static str) -> [Report<'static>; 3] {
    [NOT_PROGRESSING, ("Degraded", "True", reason, message), AVAILABLE]
}

#[tokio::test]
async fn a_run_is_created_when_it_is_due() {
    table(controller)
        .row(
            "before the first run nothing is created",
            KEY,
            now("09:45", backup_job(json!({}))),
            requeue_after_minutes(15).status(&idle(backup_job(json!({})))),
        )
        .row(
            "a run is created at its time",
            KEY,
            now("10:00", backup_job(json!({}))),
            requeue_after_minutes(60).create(&job("10:00")).status(&created_at_ten(json!({}))),
        )
        .row(
            "a missed run is created late",
            KEY,
            now("10:59", backup_job(json!({}))),
            requeue_after_minutes(1).create(&job("10:00")).status(&created_at_ten(json!({}))),
        )
        .row(
            "the Job of the last run is reported, and no second one is created",
            KEY,
            now("10:01", backup_job(json!({}))).and(job("10:00")),
            requeue_after_minutes(59).status(&with_status(
                backup_job(json!({})),
                &[job("10:00")],
                Some("10:00"),
                &ACTIVE,
            )),
        )
        .row(
            "a second pass writes nothing",
            KEY,
            now("10:01", with_status(backup_job(json!({})), &[job("10:00")], Some("10:00"), &ACTIVE))
                .and(job("10:00")),
            requeue_after_minutes(59),
        )
        .row(
            "of several missed runs only the last is created",
            KEY,
            now("13:10", backup_job(json!({}))).and(finished("10:00", "Complete")),
            requeue_after_minutes(50).create(&job("13:00")).status(&with_status(
                backup_job(json!({})),
                &[],
                Some("10:00"),
                &[
                    ("Progressing", "True", "JobCreated", "Created job backup-1767618000"),
                    NOT_DEGRADED,
                    AVAILABLE,
                ],
            )),
        )
        .row(
            "a run is not repeated after its Job has been deleted",
            KEY,
            now("10:01", with_status(backup_job(json!({})), &[], Some("10:00"), &IDLE)),
            requeue_after_minutes(59),
        )
        .row("a deleted CronJob has no runs", KEY, reknit::testing::nothing(), Want::skip())
        .run()
        .await;
}

#[tokio::test]
async fn a_missed_run_is_created_only_within_its_starting_deadline() {
    let deadline = |seconds: i64| json!({"startingDeadlineSeconds": seconds});
    table(controller)
        .row(
            "within the deadline a missed run is created",
            KEY,
            now("10:09", backup_job(deadline(600))),
            requeue_after_minutes(51).create(&job("10:00")).status(&created_at_ten(deadline(600))),
        )
        .row(
            "after the deadline it is not",
            KEY,
            now("10:10", backup_job(deadline(600))),
            requeue_after_minutes(50).status(&idle(backup_job(deadline(600)))),
        )
        .row(
            "a deadline limits the missed runs that are counted",
            KEY,
            now("12:00", backup_job(json!({"schedule": "* * * * *", "startingDeadlineSeconds": 90}))),
            requeue_after_minutes(1).create(&job("12:00")).status(&with_status(
                backup_job(json!({})),
                &[],
                None,
                &[
                    ("Progressing", "True", "JobCreated", "Created job backup-1767614400"),
                    NOT_DEGRADED,
                    AVAILABLE,
                ],
            )),
        )
        .run()
        .await;
}

#[tokio::test]
async fn a_schedule_without_a_next_run_is_reported() {
    let too_many = degraded(
        "InvalidSchedule",
        "too many missed start times (> 100): set or decrease .spec.startingDeadlineSeconds, or check the clock skew",
    );
    let unparseable = degraded("InvalidSchedule", "expected exactly 5 fields, found 1: often");
    table(controller)
        .row(
            "too many missed runs",
            KEY,
            now("12:00", backup_job(json!({"schedule": "* * * * *"}))),
            Want::done().status(&with_status(backup_job(json!({})), &[], None, &too_many)),
        )
        .row(
            "a schedule that was stored without the webhook",
            KEY,
            now("12:00", backup_job(json!({"schedule": "often"}))),
            Want::done().status(&with_status(backup_job(json!({})), &[], None, &unparseable)),
        )
        .row(
            "a corrected schedule",
            KEY,
            now("09:45", with_status(backup_job(json!({})), &[], None, &unparseable)),
            requeue_after_minutes(15).status(&idle(backup_job(json!({})))),
        )
        .run()
        .await;
}

/// The deletions of a pass at 10:01, of Jobs that ran at these times and ended in this condition.
async fn deletions(spec: Value, times: &[&str], condition: &str) -> Vec<String> {
    let history = times.iter().map(|time| finished(time, condition));
    let given = history.fold(now("10:01", backup_job(spec)), |given, job| given.and(job));
    let writes = given.reconcile(controller, KEY).await.writes();
    writes.into_iter().filter(|write| write.starts_with("delete ")).collect()
}

fn deletion(time: &str) -> String {
    format!("delete jobs default/{}", name(time))
}

#[tokio::test]
async fn the_oldest_finished_jobs_are_deleted() {
    let times = ["08:00", "10:00", "06:00", "07:00", "09:00"];
    let limits = json!({"successfulJobsHistoryLimit": 2, "failedJobsHistoryLimit": 4});
    let oldest = [deletion("06:00"), deletion("07:00"), deletion("08:00")];
    assert_eq!(deletions(limits.clone(), &times, "Complete").await, oldest);
    assert_eq!(deletions(limits, &times, "Failed").await, oldest[..1]);

    let unlimited = json!({});
    assert_eq!(
        deletions(unlimited.clone(), &times, "Complete").await,
        oldest[..2],
        "three are kept by default"
    );
    assert_eq!(deletions(unlimited, &times, "Failed").await.len(), 4, "one is kept by default");

    let none = json!({"successfulJobsHistoryLimit": 0, "failedJobsHistoryLimit": 0});
    assert_eq!(deletions(none.clone(), &times, "Complete").await.len(), 5);
    assert_eq!(deletions(none.clone(), &times, "Failed").await.len(), 5);
    assert_eq!(deletions(none, &times, "Suspended").await, [""; 0], "unfinished Jobs are kept");
}

#[tokio::test]
async fn a_job_whose_condition_is_not_true_is_active() {
    let mut active = job("10:00");
    active.status =
        Some(serde_json::from_value(json!({"conditions": [{"type": "Failed", "status": "False"}]})).unwrap());
    let want = requeue_after_minutes(59).status(&with_status(
        backup_job(json!({})),
        &[job("10:00")],
        Some("10:00"),
        &ACTIVE,
    ));
    now("10:01", backup_job(json!({}))).and(active).reconcile(controller, KEY).await.check(want);
}

#[tokio::test]
async fn a_failed_deletion_of_an_old_job_does_not_stop_a_run() {
    let spec = json!({"successfulJobsHistoryLimit": 0});
    let effects = now("10:00", backup_job(spec))
        .and(finished("09:00", "Complete"))
        .failing(Verb::Delete, "jobs", 500)
        .reconcile(controller, KEY)
        .await;
    assert_eq!(effects.result.as_ref().unwrap(), &Outcome::after(Duration::from_secs(3600)));
    let expected = [deletion("09:00"), "create jobs default/backup-1767607200".into()];
    assert_eq!(effects.writes()[..2], expected);
}

#[tokio::test]
async fn a_failed_creation_is_reported_and_retried() {
    let message = "inducing failure for create jobs";
    let effects = now("10:00", backup_job(json!({})))
        .failing(Verb::Create, "jobs", 403)
        .reconcile(controller, KEY)
        .await;
    assert!(!effects.result.as_ref().unwrap_err().is_permanent());
    assert_eq!(
        effects.writes(),
        ["create jobs default/backup-1767607200", "patch cronjobs/status default/backup"]
    );
    let degraded = &effects.object::<CronJob>(KEY).unwrap().status.unwrap().conditions[1];
    assert_eq!((&*degraded.status, &*degraded.reason), ("True", "JobCreationFailed"));
    assert!(degraded.message.starts_with("Failed to create job: ") && degraded.message.contains(message));
}

#[tokio::test]
async fn failed_jobs_make_the_cron_job_degraded_and_unavailable() {
    let failed = finished("10:00", "Failed");
    let one = "1 job(s) have failed";
    let reports =
        [NOT_PROGRESSING, ("Degraded", "True", "JobsFailed", one), ("Available", "False", "JobsFailed", one)];
    let want =
        requeue_after_minutes(59).status(&with_status(backup_job(json!({})), &[], Some("10:00"), &reports));
    now("10:01", backup_job(json!({}))).and(failed).reconcile(controller, KEY).await.check(want);
}

#[tokio::test]
async fn jobs_without_a_valid_scheduled_time_count_only_as_active_and_jobs_of_others_are_ignored() {
    let mut manual = job("10:00");
    manual.metadata.annotations = None;
    let mut invalid = job("11:00");
    invalid.metadata.annotations =
        Some([("batch.tutorial.kubebuilder.io/scheduled-at".into(), "noon".into())].into());
    let mut foreign = job("12:00");
    foreign.metadata.owner_references = None;
    let given = now("09:45", backup_job(json!({}))).and(manual).and(invalid).and(foreign);
    let status = given.reconcile(controller, KEY).await.object::<CronJob>(KEY).unwrap().status.unwrap();
    assert_eq!(status.last_schedule_time, None);
    let names: Vec<_> = status.active.into_iter().filter_map(|job| job.name).collect();
    assert_eq!(names, [name("10:00"), name("11:00")]);
}
