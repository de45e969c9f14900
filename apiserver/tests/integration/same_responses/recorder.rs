//! A client that records the responses of a server for comparison.

use std::error::Error;

use futures::future::join_all;
use http::{
    Method, Request, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::BodyExt;
use kube::{Client, api::DynamicObject, client::Body};
use reknit_apiserver::ApiServer;
use reknit_testing::ControlPlane;
use serde_json::{Map, Value, json};

const JSON: &str = "application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The seconds after which each watch ends. All its events have happened before.
const WATCH_SECONDS: u64 = 5;

/// The compared servers.
pub(crate) enum Server {
    Real(Box<ControlPlane>),
    Memory(ApiServer),
}

/// A client of one server, with the responses so far.
pub(crate) struct Recorder {
    client: Client,
    server: Server,
    /// Each request, the status code and the body of its response. Each event of a watch is a response too.
    responses: Vec<(String, u16, Value)>,
    events: usize,
}

impl Recorder {
    pub(crate) fn new(server: Server) -> Result<Self, Box<dyn Error>> {
        let client = match &server {
            Server::Real(plane) => plane.client()?,
            Server::Memory(server) => server.client(),
        };
        Ok(Self { client, server, responses: Vec::new(), events: 0 })
    }

    pub(crate) async fn compact(&self) -> Result<(), Box<dyn Error>> {
        match &self.server {
            Server::Real(plane) => {
                plane.compact().await?;
                // The watch cache of the API server still has the changes.
                plane.restart().await?;
            }
            Server::Memory(server) => server.compact(),
        }
        Ok(())
    }

    /// Replaces a definition, and waits until the object is refused by the new one.
    pub(crate) async fn redefine(
        &self,
        definition: &str,
        path: &str,
        refused: &Value,
    ) -> Result<(), Box<dyn Error>> {
        match &self.server {
            Server::Real(plane) => plane.apply_yaml(definition).await?,
            Server::Memory(server) => insert(server, definition)?,
        }
        for _ in 0..600 {
            let request = Request::post(format!("{path}?dryRun=All")).header(CONTENT_TYPE, JSON);
            let response =
                self.client.send(request.body(Body::from(refused.to_string().into_bytes()))?).await?;
            if response.status() == StatusCode::UNPROCESSABLE_ENTITY {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        Err(format!("{path} still has its old definition").into())
    }

    /// Runs the garbage collector and the controller of namespaces from now on.
    pub(crate) async fn run_controllers(&mut self) -> Result<(), Box<dyn Error>> {
        match &self.server {
            Server::Real(plane) => plane.nodes(0).await?,
            Server::Memory(server) => while server.collect_garbage() {},
        }
        Ok(())
    }

    /// Waits until the controllers have removed the object.
    pub(crate) async fn until_gone(&self, path: &str) -> Result<(), Box<dyn Error>> {
        self.until(path, |object| object["code"] == 404).await
    }

    /// Waits until the controllers have left the object one owner.
    pub(crate) async fn until_one_owner(&self, path: &str) -> Result<(), Box<dyn Error>> {
        self.until(path, |object| object["metadata"]["ownerReferences"].as_array().map(Vec::len) == Some(1))
            .await
    }

    /// Waits for the controllers to do something to the object.
    async fn until(&self, path: &str, is_done: impl Fn(&Value) -> bool) -> Result<(), Box<dyn Error>> {
        if let Server::Memory(server) = &self.server {
            while server.collect_garbage() {}
        }
        for _ in 0..600 {
            let response = self.client.send(Request::get(path).body(Body::empty())?).await?;
            if is_done(&serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?) {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        Err(format!("the controllers are not done with {path}").into())
    }

    /// Reads a watch to its end, and orders its events by object: controllers work on several at once.
    pub(crate) async fn watch_by_object(&mut self, path: &str) -> Result<(), Box<dyn Error>> {
        let first = self.responses.len() + 1;
        self.watches(&[path.to_owned()]).await?;
        self.responses[first..].sort_by_key(|(_, _, event)| event["object"]["metadata"]["name"].to_string());
        Ok(())
    }

    /// The number of requests and the number of watch events.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.responses.len() - self.events, self.events)
    }

    /// Opens these watches, and reads each to its end. Bookmarks that the client cannot expect are left out.
    pub(crate) async fn watches(&mut self, paths: &[String]) -> Result<(), Box<dyn Error>> {
        self.watches_as(JSON, paths).await
    }

    /// Opens these watches of metadata.
    pub(crate) async fn metadata_watches(&mut self, paths: &[String]) -> Result<(), Box<dyn Error>> {
        self.watches_as(METADATA, paths).await
    }

    async fn watches_as(&mut self, accept: &str, paths: &[String]) -> Result<(), Box<dyn Error>> {
        let watches = join_all(paths.iter().map(|path| read_watch(&self.client, accept, path))).await;
        for (path, watch) in paths.iter().zip(watches) {
            let (code, lines) = watch?;
            let number = self.responses.len();
            // The version differs between the servers.
            let parts = path.split('&').filter(|part| !part.starts_with("resourceVersion="));
            let path = parts.collect::<Vec<_>>().join("&");
            self.responses.push((
                format!("{number}: WATCH {path} {accept}"),
                code,
                json!({ "events": lines.len() }),
            ));
            let events = lines
                .into_iter()
                .map(|line| (format!("{number}: WATCH {path} {accept}, an event"), code, line));
            self.responses.extend(events);
            self.events += self.responses.len() - 1 - number;
        }
        Ok(())
    }

    /// Sends a request and returns the body of the response.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Value, Box<dyn Error>> {
        self.send_accepting(JSON, method, path, content_type, body).await
    }

    async fn send_accepting(
        &mut self,
        accept: &str,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Value, Box<dyn Error>> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder().method(method.clone()).uri(path);
        let request = request.header(CONTENT_TYPE, content_type).header(ACCEPT, accept);
        let response = self.client.send(request.body(Body::from(body.into_bytes()))?).await?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&body)?;
        let number = self.responses.len();
        // Continue tokens differ between the servers.
        let path = path.split_once("&continue=").map_or(path, |(path, _)| path);
        let path = path.split_once("resourceVersion=").map_or(path, |(path, _)| path);
        self.responses.push((format!("{number}: {method} {path} {content_type}"), code, body.clone()));
        Ok(body)
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Value, Box<dyn Error>> {
        self.send(Method::GET, path, JSON, None).await
    }

    pub(crate) async fn get_metadata(&mut self, path: &str) -> Result<Value, Box<dyn Error>> {
        let is_list = path.split('?').next().is_some_and(|path| path.ends_with('s'));
        let accept = if is_list { METADATA_LIST } else { METADATA };
        self.send_accepting(accept, Method::GET, path, JSON, None).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::POST, path, JSON, Some(&body)).await
    }

    pub(crate) async fn put(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PUT, path, JSON, Some(&body)).await
    }

    pub(crate) async fn merge_patch(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PATCH, path, "application/merge-patch+json", Some(&body)).await
    }

    pub(crate) async fn json_patch(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PATCH, path, "application/json-patch+json", Some(&body)).await
    }

    pub(crate) async fn apply(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PATCH, path, "application/apply-patch+yaml", Some(&body)).await
    }

    pub(crate) async fn delete(&mut self, path: &str, options: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::DELETE, path, JSON, Some(&options)).await
    }

    pub(crate) async fn strategic_merge_patch(
        &mut self,
        path: &str,
        body: Value,
    ) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PATCH, path, "application/strategic-merge-patch+json", Some(&body)).await
    }

    /// Deletes without a body. Options can be in the query of the path.
    pub(crate) async fn delete_by_query(&mut self, path: &str) -> Result<Value, Box<dyn Error>> {
        self.send(Method::DELETE, path, JSON, None).await
    }

    /// Drops the spec and the status of the last response, for a Kind whose fields the real API server defaults.
    pub(crate) fn compare_metadata_only(&mut self) {
        if let Some((_, _, Value::Object(body))) = self.responses.last_mut() {
            body.remove("spec");
            body.retain(|name, value| name != "status" || !value.is_object());
        }
    }

    /// Drops the spec of the last response, in which the real API server has stored who sent the request, and a status
    /// without fields, which the real API server adds to objects of built-in Kinds.
    pub(crate) fn compare_without_spec(&mut self) {
        if let Some((_, _, Value::Object(body))) = self.responses.last_mut() {
            body.remove("spec");
            body.retain(|name, value| name != "status" || *value != json!({}));
        }
    }

    /// Returns each request with its response as a text, without values that differ between servers: times become
    /// `(time)`, and uids and versions are numbered in the order of their first appearance.
    pub(crate) fn responses(self) -> Vec<String> {
        let mut identifiers = Identifiers::default();
        let mut texts = Vec::new();
        for (request, code, mut body) in self.responses {
            normalize(&mut body, &mut identifiers);
            let text = serde_saphyr::to_string(&json!({"request": request, "code": code, "response": body}));
            texts.push(identifiers.replace_in(text.unwrap_or_default()));
        }
        texts
    }
}

