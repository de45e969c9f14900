//! A scripted API server: the test answers each request.

use std::{cell::RefCell, collections::BTreeMap, io, sync::Once};

use bytes::Bytes;
use http::{Method, Request, Response, header::ACCEPT};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;
type Chunk = Result<Frame<Bytes>, io::Error>;

/// The requests, in order.
pub(crate) struct Server(mpsc::UnboundedReceiver<Asked>);

/// A request that waits for its answer.
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) accept: String,
    answer: oneshot::Sender<Answer>,
}

/// A streaming answer. Dropping it ends the stream.
pub(crate) struct Stream(mpsc::UnboundedSender<Chunk>);

/// Creates a client and its server.
pub(crate) fn server() -> (Client, Server) {
    let (asked, asking) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (answer, answered) = oneshot::channel();
        let asked = asked.send(Asked::new(&request, answer));
        async move {
            asked.map_err(|_| io::Error::other("the test is over"))?;
            answered.await.map_err(|_| io::Error::other("connection refused"))
        }
    });
    (Client::new(service, "default"), Server(asking))
}

impl Server {
    pub(crate) async fn next(&mut self) -> Asked {
        self.0.recv().await.unwrap()
    }

    /// The next request, which must be a list.
    pub(crate) async fn list(&mut self) -> Asked {
        let asked = self.next().await;
        assert!(!asked.is_watch() && asked.query["limit"] == "500", "a list was expected: {:?}", asked.query);
        asked
    }

    /// The next request, which must be a list in one piece.
    pub(crate) async fn whole_list(&mut self) -> Asked {
        let asked = self.next().await;
        assert!(!asked.is_watch() && !asked.query.contains_key("limit"), "unlimited: {:?}", asked.query);
        asked
    }

    /// The next request, which must be a look at the version.
    pub(crate) async fn look(&mut self) -> Asked {
        let asked = self.next().await;
        assert!(!asked.is_watch() && asked.query["limit"] == "1", "a look was expected: {:?}", asked.query);
        asked
    }

    /// The next request, which must be a watch from this version.
    pub(crate) async fn watch(&mut self, from: &str) -> Asked {
        let asked = self.next().await;
        assert!(
            asked.is_watch() && asked.query["resourceVersion"] == from,
            "not from {from}: {:?}",
            asked.query
        );
        asked
    }

    /// Answers the list and the watch that come first.
    pub(crate) async fn sync(&mut self, version: &str, items: &[Value]) -> Stream {
        self.list().await.items(version, items);
        self.watch(version).await.stream()
    }

    pub(crate) fn is_idle(&mut self) -> bool {
        self.0.try_recv().is_err()
    }
}

impl Asked {
    fn new(request: &Request<Body>, answer: oneshot::Sender<Answer>) -> Self {
        let query = url_decode(request.uri().query().unwrap_or_default());
        let accept = request.headers().get(ACCEPT).map(|value| value.to_str().unwrap().to_owned());
        Self {
            method: request.method().clone(),
            path: request.uri().path().into(),
            query,
            accept: accept.unwrap_or_default(),
            answer,
        }
    }

    fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true")
    }

    pub(crate) fn answer(self, code: u16, body: impl ToString) {
        let stream = self.stream_of(code);
        stream.chunk(&body.to_string());
    }

    /// Answers with the last page of a list.
    pub(crate) fn items(self, version: &str, items: &[Value]) {
        self.page(version, "", items);
    }

    pub(crate) fn page(self, version: &str, next: &str, items: &[Value]) {
        self.answer(200, json!({"metadata": {"resourceVersion": version, "continue": next}, "items": items}));
    }

    pub(crate) fn fail(self, code: u16, message: &str) {
        let status =
            json!({"kind": "Status", "status": "Failure", "message": message, "reason": "", "code": code});
        self.answer(code, status);
    }

    /// Fails the request as if no server were listening.
    pub(crate) fn refuse(self) {}

    pub(crate) fn stream(self) -> Stream {
        self.stream_of(200)
    }

    fn stream_of(self, code: u16) -> Stream {
        let (sender, receiver) = mpsc::unbounded_channel::<Chunk>();
        let chunks = futures::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|chunk| (chunk, receiver))
        });
        let body = StreamBody::new(chunks).boxed_unsync();
        let _ = self.answer.send(Response::builder().status(code).body(body).unwrap());
        Stream(sender)
    }
}

impl Stream {
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

fn url_decode(query: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| text.replace('+', " ").replace("%3D", "=").replace("%2C", ",");
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (decode(key), decode(value))).collect()
}

/// A ConfigMap in the namespace `n`.
pub(crate) fn map(name: &str, version: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "resourceVersion": version},
        "data": {"version": version},
    })
}

/// The log of the current test's thread.
///
/// All tests share one subscriber: with one for each thread events are missed, since tracing caches for each call site
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
    pub(crate) fn lines(&self, what: &str) -> Vec<String> {
        let text = LOGGED.with_borrow(|logged| String::from_utf8(logged.clone()).unwrap());
        text.lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
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
