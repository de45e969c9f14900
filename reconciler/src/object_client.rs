//! Reads and writes single objects of a controller's Kind for the framework itself.

use std::{marker::PhantomData, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use kube::{
    api::{ObjectMeta, Patch, PatchParams},
    core::Request,
};
use reknit_apis::{Key, Kind};
use reknit_injection::Transport;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::Queue;

pub(crate) type BuiltRequest = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

/// Reads and patches objects of one Kind, whether namespaced or cluster-scoped.
pub(crate) struct ObjectClient<K> {
    transport: Transport,
    /// The queue in which the echo of a status or finalizer write does not enqueue the key of the written object.
    queue: Queue,
    /// The field manager in `metadata.managedFields`.
    manager: String,
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

    /// Reads the object from the API server.
    pub(crate) async fn get(&self, key: &Key) -> kube::Result<Option<K>> {
        match self.send(request_builder::<K>(key).get(&key.name, &Default::default())).await {
            Err(error) if status_code(&error) == Some(404) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Returns true if the object no longer exists, even if another object has its name now.
    pub(crate) async fn is_gone(&self, object: &K) -> kube::Result<bool> {
        let found = self.get(&Key::of(object)).await?;
        Ok(found.is_none_or(|found| found.meta().uid != object.meta().uid))
    }

    /// Merge-patches the finalizers if the object is unchanged. The echo does not enqueue the key.
    pub(crate) async fn patch_finalizers(&self, object: &K, finalizers: &[&str]) -> kube::Result<K> {
        let mut metadata = precondition(object.meta().resource_version.as_deref());
        metadata["finalizers"] = json!(finalizers);
        let (key, patch) = (Arc::new(Key::of(object)), Patch::Merge(json!({ "metadata": metadata })));
        let write = self.send(request_builder::<K>(&key).patch(&key.name, &self.params(), &patch));
        self.queue.suppressing_echo(key, write, |object: &K| object.meta().resource_version.as_deref()).await
    }

    /// Applies metadata with this field manager, even if the object has changed, unless the metadata contains a
    /// resourceVersion. The echo of this write enqueues the key.
    pub(crate) async fn apply_metadata(&self, object: &K, metadata: Value, manager: &str) -> kube::Result<K> {
        let body = json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata });
        let (key, params) = (Key::of(object), PatchParams::apply(manager).force());
        self.send(request_builder::<K>(&key).patch(&key.name, &params, &Patch::Apply(body))).await
    }

    /// Merge-patches the status if the object still has this version. Only the echo of the first attempt is suppressed.
    /// A later attempt is based on a state that the pass has not seen, so its echo enqueues the key.
    pub(crate) async fn patch_status(
        &self,
        key: &Arc<Key>,
        version: Option<&str>,
        status: &Value,
        attempt: Attempt,
    ) -> kube::Result<WriteMeta> {
        let body = json!({ "metadata": precondition(version), "status": status });
        let request = request_builder::<K>(key).patch_subresource(
            "status",
            &key.name,
            &self.params(),
            &Patch::Merge(body),
        );
        let write = self.send(request);
        let answer: StatusAnswer = match attempt {
            Attempt::First => self.queue.suppressing_echo(key.clone(), write, StatusAnswer::version).await?,
            Attempt::Later => write.await?,
        };
        Ok(answer.metadata)
    }

    /// Sends the request. Its future is boxed: it would enlarge the future of every pass, and few passes send a
    /// request.
    fn send<T: DeserializeOwned + Send + 'static>(
        &self,
        request: BuiltRequest,
    ) -> BoxFuture<'static, kube::Result<T>> {
        let (transport, request) = (self.transport.clone(), request.map_err(kube::Error::BuildRequest));
        async move { transport.request(request?).await }.boxed()
    }

    fn params(&self) -> PatchParams {
        PatchParams { field_manager: Some(self.manager.clone()), ..PatchParams::default() }
    }
}

/// The metadata that makes a patch conditional on the resourceVersion.
fn precondition(version: Option<&str>) -> Value {
    version.map_or_else(|| json!({}), |version| json!({ "resourceVersion": version }))
}

/// Returns a builder of requests for the object of this key, whether namespaced or cluster-scoped.
pub(crate) fn request_builder<T: kube::Resource<DynamicType = ()>>(key: &Key) -> Request {
    Request::new(T::url_path(&(), key.namespace.as_deref()))
}

/// The field manager of a component, cut to 100 characters. The API server's limit is 128.
pub(crate) fn field_manager(component: &str) -> String {
    component.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// The HTTP status code, if the error is an answer of the API server.
pub(crate) fn status_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
