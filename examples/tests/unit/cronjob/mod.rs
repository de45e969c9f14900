//! Tests of cronjob: its schedules, its webhook, single passes, and simulations.

mod admission;
mod passes;
mod policies;
mod schedules;
mod simulations;

use k8s_openapi::{
    api::batch::v1::Job,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::Resource;
use reknit::testing::FakeClock;
use serde_json::{Value, json};

use crate::support::cronjob::{
    cron_job,
    program::{CronJob, CronJobStatus},
};

/// A time of the day on which everything happens. The test CronJob was created at 9:30.
fn at(time: &str) -> Timestamp {
    format!("2026-01-05T{time}:00Z").parse().unwrap()
}

/// The hourly CronJob `default/backup`, with these fields added to its spec.
fn backup_job(spec: Value) -> CronJob {
    let mut object = cron_job("backup", spec);
    object.metadata.namespace = Some("default".into());
    object.metadata.uid = Some("uid-of-backup".into());
    object.metadata.creation_timestamp = Some(Time(at("09:30")));
    object
}

/// The active Job of the run that was scheduled at this time.
fn job(time: &str) -> Job {
    let owner = json!({
        "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "CronJob", "name": "backup", "uid": "uid-of-backup",
        "controller": true, "blockOwnerDeletion": true,
    });
    let object = json!({
        "metadata": {
            "name": name(time),
            "namespace": "default",
            "labels": {"app": "backup"},
            "annotations": {
                "team": "storage",
                "batch.tutorial.kubebuilder.io/scheduled-at": at(time).to_string(),
            },
            "ownerReferences": [owner],
        },
        "spec": cron_job("backup", json!({})).spec.job_template.spec,
    });
    serde_json::from_value(object).unwrap()
}

/// The name of the Job of the run that was scheduled at this time.
fn name(time: &str) -> String {
    format!("backup-{}", at(time).as_second())
}

/// The Job of a run that started on time and ended in this condition.
fn finished(time: &str, condition: &str) -> Job {
    let status = json!({"startTime": at(time), "conditions": [{"type": condition, "status": "True"}]});
    Job { status: Some(serde_json::from_value(status).unwrap()), ..job(time) }
}

/// The type, status, reason and message of a condition.
type Report<'a> = (&'a str, &'a str, &'a str, &'a str);

const NOT_PROGRESSING: Report<'_> = ("Progressing", "False", "NoJobsActive", "No jobs are currently active");
const PROGRESSING: Report<'_> = ("Progressing", "True", "JobsActive", "1 job(s) are currently active");
const NOT_DEGRADED: Report<'_> = ("Degraded", "False", "NoJobsFailed", "No jobs have failed");
const AVAILABLE: Report<'_> =
    ("Available", "True", "AllJobsCompleted", "All jobs have completed successfully");
const SUSPENDED: Report<'_> = ("Available", "False", "Suspended", "CronJob is suspended");
/// The conditions of a CronJob that has no failed or active Job.
const IDLE: [Report<'_>; 3] = [NOT_PROGRESSING, NOT_DEGRADED, AVAILABLE];
/// The conditions of a CronJob that has one active Job.
const ACTIVE: [Report<'_>; 3] = [
    PROGRESSING,
    NOT_DEGRADED,
    ("Available", "True", "JobsActive", "CronJob is progressing with 1 active job(s)"),
];

/// The CronJob with this status: active Jobs, the time of the last run, and conditions.
fn with_status(object: CronJob, active: &[Job], last: Option<&str>, reports: &[Report<'_>]) -> CronJob {
    let condition = |&(type_, status, reason, message): &Report<'_>| Condition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: Time(at("09:30")),
        observed_generation: None,
    };
    let status = CronJobStatus {
        active: active.iter().map(|job| job.object_ref(&())).collect(),
        last_schedule_time: last.map(|time| Time(at(time))),
        conditions: reports.iter().map(condition).collect(),
    };
    CronJob { status: Some(status), ..object }
}

/// The CronJob with the status of its first pass if no run is due: no Jobs and no last run.
fn idle(object: CronJob) -> CronJob {
    with_status(object, &[], None, &IDLE)
}
