//! Runs the cronjob example as a process, on the real clock. Simulated nodes complete its Jobs.

use std::{fs, time::Duration};

use k8s_openapi::api::batch::v1::Job;
use kube::{
    ResourceExt,
    api::{ListParams, PostParams},
};
use reknit::testing::eventually;

use crate::{
    environment::Environment,
    support::{cronjob::program::CronJob, file},
};

#[tokio::test]
async fn a_job_of_the_example_completes() {
    let env = Environment::start("cronjob").await;
    let yaml = fs::read_to_string(file("cronjob", "example.yaml")).unwrap();
    for cron_job in serde_saphyr::from_multiple::<CronJob>(&yaml).unwrap() {
        env.api().create(&PostParams::default(), &cron_job).await.unwrap();
    }
    let jobs = env.api::<Job>();
    let is_complete = |job: &Job| {
        // The example's other CronJob may be due too.
        job.owner_references().iter().any(|owner| owner.name == "hello")
            && job.status.as_ref().is_some_and(|status| status.completion_time.is_some())
    };
    eventually("a completed Job of the example", Duration::from_secs(100), async || {
        let found = jobs.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        found.into_iter().find(is_complete).ok_or_else(|| format!("the log:\n{}", env.process.last_lines()))
    })
    .await;
    env.process.stop().await;
}
