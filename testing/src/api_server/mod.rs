//! An API server in memory.

mod apply;
mod authorization;
mod change;
mod collection;
mod create;
mod delete;
mod objects;
mod patch;
mod request;
mod response;
mod schema;
mod selector;
#[cfg(test)]
mod tests;
mod write;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::StatusCode;
use http_body_util::BodyExt;
use kube::{Client, Resource, api::DynamicObject, client::Body, discovery::ApiResource};
use reknit_injection::{Permissions, Verb};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use self::write::Write;
use self::{
    apply::ManagedFields,
    authorization::Authorizer,
    collection::Collection,
    objects::Objects,
    request::Request,
    response::Response,
    write::{is_write, stores_object},
};
use crate::TestObject;

/// An API server in memory, for tests of single reconciles. It answers as the real API server does, but without a
/// delay. A test of this crate compares the two verb by verb.
///
/// It supports get, list (label and field selectors, pages), create, update, patch (merge patch, JSON patch,
/// server-side apply with field owners and conflicts), delete and deletecollection, also of the `status` subresource.
/// It generates names from `generateName`, uids, generations and creation times. A resourceVersion changes only with
/// the object. A stale resourceVersion, another uid or a name that exists is answered with 409. Finalizers keep a
/// deleted object until the last one is removed. Preconditions and dry runs work. Of propagation policies, `Orphan` and
/// `Foreground` add their finalizer, and a Job that is deleted without a policy orphans its dependents, as on the real
/// server.
///
/// If the CustomResourceDefinition of a Kind was [inserted](Self::insert), its schema is applied: unknown fields are
/// pruned, defaults are set, types, required fields, enums, bounds and lengths are validated, and server-side apply
/// merges lists by their `x-kubernetes-list-type`. Rules in CEL, patterns and formats are not validated, and the
/// messages for fields with a format may differ. Without a definition, and for built-in Kinds, nothing is defaulted,
/// validated or pruned. Without a definition, server-side apply replaces each list in a custom resource as a whole.
///
/// Every custom resource has the subresource `status`, even if its definition does not declare it. A field selector can
/// name any field of a built-in Kind, but of other Kinds only the name, the namespace and the `selectableFields` of
/// their definition. No controllers run: dependents are not collected, a namespace does not have to exist, and a
/// deleted pod is gone at once. Unsupported requests are answered with 501 and a message that names the feature:
/// watches, strategic merge patches, other subresources. Use a [`ControlPlane`](crate::ControlPlane) for these. A test
/// can still check that such a request is sent, and what follows from its failure, by
/// `fail(Verb::Create, "pods/eviction", 429)`.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::{Api, api::PostParams};
/// use reknit_testing::{ApiServer, Verb};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = ApiServer::new();
/// let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
/// let map: ConfigMap = serde_json::from_value(json!({"metadata": {"generateName": "settings-"}}))?;
/// maps.create(&PostParams::default(), &map).await?;
/// assert_eq!(maps.list(&Default::default()).await?.items.len(), 1);
///
/// server.fail(Verb::Create, "configmaps", 500);
/// assert!(maps.create(&PostParams::default(), &map).await.is_err());
/// assert_eq!(server.take_writes().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct ApiServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: Objects,
    failures: Vec<Failure>,
    /// Checks each request. `None` if every request is allowed.
    authorizer: Option<Authorizer>,
    /// The write requests that [`ApiServer::take_writes`] has not taken yet.
    writes: Vec<Write>,
}

struct Failure {
    verb: Verb,
    resource: String,
    code: u16,
    /// The number of requests that are still to fail. `None` if there is no limit.
    remaining: Option<usize>,
}

impl ApiServer {
    /// Creates a server without objects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores an object as it is and returns it. Replaces an object of that name. The resourceVersion is 1 unless the
    /// object has one, and no manager owns its fields.
    ///
    /// # Panics
    ///
    /// Panics if the object cannot be written as JSON.
    pub fn insert<K: TestObject>(&self, object: &K) -> Value {
        let (collection, value) = encode(object);
        self.state().objects.insert(&collection, value, ManagedFields::default())
    }

    /// Stores an object whose fields this manager owns, as after server-side apply. See [`insert`](Self::insert).
    ///
    /// # Panics
    ///
    /// Panics if the object cannot be written as JSON.
    pub fn insert_applied<K: TestObject>(&self, object: &K, manager: &str) -> Value {
        let (collection, value) = encode(object);
        let mut state = self.state();
        let schema = state.objects.schema(&collection);
        let managed_fields = ManagedFields::of_applied(&collection, schema, manager, &value);
        state.objects.insert(&collection, value, managed_fields)
    }

    /// Answers every request of this verb and resource with this code from now on. The reason follows from the code: a
    /// 409 is `AlreadyExists` for a create and `Conflict` for other verbs.
    pub fn fail(&self, verb: Verb, resource: &str, code: u16) {
        self.state().failures.push(Failure { verb, resource: resource.into(), code, remaining: None });
    }

