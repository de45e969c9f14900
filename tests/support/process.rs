//! Controllers as child processes: the sample controller, and the examples.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use reknit::testing::eventually;
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    task::JoinHandle,
};

use super::{cargo::without_test_variables, wait::TIMEOUT};

/// Builds and spawns the command of a [`Process`]. Returned by [`controller`] and [`example`].
pub(crate) struct Builder(Command);

/// The sample controller, listening on free ports of 127.0.0.1. Choose [`Builder::without_leader_election`] or
/// [`Builder::with_leader_election`].
pub(crate) fn controller(kubeconfig: &Path) -> Builder {
    builder("controller", kubeconfig)
}

/// An example of the workspace, with the same settings as [`controller`].
pub(crate) fn example(name: &str, kubeconfig: &Path) -> Builder {
    builder(name, kubeconfig)
}

fn builder(name: &str, kubeconfig: &Path) -> Builder {
    let mut command = Command::new(executable(name));
    command.env_clear().envs(std::env::vars().filter(|(name, _)| name == "PATH" || name == "HOME"));
    command.arg("--kubeconfig").arg(kubeconfig).args(["--bind-address", "127.0.0.1"]);
    let ports = ["KNATIVE_HEALTH_PROBES_PORT", "METRICS_PROMETHEUS_PORT", "PROFILING_PORT"];
    ports.into_iter().fold(Builder(command), |builder, port| builder.env(port, "0"))
}

impl Builder {
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.0.args(args);
        self
    }

    /// Confines the process to one namespace. Tests that share a server need this.
    pub(crate) fn in_namespace(self, namespace: &str) -> Self {
        self.args(&["--namespace", namespace])
    }

    /// Disables leader election.
    pub(crate) fn without_leader_election(self) -> Self {
        self.args(&["--disable-ha"])
    }

    /// Enables leader election as the pod `pod`, with leases in `namespace`.
    pub(crate) fn with_leader_election(self, namespace: &str, pod: &str) -> Self {
        self.env("SYSTEM_NAMESPACE", namespace).env("POD_NAME", pod)
    }

    pub(crate) fn spawn(mut self) -> Process {
        let command =
            self.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the binary starts");
        let lines = Arc::default();
        let readers = [
            collect_lines(child.stdout.take().expect("a pipe"), &lines),
            collect_lines(child.stderr.take().expect("a pipe"), &lines),
        ];
        Process { child, lines, readers }
    }
}

/// A child process, killed on drop.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    /// The tasks that read stdout and stderr, each until the process closes its end.
    readers: [JoinHandle<()>; 2],
}

impl Process {
    /// The lines of stdout and stderr so far: JSON lines parsed, other lines as strings.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.lines.lock().clone()
    }

    /// Waits for a line that matches. Fails the test if the output ends first, or after [`TIMEOUT`].
    pub(crate) async fn wait_for_line(&self, what: &str, matching: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            // Read before the lines, so that a line just before the end of the output is not missed.
            let output_ended = self.readers.iter().all(JoinHandle::is_finished);
            if let Some(line) = self.lines.lock().iter().find(|line| matching(line)) {
                return line.clone();
            }
            assert!(
                !output_ended && began.elapsed() < TIMEOUT,
                "no log line: {what}; the log:\n{}",
                self.last_lines()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The last 40 lines of the output, for a failure message.
    pub(crate) fn last_lines(&self) -> String {
        let lines = self.lines.lock();
        let last = lines.iter().skip(lines.len().saturating_sub(40));
        last.map(Value::to_string).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.child.id().expect("the process has not been waited for");
        let pid = Pid::from_raw(i32::try_from(id).expect("a process id")).expect("a process id");
        kill_process(pid, signal).expect("the signal is sent");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child can be waited for").is_none()
    }

    /// Waits until the process exits. Fails the test after [`TIMEOUT`].
    pub(crate) async fn wait_for_exit(&mut self) -> ExitStatus {
        let status = tokio::time::timeout(TIMEOUT, self.child.wait()).await;
        status
            .unwrap_or_else(|_| panic!("the process did not exit; its log:\n{}", self.last_lines()))
            .expect("the child can be waited for")
    }

    /// Sends SIGTERM, asserts a clean exit, and returns the output.
    pub(crate) async fn stop(mut self) -> Vec<Value> {
        self.signal(Signal::TERM);
        let status = self.wait_for_exit().await;
        assert!(status.success(), "{status} after SIGTERM:\n{}", self.last_lines());
        for reader in &mut self.readers {
            reader.await.expect("the output is read to its end");
        }
        self.lines()
    }

    /// The sum of those series of a metric that have these labels: `metric("reconcile_total", &[("result", "ok")])`.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = get(&self.address("metrics").await, "/metrics").await.1;
        sum_of_series(&text, name, labels)
    }

    /// The HTTP status and the body of a probe: `/readiness` or `/health`.
    pub(crate) async fn probe(&self, path: &str) -> (u16, String) {
        get(&self.address("probes").await, path).await
    }

    /// Waits until the readiness probe succeeds.
    pub(crate) async fn wait_until_ready(&self) {
        eventually("the controller is ready", TIMEOUT, async || {
            let (status, _) = self.probe("/readiness").await;
            (status == 200).then_some(())
        })
        .await;
    }

    /// Waits until the log names the address of `endpoint`, `metrics` or `probes`, and returns the address.
    pub(crate) async fn address(&self, endpoint: &str) -> String {
        let line = self
            .wait_for_line(&format!("the address of {endpoint}"), |line| has_address(line, endpoint))
            .await;
        line["address"].as_str().expect("an address").to_owned()
    }
}

fn has_address(line: &Value, endpoint: &str) -> bool {
    line["address"].is_string() && line["message"].as_str().is_some_and(|message| message.contains(endpoint))
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
            collected.lock().push(line);
        }
    })
}

/// The executables by name.
static EXECUTABLES: LazyLock<BTreeMap<String, PathBuf>> = LazyLock::new(build_executables);

/// Builds every executable. A test calls this before a long cargo build of its own. Cargo runs one build at a time, so
/// tests that need an executable would otherwise wait for the long build.
pub(crate) fn build_all() {
    LazyLock::force(&EXECUTABLES);
}

/// The executable of a binary or an example of the workspace.
fn executable(name: &str) -> PathBuf {
    EXECUTABLES.get(name).unwrap_or_else(|| panic!("cargo built no executable {name}")).clone()
}

/// Builds all binaries and examples with the features and the profile of `cargo test` in the root, so that nothing is
/// compiled twice. `--examples` enables the features of dev-dependencies.
fn build_executables() -> BTreeMap<String, PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace =
        package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace");
    let mut build = std::process::Command::new(env!("CARGO"));
    build.current_dir(workspace).args(["build", "--quiet", "--profile", "test", "--bins", "--examples"]);
    build.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = without_test_variables(&mut build).output().expect("cargo runs");
    assert!(output.status.success(), "cargo build failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let name_and_path = |message: Value| {
        let executable = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(executable)))
    };
    messages.filter_map(name_and_path).collect()
}

/// Sends a GET request, and returns the status and the body of the response.
pub(crate) async fn get(address: &str, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("the server accepts connections");
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the request is sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("the server responds");
    let (head, body) = response.split_once("\r\n\r\n").expect("an HTTP response");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

fn sum_of_series(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let series = text.lines().filter(|line| {
        let after_name = line.strip_prefix(name);
        after_name.is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
            && labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    });
    series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
