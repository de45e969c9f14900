//! Forwards requests and watches according to the rules of the proxy.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{
    SinkExt, StreamExt,
    channel::mpsc::{self, Receiver, Sender},
};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Frame, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Client, Config, client::Body, config::AuthInfo};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::{broadcast, watch},
    task::JoinSet,
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
    pub(super) rules: Mutex<Vec<Rule>>,
    pub(super) exchanges: Mutex<Vec<Exchange>>,
    pub(super) delivered: Mutex<Vec<WatchLine>>,
    /// Injected lines, each with its resource.
    pub(super) injected: broadcast::Sender<(String, Bytes)>,
    /// Counts the calls of `cut_watches`. Each change breaks all watches.
    pub(super) cuts: watch::Sender<u64>,
    /// Set by the test: true if connections are to be accepted.
    pub(super) open: watch::Sender<bool>,
    /// Set by the accept loop once it has acted on `open`: true if it listens.
    pub(super) listening: watch::Sender<bool>,
}

/// A rule for requests or for watch lines.
pub(super) enum Rule {
    HoldResponse(Predicate<Request>, Gate),
    HoldLine(Predicate<WatchLine>, Gate),
    /// Delays the lines of watches of this resource.
    DelayLines(String, Duration),
    /// Ends the next watch of this resource with 410.
    Expire(String),
}

pub(super) type Predicate<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;
type Response = http::Response<UnsyncBoxBody<Bytes, BoxError>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Chunk = Result<Frame<Bytes>, BoxError>;

/// Returns a client that adds no credentials to requests, does not retry, and has no read timeout.
fn bare_client(config: &Config) -> Client {
    let mut bare = config.clone();
    bare.auth_info = AuthInfo::default();
    bare.default_retry = false;
    bare.read_timeout = None;
    Client::try_from(bare).expect("a client of the API server")
}

/// Accepts connections while the proxy is open. When it closes, breaks the connections and keeps the port.
pub(super) async fn accept(relay: Arc<Relay>, mut listener: TcpListener) {
    let address = listener.local_addr().expect("an address");
    let mut open = relay.open.subscribe();
    loop {
        relay.listening.send_replace(true);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let (stream, _) = accepted.expect("a connection");
                    connections.spawn(serve(relay.clone(), stream));
                }
                _ = open.wait_for(|open| !open) => break,
            }
        }
        drop(listener);
        let socket = reserve_port(address);
        connections.shutdown().await;
        relay.listening.send_replace(false);
        open.wait_for(|open| *open).await.expect("the proxy runs");
        listener = socket.listen(1024).expect("the same port again");
    }
}

/// Binds the port without listening, so that connections are refused and no other process gets the port.
fn reserve_port(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("SO_REUSEADDR is set");
    socket.bind(address).expect("the same port again");
    socket
}

