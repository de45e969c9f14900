//! `cargo reknit dev`: the project's programs against a local control plane.

mod build;
mod goal;
mod manifests;
mod namespaces;
mod process;
mod session;
mod sources;
mod table;
mod vanished;
mod workload;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    time::interval,
};

use self::{goal::Goal, session::Session, sources::Sources};
pub(crate) use self::{
    manifests::read_folder,
    workload::{MainProgram, Workload, without_flags, workloads},
};
use crate::{
    output,
    project::{Project, ProjectFlags},
};

/// The interval at which objects are read.
const REFRESH: Duration = Duration::from_millis(500);
/// The time for `--once`, after the programs have started.
const ONCE_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the project against a local control plane, until Ctrl-C
///
/// Starts an API server on 127.0.0.1, applies config/ and config/example/, and runs the programs of the Deployments as
/// their service accounts, with the arguments and the environment of their first containers, and without leader
/// election. Prints the objects whenever they change, and the address of each program's console. Builds and restarts the
/// programs when a file in src/ or config/ changes; while the project does not compile, the old programs keep running.
///
/// kube-apiserver and etcd have to be installed: in the folder that KUBEBUILDER_ASSETS names, or in ~/.cache/reknit by
/// hack/setup-envtest.sh of a checkout of reknit.
#[derive(Debug, clap::Args)]
pub(crate) struct Dev {
    /// Exits once every example that is a custom resource, or those of these Kinds and names, are ready; with status 1
    /// if that takes longer than two minutes, or if a program exits. `KIND/NAME=False` waits for an example that is not
    /// ready
    #[arg(long, value_name = "KIND/NAME", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    once: Option<Vec<Goal>>,
    #[command(flatten)]
    project: ProjectFlags,
    /// Arguments for `cargo build`, such as --release
    #[arg(last = true, value_name = "CARGO_ARGS")]
    cargo_args: Vec<String>,
}

impl Dev {
    pub(crate) fn run(self) -> Result<()> {
        let project = self.project.project()?;
        let runtime =
            Builder::new_multi_thread().enable_all().build().context("cannot start the tokio runtime")?;
        runtime.block_on(self.run_session(&project))
    }

    async fn run_session(&self, project: &Project) -> Result<()> {
        let began = Instant::now();
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let sources = Sources::watch(&project.folder)?;
        let mut stopped = false;
        let started = tokio::select! {
            started = Session::start(project, &self.cargo_args, began) => Some(started?),
            _ = interrupt.recv() => None,
            _ = terminate.recv() => None,
        };
        // Dropping a session that has not started removes the control plane.
        let Some(mut session) = started else { return Ok(()) };
        let result = tokio::select! {
            result = self.follow(&mut session, &sources) => result,
            _ = interrupt.recv() => { stopped = true; Ok(()) }
            _ = terminate.recv() => { stopped = true; Ok(()) }
        };
        if stopped {
            output::step("stopping", "the programs and the control plane");
        }
        session.stop().await?;
        result
    }

    /// Shows objects and restarts programs. Returns with `--once`.
    async fn follow(&self, session: &mut Session<'_>, sources: &Sources) -> Result<()> {
        let started = Instant::now();
        let mut awaited = String::new();
        let mut refresh = interval(REFRESH);
        // Kept between iterations, because a change would be lost if this future were dropped while it debounces.
        let mut changed = Box::pin(sources.changed());
        loop {
            tokio::select! {
                _ = refresh.tick() => {
                    session.refresh().await;
                    let Some(goals) = &self.once else { continue };
                    let Some(missed) = session.missed(goals) else { return Ok(()) };
                    if session.has_exited() {
                        bail!("a program exited before these examples were ready: {missed}");
                    }
                    let rest = ONCE_TIMEOUT.saturating_sub(started.elapsed()).as_secs();
                    if rest == 0 {
                        let seconds = ONCE_TIMEOUT.as_secs();
                        bail!("these examples were not ready within {seconds} s: {missed}");
                    }
                    if missed != awaited {
                        output::step("waiting", &format!("for at most {rest} s for {missed}"));
                        awaited = missed;
                    }
                }
                () = &mut changed => {
                    changed.set(sources.changed());
                    output::step("changed", "the sources; building");
                    match session.build().await {
                        Ok(executables) => session.update(executables).await,
                        Err(error) => output::warning(&format!("{error}; the running programs are kept")),
                    }
                }
            }
        }
    }
}
