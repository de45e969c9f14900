//! Tests of the concurrency policies: a second run while the first is active.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{ACTIVE, Backup, active, with_pending_pods};

impl Backup {
    /// Lets the only pod run.
    async fn open_gate(&self) {
        let pods = self.list::<Pod>().await;
        let patch = Patch::Merge(json!({"spec": {"schedulingGates": Value::Null}}));
        self.api::<Pod>()
            .patch(&pods[0].name_any(), &PatchParams::default(), &patch)
            .await
            .expect("a patched pod");
    }
}

/// A CronJob with this policy, whose first run is active.
async fn active_backup(policy: &str) -> Backup {
    let backup = Backup::start(with_pending_pods(json!({"concurrencyPolicy": policy}))).await;
    backup.pass_at(1, 0).await;
    backup.wait_for_jobs(&[(1, ACTIVE)]).await;
    backup.wait_for_status("reports its Job", |status| active(status) == [backup.name(1)]).await;
    backup
}

#[tokio::test]
async fn allow_runs_jobs_concurrently() {
    let backup = active_backup("Allow").await;
    backup.pass_at(2, 0).await;
    backup.wait_for_jobs(&[(1, ACTIVE), (2, ACTIVE)]).await;
    let both = [backup.name(1), backup.name(2)];
    backup.wait_for_status("reports both Jobs", |status| active(status) == both).await;
    backup.stop().await;
}

#[tokio::test]
async fn forbid_delays_a_run_until_the_active_job_has_finished() {
    let backup = active_backup("Forbid").await;
    let status = backup.pass_at(2, 0).await;
    assert_eq!(active(&status), [backup.name(1)]);
    backup.wait_for_jobs(&[(1, ACTIVE)]).await;
    backup.open_gate().await;
    backup.wait_for_jobs(&[(1, "Complete"), (2, ACTIVE)]).await;
    backup.stop().await;
}

#[tokio::test]
async fn replace_deletes_the_active_job_and_its_pod() {
    let backup = active_backup("Replace").await;
    backup.pass_at(2, 0).await;
    backup.wait_for_jobs(&[(2, ACTIVE)]).await;
    backup.wait_for_status("reports the new Job", |status| active(status) == [backup.name(2)]).await;
    backup.stop().await;
}
