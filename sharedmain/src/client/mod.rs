//! The clients of a process: a bare one, and one for controllers on top of it.
pub(crate) mod certificate;
pub(crate) mod error;
mod exec_plugin;
pub(crate) mod kube_version;
pub(crate) mod kubeconfig;
mod proxy;
mod rate_limit;
mod token_file;
mod transport;

use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use kube::client::{Body, retry::RetryPolicy};
use reknit_injection::{Answer, NotRepeated, ResourcePath, Transport};
use tokio::time::{Sleep, timeout};
use tower::{
    BoxError, Layer,
    retry::{Policy, RetryLayer},
};

use self::{
    error::root, kubeconfig::Access, rate_limit::rate_limited, token_file::TokenFile, transport::transport,
};
use crate::process::failure::Failure;

/// An API server ends every request that is not long-running after 60 seconds, unless it is told otherwise.
const ANSWER: Duration = Duration::from_secs(75);

/// The connection is held to be dead.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {ANSWER:?}")]
struct NoAnswer;

/// The user agent of every request, cut where a header could not hold it.
pub(crate) fn user_agent(component: &str, version: &str) -> String {
    let agent = format!("{component}/{version} reknit/{}", env!("CARGO_PKG_VERSION"));
    agent.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect()
}

/// What neither retries nor holds requests back: what leader election and the start need. Each has connections of its
/// own. Credential plugins are run here, by kube once for TLS and once for the token, and again before that expires.
pub(crate) fn bare(access: &Access, agent: &str) -> Result<Transport, Failure> {
    let failed = |why: String| Failure::new(format!("{}: {why}", access.origin));
    // Named, so that another provider that a dependency brings does not make the choice ambiguous. It fails where
    // one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    access.config.proxy_url.as_ref().map_or(Ok(()), proxy::check).map_err(failed)?;
    let mut config = access.config.clone();
    let agent = HeaderValue::try_from(agent).map_err(|e| failed(e.to_string()))?;
    config.headers.push((header::USER_AGENT, agent));
    let token = config.auth_info.token_file.take().map(TokenFile::open).transpose().map_err(failed)?;
    transport(&config, token).map_err(|e| failed(root(&e)))
}

/// What controllers get: it retries what a busy API server refused, keeps to a rate if there is one, and does not wait
/// for ever on a connection whose other end is gone without a word.
pub(crate) fn for_controllers(bare: &Transport, namespace: &str, per_second: f64, burst: u32) -> Transport {
    let bare = bare.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let long_running = is_long_running(request.uri());
        let answer = bare.send(request);
        async move {
            if long_running {
                return Ok(answer.await?);
            }
            timeout(ANSWER, complete(answer)).await.unwrap_or_else(|_| Err(NoAnswer.into()))
        }
    });
    let retried = RetryLayer::new(Repeat(RetryPolicy::server_retry())).layer(service);
    if per_second > 0.0 {
        Transport::new(rate_limited(retried, per_second, burst), namespace)
    } else {
        Transport::new(retried, namespace)
    }
}

/// The answer with its body, which the connection may fail to deliver as well.
async fn complete(answer: impl Future<Output = kube::Result<Answer>>) -> Result<Answer, BoxError> {
    let (head, body) = answer.await?.into_parts();
    let body = Full::from(body.collect().await?.to_bytes());
    Ok(Response::from_parts(head, Box::new(body.map_err(|never| match never {}))))
}

/// Repeats what a busy API server refused and says when to repeat, as client-go does, unless whoever asked does that.
/// What timed out at a gateway (504) may have been done all the same, so only what changes nothing is repeated then: a
/// second POST would create a second object under a generated name.
#[derive(Clone)]
struct Repeat(RetryPolicy);

impl Policy<Request<Body>, Answer, BoxError> for Repeat {
    type Future = Sleep;

    fn retry(&mut self, request: &mut Request<Body>, result: &mut Result<Answer, BoxError>) -> Option<Sleep> {
        let answer = result.as_ref().ok()?;
        let says_when = answer.headers().contains_key(header::RETRY_AFTER);
        let timed_out = answer.status() == StatusCode::GATEWAY_TIMEOUT;
        let on_their_own = request.extensions().get::<NotRepeated>().is_some();
        if !says_when || on_their_own || (timed_out && request.method() != Method::GET) {
            return None;
        }
        self.0.retry(request, result)
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Policy::<_, Answer, _>::clone_request(&mut self.0, request)
    }
}

