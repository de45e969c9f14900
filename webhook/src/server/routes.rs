//! The paths of a webhook, and what is answered to whatever comes.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::any,
};
use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use kube::core::admission::{AdmissionRequest, AdmissionReview};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::timeout;
use tower::ServiceExt;

use crate::{
    admission::raw::Raw,
    admission::validation::Judged,
    conversion::hub::Review,
    server::budget::{Budget, Share},
    server::health::Health,
    server::limits::Limits,
    server::metrics::Metrics,
    webhook::Webhook,
};

/// Where objects get their defaults.
pub(crate) const DEFAULTING: &str = "/defaulting";
/// Where objects are refused.
pub(crate) const VALIDATION: &str = "/resource-validation";
/// Where ConfigMaps are refused.
pub(crate) const CONFIG_VALIDATION: &str = "/config-validation";
/// Where objects become such of another version.
pub(crate) const CONVERSION: &str = "/resource-conversion";

/// What all requests share.
#[derive(Clone)]
pub(crate) struct Shared {
    limits: Arc<Limits>,
    metrics: Metrics,
    /// Of bodies that are held.
    room: Budget,
    /// Of bodies that are decoded.
    work: Budget,
    health: Health,
    drain: Drain,
}

/// Whether the webhook is about to close, and when it was asked last.
#[derive(Clone, Default)]
pub(crate) struct Drain(Arc<Mutex<Asked>>);

#[derive(Default)]
struct Asked {
    draining: bool,
    last: Option<tokio::time::Instant>,
}

