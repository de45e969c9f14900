//! The API server: a service of requests, with the methods of tests.

use std::{
    fmt::Display,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{self, Poll},
};

use http::{Method, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::{
    Client, Resource,
    api::DynamicObject,
    client::Body,
    discovery::{ApiResource, verbs},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tower::Service;

use crate::{
    apply::ManagedFields,
    authorization::Authorizer,
    collection::Collection,
    failures::Failures,
    identity::Clock,
    object::{resource_of, to_json},
    objects::{Objects, Position},
    reply::{Reply, ResponseBody},
    request::Request,
    request_info::RequestInfo,
    response::Response,
    watch::Watch,
    write::{Write, is_write, stores_object},
};

/// An API server in memory. It answers as the real API server does, but without a delay.
///
/// It supports get, list (label and field selectors, pages, resourceVersions), watch, create, update, patch (merge patch,
/// JSON patch, server-side apply with field owners and conflicts), delete and deletecollection, and sends only the metadata
/// of objects to clients that ask for that. The subresources are `status`, `scale`, and `approval` of
/// CertificateSigningRequests: each writes its part of the object only. It generates names from
/// `generateName`, uids, generations and creation times. A resourceVersion changes only with the object. A stale
/// resourceVersion, another uid or a name that exists is answered with 409. Finalizers keep a deleted object until the
/// last one is removed. Preconditions and dry runs work. Of propagation policies, `Orphan` and `Foreground` add their
/// finalizer, and a Job that is deleted without a policy orphans its dependents, as on the real server.
///
/// Watches support selectors, bookmarks (one a minute), `timeoutSeconds` and `sendInitialEvents`. An object that starts
/// to match the selectors is `ADDED`, and one that stops is `DELETED`. Uids and generated names are derived from the
/// resource, the namespace, the name and the number of earlier objects of that name. So they are the same in each run of
/// a test.
///
/// If the CustomResourceDefinition of a Kind was [inserted](Self::insert), its schema is applied: unknown fields are
/// pruned, defaults are set, objects are validated, and server-side apply merges lists by their
/// `x-kubernetes-list-type`. An update has to be valid where it changes something, as in a cluster. Rules in CEL,
/// patterns and the formats of texts are not validated. Without a definition, and for built-in Kinds, nothing is
/// defaulted, validated or pruned. Without a definition, server-side apply replaces each list in a custom resource as a whole.
///
/// Every custom resource has the subresource `status`, even if its definition does not declare it. A field selector can
/// name any field of a built-in Kind, but of other Kinds only the name, the namespace and the `selectableFields` of
/// their definition. No controllers run, and a deleted pod is gone at once. Dependents are collected, and namespaces that
/// terminate are emptied, by [`collect_garbage`](Self::collect_garbage). A namespace does not have to exist, unless
/// [required](Self::with_required_namespaces). Unsupported requests are answered with a message that names the feature: strategic merge
/// patches with 415, and other subresources with 501. A test can still check that such a request is sent, and what
/// follows from its failure, by `fail("create", "pods/eviction", 429)`.
#[derive(Clone, Default)]
pub struct ApiServer(Arc<Mutex<State>>);

/// Returns the code and the body with which to answer a request of this method, path and body; `None` if the server does.
type AnswerRequest = Box<dyn FnMut(&Method, &str, &Value) -> Option<(StatusCode, Value)> + Send>;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) objects: Objects,
    failures: Failures,
    /// Checks each request. `None` if every request is allowed.
    authorizer: Option<Authorizer>,
    /// Answers requests in place of the server. `None` if the server answers all.
    answer: Option<AnswerRequest>,
    /// The write requests that [`ApiServer::take_writes`] has not taken yet.
    writes: Vec<Write>,
}

impl ApiServer {
    /// Creates a server without objects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the times of objects from this function, for example from a paused clock.
    #[must_use]
    pub fn with_clock(self, now: impl Fn() -> Timestamp + Send + 'static) -> Self {
        self.state().objects.clock = Clock::new(now);
        self
    }

    /// Refuses objects in namespaces that do not exist, with 404. The namespaces of every cluster exist, such as
    /// `default`. Without this option, objects can be created in any namespace.
    #[must_use]
    pub fn with_required_namespaces(self) -> Self {
        self.state().objects.require_namespaces();
        self
    }

    /// Runs the [garbage collector](Self::collect_garbage) after each change, until nothing is left to do.
    #[must_use]
    pub fn with_garbage_collector(self) -> Self {
        self.state().objects.collects_garbage = true;
        self
    }

    /// Stores an object as it is and returns it. Replaces an object of that name. An object without a resourceVersion
    /// gets 1 before the first request, and later the next one of the server. No manager owns its fields.
    ///
    /// # Panics
    ///
    /// Panics if the object cannot be written as JSON.
    pub fn insert<K: Resource + Serialize>(&self, object: &K) -> Value {
        let (collection, value) = encode(object);
        self.state().insert(&collection, value, ManagedFields::default())
    }

