//! The processes of one control plane and their folder.

pub(super) mod commands;
mod guard;
mod port;
mod programs;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use http::Request;
use kube::Client;
use tokio::sync::Mutex;

use self::{guard::Guard, port::free_port, programs::Programs};
use super::{
    credentials::{self, Access},
    error::Error,
};
use crate::eventually::until;

const START_LIMIT: Duration = Duration::from_secs(120);
const LOG_LINES: usize = 20;

#[derive(Debug)]
pub(super) struct Processes {
    pub(super) folder: PathBuf,
    pub(super) admin: Access,
    guard: Mutex<Guard>,
    /// True once the programs of the nodes have been started.
    has_nodes: AtomicBool,
}

/// The folder of temporary files, or `/tmp` if its path is long: that of a socket has at most 107 bytes.
fn short_temp_dir() -> PathBuf {
    let folder = env::temp_dir();
    if folder.as_os_str().len() > 70 { "/tmp".into() } else { folder }
}

impl Processes {
    pub(super) async fn start(audited: bool, arguments: &[String]) -> Result<Self, Error> {
        let programs = Programs::search()?;
        // The folder has keys and tokens, and the sockets of etcd.
        let only_this_user = fs::Permissions::from_mode(0o700);
        let temporary = tempfile::Builder::new()
            .prefix("reknit-testing-")
            .permissions(only_this_user)
            .tempdir_in(short_temp_dir());
        let temporary = temporary.map_err(Error::cannot("create a temporary folder"))?;
        let folder = temporary.path();
        let port = free_port()?;
        let admin = credentials::create(folder, port)?;
        commands::write(folder, &programs, port, audited, arguments)?;
        let guard = Mutex::new(Guard::spawn(folder, &commands::ALL)?);
        // The guard removes the folder from here on.
        let folder = temporary.keep();
        let processes = Self { folder, admin, guard, has_nodes: AtomicBool::new(false) };
        processes.start_programs().await?;
        Ok(processes)
    }

    /// Starts etcd and the API server, with the data of an earlier run if there is any, and waits until they are ready.
    /// Then starts the programs of the nodes, if they ran before.
    pub(super) async fn start_programs(&self) -> Result<(), Error> {
        let mut guard = self.guard.lock().await;
        guard.start(&commands::CORE).await?;
        self.wait_until_ready("a ready API server", &commands::CORE, &guard, || self.check_api_server())
            .await?;
        match self.has_nodes.load(Ordering::Relaxed) {
            true => guard.start(&commands::NODES).await,
            false => Ok(()),
        }
    }

    /// Starts the programs of the nodes, unless they run, and waits until `check` returns `Ok`.
    pub(super) async fn start_nodes<F: Future<Output = Result<(), String>>>(
        &self,
        kubeconfig: &Path,
        check: impl Fn() -> F,
    ) -> Result<(), Error> {
        let mut guard = self.guard.lock().await;
        if !self.has_nodes.load(Ordering::Relaxed) {
            commands::write_nodes(&self.folder, &Programs::search()?, kubeconfig)?;
            guard.start(&commands::NODES).await?;
            self.has_nodes.store(true, Ordering::Relaxed);
        }
        self.wait_until_ready("ready nodes", &commands::NODES, &guard, check).await
    }

    /// Waits until `check` returns `Ok`. Fails as soon as one of the programs exits.
    async fn wait_until_ready<F: Future<Output = Result<(), String>>>(
        &self,
        what: &str,
        programs: &[&'static str],
        guard: &Guard,
        check: impl Fn() -> F,
    ) -> Result<(), Error> {
        let outcome = until(START_LIMIT, || async {
            let exited = |program| Some((program, guard.exit_status(program)?));
            match programs.iter().copied().find_map(exited) {
                Some((program, status)) => {
                    let log = self.log_end(program);
                    Ok(Err(Error::new(format!(
                        "{program} exited with status {status} instead of serving; the end of its log:\n{log}"
                    ))))
                }
                None => check().await.map(Ok),
            }
        });
        outcome.await.unwrap_or_else(|last| {
            let log = |program| format!("; the end of {program}'s log:\n{}", self.log_end(program));
            let last = last + &programs.iter().copied().map(log).collect::<String>();
            Err(Error::timeout(what, START_LIMIT, &last))
        })
    }

    pub(super) async fn stop(&self) -> Result<(), Error> {
        let mut guard = self.guard.lock().await;
        guard.stop().await?;
        match commands::ALL.into_iter().find(|program| guard.is_running(program)) {
            Some(program) => Err(Error::new(format!("{program} did not exit after SIGKILL"))),
            None => Ok(()),
        }
    }

    /// Checks that the API server reports itself ready and has created the default namespace.
    async fn check_api_server(&self) -> Result<(), String> {
        let mut config = self.admin.config();
        config.default_retry = false;
        let client = Client::try_from(config).map_err(|error| error.to_string())?;
        for path in ["/readyz", "/api/v1/namespaces/default"] {
            let request = Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
            client.request_text(request).await.map_err(|error| format!("{path}: {error}"))?;
        }
        Ok(())
    }

    /// Returns the last lines of a program's log.
    fn log_end(&self, program: &str) -> String {
        let log = fs::read(self.folder.join(format!("{program}.log"))).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}
