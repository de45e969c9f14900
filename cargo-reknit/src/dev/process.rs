//! The running programs of the project.

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result};
use reknit_testing::internal::Watchdog;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::workload::Workload;

/// The time for running reconciles and tasks to end. It shortens the ten seconds in which a webhook still answers API
/// servers that do not know yet that it stops.
const SHUTDOWN_TIMEOUT: &str = "1s";
/// The limit on a shutdown, which also publishes events and exports metrics.
const EXIT_TIMEOUT: Duration = Duration::from_secs(15);

/// The settings by which a program reaches the control plane, the control plane its webhook, and a person its console.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) kubeconfig: PathBuf,
    pub(crate) webhook_port: u16,
    pub(crate) console_port: u16,
}

/// A running program. It is killed when this value is dropped, and stopped when this process is killed, for example since
/// its terminal was closed.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    _watchdog: Option<Watchdog>,
}

impl Process {
    /// Starts the program of a Deployment. Its log goes to this process's output. These settings override those of the
    /// Deployment.
    pub(crate) fn start(
        executable: &Path,
        workload: &Workload,
        settings: &Settings,
        folder: &Path,
    ) -> Result<Self> {
        let mut command = Command::new(executable);
        command
            .args(["--disable-ha", "--bind-address", "127.0.0.1", "--shutdown-timeout", SHUTDOWN_TIMEOUT])
            .arg(format!("--console-bind-address=127.0.0.1:{}", settings.console_port))
            .arg("--kubeconfig")
            .arg(&settings.kubeconfig)
            .args(&workload.args)
            .current_dir(folder)
            .envs(&workload.env)
            .env("SYSTEM_NAMESPACE", &workload.namespace)
            .env("WEBHOOK_PORT", settings.webhook_port.to_string())
            // Port 0: a free port.
            .env("KNATIVE_HEALTH_PROBES_PORT", "0")
            .env("METRICS_PROMETHEUS_PORT", "0")
            .env("PROFILING_PORT", "0")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            // Ctrl-C does not reach the program, which has to stop before the control plane does.
            .process_group(0);
        // No proxy reaches 127.0.0.1.
        for proxy in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(proxy);
        }
        let child = command.spawn().with_context(|| format!("cannot start {}", executable.display()))?;
        let watchdog = child.id().map(Watchdog::of).transpose().context("cannot run sh")?;
        Ok(Self { name: workload.to_string(), child, _watchdog: watchdog })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the status of the program if it has exited.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends SIGTERM and waits until the program has exited. A program that does not exit is killed.
    pub(crate) async fn stop(mut self) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // It may have exited already.
            let _ = kill_process(pid, Signal::TERM);
        }
        // Dropping the child kills it.
        let _ = timeout(EXIT_TIMEOUT, self.child.wait()).await;
    }
}
