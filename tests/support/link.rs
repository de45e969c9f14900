//! A TCP link between a client and the API server, which a test can break or silence.
//!
//! The link forwards bytes. It leaves TLS and HTTP to the client and the API server. The [proxy](super::proxy) has a link
//! to its clients.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
};

use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// The condition of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Bytes are forwarded.
    Up,
    /// Connections are closed, existing and new ones.
    Broken,
    /// Connections are accepted, and bytes are held back until the link is up again.
    Silent,
}

/// A running link. It stops when it is dropped.
pub(crate) struct Link {
    pub address: SocketAddr,
    condition: Arc<watch::Sender<Condition>>,
    accept_task: tokio::task::JoinHandle<()>,
}

impl Link {
    /// Starts a link to the server of this address, such as `127.0.0.1:6443`.
    pub(crate) async fn start(server: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let condition = Arc::new(watch::Sender::new(Condition::Up));
        let accept_task = tokio::spawn(accept(listener, server.to_owned(), condition.clone()));
        Self { address, condition, accept_task }
    }

    /// Writes a kubeconfig that connects through the link with the credentials of `original`, or without any by `http`,
    /// and returns its path. `scheme` is that of the server.
    pub(crate) fn kubeconfig(&self, scheme: &str, original: &Path) -> PathBuf {
        let text = std::fs::read_to_string(original).expect("the kubeconfig");
        let mut kubeconfig: Value = serde_json::from_str(&text).expect("a kubeconfig in JSON");
        kubeconfig["clusters"][0]["cluster"]["server"] = json!(format!("{scheme}://{}", self.address));
        if scheme == "http" {
            kubeconfig["users"][0]["user"] = json!({});
        }
        let path = original.with_extension(format!("link-{}", self.address.port()));
        std::fs::write(&path, kubeconfig.to_string()).expect("the kubeconfig is written");
        path
    }

    pub(crate) fn set(&self, condition: Condition) {
        self.condition.send_replace(condition);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accept_task.abort();
        self.condition.send_replace(Condition::Broken);
    }
}

async fn accept(listener: TcpListener, server: String, condition: Arc<watch::Sender<Condition>>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(forward(client, server.clone(), condition.subscribe()));
    }
}

/// Forwards in both directions until both sides have closed the connection, or the link breaks. While the link is
/// silent, nothing is read or written.
async fn forward(mut client: TcpStream, server: String, mut condition: watch::Receiver<Condition>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("TCP_NODELAY is set");
    }
    let mut copying = pin!(copy_bidirectional(&mut client, &mut server));
    loop {
        let now = *condition.borrow_and_update();
        tokio::select! {
            _ = &mut copying, if now == Condition::Up => return,
            changed = condition.changed(), if now != Condition::Broken => {
                if changed.is_err() {
                    return;
                }
            }
            else => return,
        }
    }
}
