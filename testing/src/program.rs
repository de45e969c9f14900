//! The user's program as a child process of a test.

use std::{
    ffi::OsStr,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    task::JoinHandle,
};

use crate::watchdog::Watchdog;

/// The limit of each wait. It is long, because the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);
/// The interval at which conditions are checked.
const INTERVAL: Duration = Duration::from_millis(20);

/// A program under test, which runs as a child process against a [`ControlPlane`](crate::ControlPlane). It is the whole
/// program, with its flags, its leases, its probes and its log. To test only its controllers, run them in the process
/// of the test with [`Controllers`](crate::Controllers).
///
/// The program listens on free ports of 127.0.0.1. Of the environment it gets only `PATH` and `HOME`, and what
/// [`env`](Self::env) sets. Choose [`without_leader_election`](Self::without_leader_election) or
/// [`with_leader_election`](Self::with_leader_election).
///
/// ```no_run
/// use reknit_testing::{ControlPlane, Program};
///
/// #[tokio::test]
/// # async fn hidden() {}
/// async fn the_program_starts_and_stops() -> Result<(), Box<dyn std::error::Error>> {
///     let plane = ControlPlane::shared().await?;
///     plane.apply_path("config/200-rbac.yaml").await?;
///     let kubeconfig = plane.kubeconfig_as("example", "controller").await?;
///     // Cargo sets CARGO_BIN_EXE_<name> for the tests of the package.
///     let executable = std::env::var("CARGO_BIN_EXE_controller")?;
///     let program = Program::new(executable, &kubeconfig).without_leader_election().spawn();
///     program.wait_until_ready().await;
///     let log = program.stop().await;
///     assert!(!log.iter().any(|line| line["level"] == "ERROR"));
///     Ok(())
/// }
/// ```
#[must_use = "nothing runs before `.spawn()`"]
#[derive(Debug)]
pub struct Program(Command);

impl Program {
    /// Creates the command of this executable. The program connects with this kubeconfig: the administrator's, or a
    /// [service account](crate::ControlPlane::kubeconfig_as)'s.
    pub fn new(executable: impl AsRef<OsStr>, kubeconfig: impl AsRef<Path>) -> Self {
        let mut command = Command::new(executable);
        command.env_clear().envs(std::env::vars().filter(|(name, _)| name == "PATH" || name == "HOME"));
        command.arg("--kubeconfig").arg(kubeconfig.as_ref()).args(["--bind-address", "127.0.0.1"]);
        let ports = ["KNATIVE_HEALTH_PROBES_PORT", "METRICS_PROMETHEUS_PORT", "PROFILING_PORT"];
        ports.into_iter().fold(Self(command), |program, port| program.env(port, "0"))
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.0.args(args);
        self
    }

    /// Confines the program to one namespace by `--namespace`. Tests that share a control plane need this, so that no
    /// program reconciles the objects of another test.
    pub fn in_namespace(self, namespace: &str) -> Self {
        self.args(["--namespace", namespace])
    }

    /// Disables leader election by `--disable-ha`.
    pub fn without_leader_election(self) -> Self {
        self.args(["--disable-ha"])
    }

    /// Runs the program as the pod `pod` of the system namespace `namespace`, which holds its leases.
    pub fn with_leader_election(self, namespace: &str, pod: &str) -> Self {
        self.env("SYSTEM_NAMESPACE", namespace).env("POD_NAME", pod)
    }

    /// Starts the program. Must be called within a tokio runtime.
    ///
    /// # Panics
    ///
    /// Panics if the executable cannot be run.
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    pub fn spawn(mut self) -> RunningProgram {
        let command =
            self.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("failed to run {command:?}: {error}"));
        let watchdog = child.id().map(Watchdog::of).transpose();
        let watchdog = watchdog.unwrap_or_else(|error| panic!("failed to run sh: {error}"));
        let lines = Arc::default();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let stdout = stdout.map(|output| collect_lines(output, &lines));
        let readers = stdout.into_iter().chain(stderr.map(|output| collect_lines(output, &lines))).collect();
        RunningProgram { child, lines, readers, _watchdog: watchdog }
    }
}

/// A running program, from [`Program::spawn`]. It is killed when this is dropped, and stopped when the process of the test
/// is killed; [`stop`](Self::stop) ends it as Kubernetes does.
#[derive(Debug)]
pub struct RunningProgram {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    /// The tasks that read stdout and stderr, each until the program closes its end.
    readers: Vec<JoinHandle<()>>,
    _watchdog: Option<Watchdog>,
}

impl RunningProgram {
    /// Returns the id of the process. `None` once it has exited.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Returns the lines of stdout and stderr so far. Lines of JSON are parsed, others are strings.
    pub fn lines(&self) -> Vec<Value> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the last 40 lines of the output as text, for the message of a failure.
    pub fn last_lines(&self) -> String {
        let lines = self.lines();
        let last = lines.iter().skip(lines.len().saturating_sub(40));
        last.map(Value::to_string).collect::<Vec<_>>().join("\n")
    }