/// What the API server itself counts as such: it may answer when it likes, and so may what it is a proxy for.
fn is_long_running(uri: &http::Uri) -> bool {
    let watches = |query: &str| query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"));
    let subresource = ResourcePath::read(uri.path()).and_then(|path| path.subresource());
    uri.query().is_some_and(watches)
        || matches!(subresource, Some("attach" | "exec" | "log" | "portforward" | "proxy"))
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

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api, Client,
        api::{PostParams, WatchParams},
    };
    use tokio::time::Instant;

    use reknit_injection::{Context, FeedState, Informer};

    use super::*;

    /// A controllers' client on top of this one.
    fn on(bare: &Client, per_second: f64, burst: u32) -> Client {
        for_controllers(&bare.clone().into(), "default", per_second, burst).client()
    }

    /// Refuses so many requests as too many, and answers the others.
    fn busy_for(refusals: u32) -> (Client, Arc<AtomicU32>) {
        refusing(StatusCode::TOO_MANY_REQUESTS, refusals)
    }

    fn refusing(refusal: StatusCode, refusals: u32) -> (Client, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let busy = count.fetch_add(1, Ordering::Relaxed) < refusals;
            async move {
                let (status, body) =
                    if busy { (refusal, "{}") } else { (StatusCode::OK, r#"{"metadata":{"name":"a"}}"#) };
                let body = Body::from(body.as_bytes().to_vec());
                let answer = Response::builder().status(status).header(header::RETRY_AFTER, "1").body(body);
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        (Client::new(service, "default"), asked)
    }

    async fn get(client: &Client) -> kube::Result<ConfigMap> {
        Api::default_namespaced(client.clone()).get("a").await
    }

    #[tokio::test(start_paused = true)]
    async fn controllers_wait_for_a_busy_server_and_a_bare_client_does_not() {
        let (bare, asked) = busy_for(2);
        assert!(get(&bare).await.is_err());
        assert!(get(&on(&bare, 0.0, 1)).await.is_ok());
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_does_not_say_when_to_repeat_is_told_at_once() {
        let count = Arc::new(AtomicU32::new(0));
        let asked = count.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            asked.fetch_add(1, Ordering::Relaxed);
            let answer = Response::builder().status(429).body(Body::from(b"{}".to_vec()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        let begun = Instant::now();
        assert!(get(&on(&Client::new(service, "default"), 0.0, 1)).await.is_err());
        assert_eq!((count.load(Ordering::Relaxed), begun.elapsed()), (1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_get_is_repeated_that_may_have_been_done() {
        for (refusal, gets, posts) in [
            (StatusCode::TOO_MANY_REQUESTS, 2, 2),
            (StatusCode::SERVICE_UNAVAILABLE, 2, 2),
            (StatusCode::GATEWAY_TIMEOUT, 2, 1),
        ] {
            let (bare, asked) = refusing(refusal, 1);
            get(&on(&bare, 0.0, 1)).await.unwrap();
            assert_eq!(asked.load(Ordering::Relaxed), gets, "GET, {refusal}");
            let (bare, asked) = refusing(refusal, 1);
            let maps: Api<ConfigMap> = Api::default_namespaced(on(&bare, 0.0, 1));
            let created = maps.create(&PostParams::default(), &ConfigMap::default()).await;
            assert_eq!(asked.load(Ordering::Relaxed), posts, "POST, {refusal}");
            assert_eq!(created.is_ok(), posts == 2, "POST, {refusal}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn informers_are_told_at_once_why_they_have_to_wait() {
        let (bare, asked) = refusing(StatusCode::SERVICE_UNAVAILABLE, u32::MAX);
        let cx = Context::new("test", on(&bare, 0.0, 1));
        let maps: Informer<ConfigMap> = cx.get();
        cx.informers().start();
        let begun = Instant::now();
        while !matches!(maps.state(), FeedState::Waiting { why, .. } if why.contains("503")) {
            assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", maps.state());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_is_refused_is_asked_for_again_and_not_the_whole_list() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let (next, first) = (query.contains("continue=more"), !query.contains("continue"));
            let mut noted = noted.lock().unwrap();
            let (code, body) = match () {
                () if query.contains("watch=true") => (410, "{}"),
                () if first => (200, r#"{"metadata":{"resourceVersion":"5","continue":"more"},"items":[]}"#),
                () if !noted.contains(&next) => (429, "{}"),
                () => (200, r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#),
            };
            noted.push(next);
            let body = Body::from(body.as_bytes().to_vec());
            let answer = Response::builder().status(code).header(header::RETRY_AFTER, "1").body(body);
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        let cx = Context::new("test", on(&Client::new(service, "default"), 0.0, 1));
        let maps: Informer<ConfigMap> = cx.get();
        cx.informers().start();
        maps.synced().await;
        assert_eq!(asked.lock().unwrap()[..3], [false, true, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_never_complete_is_an_error_and_a_watch_may_go_on() {
        let endless = tower::service_fn(|_: Request<Body>| async {
            let chunks = futures::stream::pending::<Result<Vec<u8>, Infallible>>();
            Ok::<_, Infallible>(Response::new(axum::body::Body::from_stream(chunks)))
        });
        let client = on(&Client::new(endless, "default"), 0.0, 1);
        let answer = timeout(Duration::from_secs(100), get(&client)).await.unwrap();
        assert!(answer.unwrap_err().to_string().contains("did not answer within 75s"));
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        assert!(maps.watch(&WatchParams::default(), "0").await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn all_clones_of_a_limited_client_keep_to_one_rate() {
        let client = on(&busy_for(0).0, 10.0, 2);
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
    async fn a_server_that_is_gone_without_a_word_is_an_error_unless_the_request_is_long_running() {
        let never = tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, Infallible>>()
        });
        let client = on(&Client::new(never, "default"), 0.0, 1);
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
    fn a_user_agent_is_a_header() {
        let agent = user_agent("contrôleur\n", "1.0");
        assert!(HeaderValue::try_from(&agent).is_ok());
        assert!(agent.starts_with("contrleur/1.0 reknit/"), "{agent}");
    }
}
