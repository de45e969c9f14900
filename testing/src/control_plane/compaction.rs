//! Compaction of etcd, which makes the resourceVersions of clients too old.

use http::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::{ControlPlane, Error, process::commands::ETCD_SOCKET};

/// The key that is read to learn the current revision: one zero byte. The HTTP gateway of etcd encodes bytes as base64
/// and 64-bit numbers as text.
const ANY_KEY: &str = "AA==";

impl ControlPlane {
    /// Compacts etcd up to its current revision. Later pages of an earlier list, and lists and watches from an earlier
    /// resourceVersion, are then answered with 410 if they reach etcd.
    ///
    /// Most watches never reach etcd, because the API server answers them from its watch cache. To have them answered
    /// with 410, [`restart`](Self::restart) after compacting, or start with `--watch-cache=false`. An open watch is not
    /// affected; the next one is refused.
    pub async fn compact(&self) -> Result<(), Error> {
        let etcd = self.etcd();
        let range = post(&etcd, "/v3/kv/range", json!({"key": ANY_KEY})).await?;
        let revision = &range["header"]["revision"];
        match post(&etcd, "/v3/kv/compaction", json!({"revision": revision, "physical": true})).await {
            // Etcd is already compacted up to this revision.
            Err(error) if format!("{error:?}").contains("has been compacted") => Ok(()),
            response => response.map(|_| ()),
        }
    }

    /// Returns a client of etcd's HTTP gateway, with a connection for each request.
    fn etcd(&self) -> Client {
        let socket = self.processes.folder.join(ETCD_SOCKET);
        let send = move |mut request: Request<Body>| {
            let socket = socket.clone();
            async move {
                let stream = TokioIo::new(UnixStream::connect(socket).await?);
                let (mut sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                request.headers_mut().insert("Host", "etcd".try_into()?);
                Ok::<_, tower::BoxError>(sender.send_request(request).await?)
            }
        };
        Client::new(tower::service_fn(send), "default")
    }
}

async fn post(etcd: &Client, path: &str, body: Value) -> Result<Value, Error> {
    let request =
        Request::post(path).header("Content-Type", "application/json").body(body.to_string().into_bytes());
    let action = format!("request {path} from etcd");
    etcd.request(request.map_err(Error::cannot(&action))?).await.map_err(Error::cannot(&action))
}
