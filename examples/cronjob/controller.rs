//! The controller of CronJobs.

use std::sync::Arc;

use k8s_openapi::{
    api::batch::v1::Job,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;
use reknit::{
    injection::{Clock, Verb},
    prelude::*,
    reconciler::OwnedOptions,
};
use tracing::{info, warn};

use super::{
    ConcurrencyPolicy, CronJob, CronJobStatus, Runs, Schedule, ScheduleError,
    jobs::{Jobs, job_for},
};

/// Reconciles CronJobs, and owns Jobs.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<CronJob>(cx);
    let jobs = build.owns_with(OwnedOptions::default().verbs([Verb::Create, Verb::Delete]));
    Ok(build.reconciler(Reconciler { jobs, clock: cx.get() }).build())
}

struct Reconciler {
    jobs: Owned<Job>,
    clock: Clock,
}

impl ReconcileKind for Reconciler {
    type Kind = CronJob;

    async fn reconcile_kind(&self, cron_job: &CronJob, status: &mut CronJobStatus) -> Result<Outcome> {
        let jobs = Jobs::sort(self.jobs.of(cron_job));
        // The stored time counts too: a run is not repeated if its Job has been deleted.
        let last = status.last_schedule_time.as_ref().map(|time| time.0).max(jobs.last_scheduled);
        status.last_schedule_time = last.map(Time);
        status.active = jobs.active_references();
        report(&mut status.conditions, cron_job, &jobs);

        self.delete_oldest(&jobs.failed, cron_job.spec.failed_jobs_history_limit).await;
        self.delete_oldest(&jobs.successful, cron_job.spec.successful_jobs_history_limit).await;
        if cron_job.spec.suspend == Some(true) {
            return Ok(Outcome::done());
        }

        let runs = match runs(cron_job, last, self.clock.now()) {
            Ok(runs) => runs,
            Err(error) => {
                // Only a change of the spec can help, and that enqueues the CronJob.
                status.conditions.mark_true_with_reason("Degraded", "InvalidSchedule", error.to_string());
                return Ok(Outcome::done());
            }
        };
        if let Some(scheduled) = runs.missed {
            self.run(cron_job, scheduled, &jobs.active, &mut status.conditions).await?;
        }
        Ok(Outcome::after(self.clock.until(runs.next)))
    }
}

impl Reconciler {
    /// Deletes all Jobs but the newest ones. A failure does not delay the next run.
    async fn delete_oldest(&self, finished: &[Arc<Job>], limit: Option<u32>) {
        let Some(limit) = limit else { return };
        let kept = usize::try_from(limit).unwrap_or(usize::MAX);
        for job in &finished[..finished.len().saturating_sub(kept)] {
            match self.jobs.delete(job).await {
                Ok(()) => info!(job = job.name_any(), "deleted an old Job"),
                Err(error) => warn!(job = job.name_any(), %error, "failed to delete an old Job"),
            }
        }
    }

    /// Creates the Job of a run, unless the concurrency policy forbids it.
    async fn run(
        &self,
        cron_job: &CronJob,
        scheduled: Timestamp,
        active: &[Arc<Job>],
        conditions: &mut Vec<Condition>,
    ) -> Result<()> {
        match cron_job.spec.concurrency_policy {
            ConcurrencyPolicy::Forbid if !active.is_empty() => return Ok(()),
            ConcurrencyPolicy::Replace => {
                for job in active {
                    self.jobs.delete(job).await?;
                }
            }
            _ => {}
        }
        match self.jobs.create(cron_job, job_for(cron_job, scheduled)).await {
            Ok(job) => {
                let message = format!("Created job {}", job.name_any());
                conditions.mark_true_with_reason("Progressing", "JobCreated", message);
                Ok(())
            }
            Err(error) => {
                let message = format!("Failed to create job: {error}");
                conditions.mark_true_with_reason("Degraded", "JobCreationFailed", message);
                Err(error.into())
            }
        }
    }
}

/// Finds the runs since the last one, or since the CronJob was created. Runs beyond the starting deadline are ignored.
fn runs(cron_job: &CronJob, last: Option<Timestamp>, now: Timestamp) -> Result<Runs, ScheduleError> {
    let created = cron_job.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let deadline = cron_job.spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let earliest = last.or(created).max(deadline.and_then(|deadline| now.checked_sub(deadline).ok()));
    Schedule::parse(&cron_job.spec.schedule)?.runs(earliest.unwrap_or(now), now)
}

/// Reports the state of the Jobs.
fn report(conditions: &mut Vec<Condition>, cron_job: &CronJob, jobs: &Jobs) {
    let (active, failed) = (jobs.active.len(), jobs.failed.len());
    let has_failed = format!("{failed} job(s) have failed");
    match active {
        0 => conditions.mark_false("Progressing", "NoJobsActive", "No jobs are currently active"),
        _ => {
            let message = format!("{active} job(s) are currently active");
            conditions.mark_true_with_reason("Progressing", "JobsActive", message);
        }
    }
    match failed {
        0 => conditions.mark_false("Degraded", "NoJobsFailed", "No jobs have failed"),
        _ => conditions.mark_true_with_reason("Degraded", "JobsFailed", &*has_failed),
    }
    if cron_job.spec.suspend == Some(true) {
        conditions.mark_false("Available", "Suspended", "CronJob is suspended");
    } else if failed > 0 {
        conditions.mark_false("Available", "JobsFailed", has_failed);
    } else if active > 0 {
        let message = format!("CronJob is progressing with {active} active job(s)");
        conditions.mark_true_with_reason("Available", "JobsActive", message);
    } else {
        conditions.mark_true_with_reason(
            "Available",
            "AllJobsCompleted",
            "All jobs have completed successfully",
        );
    }
}
