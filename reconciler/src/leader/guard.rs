//! Stands between kube-leader-election's lock and the API server, and keeps the lock from taking a lease that is
//! not free.
//!
//! The lock reads a Lease, decides by the wall clock whether it has expired, and writes without a precondition:
//! two candidates that read the same expired lease both win. Behind the guard every write carries the
//! resourceVersion it was decided on, and the times the lock reads are those that [`Sightings`] measured.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header::CONTENT_LENGTH};
use http_body_util::{BodyExt, Full};
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::BoxError;

use super::sighting::Sightings;

/// The service that a guarded client sends its requests through.
#[derive(Clone)]
struct Guard {
    client: Client,
    timeout: Duration,
    sightings: Arc<Mutex<Sightings>>,
}

/// A client for exactly one lock on one Lease, which nothing else may use: a second reader would entitle the lock
/// to a write it did not decide on. Has to be called within a tokio runtime.
///
/// `timeout` is that of each request, the whole answer included.
pub(super) fn guarded(client: Client, identity: &str, timeout: Duration) -> Client {
    let namespace = client.default_namespace().to_owned();
    let sightings = Arc::new(Mutex::new(Sightings::new(identity)));
    Client::new(Guard { client, timeout, sightings }, namespace)
}

/// The API server did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no complete answer from the API server within {0:?}")]
struct Unanswered(Duration);

type Answer = Response<Full<Bytes>>;

impl tower::Service<Request<Body>> for Guard {
    type Response = Answer;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let guard = self.clone();
        Box::pin(async move {
            match *request.method() {
                Method::GET => guard.read(request).await,
                Method::POST => guard.create(request).await,
                Method::PATCH => guard.update(request).await,
                _ => Ok(refusal("a lock on a lease only reads, creates and patches it")),
            }
        })
    }
}

impl Guard {
    async fn read(&self, request: Request<Body>) -> Result<Answer, BoxError> {
        self.sightings.lock().begin();
        let answer = self.send(request).await?;
        match answer.status() {
            StatusCode::OK => self.show(answer),
            StatusCode::NOT_FOUND => {
                self.sightings.lock().absent(Instant::now());
                Ok(whole(answer))
            }
            _ => Ok(whole(answer)),
        }
    }

    fn show(&self, answer: Response<Bytes>) -> Result<Answer, BoxError> {
        let (mut parts, body) = answer.into_parts();
        let lease = serde_json::from_slice(&body)?;
        let shown = self.sightings.lock().read(lease, Instant::now());
        parts.headers.remove(CONTENT_LENGTH);
        Ok(Response::from_parts(parts, Full::from(serde_json::to_vec(&shown)?)))
    }

    async fn create(&self, request: Request<Body>) -> Result<Answer, BoxError> {
        if !self.sightings.lock().create() {
            return Ok(refusal("the lease was deleted under a holder whose time has not run out"));
        }
        Ok(whole(self.send(request).await?))
    }

    async fn update(&self, request: Request<Body>) -> Result<Answer, BoxError> {
        let Some(version) = self.sightings.lock().update() else {
            return Ok(refusal("the lease was not read since it was last written"));
        };
        let answer = self.send(preconditioned(request, &version).await?).await?;
        if answer.status().is_success() && unchanged(answer.body(), &version) {
            return Ok(refusal("the write changed nothing, so nobody saw the lease renewed"));
        }
        Ok(whole(answer))
    }

    /// The whole answer, within the time allowed.
    async fn send(&self, request: Request<Body>) -> Result<Response<Bytes>, BoxError> {
        let answer = async {
            let (parts, body) = self.client.send(request).await?.into_parts();
            Ok(Response::from_parts(parts, body.collect().await?.to_bytes()))
        };
        tokio::time::timeout(self.timeout, answer).await.map_err(|_| Unanswered(self.timeout))?
    }
}

/// The patch, to be applied to that version only.
async fn preconditioned(request: Request<Body>, version: &str) -> Result<Request<Body>, BoxError> {
    let (mut parts, body) = request.into_parts();
    let mut patch: Value = serde_json::from_slice(&body.collect().await?.to_bytes())?;
    let metadata = patch.pointer_mut("/metadata").and_then(Value::as_object_mut);
    let metadata = metadata.ok_or("a lease is patched without naming it")?;
    metadata.insert("resourceVersion".into(), json!(version));
    parts.headers.remove(CONTENT_LENGTH);
    Ok(Request::from_parts(parts, Body::from(serde_json::to_vec(&patch)?)))
}

fn unchanged(answer: &[u8], version: &str) -> bool {
    serde_json::from_slice::<Value>(answer)
        .is_ok_and(|lease| lease["metadata"]["resourceVersion"] == *version)
}

fn whole(answer: Response<Bytes>) -> Answer {
    answer.map(Full::new)
}

/// What the API server answers to a write that came too late.
fn refusal(message: &str) -> Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Conflict", "code": 409});
    let mut answer = Response::new(Full::from(status.to_string()));
    *answer.status_mut() = StatusCode::CONFLICT;
    answer
}
