//! The requests of a pass: recorded in it, so that a slow pass names the request that it waits for.

use std::{fmt, sync::Arc, time::Duration};

use futures::FutureExt;
use http::{Method, Request, Uri, header};
use kube::client::Body;
use tokio::time::Instant;

use super::{
    resource_path::{ResourcePath, resource_name},
    transport::Transport,
};
use crate::pass::CurrentPass;

/// The maximum number of requests that a pass keeps. Earlier ones that have ended are only counted.
const MAX_REQUESTS: usize = 32;
/// The maximum length of the path of a kept request in bytes.
const MAX_PATH: usize = 256;

/// The requests of a pass through the client of its [`Context`](crate::Context).
#[derive(Clone, Debug, Default)]
pub struct PassRequests {
    /// The last requests, of which at most 32 are kept.
    pub kept: Vec<PassRequest>,
    /// The number of all requests.
    pub total: u64,
}

/// One request of a pass, with the attempts that the transport repeats. Formats as `patch deployments.apps/status
/// shop/web`.
#[derive(Clone, Debug)]
pub struct PassRequest {
    /// The number of the request in its pass, from 1.
    number: u64,
    /// The verb of RBAC, or `apply`.
    pub verb: &'static str,
    /// The path of the URL, without its query, cut to 256 bytes.
    path: Box<str>,
    /// The time at which the request began.
    pub begun: Instant,
    /// The duration and the status of the answer. `None` while the pass waits for it.
    pub ended: Option<(Duration, RequestEnd)>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEnd {
    /// The API server answered with this status.
    Answered(u16),
    /// The request failed without an answer.
    Failed,
    /// The pass did not wait for the answer.
    Dropped,
}

impl PassRequests {
    /// The requests whose answer the pass waits for.
    pub fn pending(&self) -> impl Iterator<Item = &PassRequest> {
        self.kept.iter().filter(|request| request.ended.is_none())
    }

    /// Records a request that begins, and returns its number.
    fn begin(&mut self, request: PassRequest) -> u64 {
        self.total += 1;
        if self.kept.len() >= MAX_REQUESTS
            && let Some(ended) = self.kept.iter().position(|kept| kept.ended.is_some())
        {
            self.kept.remove(ended);
        }
        if self.kept.len() < MAX_REQUESTS {
            self.kept.push(PassRequest { number: self.total, ..request });
        }
        self.total
    }

    fn end(&mut self, number: u64, end: RequestEnd) {
        let request = self.kept.iter_mut().rfind(|request| request.number == number);
        if let Some(request) = request.filter(|request| request.ended.is_none()) {
            request.ended = Some((request.begun.elapsed(), end));
        }
    }
}

impl PassRequest {
    fn of(request: &Request<Body>) -> Self {
        let path = request.uri().path();
        Self {
            number: 0,
            verb: request_verb(request.method(), request.uri(), is_apply(request)),
            path: path[..path.floor_char_boundary(MAX_PATH)].into(),
            begun: Instant::now(),
            ended: None,
        }
    }

    /// The resource, such as `deployments.apps/status`, or the path of a request without one.
    pub fn resource(&self) -> String {
        let Some(path) = ResourcePath::parse(&self.path) else { return self.path.to_string() };
        resource_name(path.group, path.plural, path.subresource().unwrap_or_default())
    }

    /// The key of the object, or the namespace of a collection. Empty for a collection of all namespaces.
    pub fn object(&self) -> String {
        let Some(path) = ResourcePath::parse(&self.path) else { return String::new() };
        let namespace = path.namespace.unwrap_or_default();
        path.key().map_or_else(|| namespace.to_owned(), |key| key.to_string())
    }
}

impl fmt::Display for PassRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (resource, object) = (self.resource(), self.object());
        write!(f, "{} {resource}{}{object}", self.verb, if object.is_empty() { "" } else { " " })
    }
}

/// Wraps a transport so that it records the requests of passes.
pub(crate) fn record_requests(transport: &Transport) -> Transport {
    let inner = transport.clone();
    transport.with_send(move |request| {
        let record = PassRequest::of(&request);
        let response = inner.send(request);
        // The pass is known where the response is awaited: a kube `Client` calls this function in another task.
        async move {
            let Some(pass) = CurrentPass::get() else { return response.await };
            let pending = Pending::begin(pass, record);
            let response = response.await;
            pending.end(
                response
                    .as_ref()
                    .map_or(RequestEnd::Failed, |response| RequestEnd::Answered(response.status().as_u16())),
            );
            response
        }
        .boxed()
    })
}

/// A recorded request whose answer is awaited. Dropped with the request.
struct Pending {
    pass: Arc<CurrentPass>,
    number: u64,
}

