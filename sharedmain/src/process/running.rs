//! Running controllers and tasks, and their shutdown.
use std::{panic::AssertUnwindSafe, time::Duration};

use futures::{FutureExt, future::join_all};
use reknit_injection::{Shutdown, ShutdownTrigger};
use reknit_reconciler::{
    Controller, Drained, Health, Recorder, Run,
    leader::{Electors, Leadership},
};
use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, timeout, timeout_at},
};

use super::{Task, failure::Failure, lifecycle::Lifecycle, panics};
use crate::observe::otlp::Exports;

/// The time that controllers get after the shutdown deadline to drop their reconciles.
const GRACE: Duration = Duration::from_secs(1);
/// The time to release leases. Electors give up by themselves before it ends.
const RELEASE: Duration = Duration::from_secs(15);
/// The time to publish queued events.
const PUBLISH: Duration = Duration::from_secs(5);
/// The least and the most time to export the last metrics and spans, depending on the time that is left.
const EXPORT: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The controllers, electors and tasks of a process.
pub(super) struct Running {
    lifecycle: Lifecycle,
    shutdown_timeout: Duration,
    controllers: JoinSet<Drained>,
    tasks: JoinSet<Result<String, String>>,
    electors: JoinSet<()>,
    /// Tells the electors that all reconciles have ended, so that they release the leases.
    drained: (ShutdownTrigger, Shutdown),
    pub(super) health: Vec<(Health, Leadership)>,
}

impl Running {
    pub(super) fn new(lifecycle: Lifecycle, shutdown_timeout: Duration) -> Self {
        Self {
            lifecycle,
            shutdown_timeout,
            controllers: JoinSet::new(),
            tasks: JoinSet::new(),
            electors: JoinSet::new(),
            drained: Shutdown::new(),
            health: Vec::new(),
        }
    }

    /// Starts a controller and the electors of its leases.
    pub(super) fn controller(
        &mut self,
        controller: Controller,
        leadership: Leadership,
        electors: Option<Electors>,
        workers: Option<usize>,
    ) {
        if let Some(electors) = electors {
            self.elect(electors, &controller);
        }
        self.health.push((controller.health(), leadership.clone()));
        let run =
            Run { leadership, stop: self.lifecycle.shutdown.clone(), drain: self.shutdown_timeout, workers };
        self.controllers.spawn(controller.run(run));
    }

    /// Starts the electors once the informers of the controller have synced. A replica that is not able to work yet must
    /// not keep others from working.
    fn elect(&mut self, electors: Electors, controller: &Controller) {
        let synced = join_all(controller.informers().iter().map(|informer| informer.synced()));
        let (shutdown, all_drained) = (self.lifecycle.shutdown.clone(), self.drained.1.clone());
        self.electors.spawn(async move {
            tokio::select! {
                _ = synced => electors.run(shutdown.wait(), all_drained.wait()).await,
                () = shutdown.wait() => {}
            }
        });
    }

    pub(super) fn task(&mut self, task: Task) {
        let Task { name, run } = task;
        self.tasks.spawn(async move {
            match AssertUnwindSafe(run).catch_unwind().await {
                Ok(Ok(())) => Ok(name),
                Ok(Err(e)) => Err(format!("task {name} failed: {e}")),
                Err(panic) => Err(format!("task {name} panicked: {}", panics::text(&*panic))),
            }
        });
    }

    /// Runs until the process is asked to stop, or until something fails, and then shuts down.
    pub(super) async fn until_stopped(mut self, recorder: Recorder, exports: Exports) -> Result<(), Failure> {
        let failed = self.until_shutdown().await;
        self.lifecycle.stop();
        failed.and(self.shut_down(recorder, exports).await)
    }

    async fn until_shutdown(&mut self) -> Result<(), Failure> {
        loop {
            tokio::select! {
                () = self.lifecycle.shutdown.wait() => return Ok(()),
                Some(ended) = self.tasks.join_next() => task_ended(ended)?,
                Some(ended) = self.controllers.join_next() => check_end("a controller", ended, &self.lifecycle.shutdown)?,
                Some(ended) = self.electors.join_next() => check_end("leader election", ended, &self.lifecycle.shutdown)?,
            }
        }
    }

    /// Waits for reconciles and tasks until the deadline. Leases are released after the reconciles have ended; if one
    /// does not end, they are left to expire.
    async fn shut_down(mut self, recorder: Recorder, exports: Exports) -> Result<(), Failure> {
        let deadline = Instant::now() + self.shutdown_timeout;
        let ((), ended) = tokio::join!(
            async {
                if drain(&mut self.controllers, deadline + GRACE).await {
                    self.drained.0.pull();
                    release(&mut self.electors).await;
                }
            },
            end(&mut self.tasks, deadline),
        );
        if timeout(PUBLISH, recorder.flush()).await.is_err() {
            tracing::warn!("dropped events that were still queued");
        }
        let left = deadline.saturating_duration_since(Instant::now());
        exports.flush(left.clamp(EXPORT[0], EXPORT[1])).await;
        ended
    }
}

fn task_ended(ended: Result<Result<String, String>, JoinError>) -> Result<(), Failure> {
    let name = ended.map_err(|e| e.to_string()).flatten().map_err(Failure::new)?;
    tracing::info!(task = name, "task ended");
    Ok(())
}

/// Controllers and electors must run until the shutdown: without one, the process would go on and do nothing.
fn check_end<T>(what: &str, ended: Result<T, JoinError>, shutdown: &Shutdown) -> Result<(), Failure> {
    match ended {
        Ok(_) if shutdown.is_down() => Ok(()),
        Ok(_) => Err(Failure::new(format!("{what} ended unexpectedly"))),
        Err(e) => Err(Failure::new(format!("{what} panicked: {}", panic_text(e)))),
    }
}

fn panic_text(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(payload) => panics::text(&*payload).to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Returns whether all controllers have ended.
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
        tracing::warn!("a reconcile blocks its thread: the leases are not released before it ends");
    }
    controllers.abort_all();
    all_ended
}

async fn release(electors: &mut JoinSet<()>) {
    let deadline = Instant::now() + RELEASE;
    while let Ok(Some(_)) = timeout_at(deadline, electors.join_next()).await {}
}

/// Waits for all tasks until the deadline, also after one has failed.
async fn end(tasks: &mut JoinSet<Result<String, String>>, deadline: Instant) -> Result<(), Failure> {
    let mut result = Ok(());
    while let Ok(Some(ended)) = timeout_at(deadline, tasks.join_next()).await {
        result = result.and(task_ended(ended));
    }
    if !tasks.is_empty() {
        tracing::warn!(
            dropped = tasks.len(),
            "dropped tasks that were still running at the shutdown deadline"
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
        let ends =
            |ended| check_end("leader election", ended, &shutdown).map_err(|failure| failure.to_string());
        let panics = || tokio::spawn(async { panic!("as planned") });
        let early = ends(Ok(())).unwrap_err();
        assert_eq!(early, "leader election ended unexpectedly");
        assert_eq!(ends(panics().await).unwrap_err(), "leader election panicked: as planned");
        trigger.pull();
        assert_eq!(ends(Ok(())), Ok(()));
        assert!(ends(panics().await).is_err());
    }

    #[tokio::test]
    async fn leader_election_that_panics_ends_the_process() {
        let mut running = Running::new(Lifecycle::new(), GRACE);
        running.electors.spawn(async { panic!("as planned") });
        let failure = running.until_shutdown().await.unwrap_err();
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
