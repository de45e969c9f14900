//! Tests of cronjob with a real API server, nodes, and a fake clock.

mod admission;
mod history;
mod policies;
mod process;
mod runs;

use std::{fmt::Debug, time::Duration};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{batch::v1::Job, core::v1::Pod},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use reknit::{
    prelude::*,
    testing::{Controllers, FakeClock, RunningControllers, eventually},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    environment::{plane_with_nodes, restricted_kubeconfig},
    support::{
        cronjob::{
            cron_job,
            program::{CronJob, CronJobStatus, controller},
        },
        wait::TIMEOUT,
    },
};

const HOUR: i64 = 3600;

/// The CronJob `backup` and its controller, in a namespace of their own.
struct Backup {
    namespace: String,
    client: Client,
    clock: FakeClock,
    created: Timestamp,
    controllers: RunningControllers,
}

impl Backup {
    /// Starts the controller with its generated permissions, and creates an hourly CronJob with these fields.
    async fn start(spec: Value) -> Self {
        let plane = plane_with_nodes().await;
        let namespace = plane.namespace("cronjob").await.expect("a namespace");
        let client = plane.client().expect("a client");
        restricted_kubeconfig(plane, "cronjob", &namespace).await;

        let clock = FakeClock::at(&Timestamp::now().to_string());
        let restricted = plane.client_as(&namespace, "cronjob").await.expect("a client");
        let controllers = Controllers::new(restricted)
            .controller(controller)
            .provide(clock.clock())
            .provide(select().namespace(&namespace))
            .start();
        controllers.synced(TIMEOUT).await;

        let cron_jobs: Api<CronJob> = Api::namespaced(client.clone(), &namespace);
        let created =
            cron_jobs.create(&PostParams::default(), &cron_job("backup", spec)).await.expect("it is created");
        let created = created.metadata.creation_timestamp.expect("a time").0;
        Self { namespace, client, clock, created, controllers }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        self.api().list(&ListParams::default()).await.expect("a list").items
    }

    /// The full hour after the creation, or one of the hours after that.
    fn hour(&self, number: i64) -> Timestamp {
        let seconds = (self.created.as_second() / HOUR + number) * HOUR;
        Timestamp::from_second(seconds).expect("a time")
    }

    /// The name of the Job of this hour.
    fn name(&self, hour: i64) -> String {
        format!("backup-{}", self.hour(hour).as_second())
    }

    /// Sets the clock to some minutes after this hour. A CronJob that waits for a run until then is reconciled.
    fn set_clock(&self, hour: i64, minutes: u64) {
        let time = self.hour(hour) + Duration::from_secs(60 * minutes);
        self.clock.set(&time.to_string());
    }

    /// Sets the clock, waits for a pass that has seen the time, and returns the status that it wrote.
    async fn pass_at(&self, hour: i64, minutes: u64) -> CronJobStatus {
        self.set_clock(hour, minutes);
        // Changes the spec too, since the conditions show when a pass has observed a changed spec.
        self.patch(json!({"jobTemplate": {"metadata": {"annotations": {"now": self.clock.now()}}}})).await
    }

    /// Changes the spec, waits for a pass that observes the change, and returns the status that it wrote.
    async fn patch(&self, spec: Value) -> CronJobStatus {
        let patch = Patch::Merge(json!({"spec": spec}));
        let patched: CronJob =
            self.api().patch("backup", &PatchParams::default(), &patch).await.expect("a patched object");
        let generation = patched.metadata.generation;
        self.wait_for_status("observes its change", |status| {
            status
                .conditions
                .condition("Available")
                .is_some_and(|condition| condition.observed_generation == generation)
        })
        .await
    }

    async fn wait_for_status(&self, what: &str, is_met: impl Fn(&CronJobStatus) -> bool) -> CronJobStatus {
        let cron_jobs = self.api::<CronJob>();
        eventually(format!("a CronJob that {what}"), TIMEOUT, async || {
            let status = cron_jobs.get("backup").await.map_err(|error| error.to_string())?.status;
            status.clone().filter(&is_met).ok_or_else(|| format!("{status:?}"))
        })
        .await
    }

    /// Waits until exactly these Jobs and their pods exist: the hour of each Job, and the type of its last condition.
    async fn wait_for_jobs(&self, expected: &[(i64, &str)]) {
        let mut expected: Vec<_> =
            expected.iter().map(|(hour, condition)| (self.name(*hour), (*condition).to_owned())).collect();
        expected.sort();
        eventually(format!("the Jobs {expected:?} and their pods"), TIMEOUT, async || {
            let jobs = self.list::<Job>().await;
            let mut found: Vec<_> = jobs.iter().map(|job| (job.name_any(), last_condition(job))).collect();
            let mut pods: Vec<_> = self.list::<Pod>().await.iter().map(job_of).collect();
            found.sort();
            pods.sort();
            let names: Vec<_> = expected.iter().map(|(name, _)| name.clone()).collect();
            match found == expected && pods == names {
                true => Ok(()),
                false => Err(format!("the Jobs {found:?}, and pods of {pods:?}")),
            }
        })
        .await;
    }

    async fn stop(self) {
        self.controllers.stop().await;
    }
}

/// Fields of a spec whose pods stay Pending.
fn with_pending_pods(mut spec: Value) -> Value {
    let mut template = json!(cron_job("backup", json!({})).spec.job_template);
    template["spec"]["template"]["spec"]["schedulingGates"] = json!([{"name": "example.com/wait"}]);
    spec["jobTemplate"] = template;
    spec
}

/// The condition of a Job that has none yet.
const ACTIVE: &str = "";

/// The type of the last condition of a Job; empty if it is active.
fn last_condition(job: &Job) -> String {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .and_then(|conditions| conditions.last())
        .map(|condition| condition.type_.clone())
        .unwrap_or_default()
}

fn job_of(pod: &Pod) -> String {
    pod.labels().get("batch.kubernetes.io/job-name").cloned().unwrap_or_default()
}

/// The names of the active Jobs.
fn active(status: &CronJobStatus) -> Vec<String> {
    status.active.iter().filter_map(|job| job.name.clone()).collect()
}

fn reason<'a>(status: &'a CronJobStatus, condition: &str) -> &'a str {
    status.conditions.condition(condition).map_or("", |condition| &*condition.reason)
}
