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
    rig::{
        candidate::Candidate, cluster::Cluster, cpu::wait_for_idle_machine, page::Page, process::Process,
        watch::Watch,
    },
};

const TIMEOUT: Duration = Duration::from_secs(900);

/// One run, from the start of the process to the last Ready object.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Throughput {
    /// Objects a second, from the first Ready to the last.
    pub(crate) objects_per_second: f64,
    /// Microseconds of processor time for each object, from the start until the process is idle.
    pub(crate) cpu_per_object: f64,
    /// Seconds from the start of the process to the first Ready object.
    pub(crate) first_ready: f64,
    pub(crate) last_ready: f64,
    /// Status writes that changed something, for each object.
    pub(crate) writes_per_object: f64,
    /// The number of answers to the open page of the console.
    pub(crate) page_answers: Option<usize>,
    pub(crate) memory: Memory,
}

pub(crate) async fn measure(
    cluster: &Cluster,
    candidate: &Candidate,
    objects: usize,
    workers: usize,
) -> Result<Throughput> {
    let mut watch = cluster.watch().await?;
    let writes_file = cluster.folder().join("writes");
    // Only `bench-floor`, the client without a controller, reads the file. Its lines come from a list of all
    // objects, which is requested for every candidate, so that the API server serves the same list before each run.
    fs::write(&writes_file, cluster.status_writes().await?)?;
    wait_for_idle_machine().await?;
    let arguments = match candidate.is_floor() {
        true => vec!["write", writes_file.to_str().ok_or("the path of the folder is not UTF-8")?],
        false => vec![],
    };
    let process = Process::start(cluster, candidate, workers, &arguments)?;
    let started = process.started;
    let page = candidate.has_page().then(Page::open);
    let waited = timeout(TIMEOUT, wait_for_all_ready(&mut watch, objects)).await;
    let ready = waited.map_err(|_| process.error("did not make every object Ready"))??;
    let page_answers = page.map(Page::close).transpose()?;
    let memory = process.memory().await?;
    let cpu_time = process.cpu_time()?;
    process.stop().await?;
    Ok(Throughput {
        objects_per_second: (objects - 1) as f64 / (ready.last - ready.first).as_secs_f64(),
        cpu_per_object: cpu_time.as_secs_f64() * 1e6 / objects as f64,
        first_ready: (ready.first - started).as_secs_f64(),
        last_ready: (ready.last - started).as_secs_f64(),
        writes_per_object: (ready.events + watch.drain()) as f64 / objects as f64,
        page_answers,
        memory,
    })
}

/// The times of the first and the last Ready object.
struct Ready {
    first: Instant,
    last: Instant,
    /// The number of watch events until the last object was Ready.
    events: usize,
}

async fn wait_for_all_ready(watch: &mut Watch, objects: usize) -> Result<Ready> {
    let (mut first, mut events, mut ready) = (None, 0, HashSet::new());
    loop {
        let event = watch.next().await?;
        events += 1;
        if event.ready == Some(true) {
            let first = *first.get_or_insert(event.received_at);
            ready.insert((event.namespace, event.name));
            if ready.len() == objects {
                return Ok(Ready { first, last: event.received_at, events });
            }
        }
    }
}
