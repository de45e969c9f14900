//! Running controllers and tasks, and their shutdown.
use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use reknit_injection::{Shutdown, ShutdownTrigger, internal::panic_message};
use reknit_leadership::{
    Leadership,
    internal::{Electors, Member},
};
use reknit_reconciler::{Controller, Drained, Health, Recorder, Run};
use tokio::{
    runtime::Handle,
    task::{AbortHandle, JoinError, JoinSet},
    time::{Instant, timeout, timeout_at},
};

use super::{Task, failure::Failure, lifecycle::Lifecycle};
use crate::{observe::otlp::Exports, plan::Shadow};

/// The time that controllers get after the shutdown deadline to drop their reconciles.
const GRACE: Duration = Duration::from_secs(1);
/// The time to release leases. Electors give up before it ends.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(15);
/// The time to publish queued events.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The export of the last metrics and spans may take the time that is left until the shutdown deadline, within these
/// limits.
const MIN_EXPORT_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The controllers, electors and tasks of a process. The electors run on the control runtime.
pub(super) struct Running {
    lifecycle: Lifecycle,
    shutdown_timeout: Duration,
    /// The runtime of the electors.
    control: Handle,
    controllers: JoinSet<Drained>,
    tasks: JoinSet<Result<String, String>>,
    /// The name of each task, with its handle.
    task_names: Vec<(String, AbortHandle)>,
    electors: JoinSet<()>,
    /// Tells the electors that all reconciles have ended, so that they release the leases.
    all_drained: (ShutdownTrigger, Shutdown),
    pub(super) health: Vec<(Health, Leadership)>,
}

impl Running {
    pub(super) fn new(lifecycle: Lifecycle, shutdown_timeout: Duration, control: Handle) -> Self {
        Self {
            lifecycle,
            shutdown_timeout,
            control,
            controllers: JoinSet::new(),
            tasks: JoinSet::new(),
            task_names: Vec::new(),
            electors: JoinSet::new(),
            all_drained: Shutdown::new(),
            health: Vec::new(),
        }
    }

    /// Starts a controller and the electors of its leases.
    pub(super) fn start_controller(
        &mut self,
        controller: Controller,
        leadership: Leadership,
        electors: Option<Electors>,
        workers: Option<usize>,
    ) {
        if let Some(electors) = electors {
            self.start_electors(electors, &controller);
        }
        self.health.push((controller.health(), leadership.clone()));
        let run =
            Run { leadership, stop: self.lifecycle.shutdown.clone(), drain: self.shutdown_timeout, workers };
        self.controllers.spawn(controller.run(run));
    }

    /// Starts a controller that only shows what it would change.
    pub(super) fn start_shadow(
        &mut self,
        controller: Controller,
        leadership: Leadership,
        shadow: Arc<Shadow>,
    ) {
        self.health.push((controller.health(), leadership));
        let stop = self.lifecycle.shutdown.clone();
        self.controllers.spawn(async move { shadow.run(controller, stop).await });
    }

    /// Starts to announce this process to the other replicas.
    pub(super) fn start_member(&mut self, member: Member) {
        self.electors.spawn_on(member.run(self.lifecycle.shutdown.wait()), &self.control);
    }

    /// Starts the electors once the informers of the controller have synced, unless the process is asked to stop
    /// before. A replica that is not able to work yet must not keep others from working.
    fn start_electors(&mut self, electors: Electors, controller: &Controller) {
        let synced = join_all(controller.informers().iter().map(|informer| informer.synced()));
        let (shutdown, all_drained) = (self.lifecycle.shutdown.clone(), self.all_drained.1.clone());
        let elect = async move {
            tokio::select! {
                biased;
                () = shutdown.wait() => {}
                _ = synced => electors.run(shutdown.wait(), all_drained.wait()).await,
            }
        };
        self.electors.spawn_on(elect, &self.control);
    }

    /// Starts a task. Its result is its name, or an error with its name.
    pub(super) fn start_task(&mut self, task: Task) {
        let Task { name, run, .. } = task;
        let task_name = name.clone();
        let handle = self.tasks.spawn(async move {
            match AssertUnwindSafe(run).catch_unwind().await {
                Ok(Ok(())) => Ok(name),
                Ok(Err(e)) => Err(format!("task {name} failed: {e}")),
                Err(panic) => Err(format!("task {name} panicked: {}", panic_message(&*panic))),
            }
        });
        self.task_names.push((task_name, handle));
    }

    /// Runs until the process is asked to stop, or until something fails, and then shuts down.
    pub(super) async fn run_until_stopped(
        mut self,
        recorder: Recorder,
        exports: Exports,
    ) -> Result<(), Failure> {
        let result = self.wait_for_shutdown().await;
        self.lifecycle.stop();
        result.and(self.shut_down(recorder, exports).await)
    }

    /// Waits until the process is asked to stop, or until something fails.
    async fn wait_for_shutdown(&mut self) -> Result<(), Failure> {
        loop {
            tokio::select! {
                biased;
                () = self.lifecycle.shutdown.wait() => return Ok(()),
                Some(ended) = self.tasks.join_next() => check_task_end(ended)?,
                Some(ended) = self.controllers.join_next() => check_end("a controller", ended, &self.lifecycle.shutdown)?,
                Some(ended) = self.electors.join_next() => check_end("leader election", ended, &self.lifecycle.shutdown)?,
            }
        }
    }

