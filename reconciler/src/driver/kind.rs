//! The driver of a controller with a Kind: selects the role for the object, calls it, and writes its results.

mod finalize;
mod found;
mod reports;
mod undecodable;

use std::{pin::pin, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, api::ObjectMeta};
use parking_lot::Mutex;
use reknit_apis::{Key, Kind, Scope, StatusOf};
use reknit_injection::{
    Filter, Informer, Metadata,
    internal::{CurrentPass, LogLimit, with_pinned_config},
};
use serde_json::Value;

use self::{
    found::Found,
    reports::{failure_event, object_reference},
};
use super::{Driver, PassMode};
use crate::{
    Error, Event, Outcome, ReconcileKind, Recorder, Result,
    finalizer::Finalizer,
    kind_client::{KindClient, WriteMeta},
    limits::{Limits, PassAborted, SlowPass, catch_panic},
    lost_finalizers::LostFinalizers,
    metrics::PassMetrics,
    per_key::PerKeyStores,
    readable::Readable,
    status::{StatusChange, StatusWriter, UnstoredChanges},
    tracker::Trackers,
};

type KindOf<R> = <R as ReconcileKind>::Kind;
type StatusFor<R> = StatusOf<KindOf<R>>;
type FinalizeFn<R> = for<'a> fn(&'a R, &'a KindOf<R>, &'a mut StatusFor<R>) -> BoxFuture<'a, Result<Outcome>>;
type ReleaseFn<R> = for<'a> fn(&'a R, &'a KindOf<R>) -> BoxFuture<'a, Result<Outcome>>;
type ObserveFn<R> = for<'a> fn(&'a R, &'a KindOf<R>) -> BoxFuture<'a, Result<Outcome>>;
type ObserveKeyFn<R> = for<'a> fn(&'a R, &'a Key) -> BoxFuture<'a, Result<Outcome>>;

/// The optional roles of a reconciler.
pub(crate) struct Roles<R: ReconcileKind> {
    pub(crate) finalize: Option<FinalizeFn<R>>,
    pub(crate) release: Option<ReleaseFn<R>>,
    pub(crate) observe: Option<ObserveFn<R>>,
    pub(crate) observe_absence: Option<ObserveKeyFn<R>>,
    pub(crate) observe_deletion: Option<ObserveKeyFn<R>>,
}

/// The role that acts in one pass.
enum Role<R: ReconcileKind> {
    Reconcile,
    Finalize(FinalizeFn<R>),
    /// Cleans up after an object that has left.
    Release(ReleaseFn<R>),
    /// Removes the former finalizers of a controller that does not finalize any more.
    DropFormer,
    Observe(ObserveFn<R>),
}

pub(crate) struct KindDriver<R: ReconcileKind> {
    pub(crate) reconciler: R,
    pub(crate) roles: Roles<R>,
    pub(crate) informer: Informer<R::Kind>,
    /// The objects that carry a finalizer of the controller and have left its selection. `None` if no object can leave
    /// the selection, or the controller has no finalizer.
    pub(crate) outside: Option<Informer<Metadata<R::Kind>>>,
    pub(crate) client: KindClient<R::Kind>,
    pub(crate) recorder: Recorder,
    pub(crate) unstored: UnstoredChanges,
    /// The fields of conditions that were last made acceptable.
    pub(crate) bounded: Mutex<LogLimit<Vec<String>>>,
    pub(crate) finalizer: Finalizer,
    pub(crate) lost_finalizers: LostFinalizers<R::Kind>,
    pub(crate) class: Option<(String, String)>,
    /// The annotation that pauses an object, if any does.
    pub(crate) paused_by: Option<Arc<str>>,
    pub(crate) filter: Option<Filter<R::Kind>>,
    pub(crate) promote: Option<Filter<R::Kind>>,
    pub(crate) limits: Limits,
    pub(crate) trackers: Trackers,
    pub(crate) per_key: PerKeyStores,
    pub(crate) metrics: PassMetrics,
}

