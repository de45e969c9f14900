//! Forwarding of requests and watches according to the rules of the proxy.

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
    request::{Line, Request},
};

/// A request and the status of its response.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub request: Request,
    pub status: u16,
}

/// The state that all connections of a proxy share.
pub(super) struct Relay {
    server: Client,
    pub(super) rules: Mutex<Vec<Rule>>,
    pub(super) answered: Mutex<Vec<Answered>>,
    pub(super) delivered: Mutex<Vec<Line>>,
    /// Injected lines, each with its resource.
    pub(super) injected: broadcast::Sender<(String, Bytes)>,
    /// The number of cuts.
    pub(super) cuts: watch::Sender<u64>,
    pub(super) open: watch::Sender<bool>,
    /// True if the accept loop listens.
    pub(super) listening: watch::Sender<bool>,
}

/// A rule for requests or for watch lines.
pub(super) enum Rule {
    HoldAnswer(Matching<Request>, Gate),
    HoldLine(Matching<Line>, Gate),
    DelayLines(String, Duration),
    Expire(String),
}

pub(super) type Matching<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;
type Answer = http::Response<UnsyncBoxBody<Bytes, BoxError>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Chunk = Result<Frame<Bytes>, BoxError>;

/// Returns a client without credentials and without retries.
fn bare_client(config: &Config) -> Client {
    let mut bare = config.clone();
    bare.auth_info = AuthInfo::default();
    bare.default_retry = false;
    bare.read_timeout = None;
    Client::try_from(bare).expect("a client of the API server")
}

/// Accepts connections while the proxy is open.
pub(super) async fn accept(shared: Arc<Relay>, listener: TcpListener) {
    let address = listener.local_addr().expect("an address");
    let mut listening = listener;
    let mut open = shared.open.subscribe();
    loop {
        shared.listening.send_replace(true);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listening.accept() => {
                    let (stream, _) = accepted.expect("a connection");
                    connections.spawn(serve(shared.clone(), stream));
                }
                _ = open.wait_for(|open| !open) => break,
            }
        }
        drop(listening);
        let held = hold(address);
        connections.shutdown().await;
        shared.listening.send_replace(false);
        open.wait_for(|open| *open).await.expect("the proxy runs");
        listening = held.listen(1024).expect("the same port again");
    }
}

/// Keeps the port, so that connections are refused and no other process gets it.
fn hold(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option");
    socket.bind(address).expect("the same port again");
    socket
}

