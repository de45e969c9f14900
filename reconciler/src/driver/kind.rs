//! The driver of a controller with a Kind: selects the role for the object, calls it, and writes its results.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use parking_lot::Mutex;
use reknit_apis::{Key, Kind, Scope, StatusOf};
use reknit_injection::{
    DecodeError, Filter, Informer,
    internal::{LogLimit, with_pinned_config},
};

use super::{Driver, PassMode};
use crate::{
    Error, Event, Outcome, ReconcileKind, Recorder, Result, ResultExt,
    error::describe,
    finalizer::Finalizer,
    kind_client::{KindClient, WriteMeta},
    limits::{Limits, PassAborted, catch_panic},
    metrics::PassMetrics,
    object_client::status_code,
    per_key::PerKeyStores,
    status::{self, StatusChange, UnstoredChanges},
    tracker::Trackers,
};

type KindOf<R> = <R as ReconcileKind>::Kind;
type StatusFor<R> = StatusOf<KindOf<R>>;
type FinalizeFn<R> = for<'a> fn(&'a R, &'a KindOf<R>, &'a mut StatusFor<R>) -> BoxFuture<'a, Result<Outcome>>;
type ObserveFn<R> = for<'a> fn(&'a R, &'a KindOf<R>) -> BoxFuture<'a, Result<Outcome>>;
type ObserveDeletionFn<R> = for<'a> fn(&'a R, &'a Key) -> BoxFuture<'a, Result<Outcome>>;

/// The optional roles of a reconciler.
pub(crate) struct Roles<R: ReconcileKind> {
    pub(crate) finalize: Option<FinalizeFn<R>>,
    pub(crate) observe: Option<ObserveFn<R>>,
    pub(crate) observe_deletion: Option<ObserveDeletionFn<R>>,
}

/// The role that acts in one pass.
enum Role<R: ReconcileKind> {
    Reconcile,
    Finalize(FinalizeFn<R>),
    Observe(ObserveFn<R>),
}

pub(crate) struct KindDriver<R: ReconcileKind> {
    pub(crate) reconciler: R,
    pub(crate) roles: Roles<R>,
    pub(crate) informer: Informer<R::Kind>,
    pub(crate) client: KindClient<R::Kind>,
    pub(crate) recorder: Recorder,
    pub(crate) unstored: UnstoredChanges,
    /// The fields of conditions that were last made acceptable.
    pub(crate) bounded: Mutex<LogLimit<Vec<String>>>,
    /// Used only if the reconciler finalizes.
    pub(crate) finalizer: Finalizer,
    pub(crate) class: Option<(String, String)>,
    pub(crate) filter: Option<Filter<R::Kind>>,
    pub(crate) promote: Option<Filter<R::Kind>>,
    pub(crate) limits: Limits,
    pub(crate) trackers: Trackers,
    pub(crate) per_key: PerKeyStores,
    pub(crate) metrics: PassMetrics,
}

