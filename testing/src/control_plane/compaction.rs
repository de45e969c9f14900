//! Makes etcd forget, so that what a client remembers is too old.

use http::Request;
use kube::{Client, Config};
use serde_json::{Value, json};

use super::{ControlPlane, Error};

// Etcd's HTTP gateway: bytes in base64, 64-bit numbers as text. This key is one zero byte; none is less.
const ANY_KEY: &str = "AA==";

impl ControlPlane {
    /// Compacts etcd up to now: pages of a list begun earlier, and lists and watches from an earlier resourceVersion that
    /// reach etcd, are answered 410 from then on.
    ///
    /// Most watches never reach etcd: the API server answers them from a cache of what changed lately. So that they are
    /// told 410, [`restart`](Self::restart) after compacting, or start with `--watch-cache=false`. A watch that is open
    /// goes on; it is the next one that is refused.
    pub async fn compact(&self) -> Result<(), Error> {
        let etcd = self.etcd()?;
        let seen = ask(&etcd, "/v3/kv/range", json!({"key": ANY_KEY})).await?;
        let revision = &seen["header"]["revision"];
        match ask(&etcd, "/v3/kv/compaction", json!({"revision": revision, "physical": true})).await {
            // Nothing was written since the last time.
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
