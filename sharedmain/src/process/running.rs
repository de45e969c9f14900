//! Controllers and tasks at work, and how they end.
use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use reknit_injection::{Feed, Informers, Shutdown, ShutdownTrigger};
use reknit_reconciler::{
    Controller, Drained, Health, Recorder, Run,
    leader::{Electors, Leadership},
};
use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    election::Standing, health::process_health::ProcessVitals, observe::otlp::Exports, process::Task,
    process::failure::Failure, process::panics, process::stop::Stop,
};

/// How much longer than its deadline a controller is waited for: at the deadline it drops its passes itself.
const GRACE: Duration = Duration::from_secs(1);
/// How long leases may take to be released: electors give up by themselves before that.
const RELEASE: Duration = Duration::from_secs(15);
/// How long the events that wait may take to be published.
const PUBLISH: Duration = Duration::from_secs(5);
/// How long the last metrics and spans may take to be sent, where the deadline leaves as much: at least the first.
const SEND: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Everything that runs until the process is asked to stop.
pub(crate) struct Running {
    stop: Stop,
    shutdown: Shutdown,
    drain: Duration,
    controllers: JoinSet<Drained>,
    tasks: JoinSet<Result<String, String>>,
    electors: JoinSet<()>,
    /// Tells the electors that nothing works any more under what they hold.
    drained: ShutdownTrigger,
    all_drained: Shutdown,
    recorder: Recorder,
    exports: Exports,
    /// Held so that it goes on.
    _followed: Vec<Arc<dyn Feed>>,
    /// How each controller is doing, and what it leads.
    watched: Vec<(Health, Leadership)>,
}

impl Running {
    pub(crate) fn new(
        stop: Stop,
        shutdown: Shutdown,
        drain: Duration,
        recorder: Recorder,
        followed: Vec<Arc<dyn Feed>>,
        exports: Exports,
    ) -> Self {
        let (drained, all_drained) = Shutdown::new();
        Self {
            stop,
            shutdown,
            drain,
            controllers: JoinSet::new(),
            tasks: JoinSet::new(),
            electors: JoinSet::new(),
            drained,
            all_drained,
            recorder,
            exports,
            _followed: followed,
            watched: Vec::new(),
        }
    }

    /// Starts a controller, and the electors for its leases.
    pub(crate) fn controller(&mut self, standing: Standing, workers: Option<usize>) {
        let Standing { controller, leadership, electors } = standing;
        electors.into_iter().for_each(|electors| self.elect(electors, &controller));
        self.watched.push((controller.health(), leadership.clone()));
        let run = Run { leadership, stop: self.shutdown.clone(), drain: self.drain, workers };
        self.controllers.spawn(controller.run(run));
    }

    /// A replica that cannot work yet, because it knows too little, must not keep others from working.
    fn elect(&mut self, electors: Electors, controller: &Controller) {
        let synced = join_all(controller.feeds().iter().map(|feed| feed.synced()));
        let (shutdown, all_drained) = (self.shutdown.clone(), self.all_drained.clone());
        self.electors.spawn(async move {
            tokio::select! {
                _ = synced => electors.run(shutdown.wait(), all_drained.wait()).await,
                () = shutdown.wait() => {}
            }
        });
    }

    pub(crate) fn task(&mut self, task: Task) {
        let (name, run) = task.into_parts();
        self.tasks.spawn(async move {
            let ended = AssertUnwindSafe(run).catch_unwind().await;
            match ended {
                Ok(Ok(())) => Ok(name),
                Ok(Err(e)) => Err(format!("task {name} failed: {e}")),
                Err(panic) => Err(format!("task {name} panicked: {}", panics::text(&*panic))),
            }
        });
    }

    /// What the probes look at.
    pub(crate) fn vitals(
        &self,
        informers: Informers,
        webhooks: Vec<reknit_webhook::Health>,
    ) -> ProcessVitals {
        ProcessVitals { controllers: self.watched.clone(), informers, webhooks }
    }

    /// Until the process is asked to stop, or something ends that must not; then in good order to the end.
    pub(crate) async fn until_over(mut self) -> Result<(), Failure> {
        let failed = self.until_stopped().await;
        self.stop.now();
        failed.and(self.wind_down().await)
    }

    async fn until_stopped(&mut self) -> Result<(), Failure> {
        loop {
            tokio::select! {
                () = self.shutdown.wait() => return Ok(()),
                Some(ended) = self.tasks.join_next() => task_ended(ended)?,
                Some(ended) = self.controllers.join_next() => must_last("a controller", ended, &self.shutdown)?,
                Some(ended) = self.electors.join_next() => must_last("leader election", ended, &self.shutdown)?,
            }
        }
    }

