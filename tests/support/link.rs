//! A TCP link between a client and the API server, which a test can break or silence.
//!
//! The link forwards bytes. It leaves TLS and HTTP to the client and the API server. The [proxy](super::proxy) has a link
//! to its clients.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
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

    /// Writes a kubeconfig that connects through the link with the credentials of `original`, and returns its path.
    /// `scheme` is that of the server, `http` or `https`.
    pub(crate) fn kubeconfig(&self, scheme: &str, original: &Path) -> PathBuf {
        let text = std::fs::read_to_string(original).expect("the kubeconfig");
        let mut kubeconfig: Value = serde_json::from_str(&text).expect("a kubeconfig in JSON");
        kubeconfig["clusters"][0]["cluster"]["server"] = json!(format!("{scheme}://{}", self.address));
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
        let (server, mut condition) = (server.clone(), condition.subscribe());
        tokio::spawn(async move {
            let mut broken = condition.clone();
            tokio::select! {
                _ = broken.wait_for(|condition| *condition == Condition::Broken) => {}
                () = connect_and_forward(client, &server, &mut condition) => {}
            }
        });
    }
}

/// Forwards in both directions until one of them ends.
async fn connect_and_forward(client: TcpStream, server: &str, condition: &mut watch::Receiver<Condition>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("TCP_NODELAY is set");
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = forward(from_client, to_server, condition.clone()) => {}
        () = forward(from_server, to_client, condition.clone()) => {}
    }
}

/// Forwards bytes while the link is up, until the sender closes the connection or the receiver is gone.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut condition: watch::Receiver<Condition>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let up = condition.wait_for(|condition| *condition == Condition::Up).await.is_ok();
        if !up || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
