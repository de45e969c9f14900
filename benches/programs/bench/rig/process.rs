//! A running program, and the kernel's figures about it.

use std::{
    fs,
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use reknit_benches::resident::{self, Memory};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::{
    Result,
    rig::{
        candidate::Candidate,
        cluster::Cluster,
        rest::{rest, ticks},
    },
};

/// A process that works less than this in a second is at rest.
const REST: Duration = Duration::from_millis(20);
const RESTLESS: Duration = Duration::from_secs(120);

/// A running program. It is stopped when this is dropped.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    pid: u32,
    log: std::path::PathBuf,
    pub(crate) started: Instant,
}

impl Process {
    /// Starts the program with this number of workers, and with these arguments after its own.
    pub(crate) fn start(
        cluster: &Cluster,
        candidate: &Candidate,
        workers: usize,
        arguments: &[&str],
    ) -> Result<Self> {
        let log = cluster.folder().join(format!("{}.log", candidate.name));
        let started = Instant::now();
        let child = Command::new(&candidate.program)
            .args(candidate.arguments)
            .args(arguments)
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("K_THREADS_PER_CONTROLLER", workers.to_string())
            .env("KNATIVE_HEALTH_PROBES_PORT", "0")
            .env("METRICS_PROMETHEUS_PORT", "0")
            .env_remove("GOGC") // which hack/bench.sh sets for the API server
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().ok_or("it ended at once")?;
        Ok(Self { name: candidate.name, child, pid, log, started })
    }

    /// Waits until the program has printed this line.
    pub(crate) async fn says(&mut self, line: &str) -> Result<()> {
        let printed = self.child.stdout.as_mut().ok_or("its output is read already")?;
        let mut lines = BufReader::new(printed).lines();
        while let Some(said) = lines.next_line().await? {
            if said == line {
                return Ok(());
            }
        }
        Err(self.failed("ended without having said it"))
    }

    /// An error with the output of the program.
    pub(crate) fn failed(&self, how: &str) -> Box<dyn std::error::Error + Send + Sync> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(10).collect();
        format!("{} {how}; its log, newest first:\n{}", self.name, lines.join("\n")).into()
    }

    /// The processor time so far, to a hundredth of a second. It includes threads that have ended.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = self.read("stat")?;
        let after_name = stat.rsplit_once(')').ok_or("stat names no program")?.1;
        Ok(ticks(after_name.split_whitespace(), &[11, 12]))
    }

    /// The processor time of the existing threads, to a nanosecond.
    pub(crate) fn cpu_of_threads(&self) -> Result<Duration> {
        let mut sum = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let spent = fs::read_to_string(thread?.path().join("schedstat"))?;
            sum += spent.split(' ').next().ok_or("schedstat is empty")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(sum))
    }

    /// The memory of the program once it is at rest.
    pub(crate) async fn memory(&self) -> Result<Memory> {
        self.at_rest().await?;
        resident::of(self.pid).map_err(|_| self.failed("ended by itself"))
    }

    /// Resets the peak memory.
    pub(crate) fn forget_peak(&self) -> Result<()> {
        Ok(fs::write(format!("/proc/{}/clear_refs", self.pid), "5")?)
    }

    /// Waits until the program was almost idle for a second.
    pub(crate) async fn at_rest(&self) -> Result<()> {
        let rest = rest(|| self.cpu(), Duration::from_secs(1), REST);
        timeout(RESTLESS, rest).await.map_err(|_| self.failed("did not come to rest"))?
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    fn read(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.pid);
        fs::read_to_string(Path::new(&path)).map_err(|_| self.failed("ended by itself"))
    }
}