impl Pending {
    fn begin(pass: Arc<CurrentPass>, record: PassRequest) -> Self {
        let number = pass.requests.lock().begin(record);
        Self { pass, number }
    }

    fn end(&self, end: RequestEnd) {
        self.pass.requests.lock().end(self.number, end);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.end(RequestEnd::Dropped);
    }
}

/// Returns the verb of RBAC for a request, or `apply`.
pub fn request_verb(method: &Method, uri: &Uri, is_apply: bool) -> &'static str {
    let is_collection = || ResourcePath::parse(uri.path()).is_some_and(|path| path.is_collection());
    match *method {
        Method::GET if is_watch(uri) => "watch",
        Method::GET if is_collection() => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH if is_apply => "apply",
        Method::PATCH => "patch",
        Method::DELETE if is_collection() => "deletecollection",
        Method::DELETE => "delete",
        _ => "other",
    }
}

/// Returns true for a watch.
pub fn is_watch(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

/// Returns true for a server-side apply.
pub fn is_apply(request: &Request<Body>) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/apply-patch+"))
}

#[cfg(test)]
mod tests {
    use http::{Response, StatusCode};
    use reknit_apis::Key;
    use tokio::time::{sleep, timeout};
    use tower::BoxError;

    use super::*;

    /// Creates a transport that answers with 404 after a minute.
    fn slow_transport() -> Transport {
        let service = tower::service_fn(|_: Request<Body>| async {
            sleep(Duration::from_secs(60)).await;
            let mut response = Response::new(super::super::transport::full_body(bytes::Bytes::new()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            Ok::<_, BoxError>(response)
        });
        record_requests(&Transport::new(service, "shop"))
    }

    fn request(method: Method, path: &str) -> Request<Body> {
        Request::builder().method(method).uri(path).body(Body::empty()).unwrap()
    }

    fn in_pass<F: Future>(pass: F) -> (Arc<CurrentPass>, impl Future<Output = F::Output>) {
        let current = CurrentPass::begin(&"web".into(), &Key::new("shop", "web").into(), true);
        (current.clone(), current.scope(pass))
    }

    fn ends(pass: &CurrentPass) -> Vec<(String, Option<(u64, RequestEnd)>)> {
        let requests = pass.requests.lock();
        let end = |request: &PassRequest| request.ended.map(|(took, end)| (took.as_secs(), end));
        requests.kept.iter().map(|request| (request.to_string(), end(request))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_names_the_request_that_it_waits_for_and_its_answer() {
        let (transport, path) =
            (slow_transport(), "/apis/apps/v1/namespaces/shop/deployments/web/status?x=y");
        let (pass, running) =
            in_pass(async move { transport.send(request(Method::PATCH, path)).await.is_ok() });
        let mut running = std::pin::pin!(running);
        assert!(timeout(Duration::from_secs(7), &mut running).await.is_err());
        let name = "patch deployments.apps/status shop/web".to_owned();
        assert_eq!(ends(&pass), [(name.clone(), None)]);
        assert_eq!(pass.requests.lock().pending().count(), 1);
        assert!(running.await);
        assert_eq!(ends(&pass), [(name, Some((60, RequestEnd::Answered(404))))]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_requests_of_a_kube_client_belong_to_the_pass_that_awaits_them() {
        let client = slow_transport().client();
        let (pass, running) = in_pass(async move {
            let pods = kube::Api::<k8s_openapi::api::core::v1::Pod>::namespaced(client, "shop");
            let one = timeout(Duration::from_secs(1), pods.get("a")).await;
            assert!(one.is_err());
            pods.list(&kube::api::ListParams::default()).await.unwrap_err();
        });
        running.await;
        let expected = [
            ("get pods shop/a".to_owned(), Some((1, RequestEnd::Dropped))),
            ("list pods shop".to_owned(), Some((60, RequestEnd::Answered(404)))),
        ];
        assert_eq!(ends(&pass), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_32_requests_are_kept_and_paths_are_cut() {
        let transport = slow_transport();
        let send = move |n: usize| {
            transport.send(request(Method::GET, &format!("/api/v1/nodes/{n}{}", "-".repeat(1000))))
        };
        let (pass, running) = in_pass(async move {
            futures::future::join_all((0..MAX_REQUESTS + 3).map(&send)).await;
            send(100).await
        });
        running.await.unwrap();
        let requests = pass.requests.lock();
        assert_eq!((requests.kept.len(), requests.total), (MAX_REQUESTS, MAX_REQUESTS as u64 + 4));
        assert!(requests.kept[0].path.starts_with("/api/v1/nodes/1-"), "the first has made room");
        assert!(requests.kept[MAX_REQUESTS - 1].path.starts_with("/api/v1/nodes/100-"));
        assert!(requests.kept.iter().all(|request| request.path.len() == MAX_PATH));
    }
}
