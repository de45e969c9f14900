//! A controller: its builders, its queue, its workers, and the pass that they run.

mod builder;
mod deletions;
mod health;
mod options;
mod permissions;
mod postponed;
mod role_builder;
mod span;
#[cfg(test)]
mod tests;
mod watch;
mod workers;

use std::{fmt::Display, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{
    Clock, Context, InformerHandle, InformerState,
    internal::{CurrentPass, PassFacts, Recordings, RunningRecording, has_term_ended},
};
use tracing::Instrument;

pub use self::{
    builder::{Builder, Keys},
    health::{Health, RunningPass},
    role_builder::RoleBuilder,
    watch::Watch,
    workers::{Drained, Run},
};
use self::{deletions::Deletions, postponed::Postponed};
use crate::{
    Error, Event, Outcome, Queue, Recorder, Result, ResultExt,
    driver::{Driver, PassMode},
    finalizer::Finalizer,
    inspect::Inspect,
    limits::Limits,
    metrics::{ChildMetrics, Metrics, PassMetrics, PassResult},
    outcome::Next,
    pass_log::{LoggedPass, PassLog},
    per_key::PerKeyStores,
    queue::{Causes, InARow, Storm, StormKind},
};

/// The longest wait for the retry of a pass in a namespace whose objects cannot be listed.
const UNLISTED_RETRY: Duration = Duration::from_secs(30);

/// The number of failures of a key in a row after which another conflict is reported. By then, about three seconds have
/// passed.
const FAILURES_BEFORE_REPORT: u32 = 9;

/// A controller, built by a constructor and run by the process.
///
/// [`Controller::of`] starts to build one.
#[derive(derive_more::Debug)]
#[debug("Controller {{ name: {:?}, .. }}", self.name())]
pub struct Controller {
    pub(crate) parts: Parts,
    metrics: PassMetrics,
    passes: PassLog,
    recordings: Recordings,
    clock: Clock,
    pub(crate) driver: Arc<dyn Driver>,
    postponed: Mutex<Postponed>,
    deletions: Deletions,
}

/// The parts of a controller that do not depend on its reconciler.
pub(crate) struct Parts {
    pub(crate) name: Arc<str>,
    /// The group and Kind as the log names them; empty for a controller without a Kind.
    pub(crate) kind: String,
    /// The resource, such as `deployments.apps`; empty for a controller without a Kind.
    pub(crate) resource: String,
    /// The text that [`Controller::selects`] returns. Empty if nothing restricts the objects.
    pub(crate) selects: String,
    /// The annotation that pauses an object, if any does.
    pub(crate) paused_by: Option<Arc<str>>,
    pub(crate) inspect: Arc<Inspect>,
    pub(crate) queue: Queue,
    pub(crate) informers: Vec<Arc<dyn InformerHandle>>,
    pub(crate) workers: usize,
    pub(crate) resync: Duration,
    pub(crate) limits: Limits,
    pub(crate) recorder: Recorder,
    pub(crate) per_key: PerKeyStores,
    /// `None` for a controller without a Kind.
    pub(crate) finalizer: Option<Finalizer>,
    /// The futures to run before the first pass. Empty afterwards.
    pub(crate) on_synced: Mutex<Vec<BoxFuture<'static, ()>>>,
    pub(crate) children: ChildMetrics,
}

impl Parts {
    fn new(name: String, recorder: Recorder, queue: Queue, children: ChildMetrics) -> Self {
        Self {
            name: name.into(),
            kind: String::new(),
            resource: String::new(),
            selects: String::new(),
            paused_by: Some("reknit.dev/paused".into()),
            inspect: Arc::default(),
            queue,
            informers: Vec::new(),
            workers: 2,
            resync: Duration::from_secs(10 * 60 * 60),
            limits: Limits::default(),
            recorder,
            per_key: PerKeyStores::default(),
            finalizer: None,
            on_synced: Mutex::default(),
            children,
        }
    }
}

impl Controller {
    fn new<D: Driver + 'static>(
        cx: &Context,
        parts: Parts,
        build_driver: impl FnOnce(&Parts, &PassMetrics) -> D,
    ) -> Self {
        let metrics = cx.get::<Metrics>();
        parts.queue.set_metrics(&parts.name, parts.limits.slow_after, &metrics);
        parts.children.set_controller(&parts.name);
        let metrics = metrics.passes(&parts.name);
        let driver = Arc::new(build_driver(&parts, &metrics));
        let (recordings, clock) = (cx.get(), cx.get());
        Self {
            parts,
            metrics,
            passes: cx.get(),
            recordings,
            clock,
            driver,
            postponed: Mutex::default(),
            deletions: Deletions::default(),
        }
    }

    /// The name of the controller, its queue and its leases. Unique in a process.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// The group and Kind of its objects as the log names them, such as `samples.knative.dev.AddressableService`. Empty
    /// for a controller without a Kind.
    pub fn kind(&self) -> &str {
        &self.parts.kind
    }

    /// Describes the selected objects: the namespaces, labels, fields and class of the objects of its Kind, or the keys that
    /// were [added](Builder::add_key). Returns `all objects` if nothing restricts them.
    #[doc(hidden)]
    pub fn selects(&self) -> &str {
        if self.parts.selects.is_empty() { "all objects" } else { &self.parts.selects }
    }

    /// The finalizer that the controller adds to objects. Unique among the controllers of a Kind. `None` if the
    /// controller does not finalize, or if the name is [invalid](Self::check).
    pub fn finalizer(&self) -> Option<&str> {
        self.parts.finalizer.as_ref().filter(|finalizer| finalizer.check().is_ok())?.name()
    }

    /// The [former finalizers](Builder::former_finalizers) that the controller removes from objects.
    pub fn former_finalizers(&self) -> &[String] {
        self.parts.finalizer.as_ref().map_or(&[], Finalizer::former)
    }

    /// Checks the configuration of the controller, before the process starts it.
    ///
    /// # Errors
    ///
    /// Returns an error for a finalizer that Kubernetes would not accept, such as the default one of a built-in Kind.
    /// With such a finalizer every pass would fail.
    pub fn check(&self) -> Result<()> {
        self.parts.finalizer.as_ref().map_or(Ok(()), Finalizer::check)
    }

    /// Limits the changes per minute by passes that were not [prompted](CurrentPass::is_prompted).
    #[doc(hidden)]
    pub fn limit_unprompted_changes(&self, per_minute: u32) {
        self.parts.queue.set_brake(per_minute);
    }

    /// The informers whose first list the controller waits for.
    pub fn informers(&self) -> &[Arc<dyn InformerHandle>] {
        &self.parts.informers
    }

    /// The health of the controller, which can be read while it runs.
    #[doc(hidden)]
    pub fn health(&self) -> Health {
        Health::new(&self.parts, &self.metrics)
    }

    /// Reconciles a key without the queue. The events of the pass are published before this returns.
    pub(crate) async fn reconcile_once(&self, key: &Key, mode: PassMode) -> Result<Outcome> {
        self.run_on_synced().await;
        let pass = CurrentPass::begin(&self.parts.name, &Arc::new(key.clone()), false);
        let result = self.run_pass(pass, &Arc::default(), &InARow::default(), mode).await;
        self.parts.recorder.flush().await;
        result
    }

    /// Fails if the objects of the key's namespace are not in the cache of an informer that lists other namespaces: a
    /// pass would take them for absent.
    fn check_listed(&self, key: &Key) -> Result<()> {
        let required = self.parts.informers.iter().filter(|informer| informer.is_required());
        let states = required.map(|informer| informer.state_in(key.namespace.as_deref()));
        let mut reasons = states.filter_map(|state| match state {
            InformerState::Unavailable { reason, was_synced: false, .. } => Some(reason),
            _ => None,
        });
        reasons.next().map_or(Ok(()), Err).retry_within(UNLISTED_RETRY)
    }

    /// Runs what comes between the first lists and the first pass.
    async fn run_on_synced(&self) {
        let acts = std::mem::take(&mut *self.parts.on_synced.lock());
        for act in acts {
            act.await;
        }
    }

    /// Runs one pass in its span, with metrics and a log line.
    async fn run_pass(
        &self,
        current: Arc<CurrentPass>,
        causes: &Arc<Causes>,
        in_a_row: &InARow,
        mode: PassMode,
    ) -> Result<Outcome> {
        let key = &current.key;
        let recording = self.recordings.begin(|| PassFacts {
            controller: self.parts.name.clone(),
            key: key.clone(),
            is_following: mode == PassMode::Observing,
            time: self.clock.now(),
        });
        current.set_in_a_row(in_a_row.passes);
        self.parts.queue.count_changes_of(&current);
        recording.iter().for_each(|recording| current.record(recording.recording()));
        let file = recording.as_ref().and_then(RunningRecording::file_name);
        let shown: Arc<dyn Display + Send + Sync> = causes.clone();
        current.set_causes(Arc::downgrade(&shown));
        let mut logged = self.passes.begin(&current, causes, file);
        let pass = async {
            let result = match self.check_listed(key) {
                Ok(()) => self.driver.run_pass(key, mode).await,
                Err(error) => Err(error),
            };
            if has_term_ended() {
                return std::future::pending().await; // the worker drops the pass, whose error may be the lost lead
            }
            let result = self.report_lasting_conflict(key, result);
            let mut in_a_row = self.parts.queue.decide(&current, causes, in_a_row);
            self.parts.queue.count_creations(&current, causes, result.is_err(), &mut in_a_row);
            self.report_fights(key, causes, &current, &mut logged);
            for resource in current.take_no_op_writes() {
                self.metrics.record_no_op_write(resource.each_ref().map(|name| &**name));
            }
            if mode == PassMode::Leading {
                self.report_deletions(key, causes, &mut logged);
            }
            self.report_storm(key, causes, &in_a_row, &current, &mut logged);
            let took = current.begun.elapsed();
            self.metrics.record_pass(&result, took);
            logged.set_result(&result);
            log_result(&result, took);
            if let Some(recording) = recording {
                let error = result.as_ref().err().filter(|error| error.is_recorded());
                let was_dropped = matches!(PassResult::of(&result), PassResult::Deadline);
                recording.finish(error.map(Error::in_full), was_dropped);
            }
            span::record_result(PassResult::of(&result));
            result
        };
        let span = span::pass_span(&self.parts.name, &self.parts.kind, key, causes);
        current.link_span(&span, || causes.writers());
        current.clone().scope(pass).instrument(span).await
    }

    /// Turns a conflict into an error that is reported, and records its event, if the key has failed for long: such a
    /// conflict does not resolve itself.
    fn report_lasting_conflict(&self, key: &Key, result: Result<Outcome>) -> Result<Outcome> {
        match result {
            Err(error) if error.is_conflict() && self.parts.queue.failures(key) >= FAILURES_BEFORE_REPORT => {
                let error = error.into_lasting_conflict();
                self.record_event(key, Event::warning(error.event_reason(), error.in_full()));
                Err(error)
            }
            result => result,
        }
    }

    /// Counts and logs the fields that the writes of the pass have restored in fights, and reports each fight in the log and
    /// in an event on the object of the key.
    fn report_fights(&self, key: &Key, causes: &Causes, pass: &CurrentPass, logged: &mut LoggedPass) {
        for restored in pass.take_restored() {
            self.parts.queue.fought(key, causes);
            self.metrics.record_fight_write(&restored.kind.group, &restored.kind.plural);
            let message = restored.to_string();
            logged.add_fight(&format!("{restored:#}")); // the console shows no values
            if restored.is_to_report {
                tracing::warn!(fight = message, "another client writes a field that the controller sets");
                self.record_event(key, Event::warning("FieldContested", message));
            }
        }
    }

    /// Counts and logs the deletions of children that are part of a fight, as [`report_fights`](Self::report_fights) does
    /// the restored fields.
    fn report_deletions(&self, key: &Key, causes: &Causes, logged: &mut LoggedPass) {
        for child in causes.deleted_children() {
            let Some(owner_uid) = self.driver.reference(key).and_then(|owner| owner.uid) else { return };
            let Some(deletion) = self.deletions.count(&owner_uid, &child) else { continue };
            let (plural, group) = child.resource.split_once('.').unwrap_or((child.resource, ""));
            self.metrics.record_fight_write(group, plural);
            logged.add_fight(&deletion.text);
            if deletion.is_to_report {
                tracing::warn!(fight = deletion.text, "another client deletes a child again and again");
                self.record_event(key, Event::warning("ChildDeleted", deletion.text));
            }
        }
    }

    /// Logs the storm to which the pass belongs. A storm that begins with it is reported in the log and in an event on the
    /// object of the key.
    fn report_storm(
        &self,
        key: &Key,
        causes: &Causes,
        in_a_row: &InARow,
        pass: &CurrentPass,
        logged: &mut LoggedPass,
    ) {
        let Some(Storm { passes, within, gap, is_new, kind }) = &in_a_row.storm else { return };
        let (seconds, gap) = (within.as_secs().max(1), gap.as_millis());
        let reason = match kind {
            StormKind::Alone => "although nothing changed from outside",
            StormKind::Answered => {
                "because it writes an object, and another client answers each write with another one"
            }
            StormKind::Creating => "because each time it creates an object, which leads to the next time",
        };
        let storm = format!(
            "reconciled {passes} times in {seconds} s, last {gap} ms after the time before, {reason}"
        );
        let change = pass.last_change();
        let [change, field] = match &change {
            Some(change) => {
                [format!("; this time it changed {change}"), format!("; this time it changed {change:#}")]
            }
            None => Default::default(),
        };
        logged.set_storm(&format!("{storm}{field}")); // the console shows no values
        if *is_new {
            // Without the numbers of passes, by which two runs of a simulation would differ.
            let message = format!("{storm}: {causes:#}{change}");
            match kind {
                StormKind::Alone => {
                    tracing::warn!(storm = message, "the key is reconciled again and again, and is slowed")
                }
                StormKind::Answered => tracing::warn!(
                    storm = message,
                    "the key is reconciled again and again: another client answers its writes"
                ),
                StormKind::Creating => tracing::warn!(
                    storm = message,
                    "the key is reconciled again and again: each time it creates an object"
                ),
            }
            self.record_event(key, Event::warning("ReconcileStorm", message));
        }
    }

    /// Records an event on the object of the key, if the controller has a Kind.
    fn record_event(&self, key: &Key, event: Event) {
        if let Some(about) = self.driver.reference(key) {
            self.parts.recorder.record_at(about, event);
        }
    }
}

/// Closes the queue, since the handlers of informers that other controllers share would still fill it. Drops the values
/// per key, and so the background tasks in them, before the leases are released.
impl Drop for Parts {
    fn drop(&mut self) {
        self.queue.close();
        self.per_key.close();
    }
}

/// Logs the result: successes and conflicts at debug level, other errors as errors.
fn log_result(result: &Result<Outcome>, took: Duration) {
    match result {
        Ok(outcome) => {
            let after = match outcome.next() {
                Next::After(wait) => Some(wait),
                _ => None,
            };
            let result = PassResult::of(result).name();
            tracing::debug!(?took, result, after = after.map(tracing::field::debug), "the pass ended");
        }
        Err(error) if error.is_conflict() => {
            tracing::debug!(?took, error = error.in_full(), "the pass ended with a conflict")
        }
        Err(error) if error.is_waiting() => {
            tracing::debug!(?took, error = error.in_full(), "the pass waits for the first list of a Kind")
        }
        Err(error) => {
            tracing::error!(
                ?took,
                error = error.in_full(),
                permanent = error.is_permanent(),
                "the pass failed"
            );
        }
    }
}
