//! What a program holds: after its first list, after a list anew, and while everything changes.

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
    /// After the API server has forgotten what the program's watches go on from.
    pub(crate) relist: Memory,
    /// While each Service changes once, in size too.
    pub(crate) churn: Memory,
}

/// Where every object was Ready when it was kept, so that there is nothing to write.
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
