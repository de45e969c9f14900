//! A scripted API server: the test responds to each request.

use std::{cell::RefCell, collections::BTreeMap, io, sync::Once};

use bytes::Bytes;
use http::{Method, Request, Response, header::ACCEPT, response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::client::AUDIT_ID;

type ScriptedBody = UnsyncBoxBody<Bytes, io::Error>;
type Chunk = Result<Frame<Bytes>, io::Error>;

/// The server, which receives the requests in order.
pub(crate) struct Server(mpsc::UnboundedReceiver<PendingRequest>);

/// A request that waits for its response.
pub(crate) struct PendingRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) accept: String,
    response: oneshot::Sender<Response<ScriptedBody>>,
}

/// A streaming response. Dropping it ends the stream.
pub(crate) struct Stream(mpsc::UnboundedSender<Chunk>);

/// Creates a client and its server.
pub(crate) fn server() -> (Client, Server) {
    let (requests, receiver) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (response_sender, response) = oneshot::channel();
        let sent = requests.send(PendingRequest::new(&request, response_sender));
        async move {
            sent.map_err(|_| io::Error::other("the test is over"))?;
            response.await.map_err(|_| io::Error::other("connection refused"))
        }
    });
    (Client::new(service, "default"), Server(receiver))
}

impl Server {
    pub(crate) async fn next(&mut self) -> PendingRequest {
        self.0.recv().await.unwrap()
    }

    /// The next request, which must be a list.
    pub(crate) async fn list(&mut self) -> PendingRequest {
        self.next_list(Some("500")).await
    }

    /// The next request, which must be a list in pages of this size.
    pub(crate) async fn list_by(&mut self, limit: &str) -> PendingRequest {
        self.next_list(Some(limit)).await
    }

    /// The next request, which must be a list without a limit.
    pub(crate) async fn whole_list(&mut self) -> PendingRequest {
        self.next_list(None).await
    }

    /// The next request, which must be a list of one item. The reflector sends it to learn the server's
    /// resourceVersion.
    pub(crate) async fn version_check(&mut self) -> PendingRequest {
        self.next_list(Some("1")).await
    }

    async fn next_list(&mut self, limit: Option<&str>) -> PendingRequest {
        let request = self.next().await;
        let query = &request.query;
        let is_list = !request.is_watch() && query.get("limit").map(String::as_str) == limit;
        assert!(is_list, "a list with the limit {limit:?} was expected: {query:?}");
        request
    }

    /// The next request, which must be a watch from this version.
    pub(crate) async fn watch(&mut self, from: &str) -> PendingRequest {
        let request = self.next().await;
        let query = &request.query;
        let is_watch = request.is_watch() && query["resourceVersion"] == from;
        assert!(is_watch, "a watch from {from} was expected: {query:?}");
        request
    }

    /// Responds to a list and the watch that follows it, and returns the stream of the watch.
    pub(crate) async fn sync(&mut self, version: &str, items: &[Value]) -> Stream {
        self.list().await.items(version, items);
        self.watch(version).await.stream()
    }

    pub(crate) fn is_idle(&mut self) -> bool {
        self.0.try_recv().is_err()
    }
}

impl PendingRequest {
    fn new(request: &Request<Body>, response: oneshot::Sender<Response<ScriptedBody>>) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let accept = request.headers().get(ACCEPT).map_or("", |value| value.to_str().unwrap());
        Self {
            method: request.method().clone(),
            path: request.uri().path().into(),
            query: form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
            accept: accept.into(),
            response,
        }
    }

    fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true")
    }

    /// Responds as an API server, with this status code and body.
    pub(crate) fn respond(self, code: u16, body: impl ToString) {
        self.stream_of(Response::builder().status(code).header(AUDIT_ID, "1")).chunk(&body.to_string());
    }

    /// Responds as a proxy, with this status code and body.
    pub(crate) fn respond_as_proxy(self, code: u16, body: impl ToString) {
        self.stream_of(Response::builder().status(code)).chunk(&body.to_string());
    }

    /// Responds with a whole list, or with the last page of a list.
    pub(crate) fn items(self, version: &str, items: &[Value]) {
        self.page(version, "", items);
    }

    /// Responds with a page of a list and the token of the next page.
    pub(crate) fn page(self, version: &str, continue_token: &str, items: &[Value]) {
        let metadata = json!({"resourceVersion": version, "continue": continue_token});
        self.respond(200, json!({"metadata": metadata, "items": items}));
    }

    /// Responds with a `Status` of failure.
    pub(crate) fn fail(self, code: u16, message: &str) {
        let status =
            json!({"kind": "Status", "status": "Failure", "message": message, "reason": "", "code": code});
        self.respond(code, status);
    }

    /// Fails the request as if no server were listening.
    pub(crate) fn refuse(self) {}

    /// Responds with a stream, such as a watch.
    pub(crate) fn stream(self) -> Stream {
        self.stream_of(Response::builder())
    }

    fn stream_of(self, response: response::Builder) -> Stream {
        let (sender, receiver) = mpsc::unbounded_channel::<Chunk>();
        let chunks = futures::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|chunk| (chunk, receiver))
        });
        let body = StreamBody::new(chunks).boxed_unsync();
        let _ = self.response.send(response.body(body).unwrap());
        Stream(sender)
    }
}

impl Stream {
    /// Sends a watch event.
    pub(crate) fn event(&self, event: &str, object: &Value) {
        self.chunk(&format!("{}\n", json!({"type": event, "object": object})));
    }

    pub(crate) fn chunk(&self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) {
        let _ = self.0.send(Ok(Frame::data(Bytes::copy_from_slice(bytes))));
    }

    /// Breaks the connection.
    pub(crate) fn cut(self) {
        let _ = self.0.send(Err(io::ErrorKind::ConnectionReset.into()));
    }

    /// Completes when the informer has closed the stream.
    pub(crate) async fn closed(&self) {
        self.0.closed().await;
    }
}

/// The JSON of a ConfigMap in the namespace `n`, with the uid `uid-<name>`.
pub(crate) fn map(name: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": version},
        "data": {"version": version},
    })
}

/// The log of the current test's thread.
///
/// All tests share one subscriber. With one per thread, events would be missed: tracing caches for each call site
/// whether a subscriber is interested.
pub(crate) struct Log;

thread_local! {
    static LOGGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Log {
    pub(crate) fn start() -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).init();
        });
        Self
    }

    /// The lines that contain this text.
    pub(crate) fn lines(&self, substring: &str) -> Vec<String> {
        let text = LOGGED.with_borrow(|logged| String::from_utf8(logged.clone()).unwrap());
        text.lines().filter(|line| line.contains(substring)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.with_borrow_mut(|logged| logged.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