impl<R: ReconcileKind> Driver for KindDriver<R> {
    fn run_pass<'a>(&'a self, key: &'a Key, mode: PassMode) -> BoxFuture<'a, Result<Outcome>> {
        with_pinned_config(self.process(key, mode)).boxed()
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

    fn observes_as_follower(&self) -> bool {
        self.roles.observe.is_some()
    }

    fn observes_deletion_of(&self, key: &Key) -> bool {
        let only_leader_observes = self.roles.observe_deletion.is_some() && !self.observes_as_follower();
        only_leader_observes && !self.informer.contains(key)
    }

    fn keys_to_promote(&self) -> Vec<Key> {
        let Some(filter) = &self.promote else { return self.informer.keys() };
        let admits =
            |object: &R::Kind| catch_panic(&Key::of(object), || filter.admits(object)).unwrap_or(false);
        self.informer.list().filter(|object| admits(object)).map(|object| Key::of(&*object)).collect()
    }

    /// A promotion misses the key of a deleted object, which is postponed if only the leader observes deletions. It also
    /// misses objects that the promote filter excludes. Their keys are postponed if this process has led before: until
    /// then, as in Knative, the promotion enqueues the keys that the filter admits, and no others.
    fn is_missed_by_promotion(&self, key: &Key, led_before: bool) -> bool {
        match self.informer.contains(key) {
            true => self.promote.is_some() && led_before,
            false => self.observes_deletion_of(key),
        }
    }
}

impl<R: ReconcileKind> KindDriver<R> {
    async fn process(&self, key: &Key, mode: PassMode) -> Result<Outcome> {
        if let Some(error) = self.key_problem(key) {
            tracing::error!(%key, error, "a malformed key is dropped");
            return Ok(Outcome::skip());
        }
        let object = match self.per_key.begin_pass(key, || self.informer.newest(key)) {
            Ok(Some(object)) => object,
            Ok(None) => return self.process_absent(key, mode).await,
            Err(error) => return Ok(self.skip_undecodable(key, error, mode)),
        };
        if !self.is_of_class(&object) || !self.is_admitted(key, &object) {
            self.forget(key);
            return Ok(Outcome::skip());
        }
        let Some(role) = self.role(&object, mode)? else {
            self.trackers.forget(key); // earlier passes, as leader or before the deletion, may have read objects
            return Ok(Outcome::skip());
        };
        self.trackers.begin_pass(key);
        let uid = object.meta().uid.clone();
        let reference = || object_reference::<R::Kind>(key, uid.clone());
        let on_slow = |limit| self.report_slow(reference(), limit);
        let result = self.limits.apply(pin!(self.perform(role, object)), on_slow).await;
        if let Some(aborted) = result.as_ref().err().filter(|error| PassAborted::of(error).is_some()) {
            self.recorder.record_at(reference(), failure_event(aborted));
        }
        if !self.informer.contains(key) {
            self.forget(key);
        } else if result.is_ok() {
            self.trackers.retain_latest(key);
        }
        result
    }

    /// Skips an object whose current state cannot be decoded. The cached state, if any, is stale.
    fn skip_undecodable(&self, key: &Key, error: DecodeError, mode: PassMode) -> Outcome {
        tracing::warn!(%error, "the object is skipped until it can be decoded");
        if mode == PassMode::Leading {
            let reference = object_reference::<R::Kind>(key, error.uid().map(Into::into));
            self.recorder.record_at(reference, Event::warning("DecodeFailed", error.to_string()));
        }
        Outcome::skip()
    }

    /// Runs the pass of a key without an object in the cache. A process that does not lead the key observes the
    /// deletion only if the reconciler has the role `observe`.
    async fn process_absent(&self, key: &Key, mode: PassMode) -> Result<Outcome> {
        self.forget(key);
        let observes = mode == PassMode::Leading || self.roles.observe.is_some();
        let observe_deletion = self.roles.observe_deletion.filter(|_| observes);
        let Some(observe_deletion) = observe_deletion else { return Ok(Outcome::skip()) };
        let on_slow = |limit| tracing::warn!(?limit, "the pass is slow");
        let result = self.limits.apply(pin!(observe_deletion(&self.reconciler, key)), on_slow).await;
        if let Some(event) = result.as_ref().ok().and_then(Outcome::recorded_event) {
            self.recorder.record_at(object_reference::<R::Kind>(key, None), event.clone());
        }
        result
    }

    /// Drops the reads and values of a key whose object is gone or belongs to another controller.
    fn forget(&self, key: &Key) {
        self.trackers.forget(key);
        self.per_key.drop_values_of(key);
        self.unstored.forget(key);
    }

    fn is_of_class(&self, object: &R::Kind) -> bool {
        self.class.as_ref().is_none_or(|(annotation, value)| {
            object.meta().annotations.as_ref().and_then(|all| all.get(annotation)) == Some(value)
        })
    }

