//! API servers that are none: what answers on a port of this machine as a test wants.
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};
use tokio::net::TcpSocket;

pub(crate) const VERSION: &str = r#"{"major":"1","minor":"36","gitVersion":"v1.36.3","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#;

/// The first line and the headers of a request, in lower case but for the first, and who asks: `peer: 127.0.0.1:40000`.
pub(crate) type Head = Vec<String>;

/// Listens until the test ends; each connection is handled by a thread.
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

/// A port on which nobody listens, and nobody else can while the socket is held.
pub(crate) fn nobody() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Takes a connection, reads a little, and closes it.
pub(crate) fn hanging_up() -> SocketAddr {
    listen(|mut stream| {
        // What was asked does not matter.
        let _ = stream.read(&mut [0; 64]);
    })
}

/// A SOCKS proxy that asks for no password, and is itself the API server that it leads to by name.
pub(crate) fn socks5() -> SocketAddr {
    listen(|mut stream| {
        let (mut hello, mut command) = ([0; 3], [0; 5]);
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&[5, 0]).unwrap();
        stream.read_exact(&mut command).unwrap();
        assert_eq!((hello, &command[..4]), ([5, 1, 0], &[5, 1, 0, 3][..]), "to connect to a name");
        let mut name_and_port = vec![0; usize::from(command[4]) + 2];
        stream.read_exact(&mut name_and_port).unwrap();
        stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
        while read_head(&mut stream).is_some() {
            respond(&mut stream, 200, VERSION).unwrap();
        }
    })
}

/// Answers each request by status and body; remembers what was asked.
pub(crate) struct Http {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<Head>>>,
}

impl Http {
    pub(crate) fn new(answer: impl Fn(&Head) -> (u16, String) + Send + Sync + 'static) -> Self {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let seen = heads.clone();
        let address = listen(move |mut stream| {
            let peer = stream.peer_addr().unwrap();
            while let Some(mut head) = read_head(&mut stream) {
                head.push(format!("peer: {peer}"));
                seen.lock().unwrap().push(head.clone());
                let (status, body) = answer(&head);
                if respond(&mut stream, status, &body).is_err() {
                    break;
                }
            }
        });
        Self { address, heads }
    }

    /// Knows its version and the namespace `system`, and nothing else.
    pub(crate) fn empty() -> Self {
        Self::new(|head| match &head[0] {
            path if path.contains(" /version ") => (200, VERSION.into()),
            path if path.contains(" /api/v1/namespaces/system ") => {
                (200, r#"{"kind": "PartialObjectMetadata", "metadata": {"name": "system"}}"#.into())
            }
            _ => missing(),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits for so many requests with such a line in their heads.
    pub(crate) fn until_asked(&self, times: usize, line: impl Fn(&str) -> bool) {
        let began = Instant::now();
        while self.heads().iter().filter(|head| head.iter().any(|l| line(l))).count() < times {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody asked so: {:#?}", self.heads());
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn heads(&self) -> Vec<Head> {
        self.heads.lock().unwrap().clone()
    }
}

pub(crate) fn status(code: u16, reason: &str, message: &str) -> (u16, String) {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    (code, status.to_string())
}

pub(crate) fn missing() -> (u16, String) {
    status(404, "NotFound", "there is none")
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
        "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    stream.flush()
}

/// An API server with a certificate of its own.
pub(crate) struct Tls {
    pub(crate) address: SocketAddr,
    /// The certificate, which is its own authority.
    pub(crate) ca: String,
}

impl Tls {
    pub(crate) fn valid_from_to(from: i32, to: i32) -> Self {
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let config = Arc::new(config);
        let address = listen(move |stream| {
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
            while read_head(&mut stream).is_some() {
                let _ = respond(&mut stream, 200, VERSION);
            }
        });
        Self { address, ca: certificate.pem() }
    }
}