    /// Stores an object of a Kind that is known only at run time, such as one whose plural kube would not derive from the
    /// Kind. See [`insert`](Self::insert).
    pub fn insert_of(&self, kind: &ApiResource, object: Value) -> Value {
        let collection = Collection::of(kind, object["metadata"]["namespace"].as_str());
        self.state().insert(&collection, object, ManagedFields::default())
    }

    /// Stores an object whose fields this manager owns, as after server-side apply. See [`insert`](Self::insert).
    ///
    /// # Panics
    ///
    /// Panics if the object cannot be written as JSON.
    pub fn insert_applied<K: Resource + Serialize>(&self, object: &K, manager: &str) -> Value {
        let (collection, value) = encode(object);
        let mut state = self.state();
        let schema = state.objects.schema(&collection);
        let managed_fields = ManagedFields::of_applied(&collection, schema, manager, &value);
        state.insert(&collection, value, managed_fields)
    }

    /// Removes an object at once, whatever its finalizers.
    pub fn remove<K: Resource<DynamicType = ()>>(&self, namespace: Option<&str>, name: &str) {
        let mut state = self.state();
        state.objects.remove(&Collection::of_kind::<K>(namespace), name);
        state.objects.settle();
    }

    /// Compacts the history, as etcd does after some minutes. A watch from an earlier resourceVersion fails with 410
    /// `Expired`, and so does the next page of a list that began before.
    pub fn compact(&self) {
        self.state().objects.compact();
    }

    /// Ends all open watches, as a restart of the API server does. Their clients can continue from the resourceVersion
    /// that they know, unless it is [compacted](Self::compact).
    pub fn end_watches(&self) {
        self.state().objects.end_watches();
    }

    /// Makes the next change of the garbage collector and of the namespace controller. Returns false if there is nothing
    /// left to do.
    ///
    /// The garbage collector deletes an object whose owners are all gone, and removes references to owners that are gone
    /// from other objects. It carries out the finalizers `foregroundDeletion` (dependents that block the deletion of
    /// their owner go first) and `orphan` (dependents stay, without this owner). A cluster-scoped object with an owner in
    /// a namespace stays, with its references. The objects of a namespace that terminates are deleted, and then the
    /// namespace itself.
    pub fn collect_garbage(&self) -> bool {
        self.state().objects.collect_garbage()
    }

    /// Answers every request of this verb and resource with this code from now on: `fail("patch", "pods/status", 409)`.
    /// The reason follows from the code: a 409 is `AlreadyExists` for a create and `Conflict` for other verbs.
    ///
    /// # Panics
    ///
    /// Panics if RBAC has no such verb.
    pub fn fail(&self, verb: impl Display, resource: &str, code: u16) {
        self.state().failures.add(verb.to_string(), resource, code, None);
    }

    /// Answers the next `times` requests of this verb and resource with this code, as [`fail`](Self::fail) does.
    ///
    /// # Panics
    ///
    /// Panics if RBAC has no such verb.
    pub fn fail_times(&self, verb: impl Display, resource: &str, code: u16, times: usize) {
        self.state().failures.add(verb.to_string(), resource, code, Some(times));
    }

    /// Answers each request for which this function returns a code and a body with them, as if the request had failed:
    /// nothing is stored. The function gets the method, the path and the body of the request.
    ///
    /// ```
    /// use http::StatusCode;
    /// use reknit_apiserver::{ApiServer, Reply};
    /// use serde_json::json;
    ///
    /// let server = ApiServer::new();
    /// server.answer(|_, path, _| path.ends_with("/secrets").then(|| (StatusCode::FORBIDDEN, json!({"kind": "Status"}))));
    /// let Reply::Response(response) = server.handle(&http::Request::get("/api/v1/secrets").body("").unwrap()) else {
    ///     panic!("a watch")
    /// };
    /// assert_eq!(response.status(), 403);
    /// ```
    pub fn answer(
        &self,
        answer: impl FnMut(&Method, &str, &Value) -> Option<(StatusCode, Value)> + Send + 'static,
    ) {
        self.state().answer = Some(Box::new(answer));
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
        let object = self.object_of(&ApiResource::erase::<K>(&()), namespace, name)?;
        #[expect(clippy::expect_used, reason = "a test has to see what is wrong with the object")]
        Some(object.try_parse().expect("the object decodes"))
    }

