//! Applies children by server-side apply, and sends nothing for a child that is already as desired.

use std::{collections::hash_map::Entry, hash::BuildHasher, sync::Arc};

use kube::{Resource, api::PatchParams};
use reknit_apis::{
    OwnedBy, Scope,
    equality::{are_equal, has_set_fields},
};
use reknit_injection::Cached;
use serde::Serialize;

use crate::{
    metrics::ChildResult,
    object_client::status_code,
    owned::{
        Applied, NotApplied, Owned,
        admitted::is_as_admitted,
        desired::{Desired, Observed, with_kind},
        existing::ApplyResult,
        owner::Owner,
        reverted::reverts_others,
        terminating::{is_terminating, without_refusal},
        up_to_date::UpToDate,
    },
};

impl<T: Cached> Owned<T> {
    /// Creates the child or restores its fields, and returns the effect with the resulting object.
    ///
    /// The child is applied by server-side apply with force. Its field manager is the component and the owner's uid,
    /// as in `controller-4a5827a9-c3b8-4025-800f-b6b7920f7396`. Fields that are set here get these values, fields that
    /// an earlier apply set and this one does not are removed, and fields of other managers are kept. So set the
    /// fields that the controller decides and no others. If another controller has made the child before,
    /// [`upgrading_from`](crate::OwnedOptions::upgrading_from) removes the fields that only that controller has set.
    /// The child gets the owner's namespace, if any, and the owner as its controller. Of the metadata of the child,
    /// only labels, annotations, finalizers and further owners are applied. Its status is not applied.
    ///
    /// An unset `Option` is not sent, as in every other method. An explicit null in free-form JSON, such as a
    /// `serde_json::Value` with Helm values, is applied as null.
    ///
    /// No request is sent for a child that was last applied with the same content and still has these values. The
    /// annotation `reknit.dev/applied` holds a hash of the applied content, since the cache does not know the managers
    /// of fields. Values of [the same meaning](reknit_apis::equality), such as `1000m` and `1` of cpu, are equal. If the
    /// API server stores another value than the applied one, each process applies the child at most once in ten minutes,
    /// unless the child changes meanwhile. The answer is in the cache before this returns.
    ///
    /// Other clients may add entries to maps and lists of the child. In an atomic one, such as a selector or the rules
    /// of a Role, an added entry has to be removed, but only the API server knows which are atomic. So after every
    /// change of the child outside metadata and status, one request is sent, which may change nothing. An entry that
    /// was added while no process of the controller ran is removed with the next change.
    ///
    /// An object without a controller is adopted if its annotation shows that this component applied it for an owner of
    /// this Kind, namespace and name: it was restored from a backup, and so was its owner. Before that, the owner is read
    /// from the API server, if this process may `get` it: an owner that was deleted with `--cascade=orphan`, which a stale
    /// cache still has, must not adopt its orphans again. It can if the cached child is stale too.
    ///
    /// A child that is being deleted is applied with its uid, so that it is not created again: it is in force until it is gone,
    /// and another client may delay that by a finalizer. A refusal of such a request is an event of the owner and no error.
    /// The owner's key is enqueued when the child is gone. If it waits for finalizers, the event `ChildTerminating` of the owner
    /// names them. Apply each child once per controller: two calls with different content undo each other.
    ///
    /// Requires the verbs get, create and patch on the child, besides list and watch, and, with the admission plugin
    /// OwnerReferencesPermissionEnforcement, update on the owner's `finalizers` subresource.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
    /// use reknit_reconciler::{Error, NotApplied, Outcome, Owned, Result};
    ///
    /// struct Reconciler {
    ///     maps: Owned<ConfigMap>,
    /// }
    ///
    /// impl Reconciler {
    ///     async fn greet(&self, namespace: &Namespace) -> Result<Outcome> {
    ///         let mut map = ConfigMap::default();
    ///         map.metadata.name = Some("greeting".into());
    ///         map.metadata.namespace = namespace.metadata.name.clone();
    ///         map.data = Some([("text".into(), "hello".into())].into());
    ///         match self.maps.apply(namespace, map).await {
    ///             Err(NotApplied::Taken { .. }) => {
    ///                 Err(Error::permanent("another owner has a ConfigMap of this name").reason("NameTaken"))
    ///             }
    ///             applied => {
    ///                 applied?;
    ///                 Ok(Outcome::done())
    ///             }
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`NotApplied::Taken`]: an object of this name exists and the owner is not its controller. That object is not
    ///   changed. The owner's key is enqueued when the object changes or is deleted, so you can make the error
    ///   permanent. An exception is a child of a [selected informer](crate::Builder::owns_in), which does not see
    ///   objects outside its selection.
    /// - [`NotApplied::OwnerDeleted`]: the owner is gone, or is being deleted and gets no new child: no finalizer keeps
    ///   it, or the garbage collector deletes its children first. If it orphans them, none is changed either.
    /// - [`NotApplied::Unusable`]: the child cannot be applied, or is a new StatefulSet or CronJob whose name has more than
    ///   52 bytes.
    /// - [`NotApplied::Refused`]: the API server refused the request, for example because a field is immutable. A
    ///   conflict counts as a conflict of the pass.
    pub async fn apply<O>(&self, owner: &O, child: T) -> Result<Applied<T>, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Serialize + Resource<Scope: OwnedBy<O::Scope>>,
    {
        self.apply_desired(owner, self.desired(owner, child)?).await
    }

    /// Applies a child as [`apply`](Self::apply) does, but first deletes the existing one if `must_replace` returns
    /// true for it. Use it for a child with an immutable field, such as the pod template of a Job.
    ///
    /// `must_replace` is called only if the wanted child differs from the one that was last applied, or if another client
    /// has changed a value that is wanted: otherwise the new child would be like the existing one, such as one that an
    /// admission webhook has changed. It gets the stored child, in which the API server has filled in defaults. So compare
    /// only what you set, by [`has_set_fields`](reknit_apis::equality::has_set_fields). `==` would replace the child for any
    /// change, of a label for example.
    ///
    /// A child with a finalizer is created anew by the pass that follows the end of its deletion. The new content is not
    /// applied to the old child before.
    ///
    /// ```
    /// use k8s_openapi::api::batch::v1::{CronJob, Job};
    /// use reknit_apis::equality::has_set_fields;
    /// use reknit_reconciler::{Owned, Result};
    ///
    /// async fn run(jobs: &Owned<Job>, owner: &CronJob, job: Job) -> Result<()> {
    ///     let template = |job: &Job| job.spec.as_ref().map(|spec| spec.template.clone());
    ///     let wanted = template(&job);
    ///     let has_other_template = |stored: &Job| !has_set_fields(&template(stored), &wanted);
    ///     jobs.apply_or_replace(owner, job, has_other_template).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`apply`](Self::apply), and [`NotApplied::Refused`] if the deletion fails. A child that could not be
    /// created anew, such as one whose name is too long for its Kind, is not replaced.
    pub async fn apply_or_replace<O>(
        &self,
        owner: &O,
        child: T,
        must_replace: impl FnOnce(&T) -> bool,
    ) -> Result<Applied<T>, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Serialize + Resource<Scope: OwnedBy<O::Scope>>,
    {
        let desired = self.desired(owner, child)?;
        let existing = self.find_in_cache(owner, &desired.key)?;
        let may_differ = |existing: &Arc<T>| {
            !self.check_up_to_date(&desired, existing) && !self.is_as_applied(&desired, existing)
        };
        if let Some(outdated) = existing.filter(may_differ).filter(|existing| must_replace(existing))
            && self.is_replaced(owner, &desired, &outdated).await?
            && let Some(terminating) =
                self.find_in_cache(owner, &desired.key)?.filter(|child| is_terminating(&**child))
        {
            self.report_terminating(owner, &desired.name, &terminating);
            self.shared.metrics.record(ChildResult::Unchanged);
            return Ok(Applied::Unchanged(terminating));
        }
        self.apply_desired(owner, desired).await
    }
}

