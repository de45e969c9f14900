//! The time until a program has made every object Ready, and its cost.

use std::{
    collections::HashSet,
    fs,
    time::{Duration, Instant},
};

use reknit_benches::resident::Memory;
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    Result,
    rig::{candidate::Candidate, cluster::Cluster, process::Process, rest::quiet, watch::Watch},
};

const LIMIT: Duration = Duration::from_secs(900);

/// One run, from the start of the process to the last Ready object.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Throughput {
    /// Objects a second, from the first Ready to the last.
    pub(crate) objects_per_second: f64,
    /// Microseconds of processor time for each object, from the start until the process is at rest.
    pub(crate) cpu_per_object: f64,
    /// Seconds from the start of the process to the first Ready object.
    pub(crate) first_ready: f64,
    pub(crate) last_ready: f64,
    /// Status writes that changed something, for each object.
    pub(crate) writes_per_object: f64,
    pub(crate) memory: Memory,
}

pub(crate) async fn measure(
    cluster: &Cluster,
    candidate: &Candidate,
    objects: usize,
    workers: usize,
) -> Result<Throughput> {
    let mut watch = cluster.watch().await?;
    let file = cluster.folder().join("writes");
    // The API server lists the same objects before each candidate, and is at rest when the candidate starts.
    fs::write(&file, cluster.status_writes().await?)?;
    quiet().await?;
    let arguments = match candidate.is_floor() {
        true => vec!["writes", file.to_str().ok_or("the folder's name is no text")?],
        false => vec![],
    };
    let process = Process::start(cluster, candidate, workers, &arguments)?;
    let started = process.started;
    let all_ready = timeout(LIMIT, all_ready(&mut watch, objects)).await;
    let ready = all_ready.map_err(|_| process.failed("did not make every object Ready"))??;
    let memory = process.memory().await?;
    let cpu = process.cpu()?;
    process.stop().await?;
    Ok(Throughput {
        objects_per_second: (objects - 1) as f64 / (ready.last - ready.first).as_secs_f64(),
        cpu_per_object: cpu.as_secs_f64() * 1e6 / objects as f64,
        first_ready: (ready.first - started).as_secs_f64(),
        last_ready: (ready.last - started).as_secs_f64(),
        writes_per_object: (ready.events + watch.drain()) as f64 / objects as f64,
        memory,
    })
}

struct Ready {
    first: Instant,
    last: Instant,
    /// The number of events.
    events: usize,
}

async fn all_ready(watch: &mut Watch, objects: usize) -> Result<Ready> {
    let (mut first, mut events, mut ready) = (None, 0, HashSet::new());
    loop {
        let seen = watch.next().await?;
        events += 1;
        if seen.ready == Some(true) {
            let first = *first.get_or_insert(seen.at);
            ready.insert((seen.namespace, seen.name));
            if ready.len() == objects {
                return Ok(Ready { first, last: seen.at, events });
            }
        }
    }
}
