//! The pass of a controller that has a Kind: who may act on the object, what the user's code is given, and what of
//! its result is written where.

use std::{pin::pin, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use reknit_apis::{Key, Kind, Scope, StatusOf};
use reknit_injection::{DecodeError, Filter, Informer, pinned};

use super::Pass;
use crate::{
    Error, Event, Outcome, Permanent, ReconcileKind, Recorder, Result,
    error::{Source, describe},
    finalizer::{Finalizer, Unqualified},
    limits::{CutShort, Limits, caught},
    metrics::PassMetrics,
    object_client::{ObjectClient, WriteMeta, status_code},
    per_key::PerKeyStores,
    status::{self, StatusChange, Written},
    tracker::Trackers,
};

type KindOf<R> = <R as ReconcileKind>::Kind;
type StatusFor<R> = StatusOf<KindOf<R>>;
type Finalize<R> = for<'a> fn(&'a R, &'a KindOf<R>, &'a mut StatusFor<R>) -> BoxFuture<'a, Result<Outcome>>;
type Observe<R> = for<'a> fn(&'a R, &'a KindOf<R>) -> BoxFuture<'a, Result<Outcome>>;
type Deleted<R> = for<'a> fn(&'a R, &'a Key) -> BoxFuture<'a, Result<Outcome>>;

/// What a reconciler does beside reconciling.
pub(crate) struct Roles<R: ReconcileKind> {
    pub(crate) finalize: Option<Finalize<R>>,
    pub(crate) observe: Option<Observe<R>>,
    pub(crate) deleted: Option<Deleted<R>>,
}

/// What this pass is to do.
enum Act<R: ReconcileKind> {
    Reconcile,
    Finalize(Finalize<R>),
    Observe(Observe<R>),
}

pub(crate) struct KindDriver<R: ReconcileKind> {
    pub(crate) reconciler: R,
    pub(crate) roles: Roles<R>,
    pub(crate) informer: Informer<R::Kind>,
    pub(crate) client: ObjectClient<R::Kind>,
    pub(crate) recorder: Recorder,
    /// Only where the reconciler finalizes.
    pub(crate) finalizer: Result<Finalizer, Unqualified>,
    pub(crate) class: Option<(String, String)>,
    pub(crate) only: Option<Filter<R::Kind>>,
    pub(crate) promote: Option<Filter<R::Kind>>,
    pub(crate) limits: Limits,
    pub(crate) trackers: Trackers,
    pub(crate) per_key: PerKeyStores,
    pub(crate) metrics: PassMetrics,
}

/// What could not be written, and to which object.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("failed to update finalizers for {name:?}")]
    Finalizers { name: String, source: kube::Error },
    #[error("failed to update status for {name:?}")]
    Status { name: String, source: Source },
}

impl<R: ReconcileKind> Pass for KindDriver<R> {
    fn pass<'a>(&'a self, key: &'a Key, leading: bool) -> BoxFuture<'a, Result<Outcome>> {
        pinned(self.pass_of(key, leading)).boxed()
    }

    fn malformed(&self, key: &Key) -> Option<String> {
        let kind = R::Kind::kind(&());
        let why = match (key.namespace.is_some(), <R::Kind as Resource>::Scope::NAMESPACED) {
            _ if key.name.is_empty() => "it holds no name".into(),
            (false, true) => format!("a {kind} lies in a namespace, so `namespace/name` is wanted"),
            (true, false) => format!("a {kind} lies in none, so `name` is wanted"),
            _ => return None,
        };
        Some(format!("no object can have the key {key}: {why}"))
    }

    fn promoted(&self) -> Vec<Key> {
        let Some(filter) = &self.promote else { return self.informer.keys() };
        let admits = |object: &R::Kind| caught(&Key::of(object), || filter.admits(object)).unwrap_or(false);
        self.informer.list().filter(|object| admits(object)).map(|object| Key::of(&*object)).collect()
    }

    /// Nothing is before the first term, as with Knative: what is there then is for the filter to say.
    fn is_owed(&self, key: &Key, led: bool) -> bool {
        let is_told = self.roles.observe.is_some(); // whoever leads
        led && match self.informer.contains(key) {
            true => self.promote.is_some(),
            false => self.roles.deleted.is_some() && !is_told,
        }
    }
}

impl<R: ReconcileKind> KindDriver<R> {
    async fn pass_of(&self, key: &Key, leading: bool) -> Result<Outcome> {
        if let Some(error) = self.malformed(key) {
            tracing::error!(%key, error, "a malformed key is dropped");
            return Ok(Outcome::skip());
        }
        let object = match self.per_key.begin(key, || self.informer.newest(key)) {
            Ok(Some(object)) => object,
            Ok(None) => return self.absent(key, leading).await,
            Err(error) => return Ok(self.left_alone(key, error, leading)),
        };
        if !self.is_of_class(&object) || !self.is_to_be_touched(key, &object) {
            self.forget(key);
            return Ok(Outcome::skip());
        }
        let Some(act) = self.act(&object, leading)? else {
            self.trackers.forget(key); // of an earlier pass, as leader or before it was going
            return Ok(Outcome::skip());
        };
        self.trackers.begin(key);
        let uid = object.meta().uid.clone();
        let about = || reference::<R::Kind>(key, uid.clone());
        let slow = |limit| self.tell_slow(about(), limit);
        let result = self.limits.hold(pin!(self.perform(act, object)), slow).await;
        if let Some(cut_short) = result.as_ref().err().filter(|error| CutShort::of(error).is_some()) {
            self.recorder.record_at(about(), warning(cut_short));
        }
        self.settle(key, result.is_ok());
        result
    }