impl<T: Cached + Serialize> Owned<T> {
    async fn apply_desired(&self, owner: &impl Owner, desired: Desired) -> ApplyResult<Applied<T>> {
        let existing = match self.find_in_cache(owner, &desired.key)? {
            Some(cached) if self.check_up_to_date(&desired, &cached) => {
                self.report_terminating(owner, &desired.name, &cached);
                self.shared.metrics.record(ChildResult::Unchanged);
                return Ok(Applied::Unchanged(cached));
            }
            Some(cached) => Some(cached),
            // The cache may be stale or contain only selected objects. An object of another owner must not be taken over.
            None => self.read_live(owner, &desired.key).await?,
        };
        let existing = match existing {
            Some(existing) => self.take_over(owner, &desired, existing).await?,
            None => None,
        };
        match existing {
            Some(existing) if is_terminating(&*existing) => {
                self.restore_terminating(owner, desired, existing).await
            }
            existing => self.send_apply(owner, desired, existing).await,
        }
    }

    /// Restores a child that is being deleted: until it is gone it is in force, and another client may change it. The uid in
    /// the request prevents that the child is created again.
    async fn restore_terminating(
        &self,
        owner: &impl Owner,
        mut desired: Desired,
        existing: Arc<T>,
    ) -> ApplyResult<Applied<T>> {
        self.report_terminating(owner, &desired.name, &existing);
        desired.keep_finalizers_of(existing.meta());
        let result = self.send_apply(owner, desired.clone(), Some(existing.clone())).await;
        self.report_restored_terminating(owner, &desired, &existing, &result);
        without_refusal(existing, result)
    }

