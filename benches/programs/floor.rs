//! The floor, a lower bound of the work: a bare client that sends precomputed status writes, without a controller.
//!
//! | arguments | effect |
//! | --- | --- |
//! | `bench-floor write FILE` | sends each line of the file, a path and a merge patch, with limited concurrency |
//! | `bench-floor --watch write FILE` | the same, and reads a watch of each Kind meanwhile |
//! | `bench-floor follow NAMESPACE` | watches the namespace's Services as raw lines, and writes a status for each |
//! | `bench-floor list` | lists both Kinds in pages of 500, prints `listed`, and exits |
//!
//! `KUBECONFIG` names the API server, and `K_THREADS_PER_CONTROLLER` is the number of concurrent requests.

use std::{env, error::Error, fs, future::ready};

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt, stream};
use http::Request;
use kube::Client;
use serde::Deserialize;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SERVICES: &str = "/api/v1/services";
const ADDRESSABLE_SERVICES: &str = "/apis/samples.knative.dev/v1alpha1/addressableservices";

#[tokio::main]
async fn main() -> Result<()> {
    let client = Client::try_default().await?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", file] => write_all(&client, &fs::read_to_string(file)?).await,
        ["--watch", "write", file] => {
            let writes = fs::read_to_string(file)?;
            let services = tokio::spawn(watch(&client, SERVICES).await?);
            let addressable_services = tokio::spawn(watch(&client, ADDRESSABLE_SERVICES).await?);
            tokio::select! {
                result = services => result?,
                result = addressable_services => result?,
                result = write_all(&client, &writes) => result,
            }
        }
        ["follow", namespace] => follow(&client, namespace).await,
        ["list"] => list_both_kinds(&client).await,
        _ => Err("usage: bench-floor [--watch] write FILE | follow NAMESPACE | list".into()),
    }
}

fn concurrency() -> Result<usize> {
    Ok(env::var("K_THREADS_PER_CONTROLLER")?.parse()?)
}

/// Sends all writes, and then keeps running, as a controller does, so that its memory can be measured.
async fn write_all(client: &Client, lines: &str) -> Result<()> {
    let writes = lines.lines().filter_map(|line| line.split_once('\t'));
    stream::iter(writes.map(Ok))
        .try_for_each_concurrent(concurrency()?, |(path, body)| write(client, path, body.to_owned()))
        .await?;
    std::future::pending().await
}

async fn write(client: &Client, path: &str, body: String) -> Result<()> {
    let request = Request::patch(path).header("Content-Type", "application/merge-patch+json");
    client.request_text(request.body(body.into_bytes())?).await?;
    Ok(())
}

/// Opens a watch. The returned future reads and drops its events, and fails when the watch ends.
async fn watch(client: &Client, path: &str) -> Result<impl Future<Output = Result<()>> + use<>> {
    let first = client.request_text(Request::get(format!("{path}?limit=1")).body(Vec::new())?).await?;
    let version = serde_json::from_str::<Page>(&first)?.metadata.resource_version;
    let path = format!("{path}?watch=true&resourceVersion={version}");
    let lines = client.request_stream(Request::get(path).body(Vec::new())?).await?.lines();
    Ok(async {
        lines.try_for_each(|_| ready(Ok(()))).await?;
        Err("a watch ended".into())
    })
}

#[derive(Deserialize)]
struct WatchEvent {
    r#type: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

/// Writes a Ready status for the AddressableService of each Service that the watch reports as added.
async fn follow(client: &Client, namespace: &str) -> Result<()> {
    // A controller has opened its connections before the measurement, so this client does the same.
    stream::iter(0..concurrency()?)
        .map(Ok)
        .try_for_each_concurrent(None, |_| open_connection(client))
        .await?;
    let path = format!("/api/v1/namespaces/{namespace}/services?watch=true");
    let lines = client.request_stream(Request::get(path).body(Vec::new())?).await?.lines();
    println!("watching");
    lines
        .map_err(Into::into)
        .try_for_each_concurrent(concurrency()?, |line| mark_ready(client, namespace, line))
        .await
}

async fn open_connection(client: &Client) -> Result<()> {
    client.request_text(Request::get("/version").body(Vec::new())?).await?;
    Ok(())
}

async fn mark_ready(client: &Client, namespace: &str, line: String) -> Result<()> {
    let event: WatchEvent = serde_json::from_str(&line)?;
    if event.r#type != "ADDED" {
        return Ok(());
    }
    let name = event.object.metadata.name;
    let path = format!(
        "/apis/samples.knative.dev/v1alpha1/namespaces/{namespace}/addressableservices/{name}/status"
    );
    write(client, &path, reknit_benches::ready_status(namespace, &name).to_string()).await
}

async fn list_both_kinds(client: &Client) -> Result<()> {
    tokio::try_join!(list(client, SERVICES), list(client, ADDRESSABLE_SERVICES))?;
    println!("listed");
    Ok(())
}

#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: String,
    r#continue: Option<String>,
}

async fn list(client: &Client, path: &str) -> Result<()> {
    let mut token = String::new();
    loop {
        let page = format!("{path}?limit=500&continue={token}");
        let text = client.request_text(Request::get(page).body(Vec::new())?).await?;
        let page: Page = serde_json::from_str(&text)?;
        match page.metadata.r#continue.filter(|token| !token.is_empty()) {
            Some(next) => token = next,
            None => return Ok(()),
        }
    }
}
