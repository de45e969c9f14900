//! The controller's part of bindings, which injects into subjects that exist.

use std::{sync::Arc, time::Duration};

use kube::{
    Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::{GroupVersionKind, Request, Status, response::reason},
    discovery::Scope,
};
use reknit_apis::{Key, Kind as _, Reference, Scope as _, StatusOf, equality::has_set_fields};
use reknit_injection::{
    Informers, Selection, Verb,
    internal::{decode_object, is_absence_of},
    select,
};
use reknit_reconciler::{
    Builder, Error, Kinds, Result, ResultExt, TrackedAny,
    internal::{field_manager, selected_in_all_namespaces},
    merge_patch,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    bindable::{Bindable, bind, labelled, readable_version, subject_of, unbind, with_changes},
    bindings::Bindings,
};
use crate::{
    pod_specable::{PodSpecable, PodSpecableSpec},
    resolver::not_found,
};

/// The reason of a subject that was stored without the injection.
const INJECTION_REMOVED: &str = "InjectionRemoved";
/// The reason of a subject whose injection another binding removes.
const SUBJECT_TAKEN: &str = "SubjectTaken";
/// The longest wait for the retry of a failed discovery.
const RETRY_WITHIN: Duration = Duration::from_secs(15);

/// Injects bindings into the pod templates of their subjects, and withdraws the injection. A change of a subject
/// reconciles the binding.
///
/// Call [`bind`](Self::bind) in `reconcile_kind` and [`unbind`](Self::unbind) in `finalize_kind`, and enable
/// [`finalizing`](reknit_reconciler::RoleBuilder::finalizing). It does what Knative's `psbinding.BaseReconciler` does,
/// except that it does not label namespaces.
///
/// A bound subject has the label `<plural>.<group>/<name of the binding>`, so that it is found when the binding no longer
/// refers to it, even after a restart or a restore from a backup. If the API server no longer serves the version that the binding names, the
/// subjects are found in another version.
///
/// Requires the verbs `list`, `watch` and `patch` on the Kinds of the subjects.
///
/// ```
/// use reknit_apis::StatusOf;
/// use reknit_injection::Context;
/// use reknit_knative::{Bindable, Binder};
/// use reknit_reconciler::{Controller, FinalizeKind, Kinds, Outcome, ReconcileKind, Result};
///
/// struct Reconciler<K: Bindable> {
///     binder: Binder<K>,
/// }
///
/// impl<K: Bindable> ReconcileKind for Reconciler<K> {
///     type Kind = K;
///     async fn reconcile_kind(&self, binding: &K, status: &mut StatusOf<K>) -> Result<Outcome> {
///         // A SinkBinding would first resolve its sink and put the address into the status.
///         self.binder.bind(binding, status).await?;
///         Ok(Outcome::done())
///     }
/// }
///
/// impl<K: Bindable> FinalizeKind for Reconciler<K> {
///     async fn finalize_kind(&self, binding: &K, _status: &mut StatusOf<K>) -> Result<Outcome> {
///         self.binder.unbind(binding).await?;
///         Ok(Outcome::done())
///     }
/// }
///
/// fn controller<K: Bindable>(cx: &Context) -> Result<Controller> {
///     let mut build = Controller::of::<K>(cx);
///     let binder = Binder::new(&mut build, Kinds::of([("apps", "deployments"), ("batch", "jobs")]));
///     Ok(build.reconciler(Reconciler { binder }).finalizing().build())
/// }
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("Binder {{ objects: {objects:?}, .. }}")]
pub struct Binder<K: Bindable> {
    objects: TrackedAny,
    informers: Informers,
    client: Client,
    /// The field manager of patches.
    manager: String,
    /// The bindings in the namespaces of the controller.
    bindings: Bindings<K>,
}

/// The subjects of one binding.
struct Found {
    resource: ApiResource,
    /// The objects to which the binding refers, or why its reference leads nowhere until it is changed.
    current: Result<Vec<Arc<DynamicObject>>>,
    /// The bound objects to which the binding no longer refers.
    former: Vec<Arc<DynamicObject>>,
}

impl<K: Bindable> Binder<K> {
    /// Creates the binder of a controller of bindings, whose subjects are of these Kinds. A change of a subject enqueues
    /// the key of its binding.
    pub fn new(build: &mut Builder<K>, kinds: Kinds) -> Self {
        kinds.permissions(&[Verb::Patch]).for_each(|patches| build.allows(patches));
        let objects = build.track_any(kinds).in_any_version();
        let cx = build.context();
        let which = if K::Scope::NAMESPACED { cx.get::<Selection>().same_namespaces() } else { select() };
        Self {
            objects,
            informers: cx.informers(),
            client: cx.client(),
            manager: field_manager(cx.component()),
            bindings: Bindings::new(&cx.informer(which)),
        }
    }

