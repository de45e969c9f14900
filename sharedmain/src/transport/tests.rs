//! The pool against a server that answers byte for byte what it is told; then the whole way.
use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use futures::future::join_all;
use http::{Request, Uri};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use kube::{Config, client::Body};
use parking_lot::Mutex;
use reknit_injection::Answer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
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

use super::{pool::Pool, transport};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";

async fn server() -> (TcpListener, Arc<Pool<HttpConnector>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    (listener, Arc::new(Pool::new(HttpConnector::new(), &address).unwrap()))
}

/// The head of the next request.
async fn request(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

fn get() -> Request<Body> {
    Request::get("https://elsewhere/api/v1/services?watch=true").body(Body::empty()).unwrap()
}

/// What waits for the other end for ever is an error, too.
async fn both<A, B>(serve: impl Future<Output = A>, ask: impl Future<Output = B>) -> (A, B) {
    timeout(Duration::from_secs(10), async { tokio::join!(serve, ask) })
        .await
        .expect("nobody waits for nothing")
}

async fn text(answer: Answer) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

async fn answer(stream: &mut TcpStream, bytes: &str) -> String {
    let asked = request(stream).await;
    stream.write_all(bytes.as_bytes()).await.unwrap();
    asked
}

/// What the other end did until now is known then.
async fn look_at_sockets() {
    tokio::task::yield_now().await;
}

#[tokio::test]
async fn a_connection_is_used_again_when_the_answer_is_there_to_its_end() {
    let (listener, pool) = server().await;
    let host = listener.local_addr().unwrap();
    let serve = async {
        let mut stream = listener.accept().await.unwrap().0;
        for bytes in [OK, CHUNKED, "HTTP/1.1 204 No Content\r\n\r\n", OK] {
            let asked = answer(&mut stream, bytes).await;
            assert!(asked.starts_with("GET /api/v1/services?watch=true HTTP/1.1\r\n"), "{asked}");
            assert!(asked.contains(&format!("host: {host}\r\n")), "{asked}");
        }
    };
    let ask = async {
        for expected in ["ok", "ok", "", "ok"] {
            assert_eq!(text(pool.clone().send(get()).await.unwrap()).await, expected);
        }
    };
    both(serve, ask).await;
}

#[tokio::test]
async fn an_answer_that_is_still_read_or_was_left_keeps_its_connection_to_itself() {
    let (listener, pool) = server().await;
    let serve = async {
        let mut watch = listener.accept().await.unwrap().0;
        answer(&mut watch, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n").await;
        let mut other = listener.accept().await.unwrap().0;
        answer(&mut other, OK).await;
        // It was dropped in the middle.
        assert_eq!(watch.read(&mut [0]).await.unwrap(), 0);
        answer(&mut other, OK).await;
    };
    let ask = async {
        let mut watch = pool.clone().send(get()).await.unwrap().into_body();
        assert_eq!(watch.frame().await.unwrap().unwrap().into_data().unwrap(), "ok");
        assert_eq!(text(pool.clone().send(get()).await.unwrap()).await, "ok");
        drop(watch);
        assert_eq!(text(pool.clone().send(get()).await.unwrap()).await, "ok");
    };
    both(serve, ask).await;
}

#[tokio::test]
async fn a_request_that_meets_a_closed_connection_is_sent_on_another() {
    let (listener, pool) = server().await;
    let ask = async || {
        let request = Request::put("/").body(Body::from(b"abc".to_vec())).unwrap();
        assert_eq!(text(pool.clone().send(request).await.unwrap()).await, "ok");
    };
    let serve = async |stream: &mut TcpStream, bytes| {
        request(stream).await;
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
    let (stream, ()) = both(first, ask()).await;
    drop(stream);
    look_at_sockets().await;
    let later = async {
        let mut stream = listener.accept().await.unwrap().0;
        serve(&mut stream, OK.as_bytes()).await;
        // One that the server is going to close is not kept.
        serve(&mut stream, b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").await;
        serve(&mut listener.accept().await.unwrap().0, OK.as_bytes()).await;
    };
    let ask = async {
        for _ in 0..3 {
            ask().await;
        }
    };
    both(later, ask).await;
}

/// tokio lets a task do only so much before others have their turn, and says then of what is there that it is not.
#[tokio::test]
async fn however_many_connections_were_closed_the_request_is_sent() {
    let (listener, pool) = server().await;
    let serve = async {
        let mut streams = Vec::new();
        for _ in 0..64 {
            streams.push(listener.accept().await.unwrap().0);
        }
        for stream in &mut streams {
            answer(stream, OK).await;
        }
        streams
    };
    let (streams, _) =
        both(serve, join_all((0..64).map(|_| async { text(pool.clone().send(get()).await.unwrap()).await })))
            .await;
    drop(streams);
    look_at_sockets().await;
    let serve = async { answer(&mut listener.accept().await.unwrap().0, OK).await };
    let ask = async {
        // With an odd rest one attempt finds its connection closed and cannot say so.
        tokio::task::consume_budget().await;
        text(pool.clone().send(get()).await.unwrap()).await
    };
    both(serve, ask).await;
}

#[tokio::test]
async fn what_breaks_in_the_middle_is_an_error() {
    let (listener, pool) = server().await;
    let serve = async {
        answer(&mut listener.accept().await.unwrap().0, "").await;
        answer(&mut listener.accept().await.unwrap().0, "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nok")
            .await;
    };
    let ask = async {
        let failed = pool.clone().send(get()).await.map(|_| ()).unwrap_err();
        assert!(failed.downcast_ref::<hyper::Error>().unwrap().is_incomplete_message(), "{failed}");
        let short = pool.clone().send(get()).await.unwrap();
        short.into_body().collect().await.unwrap_err();
    };
    both(serve, ask).await;
}

#[tokio::test]
async fn after_an_upgrade_the_stream_belongs_to_who_asked() {
    let (listener, pool) = server().await;
    let serve = async {
        let mut stream = listener.accept().await.unwrap().0;
        answer(
            &mut stream,
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n",
        )
        .await;
        let mut said = [0; 5];
        stream.read_exact(&mut said).await.unwrap();
        stream.write_all(&said).await.unwrap();
    };
    let ask = async {
        let mut request = get();
        request.headers_mut().insert("connection", "upgrade".try_into().unwrap());
        request.headers_mut().insert("upgrade", "echo".try_into().unwrap());
        let answer = pool.clone().send(request).await.unwrap();
        let mut stream = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
        stream.write_all(b"hello").await.unwrap();
        let mut said = [0; 5];
        stream.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
    };
    both(serve, ask).await;
}

#[tokio::test]
async fn what_is_idle_for_long_is_closed() {
    let (listener, pool) = server().await;
    for _ in 0..2 {
        let serve = async {
            let mut stream = listener.accept().await.unwrap().0;
            answer(&mut stream, OK).await;
            stream
        };
        let (mut stream, _) =
            both(serve, async { text(pool.clone().send(get()).await.unwrap()).await }).await;
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        assert!((45..=90).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
        tokio::time::resume();
    }
}

#[tokio::test]
async fn what_is_idle_for_long_is_not_used_even_before_it_is_closed() {
    let (listener, pool) = server().await;
    let ask = async || text(pool.clone().send(get()).await.unwrap()).await;
    let serve = async {
        let mut stream = listener.accept().await.unwrap().0;
        answer(&mut stream, OK).await;
        stream
    };
    let (mut stream, _) = both(serve, ask()).await;
    later(20).await;
    both(answer(&mut stream, OK), ask()).await;
    // Those that are too old are closed in between, which this one is not yet.
    later(30).await;
    later(20).await;
    let serve = async { answer(&mut listener.accept().await.unwrap().0, OK).await };
    both(serve, ask()).await;
}

async fn later(seconds: u64) {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(seconds)).await;
    tokio::time::resume();
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A task that wakes itself is polled once more for nothing, and on a runtime of several threads mostly by another
/// thread, which has to be woken for it.
#[tokio::test]
async fn who_waits_is_woken_once_for_what_arrives() {
    let (listener, pool) = server().await;
    let serve = async {
        let mut stream = listener.accept().await.unwrap().0;
        answer(&mut stream, OK).await;
        stream
    };
    let (mut stream, _) = both(serve, async { text(pool.clone().send(get()).await.unwrap()).await }).await;
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    let arrives = async |times| {
        timeout(Duration::from_secs(10), async {
            while woken.0.load(Ordering::SeqCst) < times {
                look_at_sockets().await;
            }
        })
        .await
        .expect("somebody is woken");
    };

    let mut asking = pin!(async { text(pool.clone().send(get()).await.unwrap()).await });
    assert!(asking.as_mut().poll(&mut cx).is_pending());
    answer(&mut stream, OK).await;
    arrives(1).await;
    assert!(asking.as_mut().poll(&mut cx).is_ready());

    let mut watching = pin!(pool.clone().send(get()));
    assert!(watching.as_mut().poll(&mut cx).is_pending());
    answer(&mut stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
    arrives(2).await;
    let Poll::Ready(answer) = watching.as_mut().poll(&mut cx) else { panic!("it is there") };
    let mut body = answer.unwrap().into_body();
    for times in 3..6 {
        assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending());
        stream.write_all(b"2\r\nok\r\n").await.unwrap();
        arrives(times).await;
        assert!(Pin::new(&mut body).poll_frame(&mut cx).is_ready());
    }
    assert_eq!(woken.0.load(Ordering::SeqCst), 5);
}

/// The configuration of a TLS server that answers one request on each connection. It sends no session tickets: with them
/// it would acknowledge the end of the handshake at once, and not only after 40 ms.
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

/// With Nagle's algorithm each takes more than 40 ms, however fast the machine is.
#[tokio::test]
async fn the_first_request_on_a_connection_is_sent_at_once() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = tls_server().await;
    let mut fastest = Duration::MAX;
    for _ in 0..20 {
        let anew = transport(&config, None).unwrap();
        let began = Instant::now();
        anew.client().request_text(Request::get("/").body(Vec::new()).unwrap()).await.unwrap();
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < Duration::from_millis(35), "{fastest:?}");
}

/// Notes what is recorded on spans, of which it wants none below INFO.
struct Recorded(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Recorded {
    fn on_record(&self, _: &Id, values: &Record<'_>, _: layer::Context<'_, S>) {
        self.0.lock().push(format!("{values:?}"));
    }
}

#[tokio::test]
async fn what_becomes_of_a_request_is_told_of_no_span_around_it() {
    let unreached = Config::new(Uri::from_static("http://127.0.0.1:1"));
    let recorded = Arc::default();
    let layer = Recorded(Arc::clone(&recorded)).with_filter(LevelFilter::INFO);
    let _recording = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let pass = tracing::info_span!("reconcile", otel.status_code = Empty);
    let asked = transport(&unreached, None).unwrap().send(Request::new(Body::empty()));
    assert!(asked.instrument(pass.clone()).await.is_err());
    assert!(recorded.lock().is_empty(), "{:?}", recorded.lock());
    pass.record("otel.status_code", "ERROR");
    assert_eq!(recorded.lock().len(), 1);
}
