//! `--plan`: runs every key of every controller against the live API server without changing anything, and reports what
//! it would change.
//!
//! The informers list once, since watches stay silent. There are no workers: in each round, the queued keys run once, one
//! after another, so that each write has a known cause. The round after that runs the keys that these writes enqueued.

mod change;
mod compact;
mod create;
mod delete;
mod diff;
mod dry_run;
mod generated;
mod guard;
mod honoured;
mod keyed;
mod live;
mod notes;
mod overlay;
mod reply;
mod report;
mod selector;
mod shadow;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Request;
use kube::client::Body;
use reknit_apis::Key;
use reknit_injection::{
    Context, InformerState, Informers,
    internal::{Transport, decode_errors, for_each_cached, redaction, with_causes},
};
use reknit_reconciler::{
    Controller, Error, Outcome,
    internal::{enqueue, enqueue_all, reconcile_once, take_queued},
};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use self::{
    delete::Unsent,
    dry_run::{DryRun, Watches},
    overlay::{Cause, Id, is_terminating},
    report::{NotRead, Run},
};
pub(crate) use self::{guard::guarded, report::Report, shadow::Shadow};
use crate::{
    Main,
    process::{
        constructors::{Constructors, PartContexts},
        failure::Failure,
    },
};

/// The number of passes after which a key counts as one that never settles.
const MAX_PASSES: usize = 10;
/// The interval at which the progress of informers is checked.
const POLL: Duration = Duration::from_millis(20);
/// The time that a pass may take. It holds up all others.
const MAX_PASS: Duration = Duration::from_secs(300);

