//! The time for listing, which no controller can be faster than.

use crate::{
    Result,
    rig::{candidate::Candidate, cluster::Cluster, process::Process, rest::quiet},
};

/// Seconds from the start of a process until it has read both Kinds in pages of 500 and dropped them.
pub(crate) async fn measure(cluster: &Cluster, floor: &Candidate) -> Result<f64> {
    quiet().await?;
    let mut process = Process::start(cluster, floor, 1, &["lists"])?;
    process.says("listed").await?;
    Ok(process.started.elapsed().as_secs_f64())
}
