//! The HTTP routes of a webhook.

use std::{
    any::Any,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    BoxError, Extension, Json, Router,
    body::Body,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::any,
};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use kube::core::admission::AdmissionResponse;
use parking_lot::Mutex;
use prometheus::Registry;
use reknit_injection::internal::{LogLimit, panic_message};
use reknit_server::{Activity, HeldByResponse, Phase};
use tokio::time::timeout;
use tower::ServiceExt;
use tower_http::{catch_panic::CatchPanicLayer, timeout::TimeoutLayer};

use super::{
    budget::{BodyBudget, HeldBytes, WorkBudget},
    clients::Client,
    drain::Drain,
    metrics::{Decision, Metrics},
    pending::PendingBudget,
};
use crate::{
    admission::{
        denial::name_version, group_version_kind::GroupVersionKind, outcome::ReviewOutcome, review::Review,
    },
    decoded_size::{DECODED_PER_BYTE, DecodedSize},
    endpoints::{Endpoint, ReviewHandler},
    health::Health,
    webhook::Webhook,
};

/// The path of conversions between versions.
pub const CONVERSION: &str = "/resource-conversion";

/// The maximum length of a path in the log.
const MAX_LOGGED_PATH: usize = 100;

/// The state that all requests share.
#[derive(Clone)]
struct Shared {
    webhook: Arc<Webhook>,
    metrics: Metrics,
    bodies: BodyBudget,
    work: WorkBudget,
    pending: PendingBudget,
    health: Health,
    drain: Drain,
    /// Of warnings of clients without an accepted certificate.
    log_limit: Arc<Mutex<LogLimit>>,
    /// Of warnings of paths that are not served.
    path_log_limit: Arc<Mutex<LogLimit>>,
    /// Of warnings of Kinds that this release does not handle.
    kind_log_limit: Arc<Mutex<LogLimit>>,
}

impl Shared {
    fn refuse_client(&self) -> Response {
        const REASON: &str = "a client certificate that this webhook accepts is required";
        if self.log_limit.lock().allows(&()) {
            tracing::warn!(
                "refused a review from a client without an accepted certificate: if it was the API server, configure its \
                 admission plugins with a client certificate, or unset WEBHOOK_CLIENT_CA_FILE"
            );
        }
        Refusal(StatusCode::UNAUTHORIZED, REASON.into()).into_response()
    }

    fn warn_of_unhandled(&self, kind: &GroupVersionKind) {
        if self.kind_log_limit.lock().allows(&()) {
            tracing::warn!(
                %kind,
                "refused a review of a Kind that this release does not handle: the controllers of another release have \
                 registered it; wait for the rollout of the webhook, and roll it out before the controllers"
            );
        }
    }
}

/// A path, and the maximum size of its bodies in bytes.
#[derive(Clone)]
struct Route {
    path: &'static str,
    max_bytes: usize,
    shared: Shared,
}

/// The client of a request and the size of its body, once that has arrived.
#[derive(Clone, Copy)]
struct Received {
    /// The address of the client, by which clients take turns. Requests without a connection share one.
    client: IpAddr,
    decoded_size: DecodedSize,
}

/// The result of decoding and checking a body.
enum CheckedBody {
    Answered(Response),
    /// A refusal, since this release does not handle the Kind.
    Unhandled(GroupVersionKind, Response),
    /// Rules that read other objects have to be evaluated before the response is sent.
    Pending(Box<PendingReview>),
}

/// A review whose object is valid by itself.
struct PendingReview {
    outcome: ReviewOutcome,
    kind: GroupVersionKind,
    converted_from: Option<String>,
    name: String,
    /// Empty for a cluster-scoped object.
    namespace: String,
}

pub(crate) fn router(webhook: Arc<Webhook>, metrics: Metrics, drain: Drain) -> Router {
    let (limits, health) = (&webhook.limits, Health::new(webhook.running.clone(), &webhook.limits));
    let (bodies, work) = (BodyBudget::new(limits.bodies), WorkBudget::new(limits.decoded_bodies));
    let pending = PendingBudget::new(limits.decoded_bodies);
    let [log_limit, path_log_limit, kind_log_limit] = <[Arc<Mutex<LogLimit>>; 3]>::default();
    let shared = Shared {
        webhook: webhook.clone(),
        metrics,
        bodies,
        work,
        pending,
        health,
        drain,
        log_limit,
        path_log_limit,
        kind_log_limit,
    };
    let route = |path, max_bytes| Route { path, max_bytes, shared: shared.clone() };
    let mut router = Router::new();
    for Endpoint { path, review, .. } in webhook.endpoints() {
        shared.metrics.add_path(path);
        shared.metrics.add_admission(path);
        let check = move |webhook: &Webhook, body, size| check_review(webhook, body, size, &review);
        router = router.merge(serve(route(path, limits.body), check));
    }
    if !webhook.conversions.is_empty() {
        shared.metrics.add_path(CONVERSION);
        // A body may contain a whole list. `convert` limits the size of each object.
        router = router.merge(serve(route(CONVERSION, limits.bodies), convert));
    }
    let limit = shared.path_log_limit.clone();
    let fallback = async move |request: Request| unknown_path(request.uri().path(), &limit);
    router.fallback(fallback).layer(from_fn_with_state(shared, gate))
}