    /// Answers the next `times` requests of this verb and resource with this code.
    pub fn fail_times(&self, verb: Verb, resource: &str, code: u16, times: usize) {
        self.state().failures.push(Failure { verb, resource: resource.into(), code, remaining: Some(times) });
    }

    /// Returns the current object.
    ///
    /// # Panics
    ///
    /// Panics if the object cannot be decoded as a `K`.
    pub fn object<K: Resource<DynamicType = ()> + DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<K> {
        self.stored_object(&ApiResource::erase::<K>(&()), namespace, name)
    }

    /// Returns the current object of a Kind that is known only at run time.
    pub fn object_of(
        &self,
        kind: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<DynamicObject> {
        self.stored_object(kind, namespace, name)
    }

    fn stored_object<K: DeserializeOwned>(
        &self,
        resource: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<K> {
        let stored = self.state().objects.get(&Collection::of(resource, namespace), name)?.clone();
        #[expect(clippy::expect_used, reason = "a test has to see what is wrong with the object")]
        Some(serde_json::from_value(stored).expect("the object decodes"))
    }

    /// Takes the write requests so far, in order. They include requests that failed and requests that this server does
    /// not support.
    pub fn take_writes(&self) -> Vec<Write> {
        std::mem::take(&mut self.state().writes)
    }

    /// Refuses requests that these permissions do not cover, and requests of the denied verbs and resources.
    pub(crate) fn authorize(&self, permissions: Permissions, denied: Vec<(Verb, String)>) {
        self.state().authorizer = Some(Authorizer::new(permissions, denied));
    }

    /// Returns the requests that the permissions did not cover, each with the declaration that would allow it.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.state().authorizer.iter().flat_map(Authorizer::refused).cloned().collect()
    }

    /// Returns a client of this server.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let (code, body) = match Request::parse(&head, &body) {
                    Ok(request) => server.handle(&request),
                    Err(rejection) => rejection,
                };
                let mut response = http::Response::new(Body::from(body.to_string().into_bytes()));
                *response.status_mut() = code;
                Ok::<_, kube::Error>(response)
            }
        });
        Client::new(service, "default")
    }

    fn handle(&self, request: &Request) -> Response {
        let mut state = self.state();
        if let Some(refusal) = state.refuse(request) {
            return refusal;
        }
        let injected = state.take_failure(request);
        let result = match injected {
            // The write is recorded, and nothing is stored.
            Some(_) => state.objects.clone().handle(request),
            None => state.objects.handle(request),
        };
        if is_write(request.verb) {
            let success = result.as_ref().ok().filter(|_| stores_object(request.verb));
            state.writes.push(request.to_write(success.map(|(_, object)| object.clone())));
        }
        match injected {
            Some(code) => response::injected_failure(request, code),
            None => result.unwrap_or_else(|failure| failure),
        }
    }

    /// Ignores a poisoned lock, so that a panic in one test does not fail another.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the response that refuses the request, if the permissions do not cover it.
    fn refuse(&mut self, request: &Request) -> Option<Response> {
        self.authorizer.as_mut()?.refuse(request, &self.objects)
    }

    /// Returns the status code of the first failure that a test set for such requests, and counts it down.
    fn take_failure(&mut self, request: &Request) -> Option<StatusCode> {
        let matches = |failure: &&mut Failure| {
            failure.verb == request.verb
                && failure.resource == request.resource()
                && failure.remaining != Some(0)
        };
        let failure = self.failures.iter_mut().find(matches)?;
        failure.remaining = failure.remaining.map(|remaining| remaining - 1);
        StatusCode::from_u16(failure.code).ok()
    }
}

/// Encodes the object with its apiVersion and kind, and returns it with its collection.
fn encode<K: TestObject>(object: &K) -> (Collection, Value) {
    #[expect(clippy::expect_used, reason = "objects of Kubernetes are JSON, and this is for tests")]
    let mut value = serde_json::to_value(object).expect("an object is JSON");
    let resource = object.api_resource();
    if let Some(fields) = value.as_object_mut() {
        fields.entry("apiVersion").or_insert_with(|| json!(resource.api_version));
        fields.entry("kind").or_insert_with(|| json!(resource.kind));
    }
    (Collection::of(&resource, object.meta().namespace.as_deref()), value)
}

/// Returns the metadata of an object. Adds it if there is none.
fn metadata(value: &mut Value) -> &mut serde_json::Map<String, Value> {
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
    }
    match &mut value["metadata"] {
        Value::Object(metadata) => metadata,
        _ => unreachable!("metadata was set to an object above"),
    }
}

/// Removes nulls and empty lists and maps, which the API server does not store.
fn remove_empty(fields: &mut serde_json::Map<String, Value>) {
    fields.retain(|_, value| match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        value => !value.is_null(),
    });
}