    /// Passes and tasks may go on until the deadline; leases are held until the passes have ended, and left to lapse
    /// where one does not.
    async fn wind_down(mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + self.drain;
        let ((), ended) = tokio::join!(
            async {
                if drain(&mut self.controllers, deadline + GRACE).await {
                    self.drained.pull();
                    release(&mut self.electors).await;
                }
            },
            end(&mut self.tasks, deadline),
        );
        if timeout(PUBLISH, self.recorder.flush()).await.is_err() {
            tracing::warn!("events that waited to be published were dropped");
        }
        let left = deadline.saturating_duration_since(Instant::now());
        self.exports.flush(left.clamp(SEND[0], SEND[1])).await;
        ended
    }
}

fn task_ended(ended: Result<Result<String, String>, JoinError>) -> Result<(), Failure> {
    let name = ended.map_err(|e| e.to_string()).flatten().map_err(Failure::new)?;
    tracing::info!(task = name, "task ended");
    Ok(())
}

/// Without it the process would go on, and do nothing.
fn must_last<T>(what: &str, ended: Result<T, JoinError>, shutdown: &Shutdown) -> Result<(), Failure> {
    match ended {
        Ok(_) if shutdown.is_down() => Ok(()),
        Ok(_) => Err(Failure::new(format!("{what} ended, though nobody asked it to"))),
        Err(e) => Err(Failure::new(format!("{what} panicked: {}", panic_text(e)))),
    }
}

fn panic_text(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(payload) => panics::text(&*payload).to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Whether all have ended.
async fn drain(controllers: &mut JoinSet<Drained>, deadline: Instant) -> bool {
    let mut dropped = 0;
    while let Ok(Some(drained)) = timeout_at(deadline, controllers.join_next()).await {
        dropped += drained.map_or(0, |drained| drained.dropped);
    }
    if dropped > 0 {
        tracing::warn!(dropped, "passes that had not ended by the deadline were dropped");
    }
    let all_ended = controllers.is_empty();
    if !all_ended {
        tracing::warn!(
            "a pass that blocks its thread cannot be dropped: the leases are not released before it ends"
        );
    }
    controllers.abort_all();
    all_ended
}

async fn release(electors: &mut JoinSet<()>) {
    let deadline = Instant::now() + RELEASE;
    while let Ok(Some(_)) = timeout_at(deadline, electors.join_next()).await {}
}

/// All get the time they have, also where one fails.
async fn end(tasks: &mut JoinSet<Result<String, String>>, deadline: Instant) -> Result<(), Failure> {
    let mut result = Ok(());
    while let Ok(Some(ended)) = timeout_at(deadline, tasks.join_next()).await {
        result = result.and(task_ended(ended));
    }
    if !tasks.is_empty() {
        tracing::warn!(dropped = tasks.len(), "tasks that had not ended by the deadline were dropped");
        tasks.abort_all();
    }
    result
}

#[cfg(test)]
mod tests {
    use reknit_injection::Context;
    use reknit_testing::ApiServer;

    use super::*;
    use crate::health::probes::Probes;

    #[tokio::test]
    async fn what_must_last_may_end_only_once_the_process_is_asked_to() {
        let (trigger, shutdown) = Shutdown::new();
        let ends =
            |ended| must_last("leader election", ended, &shutdown).map_err(|failure| failure.to_string());
        let panics = || tokio::spawn(async { panic!("as planned") });
        let early = ends(Ok(())).unwrap_err();
        assert_eq!(early, "leader election ended, though nobody asked it to");
        assert_eq!(ends(panics().await).unwrap_err(), "leader election panicked: as planned");
        trigger.pull();
        assert_eq!(ends(Ok(())), Ok(()));
        assert!(ends(panics().await).is_err());
    }

    #[tokio::test]
    async fn leader_election_that_panics_ends_the_process() {
        let (stop, shutdown) = Stop::new(&Probes::starting("test"));
        let cx = Context::new("test", ApiServer::new().client());
        let recorder = Controller::named("keys", &cx).recorder();
        let mut running = Running::new(stop, shutdown, GRACE, recorder, Vec::new(), Exports::default());
        running.electors.spawn(async { panic!("as planned") });
        let failure = running.until_stopped().await.unwrap_err();
        assert_eq!(failure.to_string(), "leader election panicked: as planned");
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_end_by_the_deadline_is_told_of() {
        let mut controllers = JoinSet::new();
        controllers.spawn(async { Drained::default() });
        assert!(drain(&mut controllers, Instant::now() + GRACE).await);
        controllers.spawn(std::future::pending());
        assert!(!drain(&mut controllers, Instant::now() + GRACE).await);
    }
}