    /// Deletes a child that must be replaced, unless it is being deleted. Returns false for a child that is to be applied
    /// instead, since only another client or admission has changed it.
    async fn is_replaced(
        &self,
        owner: &impl Owner,
        desired: &Desired,
        outdated: &Arc<T>,
    ) -> ApplyResult<bool> {
        if is_terminating(&**outdated) {
            return Ok(!desired.was_applied_to(&**outdated));
        }
        if self.is_as_admitted(owner, desired, outdated).await? {
            return Ok(false);
        }
        self.check_creation(owner, desired)?;
        self.delete(outdated).await.map_err(|error| desired.refused(error))?;
        Ok(true)
    }

    pub(super) fn desired<O>(&self, owner: &O, child: T) -> ApplyResult<Desired>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
    {
        let client = &self.shared.client;
        Desired::of(owner, child, &client.kind, &client.manager)
    }

    /// Returns true if no request is needed. A child that is already as desired is remembered as up to date.
    fn check_up_to_date(&self, desired: &Desired, cached: &T) -> bool {
        let Ok(observed) = desired.observe(cached, &self.shared.client.kind) else { return false };
        let state_hash = self.state_hash(desired, &observed);
        match self.shared.up_to_date.lock().entry(desired.key.clone()) {
            Entry::Occupied(known) => known.get().covers(state_hash),
            Entry::Vacant(unknown) if are_equal(&observed.fields, &desired.body) => {
                unknown.insert(UpToDate::as_sent(state_hash));
                true
            }
            Entry::Vacant(_) => false,
        }
    }

    /// Returns true if the same content was applied last, and the child still has all values that it sets.
    fn is_as_applied(&self, desired: &Desired, existing: &T) -> bool {
        let observed = desired.observe(existing, &self.shared.client.kind);
        desired.was_applied_to(existing)
            && observed.is_ok_and(|observed| has_set_fields(&observed.fields, &desired.body))
    }

    /// Returns true if the same content was applied last, and only [admission](is_as_admitted) has changed it.
    async fn is_as_admitted(&self, owner: &impl Owner, desired: &Desired, existing: &T) -> ApplyResult<bool> {
        if !desired.was_applied_to(existing) {
            return Ok(false);
        }
        let live = self.read_live(owner, &desired.key).await?; // the cache has no managedFields
        Ok(live.is_some_and(|live| self.has_admitted(owner, desired, &live)))
    }

    fn has_admitted(&self, owner: &impl Owner, desired: &Desired, live: &T) -> bool {
        desired.was_applied_to(live) && is_as_admitted(live, &self.manager_for(owner), &desired.body)
    }

