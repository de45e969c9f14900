//! The finalizer of a controller: the entry in `metadata.finalizers` that keeps an object until its controller has
//! finalized it.
//!
//! A finalizer that the controller has placed is its obligation until it is removed. [`Finalizer::is_due`] decides this
//! from the metadata alone, whatever the selection, the class or the filter of the controller say by then.

use kube::api::ObjectMeta;
use reknit_apis::{Key, Kind, qualified_name};
use reknit_injection::internal::resource_name;
use serde_json::{Value, json};

use crate::{Error, Result, kind_client::KindClient, object_client::status_code, readable::Readable};

/// The attempts to remove the finalizer from an object that other clients keep changing.
const ATTEMPTS: usize = 5;

/// The finalizers of one controller: the one that it places, and those that it removes.
#[derive(Clone)]
pub(crate) struct Finalizer {
    name: String,
    /// The names under which earlier versions of the controller have finalized.
    former: Vec<String>,
    /// True if the name is the default one.
    is_default: bool,
    /// False for a controller that does not finalize. It removes only the former finalizers.
    is_placed: bool,
    /// The field manager of server-side apply; `None` if the finalizer is written by a merge patch.
    manager: Option<String>,
    /// The reason why Kubernetes would not accept the name, if there is one.
    problem: Option<String>,
}

/// The options of a [`Finalizer`].
#[derive(Default)]
pub(crate) struct FinalizerOptions {
    /// The default is `<plural>.<group>`.
    pub(crate) name: Option<String>,
    pub(crate) former: Vec<String>,
    pub(crate) manager: Option<String>,
}

impl Finalizer {
    pub(crate) fn of<K: Kind>(options: FinalizerOptions, is_placed: bool) -> Self {
        let FinalizerOptions { name, mut former, manager } = options;
        let is_default = name.is_none() && former.is_empty();
        let name = name.unwrap_or_else(plural_and_group::<K>);
        let problem = name_problem::<K>(&name).filter(|_| is_placed);
        former.retain(|former| !is_placed || *former != name);
        Self { name, former, is_default, is_placed, manager, problem }
    }

    /// Makes the check fail for the default name, which another program may use too.
    pub(crate) fn require_own_name(&mut self) {
        if self.is_default && self.problem.is_none() {
            self.problem = Some(
                "a controller that releases objects needs a name that no other program uses, because it removes its \
                 finalizer from objects of others"
                    .into(),
            );
        }
    }

