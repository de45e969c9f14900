//! Fake API servers and proxies on local ports.
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};
use tokio::net::TcpSocket;

pub(crate) const VERSION: &str = r#"{"major":"1","minor":"36","gitVersion":"v1.36.3","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#;

/// The first line of a request, its headers in lower case, and the client as `peer: 127.0.0.1:40000`.
pub(crate) type Head = Vec<String>;

/// The heads of all requests.
type Heads = Arc<Mutex<Vec<Head>>>;

/// Listens until the test ends. A thread handles each connection.
fn listen(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let handle = Arc::new(handle);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let handle = handle.clone();
            thread::spawn(move || handle(stream));
        }
    });
    address
}

/// A port that refuses connections. No other process can open it while the socket is held.
pub(crate) fn closed_port() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// A server that closes each connection without a response.
pub(crate) fn closing_server() -> SocketAddr {
    listen(|mut stream| {
        // Neither the content of the request nor an error matters.
        let _ = stream.read(&mut [0; 64]);
    })
}

/// A SOCKS5 proxy that connects to no other server: it responds to each request for the version itself. It requires the
/// credentials, a user and a password, if set.
pub(crate) fn socks5(credentials: Option<(&'static str, &'static str)>) -> SocketAddr {
    listen(move |mut stream| {
        let method = if credentials.is_some() { 2 } else { 0 };
        assert_eq!(read::<3>(&mut stream), [5, 1, method], "the authentication methods offered");
        stream.write_all(&[5, method]).unwrap();
        if let Some((user, password)) = credentials {
            let sent = [read_string(&mut stream, 1), read_string(&mut stream, 0)];
            let is_correct = sent == [user, password];
            stream.write_all(&[1, u8::from(!is_correct)]).unwrap();
        }
        assert_eq!(read::<4>(&mut stream), [5, 1, 0, 3], "a request to connect to a name");
        read_string(&mut stream, 0);
        read::<2>(&mut stream);
        stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
        while read_head(&mut stream).is_some() {
            respond(&mut stream, 200, VERSION).unwrap();
        }
    })
}