    /// Returns true if the filter admits the object. A terminating object with this controller's finalizer is always
    /// admitted, since no other controller removes that finalizer.
    fn is_admitted(&self, key: &Key, object: &R::Kind) -> bool {
        let Some(filter) = &self.filter else { return true };
        let meta = object.meta();
        (meta.deletion_timestamp.is_some() && self.roles.finalize.is_some() && self.finalizer.is_on(meta))
            || catch_panic(key, || filter.admits(object)).unwrap_or(false)
    }

    /// Selects the role: the leader reconciles an object, or finalizes a terminating one that has this controller's
    /// finalizer. Another process observes an object that is not terminating, if the reconciler has that role. `None`
    /// in all other cases.
    fn role(&self, object: &R::Kind, mode: PassMode) -> Result<Option<Role<R>>> {
        let meta = object.meta();
        Ok(match (mode, meta.deletion_timestamp.is_some(), self.roles.finalize) {
            (PassMode::Leading, false, _) => Some(Role::Reconcile),
            (PassMode::Leading, true, Some(finalize)) if self.finalizer()?.is_on(meta) => {
                Some(Role::Finalize(finalize))
            }
            (PassMode::Observing, false, _) => self.roles.observe.map(Role::Observe),
            _ => None,
        })
    }

    async fn perform(&self, role: Role<R>, object: Arc<R::Kind>) -> Result<Outcome> {
        match role {
            Role::Reconcile => self.reconcile(object).await,
            // Boxed, so that this rare future does not enlarge the future of every pass.
            Role::Finalize(finalize) => self.finalize(finalize, &object).boxed().await,
            Role::Observe(observe) => {
                let object = defaulted(object);
                let result = observe(&self.reconciler, &object).await;
                self.record_result(&object, &result);
                result
            }
        }
    }

    /// Adds the finalizer if needed, reconciles, and writes the status. Skips an object that is gone when the finalizer
    /// is added.
    async fn reconcile(&self, object: Arc<R::Kind>) -> Result<Outcome> {
        let with_finalizer = match self.lacks_finalizer(&object)? {
            true => self.add_finalizer(&object).boxed().await?,
            false => Some(object),
        };
        let Some(object) = with_finalizer else { return Ok(Outcome::skip()) };
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
        self.record_result(&object, &result);
        let marked_no_condition =
            R::Kind::conditions(&mut status).is_some_and(|conditions| conditions.expects_generation());
        if result.is_ok() && is_new_generation && marked_no_condition {
            tracing::warn!("the pass reconciled a new generation and marked no condition");
        }
        R::Kind::observe_generation(&mut status, generation);
        match self.write_status(&object, stored_status.as_deref(), &mut status).await {
            Ok(_) => result,
            Err(error) => Err(with_write_error(result, error)),
        }
    }

    /// Finalizes and writes the status. If finalizing is done and no other client has changed the object, removes the
    /// finalizer from the version that the status write returned. If removing the finalizer deletes the object, no
    /// status is written.
    async fn finalize(&self, finalize: FinalizeFn<R>, object: &Arc<R::Kind>) -> Result<Outcome> {
        let mut status = object.read_status().cloned().unwrap_or_default();
        let result = finalize(&self.reconciler, &defaulted(object.clone()), &mut status).await;
        self.record_result(&**object, &result);
        let is_done = result.as_ref().is_ok_and(Outcome::is_done);
        let written = match is_done && self.finalizer()?.is_last_on(object.meta()) {
            true => Ok(Some(object.meta().into())),
            false => self.write_status(object, object.read_status(), &mut status).await,
        };
        match written {
            Err(error) => Err(with_write_error(result, error)),
            Ok(Some(newest)) if is_done => self.remove_finalizer(object, newest).await.and(result),
            Ok(_) => result,
        }
    }

    fn finalizer(&self) -> Result<&Finalizer> {
        self.finalizer.check().map(|()| &self.finalizer)
    }

    fn lacks_finalizer(&self, object: &R::Kind) -> Result<bool> {
        Ok(self.roles.finalize.is_some() && !self.finalizer()?.is_on(object.meta()))
    }

