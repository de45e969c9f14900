//! `--plan`: runs every key of every controller against the live API server without changing anything, and reports what
//! it would change.
//!
//! The informers list once, since watches stay silent. There are no workers: in each round, the queued keys run once, one
//! after another, so that each write has a known cause. The round after that runs the keys that these writes enqueued.

mod diff;
mod dry_run;
mod guard;
mod keyed;
mod overlay;
mod reply;
mod report;
mod shadow;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Request;
use kube::client::Body;
use reknit_apis::Key;
use reknit_injection::{
    Context, InformerState, Informers,
    internal::{Transport, with_causes},
};
use reknit_reconciler::{
    Controller,
    internal::{enqueue, enqueue_all, reconcile_once, take_queued},
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use self::{
    dry_run::{DryRun, Watches},
    report::Run,
};
pub(crate) use self::{guard::guarded, report::Report, shadow::Shadow};
use crate::{
    Main,
    process::{
        constructors::{Constructors, Parts},
        failure::Failure,
    },
};

/// The number of passes after which a key counts as one that never settles.
const MAX_PASSES: usize = 10;
/// The interval at which the progress of informers is checked.
const POLL: Duration = Duration::from_millis(20);

/// Plans a program without flags against the API server of this transport. Returns the exit status, and the plan as text
/// and JSON.
///
/// # Errors
///
/// The message of the failure of a constructor.
pub async fn plan(main: Main, transport: Transport) -> Result<(u8, String, Value), String> {
    let program = main.into_program(&["plan".into()]).map_err(|error| error.to_string())?;
    let transport = guarded(&transport, "default");
    let plan = Plan::construct(&program.component, program.constructors, &[], transport, None);
    let report = plan.map_err(|failure| failure.to_string())?.run(program.flags.startup_timeout).await;
    Ok((report.exit_status(), report.to_string(), report.json()))
}

/// The controllers of a program that only plans.
pub(crate) struct Plan {
    controllers: Vec<Controller>,
    informers: Informers,
    /// The transport of the controllers, which delivers what it reads to the informers.
    transport: Transport,
    dry_run: Arc<DryRun>,
}

impl Plan {
    /// Runs the constructors of the controllers, which send through this guarded transport.
    pub(crate) fn construct(
        component: &str,
        constructors: Constructors,
        disabled: &[String],
        guarded: Transport,
        system_namespace: Option<String>,
    ) -> Result<Self, Failure> {
        let namespace = guarded.client().default_namespace().to_owned();
        let dry_run = DryRun::new(guarded, Watches::Silent);
        let cx = Context::builder(component, dry_run.transport(&namespace))
            .system_namespace(system_namespace)
            .build();
        let constructed = constructors.for_plan(dry_run.effects()).run(Parts::of(None, &cx), disabled)?;
        let (informers, transport) = (cx.informers(), cx.transport());
        Ok(Self { controllers: constructed.controllers, informers, transport, dry_run })
    }

    /// Runs every key until nothing is queued. Informers may take this time for their first lists.
    pub(crate) async fn run(self, timeout: Duration) -> Report {
        let deadline = Instant::now() + timeout;
        self.informers.start();
        self.wait_for_lists(deadline).await;
        let (ready, not_synced) = self.split_by_sync();
        let mut runs = BTreeMap::new();
        ready.iter().for_each(|controller| enqueue_all(controller));
        loop {
            let round: Vec<_> = ready.iter().flat_map(|controller| queued(controller)).collect();
            if round.is_empty() {
                // A pass may have opened an informer, whose first list enqueues the key again.
                if !self.wait_for_lists(deadline).await {
                    break;
                }
            }
            for (controller, key) in round {
                self.run_key(controller, key, &mut runs).await;
            }
        }
        Report::new(self.dry_run.take_overlay().await, &self.dry_run.notes.lock(), runs, not_synced)
    }

    /// Waits for the first lists. Returns true if there was one to wait for.
    async fn wait_for_lists(&self, deadline: Instant) -> bool {
        let is_waiting =
            |(_, state): &(String, InformerState)| matches!(state, InformerState::Waiting { .. });
        let mut has_waited = false;
        while self.informers.states().iter().any(is_waiting) && Instant::now() < deadline {
            has_waited = true;
            sleep(POLL).await;
        }
        has_waited
    }

    /// Returns the controllers whose informers have listed their objects, and the reasons why others have not.
    fn split_by_sync(&self) -> (Vec<&Controller>, Vec<String>) {
        let (mut ready, mut not_synced) = (Vec::new(), Vec::new());
        for controller in &self.controllers {
            let informers = controller.informers().iter().filter(|informer| informer.is_required());
            let missing: Vec<_> = informers.filter_map(|informer| problem(&informer.state())).collect();
            match missing.is_empty() {
                true => ready.push(controller),
                false => not_synced.push(format!("{}: {}", controller.name(), missing.join("; "))),
            }
        }
        (ready, not_synced)
    }

    async fn run_key(&self, controller: &Controller, key: Key, runs: &mut BTreeMap<(String, Key), Run>) {
        let run = runs.entry((controller.name().to_owned(), key.clone())).or_default();
        if run.passes == MAX_PASSES {
            run.is_quiescent = false;
            return;
        }
        run.passes += 1;
        self.dry_run.notes.lock().cause = Some((controller.name().to_owned(), key.to_string()));
        let result = reconcile_once(controller, &key, true).await;
        let outdated = {
            let mut notes = self.dry_run.notes.lock();
            notes.cause = None;
            std::mem::take(&mut notes.outdated)
        };
        for path in outdated {
            self.refresh(&path).await;
        }
        if result.as_ref().is_err_and(|error| error.is_conflict()) {
            enqueue(controller, &key);
        }
        run.error = result.err().map(|error| error.in_full());
    }

    /// Reads an object whose live state is newer than the cached one. The answer enters the caches.
    async fn refresh(&self, path: &str) {
        let request = Request::get(path).body(Body::empty()).map_err(kube::Error::HttpError);
        let sent = match request {
            Ok(request) => self.transport.send(request).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::warn!(path, error = with_causes(&error), "failed to read a changed object");
        }
    }
}

fn queued(controller: &Controller) -> impl Iterator<Item = (&Controller, Key)> {
    take_queued(controller).into_iter().map(move |key| (controller, key))
}

/// The reason why an informer cannot be read.
fn problem(state: &InformerState) -> Option<String> {
    match state {
        InformerState::Synced { .. } | InformerState::Unavailable { was_synced: true, .. } => None,
        InformerState::Waiting { reason, .. } if reason.is_empty() => {
            Some("the first list is not complete".into())
        }
        InformerState::Waiting { reason, .. } | InformerState::Unavailable { reason, .. } => {
            Some(reason.clone())
        }
        InformerState::NotStarted => Some("an informer has not started".into()),
    }
}
