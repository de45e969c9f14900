//! Reads the objects of the controller's Kind, and writes their status and finalizers.

use std::{marker::PhantomData, sync::Arc};

use futures::FutureExt;
use kube::api::{ObjectMeta, PatchParams};
use reknit_apis::{Key, Kind};
use reknit_injection::internal::decode_value;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{
    Queue,
    object_client::{ObjectClient, OnlyMetadata},
    readable::Readable,
};

/// The client of the controller's Kind. The echoes of its writes do not enqueue the keys of the written
/// objects, except of those that are based on a state which the pass has not seen.
pub(crate) struct KindClient<K> {
    client: ObjectClient,
    queue: Queue,
    kind: PhantomData<fn() -> K>,
}

/// An attempt to write a status.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attempt {
    First,
    Later,
}

/// The metadata that the next write of an object needs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WriteMeta {
    pub(crate) resource_version: Option<String>,
    pub(crate) finalizers: Option<Vec<String>>,
}

impl From<&ObjectMeta> for WriteMeta {
    fn from(meta: &ObjectMeta) -> Self {
        Self { resource_version: meta.resource_version.clone(), finalizers: meta.finalizers.clone() }
    }
}

/// The part of the answer to a status write that is read.
#[derive(Deserialize)]
pub(crate) struct StatusAnswer {
    pub(crate) metadata: WriteMeta,
    /// As it is written, since another client may have nested its part too deep.
    status: Option<Box<RawValue>>,
}

impl StatusAnswer {
    pub(crate) fn status(&self) -> Value {
        self.status.as_deref().and_then(|status| decode_value(status.get()).ok()).unwrap_or_default()
    }

    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

impl<K: Kind> KindClient<K> {
    pub(crate) fn new(client: ObjectClient, queue: Queue) -> Self {
        Self { client, queue, kind: PhantomData }
    }

    /// The field manager of merge patches.
    pub(crate) fn manager(&self) -> &str {
        &self.client.manager
    }

    /// Reads the object from the API server, as JSON, which may be nested too deep for serde_json.
    pub(crate) async fn get(&self, key: &Key) -> kube::Result<Option<Box<RawValue>>> {
        self.client.get(key).await
    }

    /// Reads the metadata from the API server.
    pub(crate) async fn get_meta(&self, key: &Key) -> kube::Result<Option<ObjectMeta>> {
        let found = self.client.get::<OnlyMetadata>(key).await?;
        Ok(found.map(|found| found.metadata))
    }

    /// Returns true if the object no longer exists, even if another object has its name now.
    pub(crate) async fn is_gone(&self, object: &K) -> kube::Result<bool> {
        let found = self.get_meta(&Key::of(object)).await?;
        Ok(found.is_none_or(|found| found.uid != object.meta().uid))
    }

    /// Returns true if the object exists and is not being deleted.
    pub(crate) async fn is_alive(&self, object: &K) -> kube::Result<bool> {
        let found = self.get_meta(&Key::of(object)).await?;
        Ok(found.is_some_and(|found| found.uid == object.meta().uid && found.deletion_timestamp.is_none()))
    }

    /// Merge-patches the finalizers if the object is unchanged. The echo does not enqueue the key.
    pub(crate) async fn patch_finalizers(
        &self,
        object: &K,
        finalizers: &[&str],
    ) -> kube::Result<Readable<K>> {
        let mut metadata = precondition(object.meta().resource_version.as_deref());
        metadata["finalizers"] = json!(finalizers);
        let key = Arc::new(Key::of(object));
        let write = self.client.merge(&key, json!({ "metadata": metadata }));
        let write = write.map(|answer: kube::Result<Box<RawValue>>| decode_answer(&answer?));
        self.queue.suppressing_echo(key, write, Readable::version).await
    }

    /// Applies metadata with this field manager, even if the object has changed, unless the metadata contains a
    /// resourceVersion. The echo of this write enqueues the key, since the pass has not seen the state that it changed.
    pub(crate) async fn apply_metadata(
        &self,
        object: &K,
        metadata: Value,
        manager: &str,
    ) -> kube::Result<Readable<K>> {
        let body = json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata });
        let params = PatchParams::apply(manager).force();
        let answer: Box<RawValue> = self.client.apply(&Key::of(object), &params, body).await?;
        decode_answer(&answer)
    }

    /// Merge-patches the status if the object still has this version. Only the echo of the first attempt is suppressed.
    /// A later attempt is based on a state that the pass has not seen, so its echo enqueues the key.
    pub(crate) async fn patch_status(
        &self,
        key: &Arc<Key>,
        version: Option<&str>,
        status: &Value,
        attempt: Attempt,
    ) -> kube::Result<StatusAnswer> {
        let write =
            self.client.merge_status(key, json!({ "metadata": precondition(version), "status": status }));
        match attempt {
            Attempt::First => self.queue.suppressing_echo(key.clone(), write, StatusAnswer::version).await,
            Attempt::Later => write.await,
        }
    }
}

fn decode_answer<K: Kind>(answer: &RawValue) -> kube::Result<Readable<K>> {
    Readable::decode(answer.get()).map_err(kube::Error::SerdeError)
}

/// The metadata that makes a patch conditional on the resourceVersion.
fn precondition(version: Option<&str>) -> Value {
    version.map_or_else(|| json!({}), |version| json!({ "resourceVersion": version }))
}
