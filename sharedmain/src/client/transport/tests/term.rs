//! Requests of passes whose term of leadership ends before they are sent.
use std::{
    process::{Child, Command},
    sync::atomic::{AtomicBool, Ordering},
};

use kube::{
    Client,
    config::{ExecConfig, ExecInteractiveMode},
};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use reknit_apis::Key;
use reknit_injection::internal::{Term, TermEnded};
use reknit_leadership::internal::elected;
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, oneshot},
    time::sleep,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::client::controller_transport;

/// A server that answers each request, and sends its method and path to the test.
struct Server {
    address: String,
    requests: mpsc::UnboundedReceiver<String>,
}

impl Server {
    /// Starts a server that gives these answers, and then [`OK`].
    async fn answering(first: &'static [&'static str]) -> Self {
        Self::listening("http", first, |stream| async { stream }).await
    }

    /// Starts a server with TLS, to which clients send credentials.
    async fn with_tls() -> Self {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
        let tls = TlsAcceptor::from(Arc::new(tls));
        Self::listening("https", &[], move |stream| {
            let tls = tls.clone();
            async move { tls.accept(stream).await.unwrap() }
        })
        .await
    }

    async fn listening<S: AsyncRead + AsyncWrite + Send + Unpin, F: Future<Output = S> + Send>(
        scheme: &str,
        first: &'static [&'static str],
        handshake: impl Fn(TcpStream) -> F + Clone + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("{scheme}://{}", listener.local_addr().unwrap());
        let (seen, requests) = mpsc::unbounded_channel();
        let first = Arc::new(Mutex::new(first.iter()));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, first, handshake) = (seen.clone(), first.clone(), handshake.clone());
                tokio::spawn(async move {
                    let mut stream = handshake(stream).await;
                    while let Some(line) = read_request_line(&mut stream).await {
                        let answer = first.lock().next().copied().unwrap_or(OK);
                        stream.write_all(answer.as_bytes()).await.unwrap();
                        seen.send(line).ok();
                    }
                });
            }
        });
        Self { address, requests }
    }

    fn config(&self) -> Config {
        Config::new(self.address.parse().unwrap())
    }

    async fn next_request(&mut self) -> String {
        timeout(Duration::from_secs(60), self.requests.recv()).await.expect("a request arrives").unwrap()
    }
}

/// Reads the head of the next request, and returns its method and path.
async fn read_request_line(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    Some(head.split(" HTTP/").next()?.to_owned())
}

async fn request(client: &Client, path: &str) -> kube::Result<String> {
    client.request_text(Request::get(path).body(Vec::new()).unwrap()).await
}

/// Makes a request in a term that ends once a layer holds the request. Then lets it go on, and asserts that it is refused.
async fn assert_refused(client: &Client, held: impl Future<Output = ()>, release: impl FnOnce()) {
    let ended = Arc::new(AtomicBool::new(false));
    let term = Term::new(tokio::time::Instant::now(), {
        let ended = ended.clone();
        move || ended.load(Ordering::SeqCst)
    });
    let end = async {
        held.await;
        ended.store(true, Ordering::SeqCst);
        release();
    };
    let (answer, ()) = both(term.scope(request(client, "/of-the-pass")), end).await;
    let error = answer.unwrap_err();
    assert!(chain(&error).any(<dyn std::error::Error>::is::<TermEnded>), "{error:?}");
}