    /// What is held of such an object is out of date, if anything is.
    fn left_alone(&self, key: &Key, error: DecodeError, leading: bool) -> Outcome {
        tracing::warn!(%error, "the object is left alone until it can be decoded");
        if leading {
            let about = reference::<R::Kind>(key, error.uid().map(Into::into));
            self.recorder.record_at(about, Event::warning("DecodeFailed", error.to_string()));
        }
        Outcome::skip()
    }

    async fn absent(&self, key: &Key, leading: bool) -> Result<Outcome> {
        self.forget(key);
        match self.roles.deleted.filter(|_| leading || self.roles.observe.is_some()) {
            Some(deleted) => {
                let slow = |limit| tracing::warn!(?limit, "the pass is slow");
                let result = self.limits.hold(pin!(deleted(&self.reconciler, key)), slow).await;
                if let Some(event) = result.as_ref().ok().and_then(Outcome::recorded) {
                    self.recorder.record_at(reference::<R::Kind>(key, None), event.clone());
                }
                result
            }
            None => Ok(Outcome::skip()),
        }
    }

    /// The object is gone, or none of this controller's: nothing is kept for it.
    fn forget(&self, key: &Key) {
        self.trackers.forget(key);
        self.per_key.drop_of(key);
    }

    /// What was read stays tracked for as long as it may still decide something.
    fn settle(&self, key: &Key, ended_well: bool) {
        if !self.informer.contains(key) {
            self.forget(key);
        } else if ended_well {
            self.trackers.retain_latest(key);
        }
    }

    fn is_of_class(&self, object: &R::Kind) -> bool {
        self.class.as_ref().is_none_or(|(annotation, value)| {
            object.meta().annotations.as_ref().and_then(|all| all.get(annotation)) == Some(value)
        })
    }

    /// What waits for this controller's finalizer is, whatever became of it since: nobody else takes that off.
    fn is_to_be_touched(&self, key: &Key, object: &R::Kind) -> bool {
        let Some(only) = &self.only else { return true };
        let meta = object.meta();
        let waits = || self.finalizer.as_ref().is_ok_and(|finalizer| finalizer.is_on(meta));
        (meta.deletion_timestamp.is_some() && self.roles.finalize.is_some() && waits())
            || caught(key, || only.admits(object)).unwrap_or(false)
    }

    /// A leader reconciles and finalizes, others observe; what is going without this controller's finalizer on it
    /// is nobody's here.
    fn act(&self, object: &R::Kind, leading: bool) -> Result<Option<Act<R>>> {
        let meta = object.meta();
        let act = match (leading, meta.deletion_timestamp.is_some()) {
            (true, false) => Some(Act::Reconcile),
            (true, true) => match self.roles.finalize {
                Some(finalize) if self.finalizer()?.is_on(meta) => Some(Act::Finalize(finalize)),
                _ => None,
            },
            (false, false) => self.roles.observe.map(Act::Observe),
            (false, true) => None,
        };
        Ok(act)
    }

    async fn perform(&self, act: Act<R>, object: Arc<R::Kind>) -> Result<Outcome> {
        match act {
            Act::Reconcile => self.reconcile(object).await,
            // boxed, since every pass has room for this future, and few take this way
            Act::Finalize(finalize) => self.finalize(finalize, &object).boxed().await,
            Act::Observe(observe) => {
                let object = defaulted(object);
                let said = observe(&self.reconciler, &object).await;
                self.record_result(&object, &said);
                said
            }
        }
    }

    async fn reconcile(&self, object: Arc<R::Kind>) -> Result<Outcome> {
        let with_finalizer = match self.lacks_finalizer(&object)? {
            true => self.add_finalizer(&object).boxed().await?,
            false => Some(object),
        };
        let Some(object) = with_finalizer else { return Ok(Outcome::skip()) };
        let generation = object.meta().generation;
        let read = object.read_status().cloned().map(Box::new); // the future of every pass has room for it
        let mut status = read.as_deref().cloned().unwrap_or_default();
        let mut is_new = false;
        if let Some(mut conditions) = R::Kind::conditions(&mut status) {
            conditions.initialise();
            is_new = conditions.expect_generation(generation);
        }
        let object = defaulted(object);
        let said = self.reconciler.reconcile_kind(&object, &mut status).await;
        self.record_result(&object, &said);
        let unmarked =
            R::Kind::conditions(&mut status).is_some_and(|conditions| conditions.expects_generation());
        if said.is_ok() && is_new && unmarked {
            tracing::warn!("the pass met a new generation, and marked no condition");
        }
        R::Kind::observe_generation(&mut status, generation);
        match self.write_status(&object, read.as_deref(), &mut status).await {
            Ok(_) => said,
            Err(failed) => Err(after(said, failed)),
        }
    }