/// Answers a request with this path and body as the server does, for fuzzers and tests. Returns the HTTP status and the
/// body.
pub async fn answer(webhook: &Webhook, path: &str, body: impl Into<Bytes>) -> (u16, Bytes) {
    let response = try_answer(webhook, path, body.into()).await;
    response.unwrap_or_else(|error| (400, error.to_string().into()))
}

async fn try_answer(webhook: &Webhook, path: &str, body: Bytes) -> Result<(u16, Bytes), BoxError> {
    let request =
        Request::post(path).header(header::CONTENT_TYPE, "application/json").body(Body::from(body))?;
    let router = router(Arc::new(webhook.clone()), Metrics::new(&Registry::new()), Drain::default());
    let response = router.oneshot(request).await?;
    Ok((response.status().as_u16(), response.into_body().collect().await?.to_bytes()))
}

/// Answers probes on any path, and refuses bodies that are not JSON. While the webhook drains, each connection is
/// closed after an answer, so that the client connects to another replica.
async fn gate(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    if header_text(request.headers(), header::USER_AGENT).starts_with("kube-probe/") {
        return probe(&shared);
    }
    // The API server sends no certificate with conversions, and their answers contain nothing that they do not bring.
    let client = request.extensions().get::<Client>();
    if client.is_some_and(|client| !client.is_accepted) && request.uri().path() != CONVERSION {
        return shared.refuse_client();
    }
    shared.drain.record_activity();
    let mut response = match is_json(request.headers()) {
        true => next.run(request).await,
        false => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid Content-Type, want `application/json`\n")
            .into_response(),
    };
    shared.drain.record_activity();
    if shared.drain.is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn probe(shared: &Shared) -> Response {
    let failure = match shared.health.stuck_for() {
        _ if shared.drain.is_draining() => "shutting down\n".into(),
        Some(age) => format!("a defaulting or validation function has been running for {}s\n", age.as_secs()),
        None => return StatusCode::OK.into_response(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, failure).into_response()
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = header_text(headers, header::CONTENT_TYPE).split(';').next();
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Refuses a request for a path that no step of this program has. The API server sends such requests because of a webhook
/// configuration that another release has left, or that a newer one has registered before its webhook is rolled out. It
/// refuses what its clients ask for, and nothing else shows the reason. Any client can cause the line, so it is logged once a
/// minute.
fn unknown_path(path: &str, limit: &Mutex<LogLimit>) -> Refusal {
    if limit.lock().allows(&()) {
        let path = &path[..path.floor_char_boundary(MAX_LOGGED_PATH)];
        tracing::warn!(
            path,
            "refused a review, because this program has no webhook at its path: if the API server sent it, the controllers \
             of another release have registered it; wait for the rollout of the webhook, or, if that release is gone, \
             delete the webhook configuration, or its entry with this path"
        );
    }
    let advice =
        "if the controllers of another release have registered it, wait for the rollout of the webhook";
    Refusal(StatusCode::BAD_REQUEST, format!("no controller registered for: {path}; {advice}"))
}

/// Creates a route that receives and answers requests within the limits. `check` runs on a blocking thread.
fn serve<F>(route: Route, check: F) -> Router
where
    F: Fn(&Webhook, Bytes, DecodedSize) -> Result<CheckedBody, Refusal> + Clone + Send + Sync + 'static,
{
    let (shared, metrics, path) = (route.shared.clone(), route.shared.metrics.clone(), route.path);
    let timeout_layer =
        TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, shared.webhook.limits.response_timeout);
    Router::new()
        .route(
            path,
            any(async move |Extension(received), body: Bytes| process(&shared, received, body, check).await),
        )
        .route_layer(DefaultBodyLimit::disable())
        .route_layer(timeout_layer)
        .route_layer(CatchPanicLayer::custom(move |panic| answer_panic(path, &metrics, panic)))
        .route_layer(from_fn_with_state(route, receive))
}

/// Receives the whole body before it calls the next layer. The bytes count against the budget until the response is
/// sent.
async fn receive(State(route): State<Route>, request: Request, next: Next) -> Response {
    let _in_flight = route.shared.metrics.start_request(route.path);
    let (mut parts, body) = request.into_parts();
    let activity = parts.extensions.get::<Activity>().cloned();
    let client = activity.as_ref().map_or(Ipv4Addr::UNSPECIFIED.into(), Activity::client);
    let enter = |phase| activity.iter().for_each(|activity| activity.enter(phase));
    enter(Phase::Receiving);
    let collected = collect_body(&route, client, body);
    let collected = timeout(route.shared.webhook.limits.receive_timeout, collected).await;
    let timed_out = |_| Err(Refusal(StatusCode::REQUEST_TIMEOUT, "the body took too long".into()));
    let Collected { body, held, received } = match collected.unwrap_or_else(timed_out) {
        Ok(collected) => collected,
        Err(refusal) => {
            return route.shared.metrics.record_response(route.path, None, refusal.into_response());
        }
    };
    parts.extensions.insert(received);
    enter(Phase::Answering);
    let start = Instant::now();
    let mut response = next.run(Request::from_parts(parts, Body::from(body))).await;
    response.extensions_mut().insert(HeldByResponse::new(held));
    route.shared.metrics.record_response(route.path, Some(start.elapsed()), response)
}

/// The body of a request, and the bytes that it holds.
struct Collected {
    body: Bytes,
    held: HeldBytes,
    received: Received,
}

async fn collect_body(route: &Route, client: IpAddr, mut body: Body) -> Result<Collected, Refusal> {
    let too_large = || {
        let reason = format!("the body has more than {} bytes", route.max_bytes);
        Refusal(StatusCode::PAYLOAD_TOO_LARGE, reason)
    };
    if body.size_hint().lower() > route.max_bytes as u64 {
        return Err(too_large());
    }
    let (mut collected, mut held) = (BytesMut::new(), HeldBytes::of(client));
    let (bodies, mut decoded_size, mut taken) =
        (&route.shared.bodies, DecodedSize::default(), Duration::ZERO);
    loop {
        let asked = Instant::now();
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = bodies.wait_until_overdue(&held, taken) => {
                let reason = "the body arrives too slowly while other requests wait";
                return Err(Refusal(StatusCode::REQUEST_TIMEOUT, reason.into()));
            }
        };
        taken += asked.elapsed();
        let Some(frame) = frame else { break };
        let frame = frame
            .map_err(|error| Refusal(StatusCode::BAD_REQUEST, format!("could not read body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if collected.len() + data.len() > route.max_bytes {
            return Err(too_large());
        }
        bodies.add(&mut held, data.len()).await;
        decoded_size.add(&data);
        collected.extend_from_slice(&data);
    }
    let mut body = collected.freeze();
    if let Some(text) = with_utf8(&body) {
        if text.len() > route.max_bytes {
            return Err(too_large());
        }
        bodies.add(&mut held, text.len().saturating_sub(body.len())).await;
        decoded_size = DecodedSize::default();
        decoded_size.add(text.as_bytes());
        body = text.into();
    }
    Ok(Collected { body, held, received: Received { client, decoded_size } })
}

/// Returns the body with U+FFFD in place of bytes that are not UTF-8, if there are any. A user who may write an object of a
/// built-in Kind can put some into its `managedFields`, and must be able to change and delete it all the same.
fn with_utf8(body: &[u8]) -> Option<String> {
    str::from_utf8(body).err().map(|_| String::from_utf8_lossy(body).into_owned())
}

/// Decodes and checks a body, and evaluates the rules that read other objects. Blocking code counts against the work
/// budget, but those rules do not: their requests to the API server may cause other requests to this webhook, which would
/// wait for the budget. What they hold has a limit of its own, beyond which reviews are refused.
async fn process(
    shared: &Shared,
    received: Received,
    body: Bytes,
    check: impl FnOnce(&Webhook, Bytes, DecodedSize) -> Result<CheckedBody, Refusal> + Send + 'static,
) -> Result<Response, Refusal> {
    let (webhook, Received { client, decoded_size }) = (shared.webhook.clone(), received);
    let weight = body.len().max(decoded_size.bytes() / DECODED_PER_BYTE);
    let check = move || check(&webhook, body, decoded_size);
    let pending = match run_blocking(shared, client, weight, check).await?? {
        CheckedBody::Answered(response) => return Ok(response),
        CheckedBody::Unhandled(kind, response) => {
            shared.warn_of_unhandled(&kind);
            return Ok(response);
        }
        CheckedBody::Pending(pending) => *pending,
    };
    let PendingReview { outcome, kind, converted_from, name, namespace } = pending;
    let Some(_room) = shared.pending.hold(client, namespace, decoded_size) else {
        let reason = "too many reviews wait for rules that read other objects: try again later";
        return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, reason.into()));
    };
    let response = outcome.finish(&kind, &name, shared.webhook.limits.validator_timeout).await;
    Ok(admission(response, &kind, converted_from.as_deref()))
}

/// Runs code on a blocking thread, so that neither large bodies nor slow code of a Kind delay other requests. Panics if
/// the code does. A thread cannot be stopped: code that never returns keeps its permits, and after a while probes fail,
/// so that the kubelet restarts the process.
async fn run_blocking<T: Send + 'static>(
    shared: &Shared,
    client: IpAddr,
    weight: usize,
    code: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    let permits = shared.work.acquire(client, weight).await;
    let health = shared.health.clone();
    let task = tokio::task::spawn_blocking(move || {
        let (_permits, _running) = (permits, health.track());
        code()
    });
    task.await.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Refusal(StatusCode::SERVICE_UNAVAILABLE, "shutting down".into()),
    })
}

