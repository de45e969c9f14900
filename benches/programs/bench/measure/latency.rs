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
/// One second divided by the interval.
pub(crate) const CREATES_PER_SECOND: usize = 50;
const LIMIT: Duration = Duration::from_secs(60);

/// The time of each Service's creation request.
type Begun = RefCell<HashMap<String, Instant>>;

/// Milliseconds from the creation request of a Service until its AddressableService is seen to be Ready.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// Creates this many AddressableServices whose Services do not exist yet.
pub(crate) async fn prepare(cluster: &Cluster, changes: usize) -> Result<()> {
    cluster.make_namespace(NAMESPACE).await?;
    cluster.add_addressable_services(NAMESPACE, names(changes)).await
}

fn names(changes: usize) -> Vec<String> {
    (0..changes).map(|number| format!("late-{number:06}")).collect()
}

/// Creates the Services, 50 a second, and removes them again.
pub(crate) async fn measure(
    cluster: &Cluster,
    candidate: &Candidate,
    changes: usize,
    workers: usize,
) -> Result<Latency> {
    cluster.reset_in(NAMESPACE).await?;
    let mut watch = cluster.watch().await?;
    let process = start_until_idle(cluster, candidate, workers, &mut watch, changes).await?;
    let begun = Begun::default();
    let both = async { tokio::try_join!(create(cluster, changes, &begun), see(&mut watch, changes, &begun)) };
    let ended = timeout(LIMIT + CREATE_INTERVAL * changes as u32, both).await;
    let ((), mut seen) = ended.map_err(|_| {
        process.failed("did not make every AddressableService Ready whose Service was created")
    })??;
    process.stop().await?;
    cluster.remove_services(NAMESPACE, names(changes)).await?;
    seen.sort_by(f64::total_cmp);
    Ok(Latency { p50: quantile(&seen, 0.5), p99: quantile(&seen, 0.99) })
}

/// Starts the program. Returns once it has reported every AddressableService as not Ready and is idle. The floor, a bare
/// client, writes no status before there is a Service: for it, returns once it watches.
async fn start_until_idle(
    cluster: &Cluster,
    candidate: &Candidate,
    workers: usize,
    watch: &mut Watch,
    changes: usize,
) -> Result<Process> {
    if candidate.is_floor() {
        let mut process = Process::start(cluster, candidate, workers, &["follows", NAMESPACE])?;
        process.says("watching").await?;
        return Ok(process);
    }
    let process = Process::start(cluster, candidate, workers, &[])?;
    let all_reported_unready = async {
        let mut unready = HashSet::new();
        while unready.len() < changes {
            let seen = watch.next().await?;
            if seen.namespace == NAMESPACE && seen.ready == Some(false) {
                unready.insert(seen.name);
            }
        }
        Result::Ok(())
    };
    let waited = timeout(LIMIT, all_reported_unready).await;
    waited.map_err(|_| process.failed("did not report every AddressableService as not Ready"))??;
    process.at_rest().await?;
    Ok(process)
}

/// Creates one Service every 20 ms, whether or not the previous request has its response.
async fn create(cluster: &Cluster, changes: usize, begun: &Begun) -> Result<()> {
    let pace = stream::unfold(interval(CREATE_INTERVAL), |mut pace| async {
        pace.tick().await;
        Some(((), pace))
    });
    stream::iter(names(changes))
        .zip(pace)
        .map(|(name, ())| Ok(name))
        .try_for_each_concurrent(None, async |name| {
            begun.borrow_mut().insert(name.clone(), Instant::now());
            cluster.add_service(NAMESPACE, &name).await
        })
        .await
}

/// Waits for the statuses, and returns the milliseconds of each.
async fn see(watch: &mut Watch, changes: usize, begun: &Begun) -> Result<Vec<f64>> {
    let mut took = HashMap::new();
    while took.len() < changes {
        let seen = watch.next().await?;
        if seen.namespace == NAMESPACE && seen.ready == Some(true) {
            let begun = *begun.borrow().get(&seen.name).ok_or("Ready before its Service was requested")?;
            took.entry(seen.name).or_insert((seen.at - begun).as_secs_f64() * 1e3);
        }
    }
    Ok(took.into_values().collect())
}