impl<R: ReconcileKind> Driver for KindDriver<R> {
    fn run_pass<'a>(&'a self, key: &'a Key, mode: PassMode) -> BoxFuture<'a, Result<Outcome>> {
        with_pinned_config(self.process_limited(key, mode)).boxed()
    }

    fn reference(&self, key: &Key) -> Option<ObjectReference> {
        let uid = self.informer.get(key).and_then(|object| object.meta().uid.clone());
        Some(object_reference::<R::Kind>(key, uid))
    }

    fn key_problem(&self, key: &Key) -> Option<String> {
        let kind = R::Kind::kind(&());
        let problem = match (key.namespace.is_some(), <R::Kind as Resource>::Scope::NAMESPACED) {
            _ if key.name.is_empty() => "it has no name".into(),
            (false, true) => format!("a {kind} is namespaced, so its key is `namespace/name`"),
            (true, false) => format!("a {kind} is cluster-scoped, so its key is only a name"),
            _ => return None,
        };
        Some(format!("no object can have the key {key}: {problem}"))
    }

    fn is_asked_for(&self, key: &Key) -> bool {
        self.read_cached(key).is_ok_and(|found| found.is_some_and(|found| self.shows_request(&found)))
    }

    fn report_held(&self, key: &Key, per_minute: u32) {
        self.report_pace(key, per_minute);
    }

    fn observes_as_follower(&self) -> bool {
        self.roles.observe.is_some()
    }

    fn observes_deletion_of(&self, key: &Key) -> bool {
        let only_leader_observes = self.roles.observe_deletion.is_some() && !self.observes_as_follower();
        only_leader_observes && !self.is_known(key)
    }

    /// The promote filter does not exclude objects to be finalized or released, nor those that cannot be decoded.
    fn keys_to_promote(&self) -> Vec<Key> {
        let outside = self.outside.as_ref().map(Informer::keys).unwrap_or_default();
        let mut keys = self.informer.keys();
        if let Some(filter) = &self.promote {
            let admits = |key: &Key, object: &R::Kind| {
                self.finalizer.is_due(object.meta())
                    || self.is_to_release(object.meta())
                    || catch_panic(key, || filter.admits(object)).unwrap_or(false)
            };
            keys.retain(|key| match self.informer.newest(key) {
                Ok(object) => object.is_some_and(|object| admits(key, &object)),
                Err(_) => true,
            });
        }
        keys.extend(outside);
        keys
    }

    /// A promotion misses the key of a deleted object, which is postponed if only the leader observes deletions. It also
    /// misses objects that the promote filter excludes. Their keys are postponed if this process has led before: until
    /// then, as in Knative, the promotion enqueues the keys that the filter admits, and no others.
    fn is_missed_by_promotion(&self, key: &Key, led_before: bool) -> bool {
        match self.is_known(key) {
            true => self.promote.is_some() && led_before,
            false => self.observes_deletion_of(key),
        }
    }
}

impl<R: ReconcileKind> KindDriver<R> {
    /// Returns true if the object shows what a user has asked for: a generation that its status does not show yet, or its
    /// deletion.
    fn shows_request(&self, found: &Readable<R::Kind>) -> bool {
        has_unobserved_generation(found) || self.finalizer.is_due(found.object.meta())
    }

    /// Runs a pass within its limits, with the reads that find the object.
    async fn process_limited(&self, key: &Key, mode: PassMode) -> Result<Outcome> {
        let on_slow = |slow: &SlowPass| {
            slow.log();
            self.record_if_known(key, || Event::warning("SlowReconcile", slow.to_string()));
        };
        let result = self.limits.apply(pin!(self.process(key, mode)), on_slow).await;
        if let Err(aborted) = &result
            && PassAborted::of(aborted).is_some()
        {
            self.record_if_known(key, || failure_event(aborted));
            match self.is_known(key) {
                true => self.trackers.pass_failed(key),
                false => self.forget(key),
            }
        }
        result
    }