/// Waits until the request, which is polled first, has reached the layer.
async fn polled() {
    sleep(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn a_request_that_waits_for_the_rate_limit_is_not_sent_after_the_term() {
    let mut server = Server::answering(&[]).await;
    let client = controller_transport(&transport(server.config()), "ns", 2.0, 1).client();
    request(&client, "/takes-the-token").await.unwrap();
    assert_refused(&client, polled(), || {}).await;
    request(&client, "/next").await.unwrap();
    assert_eq!(server.next_request().await, "GET /takes-the-token");
    assert_eq!(server.next_request().await, "GET /next");
}

#[tokio::test]
async fn a_refused_request_is_not_sent_again_after_the_term() {
    let refusal = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
    let mut server = Server::answering(vec![refusal].leak()).await;
    let client = controller_transport(&transport(server.config()), "ns", 0.0, 1).client();
    assert_refused(&client, async { assert_eq!(server.next_request().await, "GET /of-the-pass") }, || {})
        .await;
    request(&client, "/next").await.unwrap();
    assert_eq!(server.next_request().await, "GET /next");
}

#[tokio::test]
async fn a_request_that_waits_for_credentials_is_not_sent_after_the_term() {
    let mut server = Server::with_tls().await;
    let directory = tempfile::tempdir().unwrap();
    let (runs, may_end) = (directory.path().join("runs"), directory.path().join("may-end"));
    std::fs::write(&may_end, "").unwrap();
    let script = format!(
        "echo run >> {}; until [ -e {} ]; do sleep 0.05; done
         echo '{{status: {{token: t, expirationTimestamp: \"2020-01-01T00:00:00Z\"}}}}'",
        runs.display(),
        may_end.display()
    );
    let mut config = server.config();
    config.accept_invalid_certs = true;
    config.auth_info.exec = Some(ExecConfig {
        command: Some("sh".into()),
        args: Some(vec!["-c".into(), script]),
        interactive_mode: Some(ExecInteractiveMode::Never),
        ..ExecConfig::default()
    });
    let client = transport(config).client();
    std::fs::remove_file(&may_end).unwrap();
    let runs_again = async {
        while std::fs::read_to_string(&runs).unwrap().lines().count() < 2 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert_refused(&client, runs_again, || std::fs::write(&may_end, "").unwrap()).await;
    request(&client, "/next").await.unwrap();
    assert_eq!(server.next_request().await, "GET /next");
}

#[tokio::test]
async fn a_request_that_waits_for_its_connection_is_not_sent_after_the_term() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = Config::new(Uri::from_static("http://192.0.2.1:1"));
    config.proxy_url = Some(format!("http://{}", proxy.local_addr().unwrap()).parse().unwrap());
    let client = transport(config).client();
    let (connects, release) = (Notify::new(), Notify::new());
    let serve = async {
        let (mut stream, _) = proxy.accept().await.unwrap();
        assert_eq!(read_request_line(&mut stream).await.unwrap(), "CONNECT 192.0.2.1:1");
        connects.notify_one();
        release.notified().await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        assert_eq!(read_request_line(&mut stream).await, None);
    };
    both(serve, assert_refused(&client, connects.notified(), || release.notify_one())).await;
}

/// The number of passes that run at the time when the process is paused.
const PASSES: usize = 100;
const ROUNDS: u64 = 10;
const TERM: Duration = Duration::from_millis(500);
const CHILD: &str = "REKNIT_TEST_SERVER";

/// Runs passes in terms that nothing renews: each reads and then writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs as the paused process of a_process_that_was_paused_beyond_its_term_writes_nothing"]
async fn paused_process() {
    let Ok(server) = std::env::var(CHILD) else { return };
    let client = transport(Config::new(server.parse().unwrap())).client();
    let (leadership, [writer]) = {
        let (leadership, writers) = elected(vec!["bucket".into()]);
        (leadership, <[_; 1]>::try_from(writers).unwrap())
    };
    let key = Key::new("default", "web");
    while request(&client, "/next-round").await.is_ok() {
        writer.lead(tokio::time::Instant::now() + TERM, "test");
        let passes = (0..PASSES).map(|_| {
            let (client, pass) = (client.clone(), leadership.start_pass(&key));
            tokio::spawn(async move {
                let Some(pass) = pass else { return };
                let read_and_write = async {
                    request(&client, "/read").await.ok();
                    client.request_text(Request::put("/write").body(b"{}".to_vec()).unwrap()).await.ok();
                };
                pass.run(read_and_write).await;
            })
        });
        join_all(passes.collect::<Vec<_>>()).await;
    }
}

/// The process is paused while it handles responses, and resumes after the term of its passes.
#[cfg(unix)]
#[tokio::test]
async fn a_process_that_was_paused_beyond_its_term_writes_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["client::transport::tests::term::paused_process", "--exact", "--ignored", "--quiet"])
        .env(CHILD, address)
        .spawn()
        .unwrap();
    let (requests, mut received) = mpsc::unbounded_channel();
    let accept = async {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let requests = requests.clone();
            tokio::spawn(async move {
                while let Some(line) = read_request_line(&mut stream).await {
                    stream
                        .read_exact(&mut [0; 2][..if line.starts_with("PUT") { 2 } else { 0 }])
                        .await
                        .unwrap();
                    let (answer, answered) = oneshot::channel();
                    requests.send((line, answer)).ok();
                    let Ok(()) = answered.await else { return };
                    stream.write_all(OK.as_bytes()).await.ok();
                }
            });
        }
    };
    let (mut readers, mut rounds) = (Vec::new(), 0);
    let (mut before, mut after, mut is_after) = (0, 0, false);
    let trial = async {
        loop {
            let (line, answer) = received.recv().await.unwrap();
            match line.as_str() {
                "GET /next-round" if rounds == ROUNDS => return,
                "GET /next-round" => {
                    readers.clear(); // reads of the last round that came too late
                    is_after = false;
                    answer.send(()).unwrap();
                }
                "GET /read" => readers.push(answer),
                _ if is_after => after += 1,
                _ => before += 1,
            }
            if readers.len() == PASSES {
                readers.drain(..).for_each(|answer: oneshot::Sender<()>| answer.send(()).unwrap_or_default());
                sleep(Duration::from_millis(5 * rounds)).await;
                signal(&child, "-STOP");
                sleep(TERM * 2).await;
                while received.try_recv().is_ok() {
                    before += 1; // a write that was sent before the pause
                }
                is_after = true;
                signal(&child, "-CONT");
                rounds += 1;
            }
        }
    };
    tokio::select! {
        () = accept => {}
        ended = timeout(Duration::from_secs(240), trial) => ended.expect("the paused process makes its requests"),
    }
    child.kill().unwrap();
    child.wait().unwrap();
    println!(
        "{} passes: {before} wrote before the pause, {after} after their term",
        ROUNDS as usize * PASSES
    );
    // A pause of each of the two threads between the check and the write is not noticed. Without the check, more are late.
    assert!(after <= 2, "{after} writes after the term");
}

#[cfg(unix)]
fn signal(process: &Child, signal: &str) {
    let status = Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap();
    assert!(status.success());
}