async fn serve(shared: Arc<Relay>, stream: tokio::net::TcpStream) {
    // A response consists of small writes, one for each line, and each has to be sent at once.
    stream.set_nodelay(true).expect("TCP");
    let service = service_fn(|request| shared.clone().answer(request));
    // An error means that the client hung up, or that the proxy cut the connection.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Relay {
    /// Creates a relay to the server of `config`.
    pub(super) fn to(config: &Config) -> Self {
        Self {
            server: bare_client(config),
            rules: Mutex::default(),
            answered: Mutex::default(),
            delivered: Mutex::default(),
            injected: broadcast::channel(100).0,
            cuts: watch::channel(0).0,
            open: watch::channel(true).0,
            listening: watch::channel(true).0,
        }
    }

    /// Answers a request. An error breaks the connection, as when a server goes away.
    async fn answer(self: Arc<Self>, request: http::Request<Incoming>) -> Result<Answer, BoxError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let asked = Request::read(&head.method, head.uri.path(), head.uri.query().unwrap_or_default(), &body);
        if asked.verb == "watch" && self.expires(&asked) {
            self.note(asked, 200);
            return Ok(expired());
        }
        let mut head = head;
        head.headers.remove(http::header::HOST);
        let answer = self.server.send(http::Request::from_parts(head, Body::from(body))).await?;
        let (head, body) = answer.into_parts();
        if asked.verb == "watch" && head.status.is_success() {
            let lines = self.clone().watching(&asked, body);
            // Recorded once the watch receives injected lines.
            self.note(asked, head.status.as_u16());
            return Ok(http::Response::from_parts(head, lines));
        }
        self.note(asked.clone(), head.status.as_u16());
        let bytes = body.collect().await?.to_bytes();
        for gate in self.gates_for(&asked) {
            gate.pass().await;
        }
        Ok(http::Response::from_parts(head, whole(bytes)))
    }

    fn note(&self, request: Request, status: u16) {
        self.answered.lock().push(Answered { request, status });
    }

    /// Returns true if this watch has to be answered with 410. This happens once for each rule.
    fn expires(&self, asked: &Request) -> bool {
        let mut rules = self.rules.lock();
        let found = rules
            .iter()
            .position(|rule| matches!(rule, Rule::Expire(resource) if *resource == asked.resource));
        found.map(|at| rules.remove(at)).is_some()
    }

    fn gates_for(&self, asked: &Request) -> Vec<Gate> {
        let rules = self.rules.lock();
        let held = rules.iter().filter_map(|rule| match rule {
            Rule::HoldAnswer(matching, gate) if matching(asked) => Some(gate.clone()),
            _ => None,
        });
        held.collect()
    }

    fn gates_for_line(&self, line: &Line) -> Vec<Gate> {
        let rules = self.rules.lock();
        let held = rules.iter().filter_map(|rule| match rule {
            Rule::HoldLine(matching, gate) if matching(line) => Some(gate.clone()),
            _ => None,
        });
        held.collect()
    }

    fn delay_of(&self, resource: &str) -> Duration {
        let rules = self.rules.lock();
        let delays = rules.iter().filter_map(|rule| match rule {
            Rule::DelayLines(of, delay) if of == resource => Some(*delay),
            _ => None,
        });
        delays.sum()
    }

    /// The body of a watch, with the delays of the rules.
    fn watching(self: Arc<Self>, asked: &Request, body: Body) -> UnsyncBoxBody<Bytes, BoxError> {
        let (reading, lines) = mpsc::channel(100_000);
        let (writing, chunks) = mpsc::channel(0);
        let (resource, delay) = (asked.resource.clone(), self.delay_of(&asked.resource));
        let mut cuts = self.cuts.subscribe();
        let injected = self.injected.subscribe();
        tokio::spawn(async move {
            let injects = inject_lines(injected, resource.clone(), reading.clone());
            let deliver = self.deliver(resource, delay, lines, writing.clone());
            let reads = async {
                tokio::select! { () = read_lines(body, reading) => {} () = injects => {} }
            };
            let pumps = async { tokio::join!(reads, deliver) };
            let mut broken = writing;
            tokio::select! {
                _ = pumps => {}
                _ = cuts.changed() => drop(broken.send(Err("the proxy cut the watch".into())).await),
            }
        });
        StreamBody::new(chunks).boxed_unsync()
    }

    async fn deliver(
        &self,
        resource: String,
        delay: Duration,
        mut lines: Receiver<(Instant, Bytes)>,
        mut to: Sender<Chunk>,
    ) {
        while let Some((came, bytes)) = lines.next().await {
            let line = Line::read(&resource, &bytes);
            tokio::time::sleep_until((came + delay).into()).await;
            for gate in self.gates_for_line(&line) {
                gate.pass().await;
            }
            // Recorded before it is sent, because a test that reacts to the line looks for the record.
            self.delivered.lock().push(line);
            if to.send(Ok(Frame::data(bytes))).await.is_err() {
                return;
            }
        }
    }
}

async fn inject_lines(
    mut from: broadcast::Receiver<(String, Bytes)>,
    of: String,
    mut to: Sender<(Instant, Bytes)>,
) {
    while let Ok((resource, line)) = from.recv().await {
        if resource == of && to.send((Instant::now(), line)).await.is_err() {
            return;
        }
    }
}

/// Splits the body of a watch into lines, each with the time of its arrival.
async fn read_lines(mut body: Body, mut to: Sender<(Instant, Bytes)>) {
    let mut rest = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        rest.extend_from_slice(&data);
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            if to.send((Instant::now(), line.into())).await.is_err() {
                return;
            }
        }
    }
}

fn whole(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, BoxError> {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The response of a server to an expired resourceVersion.
fn expired() -> Answer {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410,
    });
    let line = serde_json::json!({ "type": "ERROR", "object": status });
    let json = (http::header::CONTENT_TYPE, "application/json");
    http::Response::builder().header(json.0, json.1).body(whole(format!("{line}\n"))).expect("a response")
}