    /// Waits for a line of the output that matches, and returns it.
    ///
    /// # Panics
    ///
    /// Panics if the output ends first, or after a minute. The message has the end of the log.
    pub async fn wait_for_line(&self, what: &str, matching: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            // Read before the lines, so that a line just before the end of the output is not missed.
            let output_ended = self.readers.iter().all(JoinHandle::is_finished);
            if let Some(line) = self.lines().into_iter().find(|line| matching(line)) {
                return line;
            }
            assert!(
                !output_ended && began.elapsed() < LIMIT,
                "no log line: {what}; the log:\n{}",
                self.last_lines()
            );
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Waits until the readiness probe succeeds: the caches are synced, and a leader is known.
    ///
    /// # Panics
    ///
    /// Panics if the program exits, or after a minute. The message has the end of the log.
    pub async fn wait_until_ready(&self) {
        let began = Instant::now();
        while self.probe("/readiness").await.0 != 200 {
            assert!(
                began.elapsed() < LIMIT && !self.readers.iter().all(JoinHandle::is_finished),
                "the program did not become ready; the log:\n{}",
                self.last_lines()
            );
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Returns the HTTP status and the body of a probe, `/readiness` or `/health`. The status is 0 if there was no
    /// answer.
    pub async fn probe(&self, path: &str) -> (u16, String) {
        get(&self.address("probes").await, path).await.unwrap_or_default()
    }

    /// Returns the sum of those series of a metric that have these labels.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        sum_of_series(&self.metrics().await, name, labels)
    }

    /// Returns all metrics in the text format of Prometheus. Empty if there was no answer.
    pub async fn metrics(&self) -> String {
        let (_, text) = get(&self.address("metrics").await, "/metrics").await.unwrap_or_default();
        text
    }

    /// Waits until the log names the address of `probes` or `metrics`, and returns the address.
    ///
    /// # Panics
    ///
    /// Panics as [`wait_for_line`](Self::wait_for_line) does.
    pub async fn address(&self, endpoint: &str) -> String {
        let names_it = |line: &Value| {
            let message = line["message"].as_str();
            line["address"].is_string() && message.is_some_and(|message| message.contains(endpoint))
        };
        let line = self.wait_for_line(&format!("the address of {endpoint}"), names_it).await;
        line["address"].as_str().unwrap_or_default().to_owned()
    }

    /// Returns true if the program has not exited.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the program exits, and returns its exit status.
    ///
    /// # Panics
    ///
    /// Panics after a minute. The message has the end of the log.
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        match tokio::time::timeout(LIMIT, self.child.wait()).await {
            Ok(Ok(status)) => status,
            _ => panic!("the program did not exit; its log:\n{}", self.last_lines()),
        }
    }

    /// Sends SIGTERM, waits until the program has exited, and returns its whole output.
    ///
    /// # Panics
    ///
    /// Panics if the exit status is not 0, or after a minute. The message has the end of the log.
    pub async fn stop(mut self) -> Vec<Value> {
        self.terminate();
        let status = self.wait_for_exit().await;
        assert!(status.success(), "{status} after SIGTERM:\n{}", self.last_lines());
        for reader in &mut self.readers {
            // A reader that panicked has already failed the test.
            let _ = reader.await;
        }
        self.lines()
    }

    /// Sends SIGTERM, unless the program has exited.
    fn terminate(&self) {
        let id = self.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // A process that is not found has exited already.
        let _ = id.map(|id| kill_process(id, Signal::TERM));
    }
}

fn collect_lines(
    output: impl AsyncRead + Unpin + Send + 'static,
    collected: &Arc<Mutex<Vec<Value>>>,
) -> JoinHandle<()> {
    let collected = collected.clone();
    tokio::spawn(async move {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
            collected.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    })
}

/// Sends a GET request, and returns the status and the body of the response. `None` if there is none.
async fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await.ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

fn sum_of_series(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let series = text.lines().filter(|line| {
        let after_name = line.strip_prefix(name);
        after_name.is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
            && labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    });
    series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell script that ignores the arguments which a program of reknit has.
    fn script(text: &str) -> RunningProgram {
        let mut program = Program::new("sh", "kubeconfig");
        program.0 = Command::new("sh");
        program.args(["-c", text]).spawn()
    }

    #[tokio::test]
    async fn the_output_is_collected_and_sigterm_stops_the_program() {
        let program =
            script("trap 'echo stopped; exit 0' TERM; echo '{\"a\":1}'; while :; do sleep 0.01; done");
        let line = program.wait_for_line("a", |line| line["a"] == 1).await;
        assert_eq!(line, serde_json::json!({"a": 1}));
        assert_eq!(program.stop().await.last(), Some(&Value::from("stopped")));
    }

    #[tokio::test]
    #[should_panic = "no log line: never"]
    async fn the_end_of_the_output_ends_a_wait_for_a_line() {
        script("echo done").wait_for_line("never", |line| line == "never").await;
    }

    #[test]
    fn the_series_with_all_labels_are_added() {
        let text = "x{a=\"1\",b=\"2\"} 3\nx{a=\"1\",b=\"3\"} 4\nx{a=\"2\",b=\"2\"} 5\nxy{a=\"1\"} 6\nx 7\n";
        assert_eq!(sum_of_series(text, "x", &[("a", "1")]), 7.0);
        assert_eq!(sum_of_series(text, "x", &[]), 19.0);
    }
}