    /// Waits for reconciles and tasks until the deadline. The webhook is a task, and drains while the reconciles end. The Leases
    /// of buckets are released after all reconciles have ended, and do not wait for the tasks; if a reconcile does not end,
    /// they are left to expire. Publishes events and exports metrics and spans at the end.
    async fn shut_down(mut self, recorder: Recorder, exports: Exports) -> Result<(), Failure> {
        let deadline = Instant::now() + self.shutdown_timeout;
        let ((), task_result) = tokio::join!(
            async {
                if drain(&mut self.controllers, deadline + GRACE).await {
                    self.all_drained.0.start();
                    join_electors(&mut self.electors).await;
                }
            },
            join_tasks(&mut self.tasks, &self.task_names, deadline),
        );
        if timeout(PUBLISH_TIMEOUT, recorder.flush()).await.is_err() {
            tracing::warn!("dropped events that were still queued");
        }
        let left = deadline.saturating_duration_since(Instant::now());
        exports.flush(left.clamp(MIN_EXPORT_TIMEOUT, MAX_EXPORT_TIMEOUT)).await;
        task_result
    }
}

/// Logs the end of a task, or returns its error.
fn check_task_end(ended: Result<Result<String, String>, JoinError>) -> Result<(), Failure> {
    let name = ended.map_err(|e| e.to_string()).flatten().map_err(Failure::new)?;
    tracing::info!(task = name, "task ended");
    Ok(())
}

/// Returns an error if a controller or an elector has panicked, or has ended before the shutdown: the process would go
/// on without its work.
fn check_end<T>(what: &str, ended: Result<T, JoinError>, shutdown: &Shutdown) -> Result<(), Failure> {
    match ended {
        Ok(_) if shutdown.is_down() => Ok(()),
        Ok(_) => Err(Failure::new(format!("{what} ended unexpectedly"))),
        Err(e) => Err(Failure::new(format!("{what} panicked: {}", panic_text(e)))),
    }
}

fn panic_text(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(payload) => panic_message(&*payload).to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Waits for the controllers until the deadline, and aborts the others. Returns whether all have ended.
async fn drain(controllers: &mut JoinSet<Drained>, deadline: Instant) -> bool {
    let mut dropped = 0;
    while let Ok(Some(drained)) = timeout_at(deadline, controllers.join_next()).await {
        dropped += drained.map_or(0, |drained| drained.dropped);
    }
    if dropped > 0 {
        tracing::warn!(dropped, "dropped reconciles that were still running at the shutdown deadline");
    }
    let all_ended = controllers.is_empty();
    if !all_ended {
        tracing::warn!("a reconcile blocks its thread: the leases are not released, and expire");
    }
    controllers.abort_all();
    all_ended
}

/// Waits for the electors, which release their leases.
async fn join_electors(electors: &mut JoinSet<()>) {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    while let Ok(Some(_)) = timeout_at(deadline, electors.join_next()).await {}
}

/// Waits for the tasks until the deadline, and drops the others. Returns the error of the first task that failed.
async fn join_tasks(
    tasks: &mut JoinSet<Result<String, String>>,
    names: &[(String, AbortHandle)],
    deadline: Instant,
) -> Result<(), Failure> {
    let mut result = Ok(());
    while let Ok(Some(ended)) = timeout_at(deadline, tasks.join_next()).await {
        result = result.and(check_task_end(ended));
    }
    if !tasks.is_empty() {
        let running = names.iter().filter(|(_, handle)| !handle.is_finished());
        let names: Vec<_> = running.map(|(name, _)| name.as_str()).collect();
        tracing::warn!(
            tasks = names.join(", "),
            "dropped tasks that were still running at the shutdown deadline: a task should end once Context::shutdown \
             resolves, or --shutdown-timeout allow it more time"
        );
        tasks.abort_all();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_before_the_shutdown_is_a_failure() {
        let (trigger, shutdown) = Shutdown::new();
        let check =
            |ended| check_end("leader election", ended, &shutdown).map_err(|failure| failure.to_string());
        let panicked = || tokio::spawn(async { panic!("as planned") });
        let early = check(Ok(())).unwrap_err();
        assert_eq!(early, "leader election ended unexpectedly");
        assert_eq!(check(panicked().await).unwrap_err(), "leader election panicked: as planned");
        trigger.start();
        assert_eq!(check(Ok(())), Ok(()));
        assert!(check(panicked().await).is_err());
    }

    #[tokio::test]
    async fn leader_election_that_panics_ends_the_process() {
        let mut running = Running::new(Lifecycle::new(), GRACE, Handle::current());
        running.electors.spawn(async { panic!("as planned") });
        let failure = running.wait_for_shutdown().await.unwrap_err();
        assert_eq!(failure.to_string(), "leader election panicked: as planned");
    }

    #[tokio::test(start_paused = true)]
    async fn a_controller_that_does_not_end_by_the_deadline_is_reported() {
        let mut controllers = JoinSet::new();
        controllers.spawn(async { Drained::default() });
        assert!(drain(&mut controllers, Instant::now() + GRACE).await);
        controllers.spawn(std::future::pending());
        assert!(!drain(&mut controllers, Instant::now() + GRACE).await);
    }
}