async fn serve(relay: Arc<Relay>, stream: tokio::net::TcpStream) {
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
            rules: Mutex::default(),
            exchanges: Mutex::default(),
            delivered: Mutex::default(),
            injected: broadcast::channel(100).0,
            cuts: watch::channel(0).0,
            open: watch::channel(true).0,
            listening: watch::channel(true).0,
        }
    }

    /// Forwards a request, and returns the response. An error breaks the connection, as when a server stops.
    async fn forward(self: Arc<Self>, request: http::Request<Incoming>) -> Result<Response, BoxError> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let request =
            Request::parse(&head.method, head.uri.path(), head.uri.query().unwrap_or_default(), &body);
        if request.verb == "watch" && self.take_expire_rule(&request) {
            self.record(request, 200);
            return Ok(expired_response());
        }
        head.headers.remove(http::header::HOST);
        let response = self.api_server.send(http::Request::from_parts(head, Body::from(body))).await?;
        let (head, body) = response.into_parts();
        if request.verb == "watch" && head.status.is_success() {
            let lines = self.clone().forward_watch(&request, body);
            // Recorded after `forward_watch` has subscribed to injected lines, because tests wait for the record before
            // they inject.
            self.record(request, head.status.as_u16());
            return Ok(http::Response::from_parts(head, lines));
        }
        self.record(request.clone(), head.status.as_u16());
        let bytes = body.collect().await?.to_bytes();
        for gate in self.response_gates(&request) {
            gate.pass().await;
        }
        Ok(http::Response::from_parts(head, full_body(bytes)))
    }

    fn record(&self, request: Request, status: u16) {
        self.exchanges.lock().push(Exchange { request, status });
    }

    /// Removes an [`Expire`](Rule::Expire) rule for the resource of this watch, and returns true if there was one.
    fn take_expire_rule(&self, request: &Request) -> bool {
        let mut rules = self.rules.lock();
        let index = rules
            .iter()
            .position(|rule| matches!(rule, Rule::Expire(resource) if *resource == request.resource));
        index.map(|index| rules.remove(index)).is_some()
    }

    fn response_gates(&self, request: &Request) -> Vec<Gate> {
        let rules = self.rules.lock();
        let gates = rules.iter().filter_map(|rule| match rule {
            Rule::HoldResponse(matching, gate) if matching(request) => Some(gate.clone()),
            _ => None,
        });
        gates.collect()
    }

    fn line_gates(&self, line: &WatchLine) -> Vec<Gate> {
        let rules = self.rules.lock();
        let gates = rules.iter().filter_map(|rule| match rule {
            Rule::HoldLine(matching, gate) if matching(line) => Some(gate.clone()),
            _ => None,
        });
        gates.collect()
    }

    fn line_delay(&self, resource: &str) -> Duration {
        let rules = self.rules.lock();
        let delays = rules.iter().filter_map(|rule| match rule {
            Rule::DelayLines(delayed, delay) if delayed == resource => Some(*delay),
            _ => None,
        });
        delays.sum()
    }

    /// Returns the body for the client of a watch: the lines from the API server and the injected lines, after the
    /// delays and gates of the rules.
    fn forward_watch(self: Arc<Self>, request: &Request, body: Body) -> UnsyncBoxBody<Bytes, BoxError> {
        let (line_sender, lines) = mpsc::channel(100_000);
        let (chunk_sender, chunks) = mpsc::channel(0);
        let (resource, delay) = (request.resource.clone(), self.line_delay(&request.resource));
        let mut cuts = self.cuts.subscribe();
        let injected = self.injected.subscribe();
        tokio::spawn(async move {
            let inject = inject_lines(injected, resource.clone(), line_sender.clone());
            let deliver = self.deliver(resource, delay, lines, chunk_sender.clone());
            // Ends when the API server ends the watch. Injected lines never end.
            let read = async {
                tokio::select! { () = read_lines(body, line_sender) => {} () = inject => {} }
            };
            let read_and_deliver = async { tokio::join!(read, deliver) };
            let mut error_sender = chunk_sender;
            tokio::select! {
                _ = read_and_deliver => {}
                _ = cuts.changed() => {
                    drop(error_sender.send(Err("the proxy cut the watch".into())).await);
                }
            }
        });
        StreamBody::new(chunks).boxed_unsync()
    }

    /// Sends the lines to the client, each after its delay and its gates.
    async fn deliver(
        &self,
        resource: String,
        delay: Duration,
        mut lines: Receiver<(Instant, Bytes)>,
        mut client: Sender<Chunk>,
    ) {
        while let Some((arrival, bytes)) = lines.next().await {
            let line = WatchLine::parse(&resource, &bytes);
            tokio::time::sleep_until((arrival + delay).into()).await;
            for gate in self.line_gates(&line) {
                gate.pass().await;
            }
            // Recorded before the line is sent, so that a test that sees an effect of the line also finds the record.
            self.delivered.lock().push(line);
            if client.send(Ok(Frame::data(bytes))).await.is_err() {
                return;
            }
        }
    }
}

/// Passes on the injected lines of one resource.
async fn inject_lines(
    mut injected: broadcast::Receiver<(String, Bytes)>,
    watched: String,
    mut lines: Sender<(Instant, Bytes)>,
) {
    while let Ok((resource, line)) = injected.recv().await {
        if resource == watched && lines.send((Instant::now(), line)).await.is_err() {
            return;
        }
    }
}

/// Splits the body of a watch into lines, each with the time of its arrival.
async fn read_lines(mut body: Body, mut lines: Sender<(Instant, Bytes)>) {
    let mut buffer = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        buffer.extend_from_slice(&data);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            if lines.send((Instant::now(), line.into())).await.is_err() {
                return;
            }
        }
    }
}

fn full_body(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The response of an API server to a watch from an expired resourceVersion.
fn expired_response() -> Response {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410,
    });
    let line = serde_json::json!({ "type": "ERROR", "object": status });
    http::Response::builder()
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(full_body(format!("{line}\n")))
        .expect("a response")
}
