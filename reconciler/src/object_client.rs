//! Where the objects of one Kind are read and written, one by one, by the framework itself.

use std::{marker::PhantomData, sync::Arc};

use futures::{
    FutureExt,
    future::{BoxFuture, ready},
};
use kube::{
    api::{ObjectMeta, Patch, PatchParams},
    core::Request,
};
use reknit_apis::{Key, Kind};
use reknit_injection::Transport;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use crate::Queue;

type Built = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

/// Reads and patches objects of a Kind of either scope, in the name of one controller.
pub(crate) struct ObjectClient<K> {
    transport: Transport,
    /// Whose key a write that ends its pass does not wake.
    queue: Queue,
    /// Who is shown to have written, in `metadata.managedFields`.
    manager: String,
    kind: PhantomData<fn() -> K>,
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

/// What a status write sends.
#[derive(Debug, Serialize)]
struct StatusPatch<'a> {
    metadata: Precondition<'a>,
    status: &'a RawValue,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Precondition<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<&'a str>,
}

/// The part of an answer to a status write that is read.
#[derive(Deserialize)]
struct StatusAnswer {
    metadata: WriteMeta,
}

impl StatusAnswer {
    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

impl<K: Kind> ObjectClient<K> {
    pub(crate) fn new(transport: Transport, queue: Queue, component: &str) -> Self {
        Self { transport, queue, manager: field_manager(component), kind: PhantomData }
    }

    /// The object as the API server has it, if it is there.
    pub(crate) async fn get(&self, key: &Key) -> Result<Option<K>, kube::Error> {
        let request = self.at(key).get(&key.name, &Default::default());
        match self.send(request).await {
            Err(error) if status_code(&error) == Some(404) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Whether this very object is not there any more: gone, or another of its name in its place.
    pub(crate) async fn is_gone(&self, object: &K) -> Result<bool, kube::Error> {
        let now = self.get(&Key::of(object)).await?;
        Ok(now.is_none_or(|now| now.meta().uid != object.meta().uid))
    }

    /// Merges into the metadata, provided that the object is as it was read. Ends the pass of its key.
    pub(crate) async fn patch_metadata(&self, object: &K, metadata: Value) -> Result<K, kube::Error> {
        let body = json!({ "metadata": preconditioned(metadata, object.meta().resource_version.as_deref()) });
        let key = Arc::new(Key::of(object));
        let request = self.at(&key).patch(&key.name, &self.params(), &Patch::Merge(body));
        let write = self.send(request);
        self.queue.suppressing_echo(key, write, |object: &K| object.meta().resource_version.as_deref()).await
    }

    /// Applies metadata under a field manager, whatever else changed meanwhile unless it holds a version; so it is news to
    /// its own key too.
    pub(crate) async fn apply_metadata(
        &self,
        object: &K,
        metadata: Value,
        manager: &str,
    ) -> Result<K, kube::Error> {
        let body = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata,
        });
        let key = Key::of(object);
        let request =
            self.at(&key).patch(&key.name, &PatchParams::apply(manager).force(), &Patch::Apply(body));
        self.send(request).await
    }

    /// Merges into the status, provided that the object has this version. The first attempt of a pass ends it;
    /// later ones go by what was read meanwhile, which the pass has not seen.
    pub(crate) async fn patch_status(
        &self,
        key: &Arc<Key>,
        version: Option<&str>,
        status: &RawValue,
        first: bool,
    ) -> Result<WriteMeta, kube::Error> {
        let body = StatusPatch { metadata: Precondition { resource_version: version }, status };
        let request =
            self.at(key).patch_subresource("status", &key.name, &self.params(), &Patch::Merge(body));
        let write = self.send(request);
        let answer: StatusAnswer = match first {
            true => self.queue.suppressing_echo(key.clone(), write, StatusAnswer::version).await?,
            false => write.await?,
        };
        Ok(answer.metadata)
    }

    /// A box of its own, since every pass has room for this future, and few send anything.
    fn send<T: DeserializeOwned + Send + 'static>(
        &self,
        request: Built,
    ) -> BoxFuture<'static, Result<T, kube::Error>> {
        match request {
            Ok(request) => self.transport.request(request).boxed(),
            Err(error) => ready(Err(kube::Error::BuildRequest(error))).boxed(),
        }
    }

    /// Works for either scope: the path holds the namespace that the key has.
    fn at(&self, key: &Key) -> Request {
        Request::new(K::url_path(&(), key.namespace.as_deref()))
    }

    fn params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.clone()), ..PatchParams::default() }
    }
}

/// Who a component is shown to be in `metadata.managedFields`, which has room for 128 bytes.
pub(crate) fn field_manager(component: &str) -> String {
    component.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// The code of the API server's answer, if that is the error.
pub(crate) fn status_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

fn preconditioned(mut metadata: Value, version: Option<&str>) -> Value {
    if let Some(version) = version {
        metadata["resourceVersion"] = json!(version);
    }
    metadata
}