    /// A hash of the applied and the stored content.
    fn state_hash(&self, desired: &Desired, observed: &Observed) -> u64 {
        self.shared.hash_builder.hash_one((&desired.applied, &observed.fields, observed.content_hash))
    }

    /// Sends the apply request: with force and with the uid of the existing object as precondition, or without force to
    /// create the child, so that an object that is created in between is not taken over.
    async fn send_apply(
        &self,
        owner: &impl Owner,
        desired: Desired,
        existing: Option<Arc<T>>,
    ) -> ApplyResult<Applied<T>> {
        match existing {
            Some(_) => self.check_update(owner, &desired)?,
            None => self.check_creation(owner, &desired)?,
        }
        let manager = self.manager_for(owner);
        let params = PatchParams { force: existing.is_some(), ..PatchParams::apply(&manager) };
        let body = desired.with_preconditions(owner, existing.as_ref().map(|existing| existing.meta()));
        match self.shared.client.apply::<T>(&desired.key, &params, body).await {
            Ok(answer) => {
                if existing.is_none() {
                    self.report_run_again(owner, &desired);
                }
                let restored =
                    existing.as_deref().and_then(|existing| self.restores(&desired, existing, &answer));
                self.remember(owner, desired, &answer);
                let applied = Applied::of(existing, Arc::new(answer));
                self.shared.metrics.record(match restored {
                    Some(true) => ChildResult::Restored,
                    Some(false) => ChildResult::Unchanged,
                    None => applied.result(),
                });
                Ok(applied)
            }
            Err(error) => self.after_refusal(owner, desired, error).await,
        }
    }

    /// Returns true if an applied value differs from the cached child after applying the same content as last time. All
    /// other differences are changes of other clients that the cache did not have. `None` for content that was not applied
    /// last.
    fn restores(&self, desired: &Desired, existing: &T, answer: &T) -> Option<bool> {
        if !desired.was_applied_to(existing) {
            return None;
        }
        let json = |child| with_kind(child, &self.shared.client.kind).ok();
        Some(reverts_others(&desired.body, &json(existing)?, &json(answer)?))
    }

    /// The result of an apply that failed. If another owner has applied the child in between, the API server answers that the
    /// fields conflict (409), or that a second controller is invalid (422). It also answers that a field is immutable (422)
    /// if admission has changed that field when the same content was applied before: such a child stays as it is.
    async fn after_refusal(
        &self,
        owner: &impl Owner,
        desired: Desired,
        error: kube::Error,
    ) -> ApplyResult<Applied<T>> {
        if !matches!(status_code(&error), Some(409 | 422)) {
            return Err(desired.refused(error));
        }
        match self.read_live(owner, &desired.key).await {
            Err(taken @ NotApplied::Taken { .. }) => Err(taken),
            Ok(Some(live))
                if status_code(&error) == Some(422) && self.has_admitted(owner, &desired, &live) =>
            {
                self.remember(owner, desired, &live);
                self.shared.metrics.record(ChildResult::Unchanged);
                Ok(Applied::Unchanged(live))
            }
            _ => Err(desired.refused(error)),
        }
    }

    /// Remembers that the child is up to date, if it is in the cache. For any other child, the informer would not
    /// report the deletion that removes the entry. The entry is added before the cache is checked, so a deletion in
    /// between is not missed.
    fn remember(&self, owner: &impl Owner, desired: Desired, answer: &T) {
        let Ok(observed) = desired.observe(answer, &self.shared.client.kind) else { return };
        self.report_dropped(owner, &desired.name, &desired.body, &observed.fields);
        let state_hash = self.state_hash(&desired, &observed);
        let state = match are_equal(&observed.fields, &desired.body) {
            true => UpToDate::as_sent(state_hash),
            false => UpToDate::unlike_sent(state_hash),
        };
        self.shared.up_to_date.lock().insert(desired.key.clone(), state);
        if !self.informer.contains(&desired.key) {
            self.shared.up_to_date.lock().remove(&desired.key);
        }
    }
}