    /// Returns the current object of a Kind that is known only at run time.
    ///
    /// # Panics
    ///
    /// Panics if the metadata of the object cannot be decoded.
    pub fn object_of(
        &self,
        kind: &ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<DynamicObject> {
        let stored = Value::clone(self.state().objects.get(&Collection::of(kind, namespace), name)?);
        #[expect(clippy::expect_used, reason = "a test has to see what is wrong with the object")]
        Some(serde_json::from_value(stored).expect("the metadata decodes"))
    }

    /// Returns all objects, of every Kind, sorted by their resource, namespace and name.
    pub fn objects(&self) -> Vec<Arc<Value>> {
        self.state().objects.all().cloned().collect()
    }

    /// Takes the write requests so far, in order. They include requests that failed and requests that this server does
    /// not support.
    pub fn take_writes(&self) -> Vec<Write> {
        std::mem::take(&mut self.state().writes)
    }

    /// Authorizes each request by this function. If it returns an error, the request is refused with 403 and this
    /// message, and is not recorded. A request can need several permissions: server-side apply of a new object needs
    /// `create` too, an owner reference that blocks the deletion of its owner needs `update` of the owner's finalizers,
    /// a RoleBinding or ClusterRoleBinding needs `bind` on its role, and a role needs `escalate`, unless the rules that
    /// it [grants](RequestInfo::grants) are allowed themselves. That holds for updates too, unless they change nothing but
    /// owner references and finalizers.
    pub fn authorize(&self, authorizer: impl FnMut(&RequestInfo) -> Result<(), String> + Send + 'static) {
        self.state().authorizer = Some(Authorizer::new(authorizer));
    }

    /// Returns a client of this server whose default namespace is `default`.
    pub fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    /// Answers a request at once. The service does the same; this method is for a test that delivers requests,
    /// responses and watch events itself, in an order of its own. It needs no runtime.
    ///
    /// ```
    /// use reknit_apiserver::{ApiServer, Reply};
    ///
    /// let server = ApiServer::new();
    /// let send = |method: &str, uri: &str, body: &'static str| {
    ///     server.handle(&http::Request::builder().method(method).uri(uri).body(body).unwrap())
    /// };
    /// let Reply::Watch(mut watch) = send("GET", "/api/v1/configmaps?watch=true", "") else { panic!("refused") };
    /// let path = "/api/v1/namespaces/shop/configmaps";
    /// let Reply::Response(created) = send("POST", path, r#"{"metadata": {"name": "prices"}}"#) else { panic!() };
    /// assert_eq!(created.status(), 201);
    /// let events = watch.take_events();
    /// assert_eq!((events[0].event_type, &events[0].object["metadata"]["name"]), ("ADDED", &"prices".into()));
    /// assert!(watch.take_events().is_empty());
    /// ```
    pub fn handle(&self, request: &http::Request<impl AsRef<[u8]>>) -> Reply {
        let handle = |parsed: Request| {
            let mut state = self.state();
            let answer = state.answer.as_mut();
            let answer =
                answer.and_then(|answer| answer(request.method(), request.uri().path(), &parsed.body));
            state.handle(&parsed, answer.map(|(code, body)| (code, body.into())))
        };
        match Request::parse(request).and_then(handle) {
            Ok(Answer::Response(response)) | Err(response) => Reply::of(response),
            Ok(Answer::Watch(position)) => Reply::Watch(Watch::new(self.clone(), *position)),
        }
    }

    /// Ignores a poisoned lock, so that a panic in one test does not fail another.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to a request that is not refused.
enum Answer {
    Response(Response),
    Watch(Box<Position>),
}

impl State {
    fn insert(&mut self, collection: &Collection, object: Value, managed_fields: ManagedFields) -> Value {
        let stored = self.objects.insert(collection, object, managed_fields);
        self.objects.settle();
        stored
    }

    fn handle(&mut self, request: &Request, answer: Option<Response>) -> Result<Answer, Response> {
        let Self { objects, failures, authorizer, writes, .. } = self;
        objects.has_served = true;
        if let Some(refusal) = authorizer.as_mut().and_then(|authorizer| authorizer.refuse(request, objects))
        {
            return Err(refusal);
        }
        let injected = failures.take(request).or(answer);
        if request.verb == verbs::WATCH {
            return injected.map_or_else(
                || objects.open_watch(request).map(|position| Answer::Watch(position.into())),
                Err,
            );
        }
        let result = match injected {
            // The write is recorded, and nothing is stored.
            Some(_) => objects.handle(&Request { is_dry_run: true, ..request.clone() }),
            None => objects.handle(request),
        };
        objects.settle();
        if is_write(request.verb) {
            let success = result.as_ref().ok().filter(|_| stores_object(request.verb));
            writes.push(request.to_write(success.map(|(_, object)| object.clone())));
        }
        let (code, body) = injected.map_or(result, Err)?;
        Ok(Answer::Response((code, request.representation.of(body))))
    }
}

/// Answers requests, so that a client can have layers above the server: `Client::new(layer.layer(server), "shop")`.
impl Service<http::Request<Body>> for ApiServer {
    type Response = http::Response<ResponseBody>;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, kube::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(server.handle(&http::Request::from_parts(head, body)).into())
        })
    }
}

/// Encodes the object with its apiVersion and kind, and returns it with its collection.
fn encode<K: Resource + Serialize>(object: &K) -> (Collection, Value) {
    let (mut value, resource) = (to_json(object), resource_of(object));
    if let Some(fields) = value.as_object_mut() {
        fields.entry("apiVersion").or_insert_with(|| json!(resource.api_version));
        fields.entry("kind").or_insert_with(|| json!(resource.kind));
    }
    (Collection::of(&resource, object.meta().namespace.as_deref()), value)
}