    async fn process(&self, key: &Key, mode: PassMode) -> Result<Outcome> {
        if let Some(problem) = self.key_problem(key) {
            return self.drop_malformed(key, problem);
        }
        let lost_finalizer = self.lost_finalizers.take(key).filter(|_| mode == PassMode::Leading);
        let found = match self.per_key.begin_pass(key, || self.find(key)) {
            Found::Gone => self.find_outside(key, mode, lost_finalizer.is_some()).boxed().await?,
            found => found,
        };
        if let Found::Object(found) | Found::Left(found) = &found
            && self.shows_request(found)
        {
            CurrentPass::get().inspect(|pass| pass.set_prompted());
        }
        if let Some(last) = lost_finalizer {
            self.report_lost_finalizer(key, &found, &last);
        }
        match found {
            Found::Object(object) => self.process_object(key, object, mode).await,
            Found::Left(object) => self.process_left(key, object).boxed().await,
            Found::Undecodable(error) => self.process_undecodable(key, &error, mode).boxed().await,
            Found::Outside => {
                self.forget(key);
                self.observe_absence(key, None).boxed().await
            }
            Found::Gone => {
                self.forget(key);
                self.observe_absence(key, self.deletion_observer(mode)).boxed().await
            }
        }
    }

    async fn process_object(&self, key: &Key, found: Readable<R::Kind>, mode: PassMode) -> Result<Outcome> {
        let object = &found.object;
        let is_admitted = match self.finalizer.is_due(object.meta()) {
            true => mode == PassMode::Observing || self.is_placed_here(key, object.meta()).boxed().await?,
            false => self.is_of_class(object.meta()) && self.is_admitted(key, object),
        };
        if !is_admitted && mode == PassMode::Leading && self.is_to_release(object.meta()) {
            return self.process_left(key, found).boxed().await;
        }
        if !is_admitted {
            self.forget(key);
            return self.observe_absence(key, None).boxed().await;
        }
        let Some(role) = self.role(object, mode)? else {
            self.trackers.forget(key); // earlier passes, as leader or before the deletion, may have read objects
            self.metrics.paused().remove(key);
            return self.observe_absence(key, None).boxed().await;
        };
        if self.is_paused(key, object.meta(), mode) {
            return Ok(Outcome::skip());
        }
        self.perform_tracked(key, role, found).await
    }

    /// Releases an object that has left.
    async fn process_left(&self, key: &Key, found: Readable<R::Kind>) -> Result<Outcome> {
        let Some(release) = self.roles.release else { return Ok(Outcome::skip()) };
        if self.is_paused(key, found.object.meta(), PassMode::Leading) {
            return Ok(Outcome::skip());
        }
        let result = self.perform_tracked(key, Role::Release(release), found).await;
        if result.as_ref().is_ok_and(Outcome::is_done) {
            self.forget(key);
        }
        result
    }

    /// Runs a role, and keeps the reads that it records.
    async fn perform_tracked(&self, key: &Key, role: Role<R>, found: Readable<R::Kind>) -> Result<Outcome> {
        self.trackers.begin_pass(key);
        let result = self.perform(role, found).await;
        if !self.is_known(key) {
            self.forget(key);
        } else if result.is_ok() {
            self.trackers.pass_succeeded(key);
        } else {
            self.trackers.pass_failed(key);
        }
        result
    }

