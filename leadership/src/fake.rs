//! An API server with Leases for tests, which can refuse requests, answer late, or never answer.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{Client, api::ApiResource, client::Body};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use reknit_apis::Key;
use reknit_apiserver::ApiServer;
use reknit_injection::{Context, Informer, internal, select};
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::{BoxError, Service};

use crate::candidate::Candidate;

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

const NAMESPACE: &str = "ns";

#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    server: ApiServer,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The informers that report each change.
    informers: Vec<Informer<Lease>>,
    /// The time by which the informers report a change late.
    lag: Duration,
    /// The resourceVersion of each lease, as the informers know it.
    versions: BTreeMap<String, u64>,
    /// The highest resourceVersion so far.
    last_version: u64,
    requests: Vec<(Method, Value)>,
    reads_of_pods: usize,
    faults: VecDeque<(Method, Fault)>,
    down: bool,
    random_faults: Option<RandomFaults>,
}

/// The source of random faults, the percentage of requests with one, and the choice of the fault.
type RandomFaults = (StdRng, u32, fn(&mut StdRng) -> Fault);

/// The fault of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The request is not applied, and answered with this status code.
    Refused(u16),
    /// The request is not applied, and answered with 429, which asks for a wait of this number of seconds.
    RefusedFor(u32),
    /// The request is applied, and never answered.
    AnswerLost,
    /// The request is applied only after this time, and then answered.
    Late(Duration),
    /// The request is applied at once, and answered only after this time.
    LateAnswer(Duration),
    /// The request is applied, and the body of the answer never arrives.
    BodyLost,
}

impl Fault {
    fn random(random: &mut StdRng) -> Self {
        let delay = Duration::from_millis(random.random_range(0..20_000));
        match random.random_range(0..6) {
            0 => Self::Refused(409),
            1 => Self::Refused(503),
            2 => Self::AnswerLost,
            3 => Self::Late(delay),
            4 => Self::LateAnswer(delay),
            _ => Self::BodyLost,
        }
    }
}

