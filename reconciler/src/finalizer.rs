//! The entry in `metadata.finalizers` that keeps an object until its controller has finalized it.

use kube::api::ObjectMeta;
use reknit_apis::{Key, Kind, qualified_name};
use serde_json::json;

use crate::object_client::{ObjectClient, status_code};

/// The finalizer of one controller, and how it is written.
pub(crate) struct Finalizer {
    name: String,
    /// Applied under this field manager rather than merged.
    manager: Option<String>,
}

/// Kubernetes would not take it as the name of a finalizer of this Kind.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{name:?} is no name for a finalizer: {why}: give it one such as `example.com/cleanup` by `.finalizer(…)`"
)]
pub(crate) struct Unqualified {
    name: String,
    why: String,
}

impl Finalizer {
    /// Of this name, or `<plural>.<group>`.
    pub(crate) fn of<K: Kind>(name: Option<&str>, manager: Option<&str>) -> Result<Self, Unqualified> {
        let name = match name {
            Some(name) => name.to_owned(),
            None if K::group(&()).is_empty() => K::plural(&()).into_owned(),
            None => format!("{}.{}", K::plural(&()), K::group(&())),
        };
        match complaint::<K>(&name) {
            Some(why) => Err(Unqualified { name, why }),
            None => Ok(Self { name, manager: manager.map(Into::into) }),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the object waits for this finalizer.
    pub(crate) fn is_on(&self, meta: &ObjectMeta) -> bool {
        names(meta).contains(&self.name)
    }

    /// Whether nothing but this finalizer keeps the object.
    pub(crate) fn is_last_on(&self, meta: &ObjectMeta) -> bool {
        matches!(names(meta), [only] if *only == self.name)
    }

    /// Puts the finalizer on the object, and answers it as it is then; none where it is gone.
    pub(crate) async fn add<K: Kind>(
        &self,
        client: &ObjectClient<K>,
        object: &K,
    ) -> Result<Option<K>, kube::Error> {
        let added = self.try_to_add(client, object).await;
        match added {
            Err(error) if is_of_absence(&error) && client.is_gone(object).await.unwrap_or(false) => Ok(None),
            added => added.map(Some),
        }
    }

    async fn try_to_add<K: Kind>(&self, client: &ObjectClient<K>, object: &K) -> Result<K, kube::Error> {
        match &self.manager {
            Some(manager) => client.apply_metadata(object, applied(object, &[&self.name]), manager).await,
            None => {
                let mut all = names(object.meta()).to_vec();
                all.push(self.name.clone());
                client.patch_metadata(object, json!({ "finalizers": all })).await
            }
        }
    }

    /// Takes the finalizer off the object. An object that is gone already needs none of that.
    pub(crate) async fn remove<K: Kind>(
        &self,
        client: &ObjectClient<K>,
        object: &K,
    ) -> Result<(), kube::Error> {
        let removed = self.try_to_remove(client, object).await;
        match removed {
            Err(error) if status_code(&error).is_some() && client.is_gone(object).await.unwrap_or(false) => {
                Ok(())
            }
            removed => removed,
        }
    }

    async fn try_to_remove<K: Kind>(&self, client: &ObjectClient<K>, object: &K) -> Result<(), kube::Error> {
        let Some(manager) = &self.manager else { return self.merge_away(client, object).await };
        let mut nothing = applied(object, &[]);
        if let Some(version) = &object.meta().resource_version {
            nothing["resourceVersion"] = json!(version); // what somebody else changed has not been finalized
        }
        let answer = client.apply_metadata(object, nothing, manager).await?;
        if self.is_on(answer.meta()) {
            return self.merge_away(client, &answer).await; // put there by somebody else, or by a merge patch
        }
        Ok(())
    }

    async fn merge_away<K: Kind>(&self, client: &ObjectClient<K>, object: &K) -> Result<(), kube::Error> {
        let others: Vec<_> = names(object.meta()).iter().filter(|name| **name != self.name).collect();
        client.patch_metadata(object, json!({ "finalizers": others })).await.map(drop)
    }
}

/// What the API server answers of an object that is gone, or that another took the place of.
fn is_of_absence(error: &kube::Error) -> bool {
    matches!(status_code(error), Some(404 | 409))
}

fn names(meta: &ObjectMeta) -> &[String] {
    meta.finalizers.as_deref().unwrap_or_default()
}

/// The uid sees to it that applying never brings an object back.
fn applied<K: Kind>(object: &K, finalizers: &[&str]) -> serde_json::Value {
    let Key { namespace, name } = Key::of(object);
    let mut metadata = json!({ "name": name, "finalizers": finalizers });
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    if let Some(uid) = &object.meta().uid {
        metadata["uid"] = json!(uid);
    }
    metadata
}

/// What Kubernetes would say of it: a finalizer is a qualified name, and one of its own Kinds needs the slash. Without
/// any domain two controllers would soon share it.
fn complaint<K: Kind>(name: &str) -> Option<String> {
    match &*qualified_name(name) {
        [] if name.contains('/') => None,
        [] if K::BUILT_IN => Some("Kubernetes wants a domain, a slash and a name on its own Kinds".into()),
        [] if name.contains('.') => None,
        [] => Some("it has no domain".into()),
        complaints => Some(complaints.join("; ")),
    }
}
