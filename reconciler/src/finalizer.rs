//! The entry in `metadata.finalizers` that keeps an object until its controller has finalized it.

use kube::api::ObjectMeta;
use reknit_apis::{Key, Kind, qualified_name};
use serde_json::{Value, json};

use crate::{Error, Result, kind_client::KindClient, object_client::status_code};

/// The finalizer of one controller.
#[derive(Clone)]
pub(crate) struct Finalizer {
    name: String,
    /// The field manager of server-side apply; `None` if the finalizer is written by a merge patch.
    manager: Option<String>,
    /// The reason why Kubernetes would not accept the name, if there is one.
    problem: Option<String>,
}

impl Finalizer {
    /// Creates the finalizer of this name, by default `<plural>.<group>`.
    pub(crate) fn of<K: Kind>(name: Option<String>, manager: Option<String>) -> Self {
        let name = name.unwrap_or_else(plural_and_group::<K>);
        let problem = name_problem::<K>(&name);
        Self { name, manager, problem }
    }

    /// Fails if Kubernetes would not accept the name.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { name, problem: Some(problem), .. } = self else { return Ok(()) };
        Err(Error::permanent(format!(
            "invalid finalizer {name:?}: {problem}: set a name such as `example.com/cleanup` by `.finalizer(…)`"
        )))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn is_on(&self, meta: &ObjectMeta) -> bool {
        finalizers(meta).contains(&self.name)
    }

    /// Returns true if this is the only finalizer of the object.
    pub(crate) fn is_last_on(&self, meta: &ObjectMeta) -> bool {
        matches!(finalizers(meta), [only] if *only == self.name)
    }

    /// Adds the finalizer, and returns the changed object, or `None` if it is gone.
    pub(crate) async fn add<K: Kind>(&self, client: &KindClient<K>, object: &K) -> kube::Result<Option<K>> {
        let added = match &self.manager {
            Some(manager) => {
                client.apply_metadata(object, metadata_to_apply(object, &[&self.name]), manager).await
            }
            None => {
                let others = finalizers(object.meta()).iter().map(String::as_str);
                let all: Vec<_> = others.chain([self.name.as_str()]).collect();
                client.patch_finalizers(object, &all).await
            }
        };
        match added {
            // The object was deleted, or replaced by another one of the same name.
            Err(error) if matches!(status_code(&error), Some(404 | 409)) && is_gone(client, object).await => {
                Ok(None)
            }
            added => added.map(Some),
        }
    }

    /// Removes the finalizer. An object that is gone is not an error.
    pub(crate) async fn remove<K: Kind>(&self, client: &KindClient<K>, object: &K) -> kube::Result<()> {
        match self.try_remove(client, object).await {
            Err(error) if status_code(&error).is_some() && is_gone(client, object).await => Ok(()),
            removed => removed,
        }
    }

    async fn try_remove<K: Kind>(&self, client: &KindClient<K>, object: &K) -> kube::Result<()> {
        let Some(manager) = &self.manager else { return self.remove_by_merge_patch(client, object).await };
        let mut metadata = metadata_to_apply(object, &[]);
        if let Some(version) = &object.meta().resource_version {
            metadata["resourceVersion"] = json!(version); // a changed object has not been finalized
        }
        let answer = client.apply_metadata(object, metadata, manager).await?;
        if self.is_on(answer.meta()) {
            // Another field manager or a merge patch owns the entry too, so applying without it has not removed it.
            return self.remove_by_merge_patch(client, &answer).await;
        }
        Ok(())
    }

    async fn remove_by_merge_patch<K: Kind>(&self, client: &KindClient<K>, object: &K) -> kube::Result<()> {
        let all = finalizers(object.meta()).iter().map(String::as_str);
        let others: Vec<_> = all.filter(|name| *name != self.name).collect();
        client.patch_finalizers(object, &others).await.map(drop)
    }
}

/// The default name of a controller and of its finalizer: `<plural>.<group>`.
pub(crate) fn plural_and_group<K: Kind>() -> String {
    match (K::plural(&()), K::group(&())) {
        (plural, group) if group.is_empty() => plural.into_owned(),
        (plural, group) => format!("{plural}.{group}"),
    }
}

async fn is_gone<K: Kind>(client: &KindClient<K>, object: &K) -> bool {
    client.is_gone(object).await.unwrap_or(false)
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