fn check_review(
    webhook: &Webhook,
    body: Bytes,
    size: DecodedSize,
    handler: &ReviewHandler,
) -> Result<CheckedBody, Refusal> {
    let review = decode_review(&body, size, webhook.limits.body)?;
    drop(body);
    let (kind, converted_from) = (review.kind.clone(), review.converted_from.clone());
    let request = review.change.as_ref().map(|change| &change.request);
    let name = request.map(|request| request.name.clone()).unwrap_or_default();
    let namespace = request.and_then(|request| request.namespace.clone()).unwrap_or_default();
    let outcome = handler(webhook, review);
    let is_refused = outcome.is_unhandled && !outcome.response.allowed;
    Ok(match outcome.rules.is_empty() {
        true => {
            let response = admission(outcome.response, &kind, converted_from.as_deref());
            if is_refused { CheckedBody::Unhandled(kind, response) } else { CheckedBody::Answered(response) }
        }
        false => {
            CheckedBody::Pending(PendingReview { outcome, kind, converted_from, name, namespace }.into())
        }
    })
}

/// Decodes a review. One that would take too much memory, or whose object is nested too deep, is not refused if it deletes
/// the object or changes only its metadata.
fn decode_review(body: &[u8], size: DecodedSize, max_bytes: usize) -> Result<Review, Refusal> {
    let max_size = max_bytes.saturating_mul(DECODED_PER_BYTE);
    if size.bytes() > max_size {
        let [size, max_size] = [size.bytes(), max_size].map(|bytes| bytes >> 20);
        let reason =
            format!("the fields and items of the body take about {size} MiB, more than {max_size} MiB");
        return Review::of_deep_object(body).ok_or(Refusal(StatusCode::PAYLOAD_TOO_LARGE, reason));
    }
    decode(body).or_else(|refusal: Refusal| {
        let is_too_deep = refusal.1.contains("recursion limit exceeded");
        let of_deep_objects = || Review::of_deep_object(body).or_else(|| Review::of_cut_objects(body));
        is_too_deep.then(of_deep_objects).flatten().ok_or(refusal)
    })
}