    /// Status first, then the finalizer with the version just answered. An object that goes with the finalizer
    /// needs no status.
    async fn finalize(&self, finalize: Finalize<R>, object: &Arc<R::Kind>) -> Result<Outcome> {
        let mut status = object.read_status().cloned().unwrap_or_default();
        let said = finalize(&self.reconciler, &defaulted(object.clone()), &mut status).await;
        self.record_result(&**object, &said);
        let done = said.as_ref().is_ok_and(Outcome::is_done);
        let written = match done && self.finalizer()?.is_last_on(object.meta()) {
            true => Ok(Written::Is(object.meta().into())),
            false => self.write_status(object, object.read_status(), &mut status).await,
        };
        match written {
            Err(failed) => Err(after(said, failed)),
            Ok(Written::Is(newest)) if done => self.without_finalizer(object, newest).await.and(said),
            Ok(_) => said,
        }
    }

    fn lacks_finalizer(&self, object: &R::Kind) -> Result<bool> {
        Ok(self.roles.finalize.is_some() && !self.finalizer()?.is_on(object.meta()))
    }

    /// The object with the finalizer on it; none where it is gone.
    async fn add_finalizer(&self, object: &R::Kind) -> Result<Option<Arc<R::Kind>>> {
        let added = self.finalizer()?.add(&self.client, object).await;
        if !matches!(added, Ok(None)) {
            self.record_finalizer(object, added.as_ref().err());
        }
        added.map(|added| added.map(Arc::new)).map_err(|source| finalizers(object, source))
    }

    async fn without_finalizer(&self, object: &Arc<R::Kind>, newest: WriteMeta) -> Result<()> {
        let mut object = R::Kind::clone(object);
        let meta = object.meta_mut();
        (meta.resource_version, meta.finalizers) = (newest.resource_version, newest.finalizers);
        let removed = self.finalizer()?.remove(&self.client, &object).await;
        self.record_finalizer(&object, removed.as_ref().err());
        removed.map_err(|source| finalizers(&object, source))
    }

    /// `read` is the object's status as it was read, before any defaults.
    async fn write_status(
        &self,
        object: &R::Kind,
        read: Option<&StatusFor<R>>,
        left: &mut StatusFor<R>,
    ) -> Result<Written> {
        let written = match StatusChange::between::<R::Kind>(read, left) {
            Ok(None) => return Ok(Written::Is(object.meta().into())),
            Ok(Some(change)) => status::write(&self.client, object, read, change, &self.metrics).await,
            Err(error) => Err(error),
        };
        written.map_err(|source| {
            let error =
                Error::from(WriteError::Status { name: Key::of(object).name, source: source.into_source() });
            if !error.is_conflict() {
                self.recorder.record(object, Event::warning("UpdateFailed", capitalised(&error.in_full())));
            }
            error
        })
    }

    fn finalizer(&self) -> Result<&Finalizer> {
        self.finalizer.as_ref().map_err(Clone::clone).permanent()
    }

    fn record_result(&self, object: &R::Kind, result: &Result<Outcome>) {
        match result {
            Ok(outcome) => {
                outcome.recorded().into_iter().for_each(|event| self.recorder.record(object, event.clone()))
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => self.recorder.record(object, warning(error)),
        }
    }

    fn record_finalizer(&self, object: &R::Kind, failure: Option<&kube::Error>) {
        let name = Key::of(object).name;
        let event = match failure {
            None => Event::normal("FinalizerUpdate", format!("Updated {name:?} finalizers")),
            Some(error) if status_code(error) == Some(409) => return, // somebody was faster
            Some(error) => Event::warning(
                "FinalizerUpdateFailed",
                format!("Failed to update finalizers for {name:?}: {}", describe(error)),
            ),
        };
        self.recorder.record(object, event);
    }

    fn tell_slow(&self, about: ObjectReference, limit: std::time::Duration) {
        tracing::warn!(?limit, "the pass is slow");
        let message = format!("the pass has been running for {} s", limit.as_secs_f64());
        self.recorder.record_at(about, Event::warning("SlowReconcile", message));
    }
}

/// What is told of a pass that failed.
fn warning(error: &Error) -> Event {
    Event::warning(error.event_reason(), error.in_full())
}

/// A reference to an object that is not at hand.
fn reference<K: Kind>(key: &Key, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: Some(key.name.clone()),
        namespace: key.namespace.clone(),
        uid,
        ..ObjectReference::default()
    }
}

/// In place where nobody else has the object.
fn defaulted<K: Kind>(mut object: Arc<K>) -> Arc<K> {
    Arc::make_mut(&mut object).default_in_place();
    object
}

/// A framework's write failed after user code said that: both are told.
fn after(said: Result<Outcome>, failed: Error) -> Error {
    match said {
        Ok(_) => failed,
        Err(error) => error.and(failed),
    }
}

fn finalizers<K: Kind>(object: &K, source: kube::Error) -> Error {
    WriteError::Finalizers { name: Key::of(object).name, source }.into()
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