fn read<const N: usize>(stream: &mut impl Read) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Skips bytes, then reads a length of one byte and a string of that length.
fn read_string(stream: &mut impl Read, skipped: usize) -> String {
    stream.read_exact(&mut vec![0; skipped]).unwrap();
    let mut text = vec![0; usize::from(read::<1>(stream)[0])];
    stream.read_exact(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// A server that answers each request with a status and a body, and records the requests.
pub(crate) struct HttpServer {
    pub(crate) address: SocketAddr,
    heads: Heads,
}

impl HttpServer {
    pub(crate) fn new(respond_to: impl Fn(&Head) -> (u16, String) + Send + Sync + 'static) -> Self {
        let heads = Heads::default();
        let seen = heads.clone();
        let address = listen(move |stream| {
            let peer = stream.peer_addr().unwrap();
            answer(stream, |_| Some(format!("peer: {peer}")), &seen, &respond_to);
        });
        Self { address, heads }
    }

    /// An API server without objects.
    pub(crate) fn without_objects() -> Self {
        Self::new(answer_without_objects)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until the heads of this many requests have a line that matches.
    pub(crate) fn wait_for_requests(&self, times: usize, is_match: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while self.heads().iter().filter(|head| head.iter().any(|line| is_match(line))).count() < times {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "fewer than {times} matching requests: {:#?}",
                self.heads()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn heads(&self) -> Vec<Head> {
        self.heads.lock().unwrap().clone()
    }
}

/// Answers the requests of one connection, and records each head with a line about the client.
fn answer<S: Read + Write>(
    mut stream: S,
    client: impl Fn(&S) -> Option<String>,
    heads: &Heads,
    respond_to: &impl Fn(&Head) -> (u16, String),
) {
    while let Some(mut head) = read_head(&mut stream) {
        head.extend(client(&stream));
        heads.lock().unwrap().push(head.clone());
        let (status, body) = respond_to(&head);
        if respond(&mut stream, status, &body).is_err() {
            break;
        }
    }
}

/// Returns an error response of an API server.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> (u16, String) {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    (code, status.to_string())
}

pub(crate) fn not_found() -> (u16, String) {
    status(404, "NotFound", "not found")
}

/// Answers requests for the version and for the namespace `system`, and all others with 404.
fn answer_without_objects(head: &Head) -> (u16, String) {
    match &head[0] {
        path if path.contains(" /version ") => (200, VERSION.into()),
        path if path.contains(" /api/v1/namespaces/system ") => {
            (200, r#"{"kind": "PartialObjectMetadata", "metadata": {"name": "system"}}"#.into())
        }
        _ => not_found(),
    }
}

fn read_head(stream: &mut impl Read) -> Option<Head> {
    let mut lines = BufReader::with_capacity(1, stream).lines();
    let first = lines.next()?.ok()?;
    let mut head = vec![first];
    for line in lines {
        match line.ok()? {
            line if line.is_empty() => return Some(head),
            line => head.push(line.to_lowercase()),
        }
    }
    None
}

fn respond(stream: &mut impl Write, status: u16, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} Status\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    stream.flush()
}

/// An API server without objects, with a self-signed certificate.
pub(crate) struct TlsServer {
    /// The heads have the certificate of the client, if it sent one, as a list of the bytes in DER.
    pub(crate) http: HttpServer,
    /// The self-signed certificate in PEM, which a client has to trust as an authority.
    pub(crate) ca: String,
}

impl TlsServer {
    /// Listens with a certificate that is valid from January 1 of `from_year` to January 1 of `to_year`.
    pub(crate) fn valid_from_to(from_year: i32, to_year: i32) -> Self {
        let mut params = server_params();
        (params.not_before, params.not_after) =
            (date_time_ymd(from_year, 1, 1), date_time_ymd(to_year, 1, 1));
        Self::new(params, None, |head, _| answer_without_objects(head))
    }

    /// Listens, and requires client certificates that this authority signed.
    pub(crate) fn requiring_client_certificates(authority: &CertificateDer<'_>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned()).unwrap();
        Self::new(server_params(), Some(roots), |head, _| answer_without_objects(head))
    }

    /// Listens with the certificate of an authority.
    pub(crate) fn presenting_an_authority() -> Self {
        let mut params = server_params();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self::new(params, None, |head, _| answer_without_objects(head))
    }

    pub(crate) fn without_objects() -> Self {
        Self::answering(|head, _| answer_without_objects(head))
    }

    /// Listens, and answers each request, for which it gets the URL of the server.
    pub(crate) fn answering(
        respond_to: impl Fn(&Head, &str) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        Self::new(server_params(), None, respond_to)
    }

    fn new(
        params: CertificateParams,
        client_roots: Option<RootCertStore>,
        respond_to: impl Fn(&Head, &str) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone());
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = match client_roots {
            None => config.with_no_client_auth(),
            Some(roots) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                config.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = vec![certificate.der().clone()];
        let config = config.with_single_cert(chain, PrivateKeyDer::try_from(key.serialize_der()).unwrap());
        let config = Arc::new(config.unwrap());
        let heads = Heads::default();
        let seen = heads.clone();
        let address = listen(move |stream| {
            let url = format!("https://{}", stream.local_addr().unwrap());
            let stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
            let client = |stream: &StreamOwned<ServerConnection, TcpStream>| {
                Some(format!("{:?}", &**stream.conn.peer_certificates()?.first()?))
            };
            answer(stream, client, &seen, &|head: &Head| respond_to(head, &url));
        });
        Self { http: HttpServer { address, heads }, ca: certificate.pem() }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.http.address)
    }
}

fn server_params() -> CertificateParams {
    let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(3000, 1, 1));
    params
}