impl Drain {
    /// From now on probes are told so; ends when nothing has been asked for so long, and after twice as long whatever is asked:
    /// there has to be time to end in good order.
    pub(crate) async fn quiet(&self, period: Duration) {
        let start = tokio::time::Instant::now();
        self.0.lock().draining = true;
        loop {
            let last = self.0.lock().last.unwrap_or(start).max(start);
            let of_all = period.saturating_mul(2).saturating_sub(start.elapsed());
            let left = period.saturating_sub(last.elapsed()).min(of_all);
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    fn is_draining(&self) -> bool {
        self.0.lock().draining
    }

    fn asked(&self) {
        self.0.lock().last = Some(tokio::time::Instant::now());
    }
}

pub(crate) fn router(webhook: Arc<Webhook>, metrics: Metrics, drain: Drain) -> Router {
    let limits = Arc::new(webhook.limits.clone());
    let (room, work) = (Budget::of_bodies(&limits), Budget::of_work(&limits));
    let shared = Shared { limits, metrics, room, work, health: webhook.health(), drain };
    let mut router = Router::new();
    if !webhook.defaulting.is_empty() {
        let (webhook, shared) = (webhook.clone(), shared.clone());
        let answer = move |asked| webhook.defaulting.answer(asked).into();
        router = router.route(DEFAULTING, review(DEFAULTING, shared, answer));
    }
    if !webhook.validation.is_empty() {
        let (webhook, shared) = (webhook.clone(), shared.clone());
        let answer = move |asked| webhook.validation.answer(asked);
        router = router.route(VALIDATION, review(VALIDATION, shared, answer));
    }
    if !webhook.config_maps.is_empty() {
        let (webhook, shared) = (webhook.clone(), shared.clone());
        let answer = move |asked| webhook.config_maps.answer(asked).into();
        router = router.route(CONFIG_VALIDATION, review(CONFIG_VALIDATION, shared, answer));
    }
    if !webhook.conversion.is_empty() {
        router = router.route(CONVERSION, convert(shared.clone(), webhook));
    }
    router.fallback(unknown_path).layer(from_fn_with_state(shared, at_the_door))
}

/// What is answered to this body on this path, status and body.
pub(crate) async fn answer(webhook: Arc<Webhook>, path: &str, body: Bytes) -> (u16, Bytes) {
    let unanswered = |error: &dyn std::fmt::Display| (400, Bytes::from(error.to_string()));
    let json = (header::CONTENT_TYPE, "application/json");
    let request = Request::post(path).header(json.0, json.1).body(Body::from(body));
    let request = match request {
        Ok(request) => request,
        Err(error) => return unanswered(&error),
    };
    let metrics = match Metrics::new(&Registry::new()) {
        Ok(metrics) => metrics,
        Err(error) => return unanswered(&error),
    };
    let Ok(response) = router(webhook, metrics, Drain::default()).oneshot(request).await;
    let code = response.status().as_u16();
    match response.into_body().collect().await {
        Ok(body) => (code, body.to_bytes()),
        Err(error) => unanswered(&error),
    }
}

/// Probes on any path, as the kubelet sends them, and what is no JSON on none. Whoever asks one that is to end is told to find
/// another: a Service leads new connections elsewhere.
async fn at_the_door(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    if is_probe(request.headers()) {
        return probed(&shared);
    }
    shared.drain.asked();
    let mut response = match is_json(request.headers()) {
        true => next.run(request).await,
        false => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid Content-Type, want `application/json`\n")
            .into_response(),
    };
    shared.drain.asked();
    if shared.drain.is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn probed(shared: &Shared) -> Response {
    if shared.drain.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    match shared.health.stuck() {
        Some(age) => {
            let said = format!("code has been running for {}s\n", age.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, said).into_response()
        }
        None => StatusCode::OK.into_response(),
    }
}

fn is_probe(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.is_some_and(|agent| agent.starts_with("kube-probe/"))
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

async fn unknown_path(request: Request) -> Response {
    let said = format!("no controller registered for: {}\n", request.uri().path());
    (StatusCode::BAD_REQUEST, said).into_response()
}

/// A path on which requests to store objects are reviewed.
fn review(
    path: &'static str,
    shared: Shared,
    answer: impl Fn(AdmissionRequest<Raw>) -> Judged + Send + Sync + 'static,
) -> axum::routing::MethodRouter {
    serve(path, shared, move |body: Bytes| {
        let review: AdmissionReview<Raw> = decoded(&body)?;
        drop(body);
        let judged = answer(review.try_into().map_err(undecodable)?);
        if judged.calls.is_empty() {
            reviewed(judged).map(Begun::Answered)
        } else {
            Ok(Begun::Asking(judged.into()))
        }
    })
}

/// The path on which objects are converted: a whole list in one request, so it may have as many bytes as there is room for,
/// and each of its objects as many as another body.
fn convert(mut shared: Shared, webhook: Arc<Webhook>) -> axum::routing::MethodRouter {
    let most = shared.limits.body;
    let limits = Limits { body: shared.limits.bodies, ..(*shared.limits).clone() };
    shared.limits = Arc::new(limits);
    serve(CONVERSION, shared, move |body: Bytes| {
        let mut review: Review<'_> = decoded(&body)?;
        let asked = review.request.take().ok_or_else(|| undecodable("it has no request"))?;
        let response = webhook.conversion.answer(asked, most);
        let converted = response.is_success();
        written(converted, &review.answered(response)).map(Begun::Answered)
    })
}

/// An answer, and what was decided.
type Answer = Result<Said, Refusal>;
type Said = (Vec<u8>, &'static str);

/// What is there once a request was decoded and checked.
enum Begun {
    Answered(Said),
    /// Callbacks have to be called first.
    Asking(Box<Judged>),
}

fn reviewed(judged: Judged) -> Answer {
    written(judged.response.allowed, &judged.response.into_review())
}

fn written(allowed: bool, review: &impl serde::Serialize) -> Answer {
    let unwritable = |error: serde_json::Error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
    let json = serde_json::to_vec(review).map_err(unwritable)?;
    Ok((json, if allowed { "true" } else { "false" }))
}

/// Status and text of an answer that is none.
type Refusal = (StatusCode, String);

/// JSON is UTF-8, also where nobody reads it.
fn decoded<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_str(str::from_utf8(body).map_err(undecodable)?).map_err(undecodable)
}

fn undecodable(error: impl std::fmt::Display) -> Refusal {
    (StatusCode::BAD_REQUEST, format!("could not decode body: {error}"))
}

/// A path on which JSON is answered with JSON, within limits, and counted.
///
/// `answer` may take a processor or wait as code likes that knows nothing of tokio.
fn serve(
    path: &'static str,
    shared: Shared,
    answer: impl Fn(Bytes) -> Result<Begun, Refusal> + Send + Sync + 'static,
) -> axum::routing::MethodRouter {
    let answer = Arc::new(answer);
    any(async move |request: Request| {
        let received = receive(&shared, request.into_body()).await;
        let start = Instant::now();
        let (result, room) = match received {
            Ok((body, room)) => {
                let size = body.len();
                let begun = move || answer(body);
                let answered = AssertUnwindSafe(answered(&shared, size, begun)).catch_unwind();
                let result = match timeout(shared.limits.answer, answered).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(panic)) => Err(panicked(path, &shared.metrics, &*panic)),
                    Err(_) => Err((StatusCode::GATEWAY_TIMEOUT, "the answer took too long".into())),
                };
                (result, Some(room))
            }
            Err(refusal) => (Err(refusal), None),
        };
        let took = result.is_ok().then(|| start.elapsed());
        let (code, decided) =
            result.as_ref().map_or_else(|(code, _)| (*code, ""), |(_, decided)| (StatusCode::OK, *decided));
        shared.metrics.answered(path, code.as_u16(), decided, took);
        respond(path, result, room)
    })
}

/// Whatever blocks a thread is done within the budget of work. What a callback awaits is not: its own requests to the API server
/// may come back to this webhook.
async fn answered(
    shared: &Shared,
    size: usize,
    begin: impl FnOnce() -> Result<Begun, Refusal> + Send + 'static,
) -> Answer {
    let mut judged = match work(shared, size, begin).await?? {
        Begun::Answered(said) => return Ok(said),
        Begun::Asking(judged) => *judged,
    };
    while let Some(call) = judged.calls.pop_front() {
        let called = work(shared, size, call).await?;
        judged = judged.hear(called.await);
    }
    reviewed(judged)
}

/// Does this in a thread of its own: neither the decoding of a large body nor code of a Kind that is slow may hold up the others,
/// or the end of its own time. Panics if that does. Code that never returns keeps its place all the same, since no thread can
/// be ended from outside: probes fail after a while, and the process is started anew.
async fn work<T: Send + 'static>(
    shared: &Shared,
    size: usize,
    piece: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let place = take(&shared.work, size).await?;
    let health = shared.health.clone();
    let done = tokio::task::spawn_blocking(move || {
        let (_place, _piece) = (place, health.begin());
        piece()
    });
    done.await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "shutting down".into()),
    })
}

