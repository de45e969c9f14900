//! The time to list both Kinds, which is a lower bound for every controller.

use crate::{
    Result,
    rig::{candidate::Candidate, cluster::Cluster, cpu::wait_for_idle_machine, process::Process},
};

/// Seconds from the start of a process until it has read both Kinds in pages of 500 and dropped them.
pub(crate) async fn measure(cluster: &Cluster, floor: &Candidate) -> Result<f64> {
    wait_for_idle_machine().await?;
    let workers = 1;
    let mut process = Process::start(cluster, floor, workers, &["list"])?;
    process.wait_for_line("listed").await?;
    Ok(process.started.elapsed().as_secs_f64())
}