    /// Returns true if the object has the annotation that pauses it. The leader counts the object, and logs each change.
    fn is_paused(&self, key: &Key, meta: &ObjectMeta, mode: PassMode) -> bool {
        let Some(annotation) = self.paused_by.as_deref() else { return false };
        let is_paused =
            meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(annotation));
        match is_paused {
            _ if mode == PassMode::Observing => {}
            true if self.metrics.paused().add(key) => {
                tracing::info!(
                    annotation,
                    "the object is paused: it is not reconciled until the annotation is removed"
                );
            }
            false if self.metrics.paused().remove(key) => {
                tracing::info!(annotation, "the object is no longer paused");
            }
            _ => {}
        }
        is_paused
    }

    /// The role that observes deletions in this mode. A process that does not lead the key observes the deletion only if
    /// the reconciler has the role `observe`.
    fn deletion_observer(&self, mode: PassMode) -> Option<ObserveKeyFn<R>> {
        self.roles.observe_deletion.filter(|_| mode == PassMode::Leading || self.roles.observe.is_some())
    }

    /// Runs the pass of a key without an object to reconcile. The observer of its deletion, if it is gone, runs last.
    async fn observe_absence(&self, key: &Key, deletion: Option<ObserveKeyFn<R>>) -> Result<Outcome> {
        let mut outcome = Outcome::skip();
        for observe in self.roles.observe_absence.into_iter().chain(deletion) {
            outcome = observe(&self.reconciler, key).await?;
            if let Some(event) = outcome.recorded_event() {
                self.recorder.record_at(object_reference::<R::Kind>(key, None), event.clone());
            }
        }
        Ok(outcome)
    }

    /// Drops the reads and values of a key whose object is gone or belongs to another controller.
    fn forget(&self, key: &Key) {
        self.trackers.forget(key);
        self.per_key.drop_values_of(key);
        self.unstored.forget(key);
        self.metrics.paused().remove(key);
    }

    /// The class that the object names, if the controller has one.
    fn class_of<'a>(&self, meta: &'a ObjectMeta) -> Option<&'a str> {
        let (annotation, _) = self.class.as_ref()?;
        meta.annotations.as_ref()?.get(annotation).map(String::as_str)
    }

    fn is_of_class(&self, meta: &ObjectMeta) -> bool {
        self.class.as_ref().is_none_or(|(_, class)| self.class_of(meta) == Some(class))
    }

    fn is_admitted(&self, key: &Key, object: &R::Kind) -> bool {
        let admits = |filter: &Filter<R::Kind>| catch_panic(key, || filter.admits(object)).unwrap_or(false);
        self.filter.as_ref().is_none_or(admits)
    }

    /// Selects the role: the leader reconciles an object, or finalizes a terminating one that has a finalizer of this
    /// controller. Another process observes an object that is not terminating, if the reconciler has that role. `None`
    /// in all other cases.
    fn role(&self, object: &R::Kind, mode: PassMode) -> Result<Option<Role<R>>> {
        Ok(match (mode, object.meta().deletion_timestamp.is_some()) {
            (PassMode::Leading, false) => Some(Role::Reconcile),
            (PassMode::Leading, true) if self.finalizer()?.is_due(object.meta()) => {
                Some(self.roles.finalize.map_or(Role::DropFormer, Role::Finalize))
            }
            (PassMode::Observing, false) => self.roles.observe.map(Role::Observe),
            _ => None,
        })
    }

    async fn perform(&self, role: Role<R>, found: Readable<R::Kind>) -> Result<Outcome> {
        match role {
            Role::Reconcile => self.reconcile(found).await,
            // Boxed, so that these rare futures do not enlarge the future of every pass.
            Role::Finalize(finalize) => self.finalize(finalize, &found).boxed().await,
            Role::Release(release) => self.release(release, &found.object).boxed().await,
            Role::DropFormer => {
                self.remove_finalizer(&found.object, found.object.meta().into()).boxed().await?;
                Ok(Outcome::done())
            }
            Role::Observe(observe) => {
                let object = defaulted(found.object);
                let result = observe(&self.reconciler, &object).await;
                self.record_result(&object, &result);
                result
            }
        }
    }

    /// Updates the finalizers if needed, reconciles, and writes the status. Skips an object that is gone when the
    /// finalizers are updated.
    async fn reconcile(&self, found: Readable<R::Kind>) -> Result<Outcome> {
        let updated = match self.finalizer()?.is_outdated_on(found.object.meta()) {
            true => self.update_finalizers(&found.object).boxed().await?,
            false => Some(found),
        };
        let Some(Readable { object, unreadable_status }) = updated else { return Ok(Outcome::skip()) };
        let generation = object.meta().generation;
        let stored_status = object.read_status().cloned().map(Box::new); // boxed to keep the future of every pass small
        let mut status = stored_status.as_deref().cloned().unwrap_or_default();
        let mut is_new_generation = false;
        if let Some(mut conditions) = R::Kind::conditions(&mut status) {
            conditions.initialise();
            is_new_generation = conditions.expect_generation(generation);
        }
        let object = defaulted(object);
        let result = self.reconciler.reconcile_kind(&object, &mut status).await;
        if is_waiting(&result) {
            return result;
        }
        self.record_result(&object, &result);
        let marked_no_condition =
            R::Kind::conditions(&mut status).is_some_and(|conditions| conditions.expects_generation());
        if result.is_ok() && is_new_generation && marked_no_condition {
            tracing::warn!("the pass reconciled a new generation and marked no condition");
        }
        R::Kind::observe_generation(&mut status, generation);
        let stored = Stored { status: stored_status.as_deref(), unreadable: unreadable_status.as_deref() };
        match self.write_status(&object, stored, &mut status).await {
            Ok(_) => result,
            Err(error) => Err(with_write_error(result, error)),
        }
    }

    /// Writes the change from the stored status, without defaults, to the status after the pass. Records an event for
    /// an error, unless it is a conflict.
    async fn write_status(
        &self,
        object: &R::Kind,
        stored: Stored<'_, StatusFor<R>>,
        after: &mut StatusFor<R>,
    ) -> Result<Option<WriteMeta>> {
        let Stored { status: stored, unreadable } = stored;
        R::Kind::set_condition_generations(after, stored, object.meta().generation);
        let change = StatusChange::between::<R::Kind>(stored, after);
        if let Ok(Some(change)) = &change {
            self.report_bounded(&change.bounded);
        }
        let (client, informer) = (&self.client, &self.informer);
        let (unstored, metrics) = (&self.unstored, &self.metrics);
        let writer = StatusWriter { client, object, informer, unstored, metrics };
        let written = match change {
            _ if size_of::<StatusFor<R>>() > 0
                && let Some(unreadable) = unreadable =>
            {
                writer.replace(unreadable, after).await
            }
            Ok(None) => {
                unstored.nothing_to_store(&Key::of(object));
                return Ok(Some(object.meta().into()));
            }
            Ok(Some(change)) => writer.write(stored, change).await,
            Err(error) => Err(error),
        };
        written.map_err(|error| {
            let error = error.context(format_args!("failed to update status for {:?}", Key::of(object).name));
            if !error.is_conflict() {
                self.report_unwritten(object, &error);
            }
            error
        })
    }
}

