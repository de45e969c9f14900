//! The work of idle programs.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    Result,
    rig::{candidate::Candidate, cluster::Cluster, process::Process},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Milliseconds of processor time in one minute without work, for all candidates at the same time.
pub(crate) async fn measure(
    cluster: &Cluster,
    candidates: impl Iterator<Item = &Candidate>,
    workers: usize,
) -> Result<Vec<(&'static str, f64)>> {
    let mut running = Vec::new();
    for candidate in candidates.filter(|candidate| !candidate.is_floor()) {
        let process = Process::start(cluster, candidate, workers, &[])?;
        process.at_rest().await?;
        running.push((candidate.name, process));
    }
    let spent = |running: &[(_, Process)]| -> Result<Vec<Duration>> {
        running.iter().map(|(_, process)| process.cpu_of_threads()).collect()
    };
    let before = spent(&running)?;
    sleep(MINUTE).await;
    let after = spent(&running)?;
    let each = running.iter().zip(before.iter().zip(&after));
    Ok(each
        .map(|((name, _), (before, after))| (*name, after.saturating_sub(*before).as_secs_f64() * 1e3))
        .collect())
}
