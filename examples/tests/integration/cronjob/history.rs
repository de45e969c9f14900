//! Tests of the history limits.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{ACTIVE, Backup, job_of, reason, with_pending_pods};

impl Backup {
    /// Makes the pod of this hour's Job fail, and so the Job.
    async fn fail(&self, hour: i64) {
        let pods = self.list::<Pod>().await;
        let pod = pods.iter().find(|pod| job_of(pod) == self.name(hour)).expect("a pod");
        let patch = Patch::Merge(json!({"status": {"phase": "Failed"}}));
        let patched = self.api::<Pod>().patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
        patched.expect("a patched pod");
    }
}

#[tokio::test]
async fn the_oldest_successful_jobs_are_deleted_with_their_pods() {
    let backup = Backup::start(json!({"successfulJobsHistoryLimit": 2})).await;
    for hour in 1..=4 {
        backup.pass_at(hour, 0).await;
        let oldest = (hour - 1).max(1);
        let kept: Vec<_> = (oldest..=hour).map(|hour| (hour, "Complete")).collect();
        backup.wait_for_jobs(&kept).await;
    }
    backup.stop().await;
}

#[tokio::test]
async fn the_oldest_failed_jobs_are_deleted_with_their_pods() {
    let backup = Backup::start(with_pending_pods(json!({"failedJobsHistoryLimit": 1}))).await;
    for hour in 1..=2 {
        backup.pass_at(hour, 0).await;
        let previous = (1..hour).map(|hour| (hour, "Failed"));
        backup.wait_for_jobs(&previous.chain([(hour, ACTIVE)]).collect::<Vec<_>>()).await;
        backup.fail(hour).await;
        backup.wait_for_jobs(&[(hour, "Failed")]).await;
    }
    let status =
        backup.wait_for_status("is degraded", |status| reason(status, "Degraded") == "JobsFailed").await;
    assert_eq!(reason(&status, "Available"), "JobsFailed");
    backup.stop().await;
}
