//! Compaction of etcd, which makes the resourceVersions of clients too old.

use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};

use super::{ControlPlane, Error};

// The HTTP gateway of etcd encodes bytes as base64 and 64-bit numbers as text. This key is one zero byte, the lowest of
// all.
const ANY_KEY: &str = "AA==";

impl ControlPlane {
    /// Compacts etcd up to its current revision. Later pages of an earlier list, and lists and watches from an earlier
    /// resourceVersion, are then answered with 410 if they reach etcd.
    ///
    /// Most watches never reach etcd, because the API server answers them from its watch cache. To have them answered
    /// with 410, [`restart`](Self::restart) after compacting, or start with `--watch-cache=false`. An open watch is not
    /// affected; the next one is refused.
    pub async fn compact(&self) -> Result<(), Error> {
        let etcd = self.etcd()?;
        let seen = ask(&etcd, "/v3/kv/range", json!({"key": ANY_KEY})).await?;
        let revision = &seen["header"]["revision"];
        match ask(&etcd, "/v3/kv/compaction", json!({"revision": revision, "physical": true})).await {
            // Etcd is already compacted up to this revision.
            Err(Error::Api { source, .. }) if source.to_string().contains("has been compacted") => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    fn etcd(&self) -> Result<Client, Error> {
        let address = format!("http://127.0.0.1:{}", self.running.ports.etcd);
        let address = address
            .parse()
            .map_err(|error| Error::Credentials(format!("use the address {address}: {error}")))?;
        super::connect(Config::new(address))
    }
}

async fn ask(etcd: &Client, path: &str, question: Value) -> Result<Value, Error> {
    let request = Request::post(path)
        .header("Content-Type", "application/json")
        .body(question.to_string().into_bytes());
    let request = request.map_err(|error| Error::Credentials(format!("ask etcd for {path}: {error}")))?;
    etcd.request(request).await.map_err(Error::api(format!("ask etcd for {path}")))
}
