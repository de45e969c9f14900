//! The clients of a process: a bare client, and on top of it the client for controllers.
mod auth_provider;
pub(crate) mod certificate;
mod connect;
pub(crate) mod credentials;
pub(crate) mod error;
mod exec_plugin;
pub(crate) mod kube_version;
pub(crate) mod kubeconfig;
mod kubeconfig_file;
pub(crate) mod metrics;
mod proxy;
mod rate_limit;
mod refusals;
mod token_file;
mod transport;

use std::{sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use reknit_injection::internal::{HttpResponse, NoRetry, ResourcePath, Transport, is_watch, retry_after};
use reknit_leadership::internal::Identity;
use tokio::time::{Instant, sleep, timeout};
use tower::BoxError;

pub use self::connect::connect;
use self::{
    credentials::Credentials, error::root_cause, kubeconfig::Access, metrics::RequestMetrics,
    rate_limit::rate_limited, transport::transport,
};
use crate::process::failure::Failure;

/// The timeout of requests that are not long-running. The API server itself ends them after 60 seconds by default, so a
/// connection that is silent for longer is dead.
const TIMEOUT: Duration = Duration::from_secs(75);
/// The time for the retries of a request. The worker that made the request waits meanwhile, and other keys wait for the
/// worker. A refusal that asks for a longer wait fails the request: its key waits instead.
const RETRY_BUDGET: Duration = Duration::from_secs(5);

/// Returns the user agent of every request, without characters that are invalid in a header. By the identity, the audit log
/// of the API server tells which process sent a request: the processes of a Pod share its token.
pub(crate) fn user_agent(component: &str, version: &str, identity: Option<&Identity>) -> String {
    let comment = identity.map(|identity| format!(" ({identity})")).unwrap_or_default();
    let agent = format!("{component}/{version} reknit/{}{comment}", env!("CARGO_PKG_VERSION"));
    agent.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect()
}

/// Reads the credentials of the API server. If there is a credential plugin, this function runs it.
pub(crate) fn load_credentials(access: &Access, agent: &str) -> Result<Arc<Credentials>, Failure> {
    Credentials::load(access, agent).map_err(|why| Failure::new(format!("{}: {why}", access.origin)))
}

/// Creates a transport that neither retries nor limits requests, for leader election and the start of the process. Each
/// transport has its own connections. Each attempt counts as a request in the metrics, as in client-go.
pub(crate) fn bare_transport(
    access: &Access,
    credentials: &Arc<Credentials>,
    metrics: &Arc<RequestMetrics>,
) -> Result<Transport, Failure> {
    transport(credentials, metrics)
        .map_err(|e| Failure::new(format!("{}: {}", access.origin, root_cause(&e))))
}

/// Creates the transport for controllers on top of a bare transport: it retries requests that an overloaded API server
/// refused, limits the rate if `per_second` is positive, and times out requests on dead connections.
pub(crate) fn controller_transport(
    bare: &Transport,
    namespace: &str,
    per_second: f64,
    burst: u32,
) -> Transport {
    let bare = bare.clone();
    let retried = tower::service_fn(move |request| send_within_budget(bare.clone(), request));
    if per_second > 0.0 {
        Transport::new(rate_limited(retried, per_second, burst), namespace)
    } else {
        Transport::new(retried, namespace)
    }
}

/// Sends a request, and again as long as the server refuses it and asks for waits that end within the budget.
async fn send_within_budget(bare: Transport, mut request: Request<Body>) -> Result<HttpResponse, BoxError> {
    let deadline = Instant::now() + RETRY_BUDGET;
    loop {
        let (method, copy) = (request.method().clone(), copy_for_retry(&request));
        let response = send_with_timeout(&bare, request).await?;
        let wait = retry_after(response.headers()).filter(|_| is_retriable(response.status(), &method));
        let (Some(wait), Some(copy)) = (wait, copy) else { return Ok(response) };
        if Instant::now() + wait > deadline {
            return Ok(response);
        }
        sleep(wait).await;
        request = copy;
    }
}

/// Copies a request, unless its body is a stream or the caller retries it.
fn copy_for_retry(request: &Request<Body>) -> Option<Request<Body>> {
    let is_retried_by_caller = request.extensions().get::<NoRetry>().is_some();
    let body = request.body().try_clone().filter(|_| !is_retried_by_caller)?;
    let mut copy = Request::new(body);
    (*copy.method_mut(), *copy.uri_mut()) = (request.method().clone(), request.uri().clone());
    (*copy.headers_mut(), *copy.extensions_mut()) = (request.headers().clone(), request.extensions().clone());
    Some(copy)
}

/// Returns whether a refused request was certainly not executed, or may be executed twice. A request that timed out at
/// a gateway (504) may have been executed: a second POST could create a second object, under another generated name.
fn is_retriable(status: StatusCode, method: &Method) -> bool {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => true,
        StatusCode::GATEWAY_TIMEOUT => method == Method::GET,
        _ => false,
    }
}

