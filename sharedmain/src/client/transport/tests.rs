//! Tests of the transport against local servers that send prepared bytes.
mod measured;
mod term;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use http::{Request, Uri};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use kube::{Config, client::Body};
use parking_lot::Mutex;
use prometheus::Registry;
use reknit_injection::internal::{HttpResponse, Transport, retry_after_of};
use reknit_testing::eventually;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::timeout,
};
use tracing::{
    Instrument, Subscriber,
    field::Empty,
    level_filters::LevelFilter,
    span::{Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::{self, SubscriberExt},
};

use super::super::{credentials::Credentials, error::chain, kubeconfig::Access, metrics::RequestMetrics};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";

/// Creates a transport with this configuration.
fn transport(config: Config) -> Transport {
    measured_transport(config, &Registry::new())
}

/// Creates a transport with this configuration, whose metrics are in the registry.
fn measured_transport(config: Config, registry: &Registry) -> Transport {
    let access = Access { config, ..Access::without_credentials(Uri::from_static("http://127.0.0.1:1")) };
    let metrics = RequestMetrics::new(registry, &access.config.cluster_url);
    super::transport(&Credentials::load(&access, "test").unwrap(), &Arc::new(metrics)).unwrap()
}

/// Listens on a local port, and returns a transport to it.
async fn start_server() -> (TcpListener, Transport) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    (listener, transport(Config::new(address)))
}

/// Reads the head of the next request.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

fn get() -> Request<Body> {
    Request::get("/api/v1/services?watch=true").body(Body::empty()).unwrap()
}

/// Runs the server and the client concurrently, with a timeout.
async fn both<A, B>(server: impl Future<Output = A>, client: impl Future<Output = B>) -> (A, B) {
    timeout(Duration::from_secs(10), async { tokio::join!(server, client) }).await.expect("a deadlock")
}

async fn text(response: HttpResponse) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Reads a request and writes these bytes.
async fn respond(stream: &mut TcpStream, bytes: &str) -> String {
    let head = read_head(stream).await;
    stream.write_all(bytes.as_bytes()).await.unwrap();
    head
}