    /// Injects into the subjects, withdraws the injection from objects that are no longer subjects, and marks the
    /// [condition](Bindable::CONDITION).
    ///
    /// A subject is patched only if the injection changes it, and only in the version that was read. A failed patch
    /// does not keep the other subjects from being patched. A reference whose error is permanent has no subjects:
    /// those before it are unbound.
    ///
    /// | the condition | reason |
    /// | --- | --- |
    /// | True | |
    /// | Unknown | `InjectionRemoved`: a subject was stored without the injection |
    /// | False | `SubjectMissing`: there is no object of this name |
    /// | False | `SubjectUnavailable`: the reference cannot be followed |
    /// | False | `BindingFailed`: a subject cannot be patched |
    /// | False | `SubjectTaken`: another binding of the Kind has the subject too, and removes the injection |
    ///
    /// # Errors
    ///
    /// A missing subject is a permanent error: its creation reconciles the binding. A subject that
    /// another binding has taken is an error that is retried until that binding is deleted: of several bindings that inject the
    /// same names into a subject, the last by name has it. The errors of an unavailable
    /// subject are those of [`TrackedAny::all`]. A subject outside the namespace of a binding that is in one, or without
    /// `spec.template`, is a permanent error.
    /// Other errors are those of patches: the first that is retried, else a permanent one. The error of a patch is
    /// permanent if the API server finds the changed subject invalid, as it does for a Job that exists, or if the injection would make
    /// the subject larger than 3 MiB. A refusal by a webhook of the subject with another code, such as 400, is retried, since the
    /// webhook may have read other objects. A subject that was
    /// stored without the injection, because a webhook or a policy has removed it, is a conflict. Any other conflict leaves the
    /// condition as it is.
    pub async fn bind(&self, binding: &K, status: &mut StatusOf<K>) -> Result<()> {
        let bound = self.bind_all(binding, status).await;
        let mut conditions = K::CONDITIONS.manage(status);
        match bound {
            Ok(()) => {
                conditions.mark_true(K::CONDITION);
                Ok(())
            }
            Err((_, error)) if error.event_reason() == INJECTION_REMOVED => {
                conditions.mark_unknown(K::CONDITION, INJECTION_REMOVED, error.in_full());
                Err(error)
            }
            Err((_, error)) if error.event_reason() == SUBJECT_TAKEN => {
                conditions.mark_false(K::CONDITION, SUBJECT_TAKEN, error.in_full());
                Err(error)
            }
            Err((_, error)) if error.is_conflict() => Err(error),
            Err((reason, error)) => {
                conditions.mark_false(K::CONDITION, reason, error.in_full());
                Err(error)
            }
        }
    }

    /// Withdraws the injection from all objects with the label of the binding except Jobs, whose pod template cannot be
    /// changed, and objects in a namespace that the controller may not list and a binding in no namespace does not
    /// name. A subject that is gone is not an error. A Kind that is not served, or that the controller does not bind,
    /// is not an error either, since the binding has no subjects then.
    ///
    /// # Errors
    ///
    /// Fails if the subjects cannot be listed, or with the error of a patch as [`bind`](Self::bind) does.
    pub async fn unbind(&self, binding: &K) -> Result<()> {
        let bound = match self.resolve(binding, &binding.subject()).await {
            Ok(None) => return Ok(()),
            Ok(Some(resource)) => self.bound(binding).await.map(|bound| (resource, bound)),
            Err(error) => Err(error),
        };
        match bound {
            Err(error) if error.is_permanent() => Ok(()),
            bound => {
                let (resource, bound) = bound?;
                self.withdraw(binding, &resource, &bound).await
            }
        }
    }

    /// Binds the subjects. An error comes with the reason of the condition.
    async fn bind_all(&self, binding: &K, status: &StatusOf<K>) -> Result<(), (&'static str, Error)> {
        let unavailable = |error| ("SubjectUnavailable", error);
        let failed = |error| ("BindingFailed", error);
        let subject = binding.subject();
        let found = self.find(binding, &subject).await.map_err(unavailable)?;
        let former = self.withdraw(binding, &found.resource, &found.former).await;
        let current = match found.current {
            Ok(current) => current,
            Err(error) => {
                former.map_err(failed)?;
                return Err(unavailable(error));
            }
        };
        if current.is_empty() && subject.selector.is_none() {
            former.map_err(failed)?;
            let name = subject.name.as_deref().unwrap_or_default();
            let not_found = not_found(&subject.api_version, &subject.kind, name);
            return Err(("SubjectMissing", Error::permanent(not_found)));
        }
        let bind = |subject: &mut PodSpecable| bind(binding, status, subject);
        let (free, taken) = self.without_taken(binding, current, bind);
        let bound = self.patch_all(&found.resource, &free, bind, |stored| is_kept(stored, bind)).await;
        first_retried_error(former, first_retried_error(bound, taken)).map_err(failed)
    }