/// Plans a program without flags against the API server of this transport. Returns the exit status, and the plan as text
/// and JSON.
///
/// # Errors
///
/// The message of the failure of a constructor, or that the program does not allow plans.
pub async fn plan(main: Main, transport: Transport) -> Result<(u8, String, Value), String> {
    let program = main.into_program(&["plan".into(), "--plan".into()]).map_err(|error| error.to_string())?;
    program.check_rehearsal().map_err(|failure| failure.to_string())?;
    let transport = guarded(&transport, "default");
    let plan = Plan::construct(&program.component, program.constructors, &[], transport, None);
    let report = plan.map_err(|failure| failure.to_string())?.run(program.flags.startup_timeout).await;
    let json = serde_json::to_value(&report).map_err(|error| error.to_string())?;
    Ok((report.exit_status(), report.text(), json))
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
        dry_run.read_from(&cx.informers());
        redaction(&cx.informers()).set(&constructors.redacted);
        let constructed =
            constructors.for_plan(dry_run.effects()).run(PartContexts::of(None, &cx), disabled)?;
        let (informers, transport) = (cx.informers(), cx.transport());
        Ok(Self { controllers: constructed.controllers, informers, transport, dry_run })
    }

    /// Runs every key until nothing is queued. Each informer may take this time for its first list.
    pub(crate) async fn run(self, list_timeout: Duration) -> Report {
        self.informers.start();
        self.wait_for_first_lists(list_timeout).await;
        let (ready, not_synced) = self.split_by_sync();
        let (mut runs, mut collected) = (BTreeMap::new(), 0);
        ready.iter().for_each(|controller| enqueue_all(controller));
        loop {
            self.wait_for_first_lists(list_timeout).await; // of informers that passes have opened
            let round: Vec<_> = ready.iter().flat_map(|controller| queued(controller)).collect();
            if round.is_empty() && !self.collect_garbage(&mut collected).await {
                break;
            }
            for (controller, key) in round {
                self.run_key(controller, key, list_timeout, &mut runs).await;
            }
        }
        let errors = decode_errors(&self.informers, usize::MAX).into_iter();
        let text = |name: String| move |(key, why)| format!("{name} {key}: {why}");
        let not_decoded = errors.flat_map(|(name, errors)| errors.into_iter().map(text(name))).collect();
        let not_read = NotRead { not_synced, not_decoded };
        let overlay = self.dry_run.take_overlay().await;
        Report::new(overlay, &self.dry_run.notes.lock(), runs, not_read, redaction(&self.informers))
    }

    async fn wait_for_first_lists(&self, list_timeout: Duration) {
        while self.first_list_waits().any(|wait| wait < list_timeout) {
            sleep(POLL).await;
        }
    }

    /// The times for which informers have waited for their first lists.
    fn first_list_waits(&self) -> impl Iterator<Item = Duration> {
        self.informers.states().into_iter().filter_map(|(_, state)| match state {
            InformerState::Waiting { since, .. } => Some(since.elapsed()),
            _ => None,
        })
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

    async fn run_key(
        &self,
        controller: &Controller,
        key: Key,
        list_timeout: Duration,
        runs: &mut BTreeMap<(String, Key), Run>,
    ) {
        let run = runs.entry((controller.name().to_owned(), key.clone())).or_default();
        if run.passes == MAX_PASSES {
            run.is_quiescent = false;
            return;
        }
        self.dry_run.notes.lock().cause =
            Some(Cause { controller: controller.name().to_owned(), key: key.to_string() });
        let result = reconcile_within_limit(controller, &key).await;
        let outdated = {
            let mut notes = self.dry_run.notes.lock();
            notes.cause = None;
            std::mem::take(&mut notes.outdated)
        };
        for path in outdated {
            self.send(Request::get(&path), &path).await; // the answer enters the caches
        }
        // A pass that waits for the first list of a Kind has changed nothing. It runs again unless the list is overdue.
        let is_waiting = result.as_ref().is_err_and(Error::is_waiting);
        let is_overdue = || self.first_list_waits().any(|wait| wait >= list_timeout);
        if result.as_ref().is_err_and(Error::is_conflict) || (is_waiting && !is_overdue()) {
            enqueue(controller, &key);
        }
        run.passes += usize::from(!is_waiting);
        run.error = result.err().map(|error| error.in_full());
    }

    /// Deletes the cached dependents of deleted objects, as the garbage collector would. `collected` is the number of
    /// deleted objects at the last call. Returns false if there are no more.
    async fn collect_garbage(&self, collected: &mut usize) -> bool {
        let gone = self.dry_run.gone().await;
        if gone.len() == std::mem::replace(collected, gone.len()) {
            return false;
        }
        let mut dependents = Vec::new();
        for_each_cached(&self.informers, &mut |resource, object| {
            let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let causes = owners.map(|owner| gone.get(owner["uid"].as_str()?)).collect::<Option<Vec<_>>>();
            if let Some(cause) = causes.iter().flatten().next().filter(|_| !is_terminating(&object)) {
                dependents.push((Id::of_object(resource, &object).path(), Option::clone(cause)));
            }
        });
        for (path, cause) in dependents {
            self.dry_run.notes.lock().cause = cause;
            self.send(Request::delete(&path).extension(Unsent), &path).await;
            self.dry_run.notes.lock().cause = None;
        }
        true
    }

    /// Sends a request whose answer enters the caches.
    async fn send(&self, request: http::request::Builder, path: &str) {
        let sent = match request.body(Body::empty()).map_err(kube::Error::HttpError) {
            Ok(request) => self.transport.send(request).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::warn!(
                path,
                error = with_causes(&error),
                "the plan has not seen a change of an object: plan again"
            );
        }
    }
}

/// Runs one pass, which ends with an error if it takes too long: the event that it waits for may never come in a plan.
async fn reconcile_within_limit(controller: &Controller, key: &Key) -> reknit_reconciler::Result<Outcome> {
    timeout(MAX_PASS, reconcile_once(controller, key, true)).await.unwrap_or_else(|_| {
        Err(format!(
            "the pass took longer than {MAX_PASS:?} and was dropped: in a plan, watches report nothing, and other \
             controllers do not react"
        )
        .into())
    })
}

fn queued(controller: &Controller) -> impl Iterator<Item = (&Controller, Key)> {
    take_queued(controller).into_iter().map(move |key| (controller, key))
}

/// The reason why an informer cannot be read.
fn problem(state: &InformerState) -> Option<String> {
    match state {
        InformerState::Synced { .. } | InformerState::Unavailable { was_synced: true, .. } => None,
        InformerState::NotStarted => Some("an informer has not started".into()),
        _ => Some(state.reason().unwrap_or("the first list is not complete").into()),
    }
}
