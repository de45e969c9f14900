//! Simulations of CronJobs.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use reknit::simulation::{Cluster, Simulation, jobs_complete, simulation};
use serde_json::json;

use super::backup_job;
use crate::support::cronjob::program::{CronJob, controller};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The number of Jobs that run.
fn active(cluster: &Cluster) -> usize {
    let is_active = |job: &&Job| {
        let is_complete = job.status.as_ref().is_some_and(|status| status.completion_time.is_some());
        !is_complete && job.metadata.deletion_timestamp.is_none()
    };
    cluster.list::<Job>().iter().filter(is_active).count()
}

/// A run at 00:01. The simulation begins at midnight.
fn one_run() -> Simulation {
    simulation([controller])
        .cluster(jobs_complete(secs(20)))
        .at(secs(1), |cluster| cluster.create(backup_job(json!({"schedule": "1 0 * * *"}))))
        .at(secs(90), |cluster| {
            cluster.merge::<CronJob>("default/backup", &json!({"spec": {"successfulJobsHistoryLimit": 1}}));
        })
        .finally("one Job has run, and none is active", |cluster| {
            let status = cluster.get::<CronJob>("default/backup").and_then(|object| object.status);
            let (jobs, status) = (cluster.list::<Job>().len(), status.unwrap_or_default());
            (jobs, active(cluster), status.active.len()) == (1, 0, 0) && status.last_schedule_time.is_some()
        })
}

/// A run each minute, with Jobs that take longer, until the CronJob is suspended.
fn a_run_each_minute(policy: &str) -> Simulation {
    let spec = json!({"schedule": "* * * * *", "concurrencyPolicy": policy, "successfulJobsHistoryLimit": 1});
    simulation([controller])
        .cluster(jobs_complete(secs(90)))
        .at(secs(1), move |cluster| cluster.create(backup_job(spec.clone())))
        .at(secs(250), |cluster| {
            cluster.merge::<CronJob>("default/backup", &json!({"spec": {"suspend": true}}));
        })
        .always("one Job runs at a time", |cluster| active(cluster) <= 1)
        .finally("at most one Job is kept, and none is active", |cluster| {
            cluster.list::<Job>().len() <= 1 && active(cluster) == 0
        })
        // Without a leader, runs are missed, and all of them until the suspension if it lasts: the last Job differs.
        .any_final_state()
}

#[test]
fn a_cron_job_runs_once_through_faults() {
    one_run().seeds(0..30).each_write().run();
}

#[test]
fn a_cron_job_of_three_replicas_runs_once_through_faults() {
    one_run().replicas(3).seeds(0..4).run();
}

#[test]
fn forbidden_runs_are_not_concurrent_through_faults() {
    a_run_each_minute("Forbid").seeds(0..6).run();
}

#[test]
fn forbidden_runs_of_three_replicas_are_not_concurrent_through_faults() {
    a_run_each_minute("Forbid").replicas(3).seeds(0..2).run();
}

#[test]
fn replaced_runs_are_not_concurrent_through_faults() {
    a_run_each_minute("Replace").seeds(1..4).run();
}