    /// Returns the subjects whose injection no other binding removes, and the error of the first other one. Two bindings that
    /// inject the same names would else patch the subject in turn, for ever.
    fn without_taken(
        &self,
        binding: &K,
        mut subjects: Vec<Arc<DynamicObject>>,
        bind: impl Fn(&mut PodSpecable),
    ) -> (Vec<Arc<DynamicObject>>, Result<()>) {
        let mut result = Ok(());
        subjects.retain(|subject| {
            let free = self.check_free(binding, subject, &bind);
            let is_free = free.is_ok();
            result = first_retried_error(std::mem::replace(&mut result, Ok(())), free);
            is_free
        });
        (subjects, result)
    }

    /// Fails if a binding whose name sorts after that of this one removes its injection from the subject, that is, if this
    /// one would have to inject again after both.
    fn check_free(
        &self,
        binding: &K,
        subject: &DynamicObject,
        bind_this: &impl Fn(&mut PodSpecable),
    ) -> Result<()> {
        let object = serde_json::to_value(subject)?;
        let mut others = self.bindings.of(&object)?;
        others.retain(|other| {
            other.name_any() > binding.name_any() && other.meta().deletion_timestamp.is_none()
        });
        if others.is_empty() {
            return Ok(());
        }
        let Ok(bound) = with_changes(&object, &[bind_this]) else { return Ok(()) };
        let none = StatusOf::<K>::default();
        let taker = others.iter().find(|other| {
            let bind_other = |subject: &mut _| bind(&***other, other.read_status().unwrap_or(&none), subject);
            let Ok(by_both) = with_changes(&bound, &[bind_other]) else { return false };
            with_changes(&by_both, &[bind_this]).is_ok_and(|again| again != by_both)
        });
        taker.map_or(Ok(()), |taker| {
            let (subject, taker, kind) = (Key::of(subject), taker.name_any(), K::kind(&()));
            let message = format!(
                "{subject} is a subject of the {kind} {taker} too, which removes the injection: let one {kind} have it"
            );
            // The deletion of one that was never bound does not change the subject.
            Err(Error::from(message).reason(SUBJECT_TAKEN))
        })
    }

    /// Reads the objects to which the binding refers, and those that have its label.
    async fn find(&self, binding: &K, subject: &Reference) -> Result<Found> {
        let current = match self.current(binding).await {
            Err(error) if !error.is_permanent() => return Err(error),
            current => current,
        };
        let mut former = self.bound(binding).await?;
        let is_same = |a: &DynamicObject, b: &DynamicObject| Key::of(a) == Key::of(b);
        former.retain(|object| !current.iter().flatten().any(|other| is_same(object, other)));
        let resource = self.resolve(binding, subject).await?.ok_or("the Kind of the subjects is gone")?;
        Ok(Found { resource, current, former })
    }

    /// Reads the objects to which the binding refers.
    async fn current(&self, binding: &K) -> Result<Vec<Arc<DynamicObject>>> {
        sorted(self.objects.all(binding, &subject_of(binding)?).await)
    }

    /// Reads the objects that have the label of the binding: in all namespaces if it is in none, since its subjects may have
    /// been in another one.
    async fn bound(&self, binding: &K) -> Result<Vec<Arc<DynamicObject>>> {
        let labelled = labelled(binding);
        sorted(match binding.meta().namespace {
            Some(_) => self.objects.all(binding, &labelled).await,
            None => selected_in_all_namespaces(&self.objects, binding, &labelled).await,
        })
    }

    /// Returns the resource of the Kind of the subjects, if the API server serves it. Refuses a cluster-scoped Kind to a
    /// binding in a namespace: a user of that namespace must not change the whole cluster.
    async fn resolve(&self, binding: &K, subject: &Reference) -> Result<Option<ApiResource>> {
        let api_version = readable_version(&subject.api_version);
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let kind = GroupVersionKind::gvk(group, version, &subject.kind);
        let resolved = self.informers.resolve_in_any_version(&kind).await.retry_within(RETRY_WITHIN)?;
        if binding.meta().namespace.is_some() && matches!(resolved, Some((_, Scope::Cluster))) {
            return Err(Error::permanent(format!(
                "{} refers to a {}, which is cluster-scoped: a subject has to be in the namespace of its binding",
                Key::of(binding),
                subject.kind,
            )));
        }
        Ok(resolved.map(|(resource, _)| resource))
    }

