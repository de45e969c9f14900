//! The paths of a webhook, and what is answered to whatever comes.

use std::{
    any::Any,
    future::Future,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::any,
};
use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use http_body_util::BodyExt;
use kube::core::{
    admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
    conversion::{ConversionRequest, ConversionReview},
};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use crate::{limits::Limits, metrics::Metrics, raw::Raw, webhook::Webhook};

/// Where objects get their defaults.
pub(crate) const DEFAULTING: &str = "/defaulting";
/// Where objects are refused.
pub(crate) const VALIDATION: &str = "/resource-validation";
/// Where ConfigMaps are refused.
pub(crate) const CONFIG_VALIDATION: &str = "/config-validation";
/// Where objects become such of another version.
pub(crate) const CONVERSION: &str = "/resource-conversion";

const KIB: usize = 1024;
/// What the smallest request counts for.
const LEAST: usize = 64;

/// What all requests share.
#[derive(Clone)]
pub(crate) struct Shared {
    limits: Arc<Limits>,
    metrics: Metrics,
    /// In KiB.
    room: Arc<Semaphore>,
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
    /// From now on probes are told so; ends when nothing has been asked for so long.
    pub(crate) async fn quiet(&self, period: Duration) {
        let start = tokio::time::Instant::now();
        self.0.lock().draining = true;
        loop {
            let last = self.0.lock().last.unwrap_or(start).max(start);
            let until = last + period;
            if until <= tokio::time::Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
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
    let room = Arc::new(Semaphore::new((limits.bodies / KIB).max(LEAST)));
    let shared = Shared { limits, metrics, room, drain };
    let mut router = Router::new();
    if !webhook.defaulting.is_empty() {
        let (webhook, shared) = (webhook.clone(), shared.clone());
        router = router
            .route(DEFAULTING, review(DEFAULTING, shared, move |asked| webhook.clone().defaults(asked)));
    }
    if !webhook.validation.is_empty() {
        let (webhook, shared) = (webhook.clone(), shared.clone());
        router = router
            .route(VALIDATION, review(VALIDATION, shared, move |asked| webhook.clone().validates(asked)));
    }
    if !webhook.config_maps.is_empty() {
        let (webhook, shared) = (webhook.clone(), shared.clone());
        let route = review(CONFIG_VALIDATION, shared, move |asked| webhook.clone().configures(asked));
        router = router.route(CONFIG_VALIDATION, route);
    }
    if !webhook.conversion.is_empty() {
        router = router.route(CONVERSION, convert(shared.clone(), webhook));
    }
    router.fallback(unknown_path).layer(from_fn_with_state(shared, at_the_door))
}

/// Probes on any path, as the kubelet sends them, and what is no JSON on none.
async fn at_the_door(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    if is_probe(request.headers()) {
        return match shared.drain.is_draining() {
            true => (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response(),
            false => StatusCode::OK.into_response(),
        };
    }
    shared.drain.asked();
    let response = match is_json(request.headers()) {
        true => next.run(request).await,
        false => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid Content-Type, want `application/json`\n")
            .into_response(),
    };
    shared.drain.asked();
    response
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
fn review<F, A>(path: &'static str, shared: Shared, answer: F) -> axum::routing::MethodRouter
where
    F: Fn(AdmissionRequest<Raw>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = AdmissionResponse> + Send + 'static,
{
    serve(path, shared, move |body: Bytes| {
        let answer = answer.clone();
        async move {
            let review: AdmissionReview<Raw> = decoded(&body)?;
            drop(body);
            let asked: AdmissionRequest<Raw> = review.try_into().map_err(undecodable)?;
            let response = answer(asked).await;
            let allowed = if response.allowed { "true" } else { "false" };
            let answer = serde_json::to_vec(&response.into_review());
            Ok((answer.map_err(unwritable)?, allowed))
        }
    })
}

/// The path on which objects are converted: a whole list in one request, so it may have as many bytes as there is room for.
fn convert(mut shared: Shared, webhook: Arc<Webhook>) -> axum::routing::MethodRouter {
    let limits = Limits { body: shared.limits.bodies, ..(*shared.limits).clone() };
    shared.limits = Arc::new(limits);
    serve(CONVERSION, shared, move |body: Bytes| {
        let webhook = webhook.clone();
        async move {
            let review: ConversionReview = decoded(&body)?;
            drop(body);
            let response =
                webhook.conversion.answer(ConversionRequest::from_review(review).map_err(undecodable)?);
            let converted = response.result.is_success();
            let answer = serde_json::to_vec(&response.into_review()).map_err(unwritable)?;
            Ok((answer, if converted { "true" } else { "false" }))
        }
    })
}

fn unwritable(error: serde_json::Error) -> Refusal {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// Status and text of an answer that is none.
pub(crate) type Refusal = (StatusCode, String);

pub(crate) fn decoded<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(undecodable)
}

fn undecodable(error: impl std::fmt::Display) -> Refusal {
    (StatusCode::BAD_REQUEST, format!("could not decode body: {error}"))
}

/// A path on which JSON is answered with JSON, within limits, and counted. `answer` also says what was decided.
pub(crate) fn serve<F, A>(path: &'static str, shared: Shared, answer: F) -> axum::routing::MethodRouter
where
    F: Fn(Bytes) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Result<(Vec<u8>, &'static str), Refusal>> + Send + 'static,
{
    any(async move |request: Request| {
        let received = receive(&shared, request.into_body()).await;
        let start = Instant::now();
        let result = match received {
            Ok((body, _room)) => {
                let answered = AssertUnwindSafe(async { answer(body).await }).catch_unwind();
                match timeout(shared.limits.answer, answered).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(panic)) => Err(panicked(path, &shared.metrics, &*panic)),
                    Err(_) => Err((StatusCode::GATEWAY_TIMEOUT, "the answer took too long".into())),
                }
            }
            Err(refusal) => Err(refusal),
        };
        let took = result.is_ok().then(|| start.elapsed());
        let (code, decided) =
            result.as_ref().map_or_else(|(code, _)| (*code, ""), |(_, decided)| (StatusCode::OK, *decided));
        shared.metrics.answered(path, code.as_u16(), decided, took);
        respond(path, result)
    })
}

fn respond(path: &str, result: Result<(Vec<u8>, &'static str), Refusal>) -> Response {
    match result {
        Ok((json, _)) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err((code, why)) => {
            tracing::warn!(path, code = code.as_u16(), "a request to the webhook was not answered: {why}");
            (code, why + "\n").into_response()
        }
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
async fn receive(shared: &Shared, body: Body) -> Result<(Bytes, OwnedSemaphorePermit), Refusal> {
    let late = |_| (StatusCode::REQUEST_TIMEOUT, "the body took too long".into());
    timeout(shared.limits.receive, collect(shared, body)).await.map_err(late)?
}

/// Takes up room as the bytes come, so that a slow client holds no more than what it has sent.
async fn collect(shared: &Shared, mut body: Body) -> Result<(Bytes, OwnedSemaphorePermit), Refusal> {
    let mut collected = BytesMut::new();
    let mut room = take(shared, 0).await?;
    let mut held = 0;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| (StatusCode::BAD_REQUEST, format!("could not read body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if collected.len() + data.len() > shared.limits.body {
            let limit = shared.limits.body;
            return Err((StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {limit} bytes")));
        }
        collected.extend_from_slice(&data);
        let needed = collected.len().div_ceil(KIB);
        if needed > held {
            room.merge(take(shared, needed - held).await?);
            held = needed;
        }
    }
    if held < LEAST {
        room.merge(take(shared, LEAST - held).await?);
    }
    Ok((collected.freeze(), room))
}

async fn take(shared: &Shared, kib: usize) -> Result<OwnedSemaphorePermit, Refusal> {
    let kib = u32::try_from(kib).unwrap_or(u32::MAX);
    let closed = |_| (StatusCode::SERVICE_UNAVAILABLE, "shutting down".into());
    shared.room.clone().acquire_many_owned(kib).await.map_err(closed)
}