impl FakeApi {
    pub(crate) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request| {
            let api = api.clone();
            // A request that was sent is applied, even if its caller no longer waits for the answer.
            let answer = tokio::spawn(async move { api.answer(request).await });
            async move { answer.await? }
        });
        Client::new(service, "default")
    }

    /// Stores the Lease with this spec and a new resourceVersion.
    pub(crate) fn put_lease(&self, name: &str, spec: Value) {
        self.put(name, json!({}), spec);
    }

    /// Stores the Lease with this spec and this metadata, to which the name, the namespace, a uid and a resourceVersion
    /// are added.
    pub(crate) fn put(&self, name: &str, mut metadata: Value, spec: Value) {
        let version = (self.state.lock().last_version + 1).to_string();
        for (key, value) in
            [("name", name), ("namespace", NAMESPACE), ("uid", "uid"), ("resourceVersion", &*version)]
        {
            metadata[key] = json!(value);
        }
        let lease = json!({"metadata": metadata, "spec": spec});
        self.server.insert::<Lease>(&serde_json::from_value(lease).unwrap());
        self.report(name);
    }

    pub(crate) fn delete_lease(&self, name: &str) {
        self.server.remove::<Lease>(Some(NAMESPACE), name);
        self.report(name);
    }

    pub(crate) fn spec(&self, name: &str) -> Value {
        let lease = self.server.object_of(&ApiResource::erase::<Lease>(&()), Some(NAMESPACE), name);
        lease.map_or(Value::Null, |lease| lease.data["spec"].clone())
    }

    pub(crate) fn annotations(&self, name: &str) -> Value {
        self.lease(name).map_or(Value::Null, |lease| json!(lease.metadata.annotations))
    }

    pub(crate) fn holder(&self, name: &str) -> String {
        self.spec(name)["holderIdentity"].as_str().unwrap_or_default().into()
    }

    /// The names of the leases.
    pub(crate) fn names(&self) -> Vec<String> {
        self.state.lock().versions.keys().cloned().collect()
    }

    /// Lets the candidate watch the leases, and reports each change at once. A watch that `hangs` reports only the
    /// present leases.
    pub(crate) fn watched_by(&self, candidate: Candidate, hangs: bool) -> Candidate {
        let cx = Context::preloaded("test", self.client(), vec![]);
        let informer: Informer<Lease> = cx.informer(select().namespace(NAMESPACE));
        let candidate = candidate.watching(informer.clone());
        let leases = self.names().into_iter().filter_map(|name| self.lease(&name));
        leases.for_each(|lease| internal::insert(&informer, &lease).unwrap());
        if !hangs {
            self.state.lock().informers.push(informer);
        }
        candidate
    }

    /// Lets the present watches report nothing any more.
    pub(crate) fn silence_watches(&self) {
        self.state.lock().informers.clear();
    }

    /// The bodies of all requests with this method so far.
    pub(crate) fn requests(&self, method: &Method) -> Vec<Value> {
        let state = self.state.lock();
        let requests = state.requests.iter().filter(|(sent, _)| sent == method);
        requests.map(|(_, body)| body.clone()).collect()
    }

    /// The method and the body of all requests so far.
    pub(crate) fn all_requests(&self) -> Vec<(Method, Value)> {
        self.state.lock().requests.clone()
    }

    /// Queues a fault for the next request of this method. Each queued fault applies to one request, in order.
    pub(crate) fn inject_fault(&self, method: Method, fault: Fault) {
        self.state.lock().faults.push_back((method, fault));
    }

    /// Stops or resumes answering. Requests that arrive meanwhile are never answered.
    pub(crate) fn set_down(&self, down: bool) {
        self.state.lock().down = down;
    }

    /// Gives this percentage of requests a random fault.
    pub(crate) fn inject_random_faults(&self, seed: u64, percent: u32) {
        self.state.lock().random_faults = Some((StdRng::seed_from_u64(seed), percent, Fault::random));
    }

    /// Refuses this percentage of requests, as an overloaded server does.
    pub(crate) fn overload(&self, percent: u32) {
        let refuse = |random: &mut StdRng| match random.random_range(0..3) {
            0 => Fault::Refused(500),
            1 => Fault::Refused(429),
            _ => Fault::RefusedFor(1),
        };
        self.state.lock().random_faults = Some((StdRng::seed_from_u64(7), percent, refuse));
    }

    /// Refuses this percentage of requests, each with 429 and the demand to wait for a second.
    pub(crate) fn refuse_for_a_second(&self, seed: u64, percent: u32) {
        let refuse: fn(&mut StdRng) -> Fault = |_| Fault::RefusedFor(1);
        self.state.lock().random_faults = Some((StdRng::seed_from_u64(seed), percent, refuse));
    }

    /// The number of all requests so far.
    pub(crate) fn request_count(&self) -> usize {
        self.state.lock().requests.len()
    }

    /// The number of requests for Pods so far.
    pub(crate) fn reads_of_pods(&self) -> usize {
        self.state.lock().reads_of_pods
    }

    /// Stores a Pod with this status.
    pub(crate) fn put_pod(&self, name: &str, status: Value) {
        let metadata = json!({"name": name, "namespace": NAMESPACE, "uid": name, "resourceVersion": "1"});
        let pod = json!({"metadata": metadata, "status": status});
        self.server.insert::<Pod>(&serde_json::from_value(pod).unwrap());
    }

    /// Answers writes as if admission had replaced the spec of the lease by this one.
    pub(crate) fn store_as(&self, spec: Value) {
        self.server.answer(move |method, _, lease| {
            let mut lease = lease.clone();
            lease["spec"].clone_from(&spec);
            lease["metadata"]["resourceVersion"] = json!("2");
            (*method != Method::GET).then_some((StatusCode::OK, lease))
        });
    }

    /// Answers creations as if the namespace of the Leases did not exist.
    pub(crate) fn without_namespace(self) -> Self {
        self.server.fail("create", "leases", 404);
        self
    }

    async fn answer(&self, request: Request<Body>) -> Result<Answer, BoxError> {
        let (head, body) = request.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let last_part = head.uri.path().rsplit('/').next().unwrap_or_default();
        let name = body["metadata"]["name"].as_str().unwrap_or(last_part).to_owned();
        self.state.lock().reads_of_pods += usize::from(head.uri.path().contains("/pods/"));
        let fault = self.record_request(&head.method, body);
        if self.state.lock().down {
            std::future::pending::<()>().await;
        }
        match fault {
            Some(Fault::Refused(code)) => return Ok(refusal(code, 0)),
            Some(Fault::RefusedFor(seconds)) => return Ok(refusal(429, seconds)),
            Some(Fault::Late(delay)) => sleep(delay).await,
            _ => {}
        }
        let answer = self.server.clone().call(Request::from_parts(head, Body::from(bytes))).await?;
        self.report(&name);
        match fault {
            Some(Fault::AnswerLost) => std::future::pending().await,
            Some(Fault::LateAnswer(delay)) => sleep(delay).await,
            Some(Fault::BodyLost) => return Ok(Response::new(pending_body())),
            _ => {}
        }
        Ok(answer.map(|body| body.map_err(BoxError::from).boxed_unsync()))
    }

    /// Records the request, and takes its fault: the next one queued for its method, else a random one, if any.
    fn record_request(&self, method: &Method, body: Value) -> Option<Fault> {
        let mut state = self.state.lock();
        state.requests.push((method.clone(), body));
        if let Some(next) = state.faults.iter().position(|(faulty, _)| faulty == method) {
            return state.faults.remove(next).map(|(_, fault)| fault);
        }
        let (random, percent, fault) = state.random_faults.as_mut()?;
        random.random_ratio(*percent, 100).then(|| fault(random))
    }

    /// Lets the informers report each later change late by this time.
    pub(crate) fn lag(&self, lag: Duration) {
        self.state.lock().lag = lag;
    }

    /// Reports the lease to the informers if it has changed, at once or late.
    fn report(&self, name: &str) {
        let (lease, lag) = (self.lease(name), self.state.lock().lag);
        if lag.is_zero() {
            return self.report_state(name, lease);
        }
        let (api, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move {
            sleep(lag).await;
            api.report_state(&name, lease);
        });
    }

    fn report_state(&self, name: &str, lease: Option<Lease>) {
        let mut state = self.state.lock();
        let Some(lease) = lease else {
            if state.versions.remove(name).is_some() {
                let key = Key::new(NAMESPACE, name);
                state.informers.iter().for_each(|informer| internal::remove(informer, &key));
            }
            return;
        };
        let version = lease.metadata.resource_version.as_ref().and_then(|version| version.parse().ok());
        if state.versions.insert(name.to_owned(), version.unwrap_or_default()) != version {
            state.last_version = state.last_version.max(version.unwrap_or_default());
            state.informers.iter().for_each(|informer| internal::insert(informer, &lease).unwrap());
        }
    }

    fn lease(&self, name: &str) -> Option<Lease> {
        self.server.object(Some(NAMESPACE), name)
    }
}

fn refusal(code: u16, retry_after: u32) -> Answer {
    let message = StatusCode::from_u16(code).unwrap().to_string();
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code,
        "details": {"retryAfterSeconds": retry_after}});
    let body = Full::from(status.to_string()).map_err(BoxError::from).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

/// A body that never arrives.
fn pending_body() -> UnsyncBoxBody<Bytes, BoxError> {
    UnsyncBoxBody::new(StreamBody::new(futures::stream::pending()))
}
