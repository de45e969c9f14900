//! The machine and the versions that the figures depend on.

use std::{fmt, fs, process::Command};

use serde::Serialize;

use crate::rig::cluster::Cluster;

#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) processors: usize,
    pub(crate) gigabytes: f64,
    pub(crate) kernel: String,
    pub(crate) rustc: String,
    pub(crate) commit: String,
    pub(crate) api_server: String,
    /// The load average at the start. A value above one means that other programs run too.
    pub(crate) load: String,
}

impl Machine {
    pub(crate) async fn current(cluster: &Cluster) -> Self {
        let memory = field("/proc/meminfo", "MemTotal");
        let kilobytes: f64 = memory.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0.0);
        Self {
            processor: field("/proc/cpuinfo", "model name"),
            processors: std::thread::available_parallelism().map_or(0, Into::into),
            gigabytes: (kilobytes * 1024.0 / 1e8).round() / 10.0,
            kernel: command_output("uname", &["-sr"]),
            rustc: command_output("rustc", &["--version"]),
            commit: command_output(
                "git",
                &["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"],
            ),
            api_server: cluster.server_version().await.unwrap_or_default(),
            load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, processors, gigabytes, kernel, rustc, commit, api_server, load } = self;
        write!(
            f,
            "{commit}, {rustc}, API server {api_server}; {processors} × {processor}, {gigabytes} GB, {kernel}; \
             load {load} at the start"
        )
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the value of a field of a file in /proc.
fn field(path: &str, name: &str) -> String {
    let text = read(path);
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map_or("", |(_, value)| value).trim().to_owned()
}

fn command_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().map(|output| output.stdout);
    String::from_utf8_lossy(&output.unwrap_or_default()).trim().to_owned()
}
