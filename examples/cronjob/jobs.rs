//! The Jobs of a CronJob.

use std::sync::Arc;

use k8s_openapi::{
    api::{batch::v1::Job, core::v1::ObjectReference},
    jiff::Timestamp,
};
use kube::{Resource, ResourceExt, api::ObjectMeta};
use tracing::warn;

use super::CronJob;

const SCHEDULED_AT: &str = "batch.tutorial.kubebuilder.io/scheduled-at";

/// The Jobs of a CronJob by their state, each list from the oldest to the newest.
#[derive(Default)]
pub(crate) struct Jobs {
    pub(crate) active: Vec<Arc<Job>>,
    pub(crate) successful: Vec<Arc<Job>>,
    pub(crate) failed: Vec<Arc<Job>>,
    /// The latest scheduled time of all Jobs.
    pub(crate) last_scheduled: Option<Timestamp>,
}

impl Jobs {
    pub(crate) fn sort(jobs: impl Iterator<Item = Arc<Job>>) -> Self {
        let mut jobs: Vec<_> = jobs.collect();
        jobs.sort_by_key(|job| (start_time(job), job.name_any()));
        let mut sorted = Self::default();
        for job in jobs {
            sorted.last_scheduled = sorted.last_scheduled.max(scheduled_time(&job));
            match finished_type(&job) {
                Some("Failed") => sorted.failed.push(job),
                Some(_) => sorted.successful.push(job),
                None => sorted.active.push(job),
            }
        }
        sorted
    }

    /// References to the active Jobs.
    pub(crate) fn active_references(&self) -> Vec<ObjectReference> {
        self.active.iter().map(|job| job.object_ref(&())).collect()
    }
}

fn start_time(job: &Job) -> Option<Timestamp> {
    Some(job.status.as_ref()?.start_time.as_ref()?.0)
}

/// `Complete` or `Failed`, if the Job has finished.
fn finished_type(job: &Job) -> Option<&str> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let finished = |kind: &str| matches!(kind, "Complete" | "Failed");
    let condition =
        conditions.iter().find(|condition| finished(&condition.type_) && condition.status == "True")?;
    Some(&condition.type_)
}

fn scheduled_time(job: &Job) -> Option<Timestamp> {
    let time = job.annotations().get(SCHEDULED_AT)?;
    time.parse()
        .inspect_err(|error| warn!(job = job.name_any(), %error, "ignored an invalid scheduled time"))
        .ok()
}

/// The Job of one run. Its name contains the scheduled time, so that a run cannot have two Jobs.
pub(crate) fn job_for(cron_job: &CronJob, scheduled: Timestamp) -> Job {
    let template = cron_job.spec.job_template.clone();
    let ObjectMeta { labels, annotations, .. } = template.metadata.unwrap_or_default();
    let mut annotations = annotations.unwrap_or_default();
    annotations.insert(SCHEDULED_AT.into(), scheduled.to_string());
    let metadata = ObjectMeta {
        name: Some(format!("{}-{}", cron_job.name_any(), scheduled.as_second())),
        labels,
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    Job { metadata, spec: template.spec, status: None }
}