    /// Returns the object with the finalizer, or `None` if it is gone.
    async fn add_finalizer(&self, object: &R::Kind) -> Result<Option<Arc<R::Kind>>> {
        match self.finalizer()?.add(&self.client, object).await {
            Ok(None) => Ok(None),
            Ok(Some(added)) if !self.finalizer.is_on(added.meta()) => Err(Error::from(format!(
                "the API server did not store the finalizer {:?}: an admission webhook may remove it",
                self.finalizer.name()
            ))),
            added => self.record_finalizer(object, added.map(|added| added.map(Arc::new))),
        }
    }

    async fn remove_finalizer(&self, object: &Arc<R::Kind>, newest: WriteMeta) -> Result<()> {
        let mut object = R::Kind::clone(object);
        let meta = object.meta_mut();
        (meta.resource_version, meta.finalizers) = (newest.resource_version, newest.finalizers);
        let removed = self.finalizer()?.remove(&self.client, &object).await;
        self.record_finalizer(&object, removed)
    }

    fn record_finalizer<T>(&self, object: &R::Kind, result: kube::Result<T>) -> Result<T> {
        let name = Key::of(object).name;
        match &result {
            Ok(_) => self
                .recorder
                .record(object, Event::normal("FinalizerUpdate", format!("Updated {name:?} finalizers"))),
            Err(error) if status_code(error) == Some(409) => {}
            Err(error) => {
                let message = format!("Failed to update finalizers for {name:?}: {}", describe(error));
                self.recorder.record(object, Event::warning("FinalizerUpdateFailed", message));
            }
        }
        result.context(format_args!("failed to update finalizers for {name:?}"))
    }

    /// Writes the change from the stored status, without defaults, to the status after the pass. Records an event for
    /// an error, unless it is a conflict.
    async fn write_status(
        &self,
        object: &R::Kind,
        stored: Option<&StatusFor<R>>,
        after: &mut StatusFor<R>,
    ) -> Result<Option<WriteMeta>> {
        R::Kind::set_condition_generations(after, stored, object.meta().generation);
        self.bound_conditions(stored, after)?;
        let written = match StatusChange::between::<R::Kind>(stored, after) {
            Ok(None) => return Ok(Some(object.meta().into())),
            Ok(Some(change)) => {
                status::write(&self.client, object, stored, change, &self.unstored, &self.metrics).await
            }
            Err(error) => Err(error),
        };
        written.map_err(|error| {
            let error = error.context(format_args!("failed to update status for {:?}", Key::of(object).name));
            if !error.is_conflict() {
                self.recorder.record(object, Event::warning("UpdateFailed", capitalised(&error.in_full())));
            }
            error
        })
    }

    fn bound_conditions(&self, stored: Option<&StatusFor<R>>, after: &mut StatusFor<R>) -> Result<()> {
        let changed = status::bound::<R::Kind>(stored, after)?;
        if !changed.is_empty() && self.bounded.lock().allows(&changed) {
            let fields = changed.join(", ");
            tracing::warn!(
                fields,
                "conditions were cut or changed, because the API server would refuse them"
            );
        }
        Ok(())
    }

    fn record_result(&self, object: &R::Kind, result: &Result<Outcome>) {
        let event = match result {
            Ok(outcome) => outcome.recorded_event().cloned(),
            Err(error) => (!error.is_conflict()).then(|| failure_event(error)),
        };
        event.into_iter().for_each(|event| self.recorder.record(object, event));
    }

    fn report_slow(&self, regarding: ObjectReference, limit: Duration) {
        tracing::warn!(?limit, "the pass is slow");
        let message = format!("the pass has been running for {} s", limit.as_secs_f64());
        self.recorder.record_at(regarding, Event::warning("SlowReconcile", message));
    }
}

/// The warning event recorded for a failed pass.
fn failure_event(error: &Error) -> Event {
    Event::warning(error.event_reason(), error.in_full())
}

fn object_reference<K: Kind>(key: &Key, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(key.name.clone()),
        namespace: key.namespace.clone(),
        uid,
        ..ObjectReference::default()
    }
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

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