/// The stored status of an object: either decoded, or as JSON if it cannot be decoded. Neither if the object has none.
struct Stored<'a, S> {
    status: Option<&'a S>,
    unreadable: Option<&'a Value>,
}

/// Returns true if the status of the object does not show its generation yet. A stored status without any generation is
/// no evidence: an earlier version of the program, which did not write the field, may have observed the generation. The
/// same goes for a status that cannot be decoded.
fn has_unobserved_generation<K: Kind>(found: &Readable<K>) -> bool {
    let generation = found.object.meta().generation;
    let stored = found.object.read_status();
    match K::observed_generation(stored) {
        _ if generation.is_none() => false,
        Some(None) => stored.is_none() && found.unreadable_status.is_none(),
        Some(observed) => observed != generation,
        None => false,
    }
}

/// Returns true if the pass waits for the first list of a Kind. Then it writes no status: what it computed lacks the
/// objects of that Kind.
fn is_waiting(result: &Result<Outcome>) -> bool {
    result.as_ref().is_err_and(Error::is_waiting)
}

/// Applies defaults. Clones the object if it is shared.
fn defaulted<K: Kind>(mut object: Arc<K>) -> Arc<K> {
    Arc::make_mut(&mut object).set_defaults();
    object
}

/// The error of a pass whose write failed after the reconciler returned this result.
fn with_write_error(result: Result<Outcome>, write: Error) -> Error {
    match result {
        Ok(_) => write,
        Err(error) => error.followed_by(write),
    }
}
