//! An API server with one Lease for tests, which can refuse requests, answer late, or never answer.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::BoxError;

#[derive(Clone, Default)]
pub(super) struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    requests: Vec<(Method, Value)>,
    faults: VecDeque<(Method, Fault)>,
    down: bool,
    no_namespace: bool,
    /// The percentage of requests with a random fault.
    chaos: Option<(StdRng, u32)>,
}

/// The fault of one request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// It is answered with this status and not applied.
    Refused(u16),
    /// It is applied, and the answer is lost.
    AnswerLost,
    /// It is applied after this time.
    Late(Duration),
    /// It is applied, and answered after this time.
    LateAnswer(Duration),
    /// It is applied, and the body of the answer is lost.
    BodyLost,
}

impl Fault {
    fn any(random: &mut StdRng) -> Self {
        let by = Duration::from_millis(random.random_range(0..20_000));
        match random.random_range(0..6) {
            0 => Self::Refused(409),
            1 => Self::Refused(503),
            2 => Self::AnswerLost,
            3 => Self::Late(by),
            4 => Self::LateAnswer(by),
            _ => Self::BodyLost,
        }
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

impl FakeApi {
    pub(super) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request| {
            let api = api.clone();
            // A request that was sent is applied, even if its caller no longer waits for the answer.
            let answer = tokio::spawn(async move { api.answer(request).await });
            async move { answer.await? }
        });
        Client::new(service, "default")
    }

    /// Stores the Lease with a new resourceVersion.
    pub(super) fn put(&self, spec: Value) {
        let mut state = self.0.lock();
        let metadata = json!({"name": "lease", "namespace": "ns", "uid": "uid"});
        state.store(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}));
    }

    pub(super) fn delete(&self) {
        self.0.lock().lease = None;
    }

    pub(super) fn spec(&self) -> Value {
        self.0.lock().lease.as_ref().map_or(Value::Null, |lease| lease["spec"].clone())
    }

    pub(super) fn holder(&self) -> String {
        self.spec()["holderIdentity"].as_str().unwrap_or_default().into()
    }

    /// The bodies of the requests of this method so far.
    pub(super) fn requests(&self, method: &Method) -> Vec<Value> {
        self.0.lock().requests.iter().filter(|(of, _)| of == method).map(|(_, body)| body.clone()).collect()
    }

    /// Sets the fault of the next request of this method.
    pub(super) fn fault(&self, method: Method, fault: Fault) {
        self.0.lock().faults.push_back((method, fault));
    }

    /// Stops or resumes answering.
    pub(super) fn down(&self, down: bool) {
        self.0.lock().down = down;
    }

    /// Gives this percentage of requests a random fault.
    pub(super) fn chaos(&self, seed: u64, percent: u32) {
        self.0.lock().chaos = Some((StdRng::seed_from_u64(seed), percent));
    }

    pub(super) fn without_namespace(self) -> Self {
        self.0.lock().no_namespace = true;
        self
    }

    async fn answer(&self, request: Request<Body>) -> Result<Answer, BoxError> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await?.to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let fault = self.arrive(&parts.method, &body);
        if self.0.lock().down {
            std::future::pending::<()>().await;
        }
        match fault {
            Some(Fault::Refused(code)) => return Ok(status(code)),
            Some(Fault::Late(by)) => sleep(by).await,
            _ => {}
        }
        let answer = self.0.lock().apply(&parts.method, body);
        match fault {
            Some(Fault::AnswerLost) => std::future::pending().await,
            Some(Fault::LateAnswer(by)) => sleep(by).await,
            Some(Fault::BodyLost) => return Ok(Response::new(never())),
            _ => {}
        }
        Ok(answer)
    }

    fn arrive(&self, method: &Method, body: &Value) -> Option<Fault> {
        let mut state = self.0.lock();
        state.requests.push((method.clone(), body.clone()));
        if let Some(next) = state.faults.iter().position(|(of, _)| of == method) {
            return state.faults.remove(next).map(|(_, fault)| fault);
        }
        let (random, percent) = state.chaos.as_mut()?;
        random.random_ratio(*percent, 100).then(|| Fault::any(random))
    }
}

impl State {
    fn apply(&mut self, method: &Method, body: Value) -> Answer {
        match (method, self.lease.clone()) {
            (&Method::GET, Some(lease)) => found(&lease),
            (&Method::POST, _) if self.no_namespace => status(404),
            (&Method::POST, None) => {
                let mut lease = body;
                lease["metadata"]["uid"] = json!(format!("uid-{}", self.version));
                found(&self.store(lease))
            }
            (&Method::POST, Some(_)) => status(409),
            (&Method::PATCH, Some(mut lease)) => {
                let wanted = &body["metadata"]["resourceVersion"];
                if !wanted.is_null() && *wanted != lease["metadata"]["resourceVersion"] {
                    return status(409);
                }
                let before = lease.clone();
                merge(&mut lease, &body);
                if lease == before { found(&lease) } else { found(&self.store(lease)) }
            }
            _ => status(404),
        }
    }

    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.lease = Some(lease.clone());
        lease
    }
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

fn found(lease: &Value) -> Answer {
    let body = lease.to_string();
    let length = body.len();
    Response::builder().header("content-length", length).body(boxed(body)).unwrap()
}

fn status(code: u16) -> Answer {
    let message = StatusCode::from_u16(code).unwrap().to_string();
    let body =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code});
    Response::builder().status(code).body(boxed(body.to_string())).unwrap()
}

fn boxed(body: String) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::from(body).map_err(BoxError::from).boxed_unsync()
}

/// A body that never arrives.
fn never() -> UnsyncBoxBody<Bytes, BoxError> {
    UnsyncBoxBody::new(StreamBody::new(futures::stream::pending()))
}
