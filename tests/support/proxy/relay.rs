//! Forwards requests and watches according to the rules of the proxy.

use std::{
    collections::BTreeMap,
    future::ready,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{AsyncBufReadExt, Stream, StreamExt, TryStreamExt, channel::mpsc, stream};
use http::header::{AUTHORIZATION, HOST};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{Client, Config, client::Body, config::AuthInfo};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{
    gate::Gate,
    request::{Request, WatchLine},
};

/// A request and the status of its response.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub request: Request,
    pub status: u16,
}

/// The state that all connections of a proxy share.
pub(super) struct Relay {
    api_server: Client,
    /// The token of requests without credentials.
    pub(super) token: Mutex<Option<String>>,
    pub(super) response_gates: Gates<Request>,
    pub(super) line_gates: Gates<WatchLine>,
    /// The delay of each line of a watch, by resource.
    pub(super) line_delays: Mutex<BTreeMap<String, Duration>>,
    /// The resources whose next watch ends with 410.
    pub(super) expired: Mutex<Vec<String>>,
    /// The watches that inject lines, each with its resource.
    pub(super) injected: Mutex<Vec<(String, mpsc::UnboundedSender<Bytes>)>>,
    /// Counts the calls of `cut_watches`. Each change breaks all watches.
    pub(super) cuts: watch::Sender<u64>,
    pub(super) exchanges: Mutex<Vec<Exchange>>,
    pub(super) delivered: Mutex<Vec<WatchLine>>,
}

/// The gates that hold matching items.
type Gates<T> = Mutex<Vec<(Arc<dyn Fn(&T) -> bool + Send + Sync>, Gate)>>;
type Response = http::Response<UnsyncBoxBody<Bytes, BoxError>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Returns a client that adds no credentials to requests, does not retry, and has no read timeout.
fn bare_client(config: &Config) -> Client {
    let mut bare = config.clone();
    bare.auth_info = AuthInfo::default();
    bare.default_retry = false;
    bare.read_timeout = None;
    Client::try_from(bare).expect("a client of the API server")
}

pub(super) async fn accept(relay: Arc<Relay>, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(relay.clone(), stream));
    }
}

async fn serve(relay: Arc<Relay>, stream: TcpStream) {
    // Without TCP_NODELAY the small writes of a watch, one for each line, would be delayed.
    stream.set_nodelay(true).expect("TCP_NODELAY is set");
    let service = service_fn(|request| relay.clone().forward(request));
    // An error means that the client hung up, or that the proxy cut the connection.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Relay {
    /// Creates a relay to the API server of `config`.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            api_server: bare_client(config),
            token: Mutex::default(),
            response_gates: Mutex::default(),
            line_gates: Mutex::default(),
            line_delays: Mutex::default(),
            expired: Mutex::default(),
            injected: Mutex::default(),
            cuts: watch::Sender::default(),
            exchanges: Mutex::default(),
            delivered: Mutex::default(),
        }
    }

    /// Forwards a request, and returns the response. An error breaks the connection, as when a server stops.
    async fn forward(self: Arc<Self>, request: http::Request<Incoming>) -> Result<Response, BoxError> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let request = Request::parse(&head.method, &head.uri, &body);
        if request.verb == "watch" && self.take_expired(&request.resource) {
            self.record(request, 200);
            return Ok(expired_response());
        }
        head.headers.remove(HOST);
        if let Some(token) = &*self.token.lock() {
            let value = || format!("Bearer {token}").try_into().expect("a header");
            head.headers.entry(AUTHORIZATION).or_insert_with(value);
        }
        let response = self.api_server.send(http::Request::from_parts(head, Body::from(body))).await?;
        let (head, body) = response.into_parts();
        if request.verb == "watch" && head.status.is_success() {
            let lines = self.clone().forward_watch(request.resource.clone(), body);
            // Recorded after `forward_watch` has added the sender of injected lines, because tests wait for the record
            // before they inject.
            self.record(request, head.status.as_u16());
            return Ok(http::Response::from_parts(head, lines));
        }
        self.record(request.clone(), head.status.as_u16());
        let bytes = body.collect().await?.to_bytes();
        pass(&self.response_gates, &request).await;
        Ok(http::Response::from_parts(head, full_body(bytes)))
    }

    fn record(&self, request: Request, status: u16) {
        self.exchanges.lock().push(Exchange { request, status });
    }

    /// Returns true if the next watch of this resource was to end with 410.
    fn take_expired(&self, resource: &str) -> bool {
        let mut expired = self.expired.lock();
        let index = expired.iter().position(|expired| expired == resource);
        index.map(|index| expired.remove(index)).is_some()
    }

    /// Returns the body for the client of a watch: the lines from the API server and the injected lines, after the
    /// delays and gates of the rules.
    fn forward_watch(self: Arc<Self>, resource: String, body: Body) -> UnsyncBoxBody<Bytes, BoxError> {
        let (inject, injected) = mpsc::unbounded();
        self.injected.lock().push((resource.clone(), inject));
        // Each line waits for its delay from its own arrival, so lines are read while others wait.
        let (arrived, arrivals) = mpsc::unbounded();
        let lines = until_first_ends(lines(body), injected).map(|line| Ok((Instant::now(), line)));
        tokio::spawn(lines.forward(arrived));
        let delay = self.line_delays.lock().get(&resource).copied().unwrap_or_default();
        let mut cuts = self.cuts.subscribe();
        let delivered = arrivals.then(move |(arrival, bytes)| {
            let (relay, line) = (self.clone(), WatchLine::parse(&resource, &bytes));
            async move {
                tokio::time::sleep_until((arrival + delay).into()).await;
                pass(&relay.line_gates, &line).await;
                // Recorded before the line is sent, so that a test that sees an effect of the line also finds the
                // record.
                relay.delivered.lock().push(line);
                Ok(Frame::data(bytes))
            }
        });
        let cut = stream::once(async move {
            let _ = cuts.changed().await;
            Err(BoxError::from("the proxy cut the watch"))
        });
        StreamBody::new(until_first_ends(delivered, cut)).boxed_unsync()
    }
}

/// Waits at each gate that holds the item.
async fn pass<T>(gates: &Gates<T>, item: &T) {
    let matching: Vec<_> = gates.lock().iter().filter(|(matches, _)| matches(item)).cloned().collect();
    for (_, gate) in matching {
        gate.pass().await;
    }
}

/// Splits the body of a watch into lines.
fn lines(body: Body) -> impl Stream<Item = Bytes> + Send {
    let lines = body.into_data_stream().map_err(io::Error::other).into_async_read().lines();
    lines.scan((), |(), line| ready(line.ok())).map(|line| format!("{line}\n").into())
}

/// Merges two streams, and ends with the first.
fn until_first_ends<T: Send>(
    first: impl Stream<Item = T> + Send,
    second: impl Stream<Item = T> + Send,
) -> impl Stream<Item = T> + Send {
    let first = first.map(Some).chain(stream::once(ready(None)));
    stream::select(first, second.map(Some)).scan((), |(), item| ready(item))
}

fn full_body(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The response of an API server to a watch from an expired resourceVersion.
fn expired_response() -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410,
    });
    let line = format!("{}\n", json!({ "type": "ERROR", "object": status }));
    let response = http::Response::builder().header(http::header::CONTENT_TYPE, "application/json");
    response.body(full_body(line)).expect("a response")
}