    /// Fails if Kubernetes would not accept the name.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { name, problem: Some(problem), .. } = self else { return Ok(()) };
        Err(Error::permanent(format!(
            "invalid finalizer {name:?}: {problem}: set a name such as `example.com/cleanup` by `.finalizer(…)`"
        )))
    }

    /// The name, if the controller places the finalizer.
    pub(crate) fn name(&self) -> Option<&str> {
        self.is_placed.then_some(&self.name)
    }

    pub(crate) fn former(&self) -> &[String] {
        &self.former
    }

    /// The names of the finalizers that the controller removes: its own, if it places one, and the former ones.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.name().into_iter().chain(self.former.iter().map(String::as_str)).collect()
    }

    /// True if the name is the default one, which another program may use too.
    pub(crate) fn is_default(&self) -> bool {
        self.is_default
    }

    /// Returns true if the object is being deleted and carries a finalizer that only this controller removes.
    pub(crate) fn is_due(&self, meta: &ObjectMeta) -> bool {
        meta.deletion_timestamp.is_some() && finalizers(meta).iter().any(|name| self.removes(name))
    }

    /// Returns true if the object carries the finalizer that the controller places.
    pub(crate) fn is_on(&self, meta: &ObjectMeta) -> bool {
        self.is_placed && finalizers(meta).contains(&self.name)
    }

    /// Returns true if another program has placed the finalizer: its name is the default one, which another program may
    /// use too, and only other field managers own it. `component` is the field manager of this program's merge patches.
    pub(crate) fn is_of_other_program(&self, meta: &ObjectMeta, component: &str) -> bool {
        let entry = format!("v:{}", json!(self.name));
        let owns_entry = |fields: &Value| !fields["f:metadata"]["f:finalizers"][&entry].is_null();
        let managers = meta
            .managed_fields
            .iter()
            .flatten()
            .filter(|managed| managed.fields_v1.as_ref().is_some_and(|fields| owns_entry(&fields.0)));
        let managers: Vec<_> = managers.filter_map(|managed| managed.manager.as_deref()).collect();
        let is_own = |manager: &&str| *manager == component || Some(*manager) == self.manager.as_deref();
        self.is_default && !managers.is_empty() && !managers.iter().any(is_own)
    }

    /// Returns true if the object does not carry the finalizer yet, or still carries a former one.
    pub(crate) fn is_outdated_on(&self, meta: &ObjectMeta) -> bool {
        self.is_missing_on(meta) || self.has_former(finalizers(meta))
    }

    /// Returns true if the object lacks the finalizer that the controller places.
    pub(crate) fn is_missing_on(&self, meta: &ObjectMeta) -> bool {
        self.is_placed && !finalizers(meta).contains(&self.name)
    }

    /// Returns true if the object has no other finalizers.
    pub(crate) fn is_last_on(&self, meta: &ObjectMeta) -> bool {
        finalizers(meta).iter().all(|name| self.removes(name))
    }

    fn removes(&self, name: &String) -> bool {
        (self.is_placed && *name == self.name) || self.former.contains(name)
    }

    fn has_former(&self, finalizers: &[String]) -> bool {
        finalizers.iter().any(|name| self.former.contains(name))
    }

    /// Adds the finalizer, removes the former ones, and returns the changed object, or `None` if it is gone or being
    /// deleted: the API server accepts no new finalizer then, and the watch reports the deletion.
    pub(crate) async fn update<K: Kind>(
        &self,
        client: &KindClient<K>,
        object: &K,
    ) -> kube::Result<Option<Readable<K>>> {
        match self.try_update(client, object).await {
            // The object was deleted, or replaced by another one of the same name.
            Err(error)
                if matches!(status_code(&error), Some(404 | 409 | 422))
                    && !is_alive(client, object).await =>
            {
                Ok(None)
            }
            updated => updated.map(Some),
        }
    }

    async fn try_update<K: Kind>(&self, client: &KindClient<K>, object: &K) -> kube::Result<Readable<K>> {
        let Some(manager) = self.manager.as_ref().filter(|_| self.is_placed) else {
            return self.update_by_merge_patch(client, object).await;
        };
        let applied =
            client.apply_metadata(object, metadata_to_apply(object, &[&self.name]), manager).await?;
        match self.has_former(finalizers(applied.object.meta())) {
            true => self.update_by_merge_patch(client, &applied.object).await,
            false => Ok(applied),
        }
    }

    async fn update_by_merge_patch<K: Kind>(
        &self,
        client: &KindClient<K>,
        object: &K,
    ) -> kube::Result<Readable<K>> {
        let kept = finalizers(object.meta()).iter().filter(|name| !self.former.contains(name));
        let mut all: Vec<_> = kept.map(String::as_str).collect();
        if self.is_placed && !all.contains(&self.name.as_str()) {
            all.push(&self.name);
        }
        client.patch_finalizers(object, &all).await
    }

    /// Removes the finalizer and the former ones from an object that has been finalized in this state. An object that is
    /// gone is not an error.
    ///
    /// If other clients have changed the object meanwhile, the finalizer is removed from its newest version, unless they
    /// have changed what a user asks for. Then, or after five attempts, the conflict is returned.
    pub(crate) async fn remove<K: Kind>(&self, client: &KindClient<K>, object: &K) -> kube::Result<()> {
        let mut newest = K::clone(object);
        for attempt in 1.. {
            let Err(error) = self.try_remove(client, &newest).await else { break };
            let Some(code) = status_code(&error) else { return Err(error) };
            let Ok(found) = client.get_meta(&Key::of(object)).await else { return Err(error) };
            let Some(found) = found.filter(|found| found.uid == object.meta().uid) else { break };
            if code != 409 || attempt == ATTEMPTS || !asks_the_same(object.meta(), &found) {
                return Err(error);
            }
            let meta = newest.meta_mut();
            (meta.resource_version, meta.finalizers) = (found.resource_version, found.finalizers);
        }
        Ok(())
    }

    async fn try_remove<K: Kind>(&self, client: &KindClient<K>, object: &K) -> kube::Result<()> {
        let Some(manager) = &self.manager else { return self.remove_by_merge_patch(client, object).await };
        let mut metadata = metadata_to_apply(object, &[]);
        if let Some(version) = &object.meta().resource_version {
            metadata["resourceVersion"] = json!(version); // a changed spec has not been finalized
        }
        let answer = client.apply_metadata(object, metadata, manager).await?.object;
        if finalizers(answer.meta()).iter().any(|name| self.removes(name)) {
            // Another field manager or a merge patch owns the entry too, so applying without it has not removed it.
            return self.remove_by_merge_patch(client, &answer).await;
        }
        Ok(())
    }

    async fn remove_by_merge_patch<K: Kind>(&self, client: &KindClient<K>, object: &K) -> kube::Result<()> {
        let others = finalizers(object.meta()).iter().filter(|name| !self.removes(name));
        let others: Vec<_> = others.map(String::as_str).collect();
        client.patch_finalizers(object, &others).await.map(drop)
    }
}

/// The default name of a controller and of its finalizer: `<plural>.<group>`.
pub(crate) fn plural_and_group<K: Kind>() -> String {
    resource_name(&K::group(&()), &K::plural(&()), "")
}

async fn is_alive<K: Kind>(client: &KindClient<K>, object: &K) -> bool {
    client.is_alive(object).await.unwrap_or(true)
}

/// Returns true if two states of an object differ at most in the status, the finalizers and the like, which say nothing
/// about what a user asks for. Without a generation this is unknown, and the answer is false.
fn asks_the_same(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.generation.is_some()
        && one.generation == other.generation
        && one.labels == other.labels
        && one.annotations == other.annotations
}

fn finalizers(meta: &ObjectMeta) -> &[String] {
    meta.finalizers.as_deref().unwrap_or_default()
}

/// The metadata to apply. The uid in it prevents the API server from creating a deleted object again.
fn metadata_to_apply<K: Kind>(object: &K, finalizers: &[&str]) -> Value {
    let Key { namespace, name } = Key::of(object);
    let mut metadata = json!({ "name": name, "finalizers": finalizers });
    for (field, value) in [("namespace", &namespace), ("uid", &object.meta().uid)] {
        if let Some(value) = value {
            metadata[field] = json!(value);
        }
    }
    metadata
}

/// Returns the reason if the name is not valid for a finalizer. Kubernetes requires a qualified name, with a slash on
/// its built-in Kinds. A domain is required on other Kinds too, so that two controllers do not use the same name.
fn name_problem<K: Kind>(name: &str) -> Option<String> {
    match &*qualified_name(name) {
        [] if name.contains('/') => None,
        [] if K::BUILT_IN => Some("Kubernetes wants a domain, a slash and a name on its own Kinds".into()),
        [] if name.contains('.') => None,
        [] => Some("it has no domain".into()),
        problems => Some(problems.join("; ")),
    }
}