/// Adds the objects of a YAML text.
pub(crate) fn insert(server: &ApiServer, text: &str) -> Result<(), Box<dyn Error>> {
    for object in serde_saphyr::from_multiple::<Value>(text)? {
        server.insert(&serde_json::from_value::<DynamicObject>(object)?);
    }
    Ok(())
}

/// Opens a watch and returns its code and its lines.
async fn read_watch(client: &Client, accept: &str, path: &str) -> Result<(u16, Vec<Value>), Box<dyn Error>> {
    let request = Request::get(format!("{path}&timeoutSeconds={WATCH_SECONDS}")).header(ACCEPT, accept);
    let response = client.send(request.body(Body::empty())?).await?;
    let code = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut lines = lines.map(serde_json::from_slice).collect::<Result<Vec<Value>, _>>()?;
    lines.retain(|line| line["type"] != "BOOKMARK" || line["object"]["metadata"]["annotations"].is_object());
    Ok((code, lines))
}

/// The uids and resourceVersions of one server, in the order of their first appearance.
#[derive(Default)]
struct Identifiers {
    uids: Vec<String>,
    /// Pairs of an object's uid and one of its resourceVersions.
    versions: Vec<(Value, Value)>,
}

impl Identifiers {
    fn add_uid(&mut self, uid: &Value) {
        if let Some(uid) = uid.as_str().filter(|uid| !self.uids.iter().any(|known| known == uid)) {
            self.uids.push(uid.into());
        }
    }

