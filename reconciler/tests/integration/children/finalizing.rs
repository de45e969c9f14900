//! Children that a finalizer writes, with Kubernetes' own controllers and garbage collector.

use std::sync::Arc;

use futures::future::join_all;
use k8s_openapi::api::{apps::v1::StatefulSet, batch::v1::Job, core::v1::ConfigMap};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PropagationPolicy},
};
use parking_lot::Mutex;
use reknit_injection::{Context, select};
use reknit_reconciler::{Controller, FinalizeKind, Outcome, Owned, ReconcileKind, Result};
use reknit_testing::{Controllers, eventually};
use serde_json::json;

use crate::{FINALIZER, Fixture, TIMEOUT};

/// Runs a StatefulSet for each owner. Scales it down and runs a Job before the owner is deleted.
struct Database {
    sets: Owned<StatefulSet>,
    jobs: Owned<Job>,
    /// The uids of the Jobs that were complete when a finalizer was removed.
    complete: Arc<Mutex<Vec<String>>>,
}

impl ReconcileKind for Database {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, owner: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        self.sets.apply(owner, stateful_set(owner, 1)?).await?;
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Database {
    async fn finalize_kind(&self, owner: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        if self.sets.of(owner).next().is_some() {
            let set = self.sets.apply(owner, stateful_set(owner, 0)?).await?;
            if set.status.as_ref().is_none_or(|status| status.replicas > 0) {
                return Ok(Outcome::skip());
            }
        }
        let job = self.jobs.apply(owner, job(owner)?).await?;
        if job.status.as_ref().is_none_or(|status| status.completion_time.is_none()) {
            return Ok(Outcome::skip());
        }
        self.complete.lock().extend(job.uid());
        Ok(Outcome::done())
    }
}

fn stateful_set(owner: &ConfigMap, replicas: u8) -> Result<StatefulSet> {
    let labels = json!({"app": owner.name_any()});
    let pod = json!({"containers": [{"name": "a", "image": "a"}]});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": owner.name_any()},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }))?)
}

fn job(owner: &ConfigMap) -> Result<Job> {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]});
    let name = format!("{}-cleanup", owner.name_any());
    Ok(serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"template": {"spec": pod}}}))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finalizer_scales_down_and_runs_a_job_once_before_the_owner_is_deleted() {
    let policies = [PropagationPolicy::Background, PropagationPolicy::Foreground, PropagationPolicy::Orphan];
    join_all(policies.map(finalize_after)).await;
}

/// Deletes an owner by this policy, and awaits its end.
async fn finalize_after(policy: PropagationPolicy) {
    let fixture = Fixture::with_nodes("finalizing").await;
    let complete = Arc::<Mutex<Vec<String>>>::default();
    let (namespace, completed) = (fixture.namespace.clone(), complete.clone());
    let controller = move |cx: &Context| {
        let mut build = Controller::selected::<ConfigMap>(cx, select().namespace(&namespace));
        let database = Database { sets: build.owns(), jobs: build.owns(), complete: completed.clone() };
        Ok(build.finalizer(FINALIZER).reconciler(database).finalizing().build())
    };
    let running = Controllers::new(fixture.client.clone()).controller(controller).start();
    fixture.create("owner", &[]).await;
    let sets: Api<StatefulSet> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let jobs: Api<Job> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    eventually(format!("{policy:?}: a pod runs"), TIMEOUT, async || {
        let status = sets.get_opt("owner").await.unwrap()?.status?;
        (status.ready_replicas == Some(1)).then_some(())
    })
    .await;
    let params = DeleteParams { propagation_policy: Some(policy.clone()), ..DeleteParams::default() };
    fixture.maps().delete("owner", &params).await.unwrap();
    eventually(format!("{policy:?}: the owner is gone"), TIMEOUT, async || {
        fixture.maps().get_opt("owner").await.unwrap().is_none()
    })
    .await;
    assert_eq!(complete.lock().len(), 1, "{policy:?}");
    eventually(format!("{policy:?}: the Job is collected"), TIMEOUT, async || {
        jobs.get_opt("owner-cleanup").await.unwrap().is_none()
    })
    .await;
    match policy {
        PropagationPolicy::Orphan => {
            let orphaned = sets.get("owner").await.unwrap();
            assert_eq!(
                orphaned.spec.and_then(|spec| spec.replicas),
                Some(1),
                "an orphaned child is left as it is"
            );
        }
        _ => {
            eventually(format!("{policy:?}: the StatefulSet is gone"), TIMEOUT, async || {
                sets.get_opt("owner").await.unwrap().is_none()
            })
            .await;
        }
    }
    running.stop().await;
}