/// Ends connections as a server does, and waits until the client has closed them too.
async fn close(streams: impl IntoIterator<Item = TcpStream>) {
    for mut stream in streams {
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_connection_is_reused_after_the_end_of_the_response() {
    let (listener, transport) = start_server().await;
    let host = listener.local_addr().unwrap();
    let server = async {
        let mut stream = listener.accept().await.unwrap().0;
        for bytes in [OK, CHUNKED, "HTTP/1.1 204 No Content\r\n\r\n", OK] {
            let head = respond(&mut stream, bytes).await;
            assert!(head.starts_with("GET /api/v1/services?watch=true HTTP/1.1\r\n"), "{head}");
            assert!(head.contains(&format!("host: {host}\r\n")), "{head}");
        }
    };
    let client = async {
        for expected in ["ok", "ok", "", "ok"] {
            assert_eq!(text(transport.send(get()).await.unwrap()).await, expected);
        }
    };
    both(server, client).await;
}

#[tokio::test]
async fn a_response_may_have_hundreds_of_headers() {
    let (listener, transport) = start_server().await;
    let warnings = "warning: 299 - \"unknown field\"\r\n".repeat(900);
    let server = async {
        let mut stream = listener.accept().await.unwrap().0;
        respond(&mut stream, &OK.replacen("\r\n", &format!("\r\n{warnings}"), 1)).await;
    };
    let client = async { assert_eq!(text(transport.send(get()).await.unwrap()).await, "ok") };
    both(server, client).await;
}

#[tokio::test]
async fn the_wait_that_a_refusal_asks_for_is_in_its_status_also_for_clients_of_kube() {
    let (listener, transport) = start_server().await;
    let body = "Too many requests, please try again later.";
    let server = async {
        let mut stream = listener.accept().await.unwrap().0;
        for wait in ["10", "Fri, 01 Jan 2100 00:00:00 GMT"] {
            let head = format!(
                "HTTP/1.1 429 Too Many Requests\r\nretry-after: {wait}\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            respond(&mut stream, &format!("{head}{body}")).await;
        }
    };
    let client = async {
        let client = transport.client();
        for seconds in [10, 300] {
            let request = Request::get("/api/v1/services").body(Vec::new()).unwrap();
            let error = client.request_text(request).await.unwrap_err();
            assert_eq!(retry_after_of(&error), Some(Duration::from_secs(seconds)), "{error:?}");
            assert!(error.to_string().contains(body), "{error}");
        }
    };
    both(server, client).await;
}

/// A web site at a wrong address answers with a page, and a proxy may compress the responses of the API server.
#[tokio::test]
async fn a_success_that_no_api_server_sends_is_an_error_which_says_so() {
    let (listener, transport) = start_server().await;
    let page = "HTTP/1.1 200 OK\r\ncontent-type: Text/HTML; charset=utf-8\r\ncontent-length: 2\r\n\r\n<h";
    let compressed = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x1f";
    let refusal = page.replace("200 OK", "502 Bad Gateway");
    let accepts_any =
        |path: &str| Request::get(path).header("accept-encoding", "gzip").body(Body::empty()).unwrap();
    let proxied = || Request::get("/api/v1/namespaces/a/services/b/proxy/").body(Body::empty()).unwrap();
    let server = async {
        for (response, accepted) in [
            (page, "identity"),
            (compressed, "identity"),
            (&*refusal, "identity"),
            (page, "identity"),
            (compressed, "gzip"),
        ] {
            let mut stream = listener.accept().await.unwrap().0;
            let head = respond(&mut stream, response).await;
            assert!(head.contains(&format!("accept-encoding: {accepted}\r\n")), "{head}");
        }
    };
    let client = async {
        let message = |error: kube::Error| chain(&error).last().unwrap().to_string();
        let from = "the response is not from a Kubernetes API server: it is";
        for what in ["a web page", "compressed (gzip)"] {
            let message = message(transport.send(get()).await.err().unwrap());
            assert!(message.starts_with(&format!("{from} {what}; check the address")), "{message}");
        }
        assert_eq!(transport.send(get()).await.unwrap().status(), 502);
        assert_eq!(transport.send(proxied()).await.unwrap().status(), 200);
        assert_eq!(transport.send(accepts_any("/api/v1/pods")).await.unwrap().status(), 200);
    };
    both(server, client).await;
}

#[tokio::test]
async fn a_connection_is_not_reused_while_its_response_is_read_or_after_it_was_dropped() {
    let (listener, transport) = start_server().await;
    let server = async {
        let mut watch = listener.accept().await.unwrap().0;
        respond(&mut watch, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n").await;
        let mut other = listener.accept().await.unwrap().0;
        respond(&mut other, OK).await;
        // The response was dropped before its end.
        assert_eq!(watch.read(&mut [0]).await.unwrap(), 0);
        respond(&mut other, OK).await;
    };
    let client = async {
        let mut watch = transport.send(get()).await.unwrap().into_body();
        assert_eq!(watch.frame().await.unwrap().unwrap().into_data().unwrap(), "ok");
        assert_eq!(text(transport.send(get()).await.unwrap()).await, "ok");
        drop(watch);
        assert_eq!(text(transport.send(get()).await.unwrap()).await, "ok");
    };
    both(server, client).await;
}

#[tokio::test]
async fn a_request_on_a_closed_connection_is_sent_again_on_another() {
    let (listener, transport) = start_server().await;
    let send = async || {
        let request = Request::put("/").body(Body::from(b"abc".to_vec())).unwrap();
        assert_eq!(text(transport.send(request).await.unwrap()).await, "ok");
    };
    let serve = async |stream: &mut TcpStream, bytes| {
        read_head(stream).await;
        let mut body = [0; 3];
        stream.read_exact(&mut body).await.unwrap();
        assert_eq!(&body, b"abc");
        stream.write_all(bytes).await.unwrap();
    };
    let first = async {
        let mut stream = listener.accept().await.unwrap().0;
        serve(&mut stream, OK.as_bytes()).await;
        stream
    };
    let (stream, ()) = both(first, send()).await;
    close([stream]).await;
    let later = async {
        let mut stream = listener.accept().await.unwrap().0;
        serve(&mut stream, OK.as_bytes()).await;
        // A connection that the server announces to close is not reused.
        serve(&mut stream, b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").await;
        serve(&mut listener.accept().await.unwrap().0, OK.as_bytes()).await;
    };
    let client = async {
        for _ in 0..3 {
            send().await;
        }
    };
    both(later, client).await;
}

/// With many closed connections the task runs out of tokio's cooperative budget, so that sockets that are ready seem
/// pending.
#[tokio::test]
async fn a_request_is_sent_after_many_connections_were_closed() {
    let (listener, transport) = start_server().await;
    let server = async {
        let mut streams = Vec::new();
        for _ in 0..64 {
            streams.push(listener.accept().await.unwrap().0);
        }
        for stream in &mut streams {
            respond(stream, OK).await;
        }
        streams
    };
    let (streams, _) =
        both(server, join_all((0..64).map(|_| async { text(transport.send(get()).await.unwrap()).await })))
            .await;
    close(streams).await;
    let server = async { respond(&mut listener.accept().await.unwrap().0, OK).await };
    let client = async {
        // With an odd number of units left in the budget, one attempt cannot detect that its connection is closed.
        tokio::task::consume_budget().await;
        text(transport.send(get()).await.unwrap()).await
    };
    both(server, client).await;
}

#[tokio::test]
async fn a_connection_that_breaks_during_a_response_is_an_error() {
    let (listener, transport) = start_server().await;
    let server = async {
        respond(&mut listener.accept().await.unwrap().0, "").await;
        respond(&mut listener.accept().await.unwrap().0, "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nok")
            .await;
    };
    let client = async {
        let failed = transport.send(get()).await.map(|_| ()).unwrap_err();
        let cause = chain(&failed).find_map(|link| link.downcast_ref::<hyper::Error>());
        assert!(cause.unwrap().is_incomplete_message(), "{failed}");
        let short = transport.send(get()).await.unwrap();
        short.into_body().collect().await.unwrap_err();
    };
    both(server, client).await;
}

#[tokio::test]
async fn the_connection_of_a_request_that_timed_out_is_not_reused() {
    let (listener, transport) = start_server().await;
    let received = Notify::new();
    let server = async {
        let mut dead = listener.accept().await.unwrap().0;
        read_head(&mut dead).await;
        received.notify_one();
        respond(&mut listener.accept().await.unwrap().0, OK).await;
        assert_eq!(dead.read(&mut [0]).await.unwrap(), 0);
    };
    let client = async {
        // A timeout drops the request in the same way.
        tokio::select! {
            response = transport.send(get()) => panic!("{}", response.is_ok()),
            () = received.notified() => {}
        }
        assert_eq!(text(transport.send(get()).await.unwrap()).await, "ok");
    };
    both(server, client).await;
}

#[tokio::test]
async fn after_an_upgrade_the_caller_owns_the_stream() {
    let (listener, transport) = start_server().await;
    let server = async {
        let mut stream = listener.accept().await.unwrap().0;
        respond(
            &mut stream,
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n",
        )
        .await;
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).await.unwrap();
        stream.write_all(&echoed).await.unwrap();
    };
    let client = async {
        let mut request = get();
        request.headers_mut().insert("connection", "upgrade".try_into().unwrap());
        request.headers_mut().insert("upgrade", "echo".try_into().unwrap());
        let response = transport.send(request).await.unwrap();
        let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        stream.write_all(b"hello").await.unwrap();
        let mut echoed = [0; 5];
        stream.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, b"hello");
    };
    both(server, client).await;
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let (listener, transport) = start_server().await;
    for _ in 0..2 {
        let server = async {
            let mut stream = listener.accept().await.unwrap().0;
            respond(&mut stream, OK).await;
            stream
        };
        let (mut stream, _) = both(server, async { text(transport.send(get()).await.unwrap()).await }).await;
        tokio::time::pause();
        let start = tokio::time::Instant::now();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        assert!((45..=90).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
        tokio::time::resume();
    }
}

#[tokio::test]
async fn a_connection_that_was_idle_too_long_is_not_used_even_before_it_is_closed() {
    let (listener, transport) = start_server().await;
    let send = async || text(transport.send(get()).await.unwrap()).await;
    let server = async {
        let mut stream = listener.accept().await.unwrap().0;
        respond(&mut stream, OK).await;
        stream
    };
    let (mut stream, _) = both(server, send()).await;
    advance(20).await;
    both(respond(&mut stream, OK), send()).await;
    // The pool closes expired connections every 45 seconds. After the first 45, this connection has not expired.
    advance(30).await;
    advance(20).await;
    let server = async { respond(&mut listener.accept().await.unwrap().0, OK).await };
    both(server, send()).await;
}

/// Advances tokio's clock.
async fn advance(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

/// Starts a TLS server that answers one request on each connection, and returns its configuration.
///
/// The server sends no session tickets. A ticket would acknowledge the end of the handshake at once instead of after 40
/// ms, and so hide the delay of Nagle's algorithm.
async fn tls_server() -> Config {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (certified.cert.der().clone(), certified.signing_key.serialize_der());
    let tls = rustls::ServerConfig::builder().with_no_client_auth();
    let mut tls = tls.with_single_cert(vec![certificate.clone()], key.try_into().unwrap()).unwrap();
    tls.send_tls13_tickets = 0;
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = Config::new(format!("https://{}", listener.local_addr().unwrap()).parse().unwrap());
    config.root_cert = Some(vec![certificate.to_vec()]);
    tokio::spawn(async move {
        loop {
            let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(OK.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
    });
    config
}

/// With Nagle's algorithm each request takes more than 40 ms on any machine. Without it, one of them takes less even on a
/// busy machine.
#[tokio::test]
async fn the_first_request_on_a_connection_is_sent_at_once() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = tls_server().await;
    eventually("a request within 35 ms", Duration::from_secs(30), async || {
        let transport = transport(config.clone());
        let start = Instant::now();
        transport.client().request_text(Request::get("/").body(Vec::new()).unwrap()).await.unwrap();
        let took = start.elapsed();
        if took < Duration::from_millis(35) { Ok(()) } else { Err(format!("{took:?}")) }
    })
    .await;
}

/// Collects the values that are recorded on spans.
struct Recorded(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Recorded {
    fn on_record(&self, _: &Id, values: &Record<'_>, _: layer::Context<'_, S>) {
        self.0.lock().push(format!("{values:?}"));
    }
}

#[tokio::test]
async fn the_status_of_a_request_is_not_recorded_on_the_span_around_it() {
    let unreachable = Config::new(Uri::from_static("http://127.0.0.1:1"));
    let recorded = Arc::default();
    let layer = Recorded(Arc::clone(&recorded)).with_filter(LevelFilter::INFO);
    let _recording = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let reconcile = tracing::info_span!("reconcile", otel.status_code = Empty);
    let request = transport(unreachable).send(Request::new(Body::empty()));
    assert!(request.instrument(reconcile.clone()).await.is_err());
    assert!(recorded.lock().is_empty(), "{:?}", recorded.lock());
    reconcile.record("otel.status_code", "ERROR");
    assert_eq!(recorded.lock().len(), 1);
}