async fn send_with_timeout(bare: &Transport, request: Request<Body>) -> Result<HttpResponse, BoxError> {
    let long_running = is_long_running(request.uri());
    let response = bare.send(request);
    if long_running {
        return Ok(response.await?);
    }
    let timed_out = || format!("the API server did not answer within {TIMEOUT:?}");
    timeout(TIMEOUT, collect_body(response)).await.unwrap_or_else(|_| Err(timed_out().into()))
}

/// Waits for the response and its whole body, because the connection may die before the end of the body.
async fn collect_body(
    response: impl Future<Output = kube::Result<HttpResponse>>,
) -> Result<HttpResponse, BoxError> {
    let (head, body) = response.await?.into_parts();
    let body = Full::from(body.collect().await?.to_bytes());
    Ok(Response::from_parts(head, Box::new(body.map_err(|never| match never {}))))
}

/// Returns whether the API server treats the request as long-running: then it has no timeout.
fn is_long_running(uri: &http::Uri) -> bool {
    let subresource = ResourcePath::parse(uri.path()).and_then(|path| path.subresource());
    is_watch(uri) || matches!(subresource, Some("attach" | "exec" | "log" | "portforward" | "proxy"))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc, Mutex,
            atomic::{AtomicU32, Ordering},
        },
    };

    use http::{HeaderValue, header};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api, Client,
        api::{PostParams, WatchParams},
    };
    use reknit_injection::{Context, Informer, InformerState};

    use super::*;

    /// Returns the client for controllers without a rate limit.
    fn unlimited_client(bare: &Client) -> Client {
        controller_client(bare, 0.0, 1)
    }

    /// Returns the client for controllers on top of a bare client.
    fn controller_client(bare: &Client, per_second: f64, burst: u32) -> Client {
        controller_transport(&bare.clone().into(), "default", per_second, burst).client()
    }

    /// Returns a client whose first requests are refused with 429, and the number of its requests.
    fn overloaded_client(refusals: u32) -> (Client, Arc<AtomicU32>) {
        refusing_client(StatusCode::TOO_MANY_REQUESTS, refusals)
    }

    fn refusing_client(refusal: StatusCode, refusals: u32) -> (Client, Arc<AtomicU32>) {
        client_to_retry_after("1", refusal, refusals)
    }

    fn client_to_retry_after(
        wait: &'static str,
        refusal: StatusCode,
        refusals: u32,
    ) -> (Client, Arc<AtomicU32>) {
        let requests = Arc::new(AtomicU32::new(0));
        let count = requests.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let is_refused = count.fetch_add(1, Ordering::Relaxed) < refusals;
            async move {
                let (status, body) = if is_refused {
                    (refusal, "{}")
                } else {
                    (StatusCode::OK, r#"{"metadata":{"name":"a"}}"#)
                };
                let body = Body::from(body.as_bytes().to_vec());
                let response =
                    Response::builder().status(status).header(header::RETRY_AFTER, wait).body(body);
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        (Client::new(service, "default"), requests)
    }

    async fn get(client: &Client) -> kube::Result<ConfigMap> {
        Api::default_namespaced(client.clone()).get("a").await
    }

    #[tokio::test(start_paused = true)]
    async fn the_client_for_controllers_retries_429_and_the_bare_client_does_not() {
        let (bare, requests) = overloaded_client(2);
        assert!(get(&bare).await.is_err());
        assert!(get(&unlimited_client(&bare)).await.is_ok());
        assert_eq!(requests.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_without_retry_after_is_not_retried() {
        let count = Arc::new(AtomicU32::new(0));
        let requests = count.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            requests.fetch_add(1, Ordering::Relaxed);
            let response = Response::builder().status(429).body(Body::from(b"{}".to_vec()));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        let start = Instant::now();
        assert!(get(&unlimited_client(&Client::new(service, "default"))).await.is_err());
        assert_eq!((count.load(Ordering::Relaxed), start.elapsed()), (1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_end_with_their_budget_whatever_the_server_asks_for() {
        for (wait, requests, seconds) in [
            ("1", 6, 5),
            ("0", 6, 5),
            ("3", 2, 3),
            ("10", 1, 0),
            ("600", 1, 0),
            ("Fri, 01 Jan 2100 00:00:00 GMT", 1, 0),
        ] {
            let (bare, count) = client_to_retry_after(wait, StatusCode::TOO_MANY_REQUESTS, u32::MAX);
            let start = Instant::now();
            assert!(get(&unlimited_client(&bare)).await.is_err());
            let spent = (count.load(Ordering::Relaxed), start.elapsed().as_secs());
            assert_eq!(spent, (requests, seconds), "Retry-After: {wait}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_requests_that_may_have_been_executed_only_a_get_is_retried() {
        for (refusal, gets, posts) in [
            (StatusCode::TOO_MANY_REQUESTS, 2, 2),
            (StatusCode::SERVICE_UNAVAILABLE, 2, 2),
            (StatusCode::GATEWAY_TIMEOUT, 2, 1),
        ] {
            let (bare, requests) = refusing_client(refusal, 1);
            get(&unlimited_client(&bare)).await.unwrap();
            assert_eq!(requests.load(Ordering::Relaxed), gets, "GET, {refusal}");
            let (bare, requests) = refusing_client(refusal, 1);
            let maps: Api<ConfigMap> = Api::default_namespaced(unlimited_client(&bare));
            let created = maps.create(&PostParams::default(), &ConfigMap::default()).await;
            assert_eq!(requests.load(Ordering::Relaxed), posts, "POST, {refusal}");
            assert_eq!(created.is_ok(), posts == 2, "POST, {refusal}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_informer_that_retries_itself_gets_the_refusal_at_once() {
        let (bare, requests) = refusing_client(StatusCode::SERVICE_UNAVAILABLE, u32::MAX);
        let cx = Context::new("test", unlimited_client(&bare));
        let maps: Informer<ConfigMap> = cx.get();
        cx.informers().start();
        let start = Instant::now();
        while !matches!(maps.state(), InformerState::Waiting { reason, .. } if reason.contains("503")) {
            assert!(start.elapsed() < Duration::from_secs(1), "{:?}", maps.state());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(requests.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_page_is_requested_again_and_not_the_whole_list() {
        // One value for each request: true if it was for the second page.
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let (is_second_page, is_first_page) =
                (query.contains("continue=more"), !query.contains("continue"));
            let mut seen = seen.lock().unwrap();
            let (code, body) = if query.contains("watch=true") {
                (410, "{}")
            } else if is_first_page {
                (200, r#"{"metadata":{"resourceVersion":"5","continue":"more"},"items":[]}"#)
            } else if !seen.contains(&true) {
                (429, "{}")
            } else {
                (200, r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#)
            };
            seen.push(is_second_page);
            let body = Body::from(body.as_bytes().to_vec());
            let response = Response::builder().status(code).header(header::RETRY_AFTER, "1").body(body);
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        let cx = Context::new("test", unlimited_client(&Client::new(service, "default")));
        let maps: Informer<ConfigMap> = cx.get();
        cx.informers().start();
        maps.synced().await;
        assert_eq!(requests.lock().unwrap()[..3], [false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_response_times_out_and_a_watch_does_not() {
        let endless = tower::service_fn(|_: Request<Body>| async {
            let chunks = futures::stream::pending::<Result<Vec<u8>, Infallible>>();
            Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(chunks)))
        });
        let client = unlimited_client(&Client::new(endless, "default"));
        let response = timeout(Duration::from_secs(100), get(&client)).await.unwrap();
        assert!(response.unwrap_err().to_string().contains("did not answer within 75s"));
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        assert!(maps.watch(&WatchParams::default(), "0").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn all_clones_of_a_client_share_one_rate_limit() {
        let client = controller_client(&overloaded_client(0).0, 10.0, 2);
        let start = Instant::now();
        let requests = (0..12).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { get(&client).await })
        });
        for request in requests.collect::<Vec<_>>() {
            request.await.unwrap().unwrap();
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_millis(1200), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_response_times_out_unless_it_is_long_running() {
        let never = tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, Infallible>>()
        });
        let client = unlimited_client(&Client::new(never, "default"));
        let error = get(&client).await.unwrap_err();
        assert!(error.to_string().contains("did not answer within 75s"), "{error}");
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let params = WatchParams::default();
        let watch = maps.watch(&params, "0");
        assert!(timeout(Duration::from_secs(3600), watch).await.is_err());
    }

    #[test]
    fn watches_and_streams_are_long_running() {
        for (path, long) in [
            ("/api/v1/pods?limit=500", false),
            ("/api/v1/pods?limit=500&watch=true", true),
            ("/api/v1/namespaces/a/pods/p/log?follow=true", true),
            ("/api/v1/namespaces/a/pods/p/exec", true),
            ("/api/v1/namespaces/a/services/s/proxy", true),
            ("/api/v1/namespaces/a/services/s/proxy/events", true),
            ("/api/v1/nodes/n/proxy/metrics", true),
            ("/api/v1/namespaces/a/pods/p/status", false),
            ("/api/v1/namespaces/proxy/configmaps/m", false),
            ("/api/v1/namespaces/proxy", false),
            ("/api/v1/namespaces/a/configmaps/log", false),
            ("/api/v1/namespaces/a/services/proxy", false),
            ("/apis/apps/v1/namespaces/a/deployments/proxy/status", false),
        ] {
            assert_eq!(is_long_running(&path.parse().unwrap()), long, "{path}");
        }
    }

    #[test]
    fn a_user_agent_is_a_valid_header() {
        let agent = user_agent("contrôleur\n", "1.0", None);
        assert!(HeaderValue::try_from(&agent).is_ok());
        assert!(agent.starts_with("contrleur/1.0 reknit/"), "{agent}");
    }

    #[test]
    fn the_user_agent_of_a_candidate_names_its_process() {
        let identity = Identity::on("web-0");
        let agent = user_agent("controller", "1.0", Some(&identity));
        assert!(agent.ends_with(&format!(" ({identity})")), "{agent}");
    }
}
