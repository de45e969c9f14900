//! The Kind CronJob.

use k8s_openapi::{
    api::{batch::v1::JobTemplateSpec, core::v1::ObjectReference},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::CustomResource;
use reknit::{apis::drop_descriptions, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The Jobs to run, and when.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(
    group = "batch.tutorial.kubebuilder.io",
    version = "v1",
    kind = "CronJob",
    namespaced,
    status = "CronJobStatus",
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "Suspend", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(name = "Last schedule", type_ = "date", json_path = ".status.lastScheduleTime")
)]
#[serde(rename_all = "camelCase")]
pub struct CronJobSpec {
    /// The schedule in Cron format: minute, hour, day of the month, month and day of the week, in UTC.
    pub schedule: String,
    /// The time in seconds after its scheduled time at which a missed run is dropped. The default is no limit.
    #[schemars(range(min = 0))]
    pub starting_deadline_seconds: Option<i64>,
    /// The treatment of a run while Jobs of earlier runs are active.
    #[serde(default)]
    pub concurrency_policy: ConcurrencyPolicy,
    /// Stops further runs. Active Jobs continue. The default is false.
    pub suspend: Option<bool>,
    /// The Job of each run.
    #[schemars(transform = drop_descriptions)]
    pub job_template: JobTemplateSpec,
    /// The number of successful Jobs to keep. The default is 3.
    pub successful_jobs_history_limit: Option<u32>,
    /// The number of failed Jobs to keep. The default is 1.
    pub failed_jobs_history_limit: Option<u32>,
}

/// The treatment of a run while Jobs of earlier runs are active.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum ConcurrencyPolicy {
    /// Jobs run concurrently.
    #[default]
    Allow,
    /// The run waits until no Job is active.
    Forbid,
    /// The active Jobs are deleted.
    Replace,
}

/// The Jobs of a CronJob, as last observed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CronJobStatus {
    /// The active Jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<ObjectReference>,
    /// The scheduled time of the last run.
    pub last_schedule_time: Option<Time>,
    /// The conditions `Available`, `Progressing` and `Degraded`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

kind!(CronJob {
    status: CronJobStatus,
    conditions: metav1(conditions),
    defaults: CronJob::set_spec_defaults
});
