//! The cluster as tests and stubs see it: the objects on the API server, without replicas, caches or faults.

use std::{sync::Arc, time::Duration};

use http::Request;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Resource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{server::Server, time::Time};

/// The cluster of a simulation: the objects on the API server, for steps, stubs and checks.
///
/// Objects are named as reknit names keys: `shop/web`, or `web` for an object without a namespace. Requests that the
/// API server refuses panic with its message, because a step of a test expects them to succeed.
pub struct Cluster {
    server: Server,
    now: Time,
    /// The earliest time of [`wake_after`](Self::wake_after).
    pub(crate) wake: Option<Time>,
    /// True if an object was written through this since the stubs were last called.
    pub(crate) has_written: bool,
}

impl Cluster {
    pub(crate) fn new(server: Server) -> Self {
        Self { server, now: Time::default(), wake: None, has_written: false }
    }

    pub(crate) fn set_now(&mut self, now: Time) {
        self.now = now;
        self.server.set_now(now);
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// All objects on the API server.
    pub(crate) fn objects(&self) -> Vec<Arc<Value>> {
        self.server.api().objects()
    }

    /// The names of the objects at this path of a resource.
    pub(crate) fn names(&self, collection: &str) -> Vec<String> {
        let list = Request::get(collection).body(Vec::new()).map(|request| self.server.send(request));
        let list: Value = list
            .ok()
            .and_then(Result::ok)
            .and_then(|body| serde_json::from_slice(&body).ok())
            .unwrap_or_default();
        let items = list["items"].as_array().into_iter().flatten();
        items.filter_map(|item| item["metadata"]["name"].as_str().map(ToOwned::to_owned)).collect()
    }

    /// Returns the simulated time. It starts at 2026-01-01T00:00:00Z.
    pub fn now(&self) -> Timestamp {
        self.now.timestamp()
    }

    /// Returns the time since the start of the simulation.
    pub fn elapsed(&self) -> Duration {
        self.now.since_start()
    }

    /// Calls the stubs again after this time. Without that, they are called after each change of an object.
    pub fn wake_after(&mut self, wait: Duration) {
        let wake = self.now + wait.max(Duration::from_millis(1));
        self.wake = Some(self.wake.map_or(wake, |earlier| earlier.min(wake)));
    }

    /// Returns an object, by its key.
    ///
    /// # Panics
    ///
    /// Panics if the object cannot be decoded.
    pub fn get<K: Resource<DynamicType = ()> + DeserializeOwned>(&self, key: &str) -> Option<K> {
        let (namespace, name) = split(key);
        self.server.api().object(namespace, name)
    }

    /// Returns all objects of a Kind, sorted by namespace and name.
    ///
    /// # Panics
    ///
    /// Panics if an object cannot be decoded.
    pub fn list<K: Resource<DynamicType = ()> + Clone + DeserializeOwned>(&self) -> Vec<K> {
        let url = K::url_path(&(), None);
        let request = expect(kube::core::Request::new(url).list(&ListParams::default()));
        let body = expect(self.server.send(request));
        let list: ObjectList<K> = expect(serde_json::from_slice(&body));
        list.items
    }

    /// Creates an object.
    ///
    /// # Panics
    ///
    /// Panics if the API server refuses it.
    pub fn create<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: K) {
        let url = K::url_path(&(), object.meta().namespace.as_deref());
        let body = expect(serde_json::to_vec(&with_type(&object)));
        self.write(kube::core::Request::new(url).create(&PostParams::default(), body));
    }

    /// Replaces an object. An object without a resourceVersion replaces whatever is stored.
    ///
    /// # Panics
    ///
    /// Panics if the API server refuses it.
    pub fn replace<K: Resource<DynamicType = ()> + Serialize>(&mut self, object: &K) {
        let url = K::url_path(&(), object.meta().namespace.as_deref());
        let body = expect(serde_json::to_vec(&with_type(object)));
        self.write(kube::core::Request::new(url).replace(&object.name_any(), &PostParams::default(), body));
    }

    /// Merges this JSON into an object.
    ///
    /// # Panics
    ///
    /// Panics if the API server refuses it, for example because the object does not exist.
    pub fn merge<K: Resource<DynamicType = ()>>(&mut self, key: &str, patch: &Value) {
        let (namespace, name) = split(key);
        let request = kube::core::Request::new(K::url_path(&(), namespace));
        self.write(request.patch(name, &PatchParams::default(), &Patch::Merge(patch)));
    }

    /// Merges this JSON into the status subresource of an object.
    ///
    /// # Panics
    ///
    /// Panics if the API server refuses it.
    pub fn merge_status<K: Resource<DynamicType = ()>>(&mut self, key: &str, status: &Value) {
        let (namespace, name) = split(key);
        let patch = Patch::Merge(serde_json::json!({ "status": status }));
        let request = kube::core::Request::new(K::url_path(&(), namespace));
        self.write(request.patch_subresource("status", name, &PatchParams::default(), &patch));
    }

    /// Deletes an object, if it exists.
    ///
    /// # Panics
    ///
    /// Panics if the API server refuses it.
    pub fn delete<K: Resource<DynamicType = ()>>(&mut self, key: &str) {
        let (namespace, name) = split(key);
        let request = kube::core::Request::new(K::url_path(&(), namespace));
        let request = expect(request.delete(name, &DeleteParams::default()));
        self.server.send(request).ok();
        self.has_written = true;
    }

    fn write<E: std::fmt::Debug>(&mut self, request: Result<Request<Vec<u8>>, E>) {
        expect(self.server.send(expect(request)));
        self.has_written = true;
    }
}

/// Splits a key into namespace and name.
fn split(key: &str) -> (Option<&str>, &str) {
    key.split_once('/').map_or((None, key), |(namespace, name)| (Some(namespace), name))
}

/// The object as JSON, with its apiVersion and Kind.
fn with_type<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Value {
    let mut value = expect(serde_json::to_value(object));
    value["apiVersion"] = Value::from(K::api_version(&()));
    value["kind"] = Value::from(K::kind(&()));
    value
}

#[expect(clippy::panic, reason = "a step of a test expects success")]
fn expect<T, E: std::fmt::Debug>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("a request of the test failed: {error:?}"))
}
