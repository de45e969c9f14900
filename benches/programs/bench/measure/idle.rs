//! The processor time of idle programs.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    Result,
    rig::{candidate::Candidate, cluster::Cluster, process::Process},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the milliseconds of processor time of each candidate, except the floors, in one minute without work. All
/// candidates run at the same time.
pub(crate) async fn measure(
    cluster: &Cluster,
    candidates: impl Iterator<Item = &Candidate>,
    workers: usize,
) -> Result<Vec<(&'static str, f64)>> {
    let mut running = Vec::new();
    for candidate in candidates.filter(|candidate| !candidate.is_floor()) {
        let process = Process::start(cluster, candidate, workers, &[])?;
        process.wait_until_idle().await?;
        running.push((candidate.name, process));
    }
    let cpu_times = |running: &[(_, Process)]| -> Result<Vec<Duration>> {
        running.iter().map(|(_, process)| process.thread_cpu_time()).collect()
    };
    let before = cpu_times(&running)?;
    sleep(MINUTE).await;
    let after = cpu_times(&running)?;
    let samples = running.iter().zip(before.iter().zip(&after));
    Ok(samples
        .map(|((name, _), (before, after))| (*name, after.saturating_sub(*before).as_secs_f64() * 1e3))
        .collect())
}