fn convert(webhook: &Webhook, body: Bytes, _: DecodedSize) -> Result<CheckedBody, Refusal> {
    let converted = webhook.conversions.convert_all(decode(&body)?, webhook.limits.body);
    let (is_success, review) = converted.map_err(decode_failure)?;
    Ok(CheckedBody::Answered(respond(Decision::Conversion { is_success }, review)))
}

/// Decodes JSON.
fn decode<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_str(str::from_utf8(body).map_err(decode_failure)?).map_err(decode_failure)
}

fn decode_failure(error: impl std::fmt::Display) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, format!("could not decode body: {error}"))
}

fn admission(response: AdmissionResponse, kind: &GroupVersionKind, converted_from: Option<&str>) -> Response {
    let response = match converted_from {
        Some(sent) => name_version(response, &kind.version, sent),
        None => response,
    };
    let code = if response.allowed { StatusCode::OK.as_u16() } else { response.result.code };
    respond(Decision::Admission { is_allowed: response.allowed, code }, response.into_review())
}

fn respond(decision: Decision, review: impl serde::Serialize) -> Response {
    (Extension(decision), Json(review)).into_response()
}

/// The status and reason of a response without a review.
///
/// Any client can cause such a response, so it is counted, but logged only at debug level.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(code, reason) = self;
        tracing::debug!(code = code.as_u16(), reason, "refused a request to the webhook");
        (code, reason + "\n").into_response()
    }
}

fn answer_panic(path: &'static str, metrics: &Metrics, panic: Box<dyn Any + Send>) -> Response {
    if path == CONVERSION { &metrics.conversion_panics } else { &metrics.admission_panics }.inc();
    let message = panic_message(&*panic);
    tracing::error!(path, panic = message, "code of a Kind panicked in the webhook");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("panicked: {message}\n")).into_response()
}
