//! The time from the creation of a Service until its AddressableService is Ready.

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use tokio::time::{interval, timeout};

use crate::{
    Result,
    report::statistics::quantile,
    rig::{candidate::Candidate, cluster::Cluster, process::Process, watch::Watch},
};

const NAMESPACE: &str = "bench-late";
const CREATE_INTERVAL: Duration = Duration::from_millis(20);
/// One second divided by `CREATE_INTERVAL`.
pub(crate) const CREATES_PER_SECOND: usize = 50;
const TIMEOUT: Duration = Duration::from_secs(60);

/// The time of each Service's creation request, by the Service's name.
type CreationTimes = RefCell<HashMap<String, Instant>>;

/// Milliseconds from the creation request of a Service until its AddressableService is seen to be Ready.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Creates this many AddressableServices whose Services do not exist yet.
pub(crate) async fn prepare(cluster: &Cluster, services: usize) -> Result<()> {
    cluster.create_namespace(NAMESPACE).await?;
    cluster.create_addressable_services(NAMESPACE, names(services)).await
}

fn names(services: usize) -> Vec<String> {
    (0..services).map(|number| format!("late-{number:06}")).collect()
}

/// Measures the latency while it creates the Services, 50 a second. Deletes the Services afterwards.
pub(crate) async fn measure(
    cluster: &Cluster,
    candidate: &Candidate,
    services: usize,
    workers: usize,
) -> Result<Latency> {
    cluster.clear_statuses(NAMESPACE).await?;
    let mut watch = cluster.watch().await?;
    let process = start_until_idle(cluster, candidate, workers, &mut watch, services).await?;
    let created_at = CreationTimes::default();
    let measurement = async {
        tokio::try_join!(
            create_services(cluster, services, &created_at),
            wait_for_ready(&mut watch, services, &created_at)
        )
    };
    let result = timeout(TIMEOUT + CREATE_INTERVAL * services as u32, measurement).await;
    let ((), mut latencies) =
        result.map_err(|_| process.error("did not make every AddressableService Ready in time"))??;
    process.stop().await?;
    cluster.delete_services(NAMESPACE, names(services)).await?;
    latencies.sort_by(f64::total_cmp);
    Ok(Latency { p50: quantile(&latencies, 0.5), p99: quantile(&latencies, 0.99) })
}

/// Starts the program, and returns once it has reported every AddressableService as not Ready and is idle. The floor, a
/// bare client without a controller (`programs/floor.rs`), writes no status for a missing Service: for it, this
/// function returns once its watch of the Services has started.
async fn start_until_idle(
    cluster: &Cluster,
    candidate: &Candidate,
    workers: usize,
    watch: &mut Watch,
    services: usize,
) -> Result<Process> {
    if candidate.is_floor() {
        let mut process = Process::start(cluster, candidate, workers, &["follow", NAMESPACE])?;
        process.wait_for_line("watching").await?;
        return Ok(process);
    }
    let process = Process::start(cluster, candidate, workers, &[])?;
    let all_reported_unready = async {
        let mut unready = HashSet::new();
        while unready.len() < services {
            let event = watch.next().await?;
            if event.namespace == NAMESPACE && event.ready == Some(false) {
                unready.insert(event.name);
            }
        }
        Result::Ok(())
    };
    let waited = timeout(TIMEOUT, all_reported_unready).await;
    waited.map_err(|_| process.error("did not report every AddressableService as not Ready"))??;
    process.wait_until_idle().await?;
    Ok(process)
}

/// Creates one Service every 20 ms, without waiting for the response to the previous request.
async fn create_services(cluster: &Cluster, services: usize, created_at: &CreationTimes) -> Result<()> {
    let pace = stream::unfold(interval(CREATE_INTERVAL), |mut pace| async {
        pace.tick().await;
        Some(((), pace))
    });
    stream::iter(names(services))
        .zip(pace)
        .map(|(name, ())| Ok(name))
        .try_for_each_concurrent(None, async |name| {
            created_at.borrow_mut().insert(name.clone(), Instant::now());
            cluster.create_service(NAMESPACE, &name).await
        })
        .await
}

/// Waits until all AddressableServices are Ready, and returns the latency of each in milliseconds.
async fn wait_for_ready(watch: &mut Watch, services: usize, created_at: &CreationTimes) -> Result<Vec<f64>> {
    let mut latencies = HashMap::new();
    while latencies.len() < services {
        let event = watch.next().await?;
        if event.namespace == NAMESPACE && event.ready == Some(true) {
            let created_at =
                *created_at.borrow().get(&event.name).ok_or("Ready before its Service was requested")?;
            latencies.entry(event.name).or_insert((event.received_at - created_at).as_secs_f64() * 1e3);
        }
    }
    Ok(latencies.into_values().collect())
}
