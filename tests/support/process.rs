//! Controllers as processes of their own: the sample, and the examples.
#![allow(dead_code, reason = "each test crate that shares this uses a part of it")]

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

use super::{cargo::without_test_variables, wait::SOON};

/// The command of a process, from [`controller`] or [`example`].
pub(crate) struct Builder(Command);

/// The sample controller, with free ports on 127.0.0.1. It has no leader election until [`Builder::electing`].
pub(crate) fn controller(kubeconfig: &Path) -> Builder {
    of("controller", kubeconfig)
}

/// One of the examples, with the same settings as [`controller`].
pub(crate) fn example(name: &str, kubeconfig: &Path) -> Builder {
    of(name, kubeconfig)
}

fn of(name: &str, kubeconfig: &Path) -> Builder {
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
    pub(crate) fn within(self, namespace: &str) -> Self {
        self.args(&["--namespace", namespace])
    }

    pub(crate) fn alone(self) -> Self {
        self.args(&["--disable-ha"])
    }

    /// Elects a leader, with leases in `namespace`.
    pub(crate) fn electing(self, namespace: &str, pod: &str) -> Self {
        self.env("SYSTEM_NAMESPACE", namespace).env("POD_NAME", pod)
    }

    pub(crate) fn spawn(mut self) -> Process {
        let command =
            self.0.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the controller's binary runs");
        let lines = Arc::default();
        let reading = [
            collect(child.stdout.take().expect("a pipe"), &lines),
            collect(child.stderr.take().expect("a pipe"), &lines),
        ];
        Process { child, lines, reading }
    }
}

/// A running process. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    /// The readers of the output. They finish when the process closes it.
    reading: [JoinHandle<()>; 2],
}

impl Process {
    /// The output so far: parsed JSON lines, and other lines as strings.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.lines.lock().clone()
    }

    /// Waits for a line that matches, and fails the test with the output if there is none.
    pub(crate) async fn line(&self, what: &str, matching: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let over = self.reading.iter().all(JoinHandle::is_finished);
            if let Some(line) = self.lines.lock().iter().find(|line| matching(line)) {
                return line.clone();
            }
            assert!(!over && began.elapsed() < SOON, "no line: {what}; there were:\n{}", self.tail());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The last lines of the output, for a failure message.
    pub(crate) fn tail(&self) -> String {
        let lines = self.lines.lock();
        let last = lines.iter().skip(lines.len().saturating_sub(40));
        last.map(Value::to_string).collect::<Vec<_>>().join("\n")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.child.id().expect("it still runs");
        let id = Pid::from_raw(i32::try_from(id).expect("a process id")).expect("a process id");
        kill_process(id, signal).expect("the signal is sent");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Waits until the process exits, and fails the test after a minute.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(SOON, self.child.wait()).await;
        ended.unwrap_or_else(|_| panic!("it goes on:\n{}", self.tail())).expect("a child")
    }

    /// Sends SIGTERM, asserts a clean exit, and returns the output.
    pub(crate) async fn stop(mut self) -> Vec<Value> {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(status.success(), "{status} after SIGTERM:\n{}", self.tail());
        for reading in &mut self.reading {
            reading.await.expect("it is read to its end");
        }
        self.lines()
    }

    /// The sum of all series with these labels: `metric("passes_total", &[("result", "ok")])`.
    pub(crate) async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = get(&self.address("metrics").await, "/metrics").await.1;
        sum(&text, name, labels)
    }

    /// The status and the body of a probe: `/readiness`, `/health`.
    pub(crate) async fn probe(&self, path: &str) -> (u16, String) {
        get(&self.address("probes").await, path).await
    }

    pub(crate) async fn ready(&self) {
        eventually("the controller is ready", SOON, async || {
            let (status, _) = self.probe("/readiness").await;
            (status == 200).then_some(())
        })
        .await;
    }

    /// The address that the process logged for this endpoint.
    pub(crate) async fn address(&self, what: &str) -> String {
        let line = self.line(&format!("where {what} listen"), |line| says(line, what)).await;
        line["address"].as_str().expect("an address").to_owned()
    }
}

fn says(line: &Value, what: &str) -> bool {
    line["address"].is_string() && line["message"].as_str().is_some_and(|message| message.contains(what))
}

fn collect(from: impl AsyncRead + Unpin + Send + 'static, into: &Arc<Mutex<Vec<Value>>>) -> JoinHandle<()> {
    let into = into.clone();
    tokio::spawn(async move {
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
            into.lock().push(line);
        }
    })
}

static BUILT: LazyLock<BTreeMap<String, PathBuf>> = LazyLock::new(build);

/// Builds every program. A test that keeps cargo busy for long calls this first, because cargo runs one build at a time
/// and other tests would wait for theirs.
pub(crate) fn build_all() {
    LazyLock::force(&BUILT);
}

/// The executable of a binary or an example of the workspace.
fn executable(name: &str) -> PathBuf {
    BUILT.get(name).unwrap_or_else(|| panic!("cargo builds no {name}")).clone()
}

/// Builds all binaries and examples with the features and the profile of `cargo test` in the root, so that nothing is
/// compiled twice. Without the examples cargo would leave out the features of dev-dependencies.
fn build() -> BTreeMap<String, PathBuf> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace");
    let mut build = std::process::Command::new(env!("CARGO"));
    build.current_dir(root).args(["build", "--quiet", "--profile", "test", "--bins", "--examples"]);
    build.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = without_test_variables(&mut build).output().expect("cargo runs");
    assert!(output.status.success(), "cargo build failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let named = |message: Value| {
        let executable = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(executable)))
    };
    messages.filter_map(named).collect()
}

/// Returns the status and the body of the response to a GET.
pub(crate) async fn get(address: &str, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let series = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
            && labels.iter().all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    });
    series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}