    /// Returns the number of this version of this object, and adds it if it is new. Each object's
    /// versions are numbered apart, because objects of different Kinds may have equal versions on one of the servers.
    fn version_number(&mut self, uid: Value, version: Value) -> usize {
        let pair = (uid, version);
        self.versions.iter().position(|known| *known == pair).unwrap_or_else(|| {
            self.versions.push(pair);
            self.versions.len() - 1
        })
    }

    /// Replaces the uids in the text of a response.
    fn replace_in(&self, text: String) -> String {
        let uids = self.uids.iter().enumerate();
        uids.fold(text, |text, (number, uid)| text.replace(uid, &format!("(uid {number})")))
    }
}

/// Replaces the resourceVersions in a message.
fn without_versions(message: &str) -> String {
    let is_about_versions =
        ["ResourceVersion in record", "resource version"].iter().any(|words| message.contains(words));
    let digits = |letter: char| if letter.is_ascii_digit() && is_about_versions { '#' } else { letter };
    let mut shown: Vec<_> = message.chars().map(digits).collect();
    shown.dedup_by(|one, other| *one == '#' && *other == '#');
    shown.into_iter().collect()
}

fn normalize(response: &mut Value, identifiers: &mut Identifiers) {
    let is_list = response.get("items").is_some();
    match response {
        Value::Array(items) => items.iter_mut().for_each(|item| normalize(item, identifiers)),
        Value::Object(fields) => {
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                normalize_metadata(metadata, is_list, identifiers);
            }
            if let Some(Value::Object(details)) = fields.get("details") {
                identifiers.add_uid(details.get("uid").unwrap_or(&Value::Null));
            }
            if let Some(message) = fields.get_mut("message").filter(|message| message.is_string()) {
                *message = json!(without_versions(message.as_str().unwrap_or_default()));
            }
            // The real API server repeats some causes.
            let causes = fields.get_mut("details").and_then(|details| details.get_mut("causes"));
            if let Some(causes) = causes.and_then(Value::as_array_mut) {
                causes.dedup();
            }
            fields
                .values_mut()
                .filter(|value| value.is_object() || value.is_array())
                .for_each(|value| normalize(value, identifiers));
        }
        _ => {}
    }
}

fn normalize_metadata(metadata: &mut Map<String, Value>, is_list: bool, identifiers: &mut Identifiers) {
    metadata.remove("managedFields");
    for field in ["creationTimestamp", "deletionTimestamp"] {
        if let Some(time) = metadata.get_mut(field).filter(|time| time.is_string()) {
            *time = json!("(time)");
        }
    }
    if let Some(token) = metadata.get_mut("continue").filter(|token| **token != "") {
        *token = json!("(token)");
    }
    if let Some(prefix) = metadata.get("generateName").and_then(Value::as_str).map(str::to_owned) {
        let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
        let is_generated = name.strip_prefix(&prefix).is_some_and(|rest| rest.len() == 5);
        let shown = if is_generated { format!("{prefix}(five letters)") } else { name.to_owned() };
        metadata.insert("name".into(), json!(shown));
    }
    let uid = metadata.get("uid").cloned().unwrap_or_default();
    identifiers.add_uid(&uid);
    if let Some(version) = metadata.get_mut("resourceVersion") {
        // The version of a list or of a bookmark is the version of the whole store.
        let shown = if is_list || uid.is_null() {
            "(list)".into()
        } else {
            format!("(version {})", identifiers.version_number(uid, version.take()))
        };
        *version = json!(shown);
    }
}
