//! An API server with Leases for tests, which can refuse requests, answer late, or never answer.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use reknit_apis::Key;
use reknit_injection::{Context, Informer, internal, select};
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::BoxError;

use crate::candidate::Candidate;

#[derive(Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    leases: BTreeMap<String, Value>,
    informers: Vec<Informer<Lease>>,
    version: u64,
    requests: Vec<(Method, Value)>,
    faults: VecDeque<(Method, Fault)>,
    down: bool,
    /// The namespace of the Leases does not exist: creations are answered with 404.
    lacks_namespace: bool,
    /// The source of random faults, and the percentage of requests with one.
    random_faults: Option<(StdRng, u32)>,
}

/// The fault of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The request is not applied, and answered with this status code.
    Refused(u16),
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

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

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

    /// Stores the Lease with this spec and this metadata, to which the name, the namespace and a uid are added.
    pub(crate) fn put(&self, name: &str, mut metadata: Value, spec: Value) {
        for (key, value) in [("name", name), ("namespace", "ns"), ("uid", "uid")] {
            metadata[key] = json!(value);
        }
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec});
        self.0.lock().store(lease);
    }

    pub(crate) fn delete_lease(&self, name: &str) {
        self.0.lock().delete(name);
    }

    pub(crate) fn spec(&self, name: &str) -> Value {
        self.0.lock().leases.get(name).map_or(Value::Null, |lease| lease["spec"].clone())
    }

    pub(crate) fn holder(&self, name: &str) -> String {
        self.spec(name)["holderIdentity"].as_str().unwrap_or_default().into()
    }

    /// The names of the leases.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.lock().leases.keys().cloned().collect()
    }

    /// Lets the candidate watch the leases, and reports each change at once. A watch that `hangs` reports only the
    /// present leases.
    pub(crate) fn watched_by(&self, candidate: Candidate, hangs: bool) -> Candidate {
        let cx = Context::preloaded("test", self.client(), vec![]);
        let informer: Informer<Lease> = cx.informer(select().namespace("ns"));
        let (candidate, mut state) = (candidate.watching(informer.clone()), self.0.lock());
        state.leases.values().for_each(|lease| internal::insert(&informer, &typed(lease)).unwrap());
        if !hangs {
            state.informers.push(informer);
        }
        candidate
    }

    /// The bodies of all requests with this method so far.
    pub(crate) fn requests(&self, method: &Method) -> Vec<Value> {
        let state = self.0.lock();
        let requests = state.requests.iter().filter(|(sent, _)| sent == method);
        requests.map(|(_, body)| body.clone()).collect()
    }

    /// Queues a fault for the next request of this method. Each queued fault applies to one request, in order.
    pub(crate) fn inject_fault(&self, method: Method, fault: Fault) {
        self.0.lock().faults.push_back((method, fault));
    }

    /// Stops or resumes answering. Requests that arrive meanwhile are never answered.
    pub(crate) fn set_down(&self, down: bool) {
        self.0.lock().down = down;
    }

    /// Gives this percentage of requests a random fault.
    pub(crate) fn inject_random_faults(&self, seed: u64, percent: u32) {
        self.0.lock().random_faults = Some((StdRng::seed_from_u64(seed), percent));
    }

    pub(crate) fn without_namespace(self) -> Self {
        self.0.lock().lacks_namespace = true;
        self
    }

    async fn answer(&self, request: Request<Body>) -> Result<Answer, BoxError> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let fault = self.record_request(&parts.method, &body);
        if self.0.lock().down {
            std::future::pending::<()>().await;
        }
        match fault {
            Some(Fault::Refused(code)) => return Ok(status_response(code)),
            Some(Fault::Late(delay)) => sleep(delay).await,
            _ => {}
        }
        let name = parts.uri.path().rsplit('/').next().unwrap_or_default();
        let answer = self.0.lock().apply(&parts.method, name, body);
        match fault {
            Some(Fault::AnswerLost) => std::future::pending().await,
            Some(Fault::LateAnswer(delay)) => sleep(delay).await,
            Some(Fault::BodyLost) => return Ok(Response::new(pending_body())),
            _ => {}
        }
        Ok(answer)
    }

    /// Records the request, and takes its fault: the next one queued for its method, else a random one, if any.
    fn record_request(&self, method: &Method, body: &Value) -> Option<Fault> {
        let mut state = self.0.lock();
        state.requests.push((method.clone(), body.clone()));
        if let Some(next) = state.faults.iter().position(|(faulty, _)| faulty == method) {
            return state.faults.remove(next).map(|(_, fault)| fault);
        }
        let (random, percent) = state.random_faults.as_mut()?;
        random.random_ratio(*percent, 100).then(|| Fault::random(random))
    }
}

impl State {
    fn apply(&mut self, method: &Method, name: &str, body: Value) -> Answer {
        let name = body["metadata"]["name"].as_str().unwrap_or(name).to_owned();
        match (method, self.leases.get(&name).cloned()) {
            (&Method::GET, Some(lease)) => lease_response(&lease),
            (&Method::POST, _) if self.lacks_namespace => status_response(404),
            (&Method::POST, None) => {
                let mut lease = body;
                lease["metadata"]["uid"] = json!(format!("uid-{}", self.version));
                lease_response(&self.store(lease))
            }
            (&Method::POST, Some(_)) => status_response(409),
            (&Method::PATCH, Some(mut lease)) => {
                let precondition = &body["metadata"]["resourceVersion"];
                if !precondition.is_null() && *precondition != lease["metadata"]["resourceVersion"] {
                    return status_response(409);
                }
                let before = lease.clone();
                merge(&mut lease, &body);
                if lease == before { lease_response(&lease) } else { lease_response(&self.store(lease)) }
            }
            (&Method::DELETE, Some(lease)) => {
                let precondition = &body["preconditions"]["resourceVersion"];
                if !precondition.is_null() && *precondition != lease["metadata"]["resourceVersion"] {
                    return status_response(409);
                }
                self.delete(&name);
                lease_response(&lease)
            }
            _ => status_response(404),
        }
    }

    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        lease["metadata"]["namespace"] = json!("ns");
        let name = lease["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.leases.insert(name, lease.clone());
        self.informers.iter().for_each(|informer| internal::insert(informer, &typed(&lease)).unwrap());
        lease
    }

    fn delete(&mut self, name: &str) {
        self.leases.remove(name);
        self.informers.iter().for_each(|informer| internal::remove(informer, &Key::new("ns", name)));
    }
}

fn typed(lease: &Value) -> Lease {
    serde_json::from_value(lease.clone()).unwrap()
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *into = patch.clone();
        return;
    };
    for (key, value) in patch {
        merge(&mut into[key], value);
    }
}

fn lease_response(lease: &Value) -> Answer {
    let body = lease.to_string();
    let length = body.len();
    Response::builder().header("content-length", length).body(boxed(body)).unwrap()
}

fn status_response(code: u16) -> Answer {
    let message = StatusCode::from_u16(code).unwrap().to_string();
    let body =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code});
    Response::builder().status(code).body(boxed(body.to_string())).unwrap()
}

fn boxed(body: String) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::from(body).map_err(BoxError::from).boxed_unsync()
}

/// A body that never arrives.
fn pending_body() -> UnsyncBoxBody<Bytes, BoxError> {
    UnsyncBoxBody::new(StreamBody::new(futures::stream::pending()))
}
