//! The memory of a program: after its first list, after a relist, and under churn.

use std::time::Duration;

use reknit_benches::resident::Memory;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    Result,
    rig::{candidate::Candidate, cluster::Cluster, process::Process},
};

const LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Phases {
    pub(crate) first_list: Memory,
    /// After a relist, because the resourceVersions of its watches have expired.
    pub(crate) relist: Memory,
    /// While each Service changes once, and with it its size.
    pub(crate) churn: Memory,
}

/// Measures a candidate with objects that are all Ready, so that there is nothing to write.
pub(crate) async fn measure(cluster: &Cluster, candidate: &Candidate, workers: usize) -> Result<Phases> {
    cluster.reset().await?;
    let process = Process::start(cluster, candidate, workers, &[])?;
    let first_list = process.memory().await?;
    process.forget_peak()?;
    cluster.forget().await?;
    timeout(LIMIT, cluster.served_again()).await.map_err(|_| process.failed("did not watch again"))??;
    let relist = process.memory().await?;
    process.forget_peak()?;
    cluster.change_services().await?;
    let churn = process.memory().await?;
    process.stop().await?;
    Ok(Phases { first_list, relist, churn })
}
