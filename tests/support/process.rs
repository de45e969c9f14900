//! Controllers as child processes: the sample controller, and the examples.
#![allow(dead_code, reason = "each test crate uses a part of it")]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::LazyLock,
};

use reknit::testing::Program;
pub(crate) use reknit::testing::RunningProgram as Process;
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::Value;

use super::cargo::reuse_build_cache;

/// The sample controller without its webhook, listening on free ports of 127.0.0.1. Choose whether it elects a leader.
pub(crate) fn controller(kubeconfig: &Path) -> Program {
    example("controller", kubeconfig).env("ENABLE_WEBHOOKS", "false")
}

/// One part of the sample program, `controllers` or `webhook`.
pub(crate) fn part(part: &str, kubeconfig: &Path) -> Program {
    example("controller", kubeconfig).args([format!("--only={part}")]).env("WEBHOOK_PORT", "0")
}

/// An example of the workspace, with the same settings as [`controller`].
pub(crate) fn example(name: &str, kubeconfig: &Path) -> Program {
    Program::new(executable(name), kubeconfig)
}

/// Sends signals to a process.
pub(crate) trait SendSignal {
    /// Sends the signal. After SIGSTOP, waits until all threads have stopped, so that the process does nothing more.
    fn signal(&self, signal: Signal);
}

impl SendSignal for Process {
    fn signal(&self, signal: Signal) {
        let id = self.id().expect("the process has not been waited for");
        let pid = Pid::from_raw(i32::try_from(id).expect("a process id")).expect("a process id");
        kill_process(pid, signal).expect("the signal is sent");
        if signal == Signal::STOP {
            waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)
                .expect("the process stops");
        }
    }
}

/// The executables by name.
static EXECUTABLES: LazyLock<BTreeMap<String, PathBuf>> = LazyLock::new(build_executables);

/// Builds every executable. A test calls this before a long cargo build of its own. Cargo runs one build at a time, so
/// tests that need an executable would otherwise wait for the long build.
pub(crate) fn prebuild_executables() {
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
    let output = reuse_build_cache(&mut build).output().expect("cargo runs");
    assert!(output.status.success(), "cargo build failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let name_and_path = |message: Value| {
        let executable = message["executable"].as_str()?;
        Some((message["target"]["name"].as_str()?.to_owned(), PathBuf::from(executable)))
    };
    messages.filter_map(name_and_path).collect()
}