    /// Withdraws the injection from these objects. Jobs keep it, since the API server refuses every change of their pod
    /// template.
    async fn withdraw(
        &self,
        binding: &K,
        resource: &ApiResource,
        objects: &[Arc<DynamicObject>],
    ) -> Result<()> {
        if (resource.group.as_str(), resource.kind.as_str()) == ("batch", "Job") {
            return Ok(());
        }
        // An object without a pod template has no injection.
        let is_pod_specable =
            |object: &&Arc<DynamicObject>| PodSpecableSpec::deserialize(&object.data["spec"]).is_ok();
        let objects: Vec<_> = objects.iter().filter(is_pod_specable).cloned().collect();
        // The binding can be deleted although a webhook has put the injection back.
        self.patch_all(resource, &objects, |subject| unbind(binding, subject), |_| Ok(true)).await
    }

    /// Patches the objects that the change affects, and checks what the API server has stored. Tries all of them, and
    /// returns the error that [`first_retried_error`] selects.
    async fn patch_all(
        &self,
        resource: &ApiResource,
        objects: &[Arc<DynamicObject>],
        change: impl Fn(&mut PodSpecable),
        is_stored: impl Fn(&Value) -> Result<bool>,
    ) -> Result<()> {
        let mut result = Ok(());
        for object in objects {
            let patched = match conditional_patch(object, &change) {
                Ok(Some(patch)) => self.patch(resource, object, patch, &is_stored).await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            let patched = patched.context(format_args!("failed binding subject {}", Key::of(&**object)));
            result = first_retried_error(result, patched);
        }
        result
    }

    async fn patch(
        &self,
        resource: &ApiResource,
        object: &DynamicObject,
        patch: Value,
        is_stored: impl Fn(&Value) -> Result<bool>,
    ) -> Result<()> {
        let path = DynamicObject::url_path(resource, object.metadata.namespace.as_deref());
        let params = PatchParams { field_manager: Some(self.manager.clone()), ..PatchParams::default() };
        let request = Request::new(path)
            .patch(&object.name_any(), &params, &Patch::Merge(patch))
            .map_err(kube::Error::BuildRequest)?;
        let answer = match self.client.request_text(request).await {
            Err(error) if is_absence_of(&error, &resource.plural) => return Ok(()), // deleted meanwhile
            // An object that is invalid or too large is so in a retry, too.
            Err(kube::Error::Api(status)) if [413, 422].contains(&status.code) => {
                return Err(kube::Error::Api(status)).permanent();
            }
            answer => answer?,
        };
        match is_stored(&decode_object(&answer)?)? {
            true => Ok(()),
            false => Err(not_stored()).reason(INJECTION_REMOVED),
        }
    }
}

/// Returns true if an object that the API server has stored has the whole injection.
fn is_kept(stored: &Value, bind: impl Fn(&mut PodSpecable)) -> Result<bool> {
    Ok(has_set_fields(stored, &with_changes(stored, &[bind]).permanent()?))
}

/// The error of a patch that admission has changed. It is a conflict, which is retried without a report unless it lasts: a
/// [`BindingMutator`](crate::BindingMutator) injects what the stored status of the binding says, until it has the new one.
fn not_stored() -> kube::Error {
    let message =
        "admission has changed the injection: exempt the subject from the webhook or policy that changes it";
    kube::Error::Api(Status::failure(message, reason::CONFLICT).with_code(409).boxed())
}

/// Sorts objects by their keys: the first error, which the condition shows, should not depend on the order of the cache.
fn sorted(objects: Result<Vec<Arc<DynamicObject>>>) -> Result<Vec<Arc<DynamicObject>>> {
    let mut objects = objects?;
    objects.sort_by_key(|object| Key::of(&**object));
    Ok(objects)
}

/// The first error, or the second error if the first is permanent.
fn first_retried_error(first: Result<()>, second: Result<()>) -> Result<()> {
    match (first, second) {
        (Err(first), Err(second)) if first.is_permanent() => Err(second),
        (first, second) => first.and(second),
    }
}

/// Returns the merge patch of the change, with the resourceVersion that was read as precondition. `None` if the object
/// does not change.
fn conditional_patch(object: &DynamicObject, change: impl Fn(&mut PodSpecable)) -> Result<Option<Value>> {
    let before = serde_json::to_value(object)?;
    let patch = merge_patch(&before, &with_changes(&before, &[change]).permanent()?)?;
    Ok(patch.map(|mut patch| {
        patch["metadata"]["resourceVersion"] = json!(object.metadata.resource_version);
        patch
    }))
}
