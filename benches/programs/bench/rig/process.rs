//! A running program, and the kernel's figures about it.

use std::{
    fs,
    path::PathBuf,
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
        cpu::{sum_of_ticks, wait_until_idle},
    },
};

/// A process that uses less processor time than this in a second is idle.
const IDLE_CPU_TIME: Duration = Duration::from_millis(20);
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// A running program, which is killed on drop.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    pid: u32,
    log: PathBuf,
    pub(crate) started: Instant,
}

impl Process {
    /// Starts the program with this number of workers. The arguments follow the candidate's own.
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
            .env_remove("GOGC") // hack/bench.sh sets it for the API server
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().ok_or("the process has already ended")?;
        Ok(Self { name: candidate.name, child, pid, log, started })
    }

    /// Waits until the program has printed this line.
    pub(crate) async fn wait_for_line(&mut self, line: &str) -> Result<()> {
        let stdout = self.child.stdout.as_mut().ok_or("stdout is not piped")?;
        let mut lines = BufReader::new(stdout).lines();
        while let Some(printed) = lines.next_line().await? {
            if printed == line {
                return Ok(());
            }
        }
        Err(self.error(&format!("ended without printing {line:?}")))
    }

    /// Returns an error that says what the program did, with the end of its log.
    pub(crate) fn error(&self, what: &str) -> Box<dyn std::error::Error + Send + Sync> {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().rev().take(10).collect();
        format!("{} {what}; its log, newest first:\n{}", self.name, lines.join("\n")).into()
    }

    /// The processor time so far, in steps of 10 ms. It includes threads that have ended.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let stat = self.read("stat")?;
        let after_name = stat.rsplit_once(')').ok_or("/proc/PID/stat has no program name")?.1;
        let (utime, stime) = (11, 12);
        Ok(sum_of_ticks(after_name.split_whitespace(), &[utime, stime]))
    }

    /// The processor time of the running threads, exact to nanoseconds.
    pub(crate) fn thread_cpu_time(&self) -> Result<Duration> {
        let mut nanoseconds = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let schedstat = fs::read_to_string(thread?.path().join("schedstat"))?;
            nanoseconds += schedstat.split(' ').next().ok_or("schedstat is empty")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// The memory of the program once it is idle.
    pub(crate) async fn memory(&self) -> Result<Memory> {
        self.wait_until_idle().await?;
        resident::memory_of(self.pid).map_err(|_| self.error("ended by itself"))
    }

    /// Resets the peak memory to the current memory.
    pub(crate) fn reset_peak_memory(&self) -> Result<()> {
        // proc(5): writing 5 resets the peak of the resident memory.
        Ok(fs::write(format!("/proc/{}/clear_refs", self.pid), "5")?)
    }

    /// Waits until the program has been almost idle for a second.
    pub(crate) async fn wait_until_idle(&self) -> Result<()> {
        let idle = wait_until_idle(|| self.cpu_time(), Duration::from_secs(1), IDLE_CPU_TIME);
        timeout(IDLE_TIMEOUT, idle).await.map_err(|_| self.error("did not become idle"))?
    }

    pub(crate) async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    fn read(&self, file: &str) -> Result<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.pid)).map_err(|_| self.error("ended by itself"))
    }
}