fn respond(path: &str, result: Answer, room: Option<Share>) -> Response {
    match result {
        Ok((json, _)) => {
            let body = Bytes::from_owner(Written { json, _room: room });
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err((code, why)) => {
            tracing::warn!(path, code = code.as_u16(), "a request to the webhook was not answered: {why}");
            (code, why + "\n").into_response()
        }
    }
}

/// An answer takes room until it is sent: its client may be slow to read it.
struct Written {
    json: Vec<u8>,
    _room: Option<Share>,
}

impl AsRef<[u8]> for Written {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

fn panicked(path: &'static str, metrics: &Metrics, panic: &(dyn Any + Send)) -> Refusal {
    metrics.panicked(path);
    let literal = panic.downcast_ref::<&'static str>().copied();
    let text =
        literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it says no more");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("panicked: {text}"))
}

/// The body, and the room that it takes while it is worked on.
async fn receive(shared: &Shared, body: Body) -> Result<(Bytes, Share), Refusal> {
    let late = |_| (StatusCode::REQUEST_TIMEOUT, "the body took too long".into());
    timeout(shared.limits.receive, collect(shared, body)).await.map_err(late)?
}

/// Takes room for the whole body before it reads any of it, since bodies that each had a part of theirs would wait for each
/// other: for as much as it says, or as it may have where it does not say.
async fn collect(shared: &Shared, mut body: Body) -> Result<(Bytes, Share), Refusal> {
    let limit = shared.limits.body;
    let too_large = || (StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {limit} bytes"));
    let length = body.size_hint().exact().map_or(Ok(limit), usize::try_from);
    let length = length.ok().filter(|length| *length <= limit).ok_or_else(too_large)?;
    let mut room = take(&shared.room, length).await?;
    let mut collected = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| (StatusCode::BAD_REQUEST, format!("could not read body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if collected.len() + data.len() > limit {
            return Err(too_large());
        }
        collected.extend_from_slice(&data);
    }
    shared.room.shrink(&mut room, collected.len());
    Ok((collected.freeze(), room))
}

async fn take(budget: &Budget, bytes: usize) -> Result<Share, Refusal> {
    let closed = |_| (StatusCode::SERVICE_UNAVAILABLE, "shutting down".into());
    budget.take(bytes).await.map_err(closed)
}
