//! The memory of a program: after its first list, after a relist, and under churn.

use std::time::Duration;

use reknit_benches::resident::Memory;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    Result,
    rig::{candidate::Candidate, cluster::Cluster, process::Process},
};

const TIMEOUT: Duration = Duration::from_secs(120);

/// The memory of one candidate in each phase.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Phases {
    pub(crate) first_list: Memory,
    /// After a relist, which the expiration of its watches' resourceVersions caused.
    pub(crate) relist: Memory,
    /// After each Service got an annotation, whose length differs from Service to Service.
    pub(crate) churn: Memory,
}

/// Measures a candidate with objects that are all Ready, so that there is nothing to write.
pub(crate) async fn measure(cluster: &Cluster, candidate: &Candidate, workers: usize) -> Result<Phases> {
    cluster.restore_snapshot().await?;
    let process = Process::start(cluster, candidate, workers, &[])?;
    let first_list = process.memory().await?;
    process.reset_peak_memory()?;
    cluster.expire_watches().await?;
    timeout(TIMEOUT, cluster.wait_until_both_kinds_are_watched())
        .await
        .map_err(|_| process.error("did not watch again"))??;
    let relist = process.memory().await?;
    process.reset_peak_memory()?;
    cluster.annotate_services().await?;
    let churn = process.memory().await?;
    process.stop().await?;
    Ok(Phases { first_list, relist, churn })
}
