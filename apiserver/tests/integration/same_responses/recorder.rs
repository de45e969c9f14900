//! A client that records the responses of a server for comparison.

use std::error::Error;

use http::{Method, Request, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Map, Value, json};

/// A client of one server, with the responses so far.
pub(crate) struct Recorder {
    client: Client,
    /// Each request, the status code and the body of its response.
    responses: Vec<(String, u16, Value)>,
}

impl Recorder {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, responses: Vec::new() }
    }

    /// Sends a request and returns the body of the response.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> Result<Value, Box<dyn Error>> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder().method(method.clone()).uri(path).header(CONTENT_TYPE, content_type);
        let response = self.client.send(request.body(Body::from(body.into_bytes()))?).await?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        let body: Value = serde_json::from_slice(&body)?;
        let number = self.responses.len();
        // Continue tokens differ between the servers.
        let path = path.split_once("&continue=").map_or(path, |(path, _)| path);
        self.responses.push((format!("{number}: {method} {path} {content_type}"), code, body.clone()));
        Ok(body)
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<Value, Box<dyn Error>> {
        self.send(Method::GET, path, "application/json", None).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::POST, path, "application/json", Some(&body)).await
    }

    pub(crate) async fn put(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PUT, path, "application/json", Some(&body)).await
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
        self.send(Method::DELETE, path, "application/json", Some(&options)).await
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
        self.send(Method::DELETE, path, "application/json", None).await
    }

    /// Drops the spec and the status of the last response, for a Kind whose fields the real API server defaults.
    pub(crate) fn compare_metadata_only(&mut self) {
        if let Some((_, _, Value::Object(body))) = self.responses.last_mut() {
            body.remove("spec");
            body.retain(|name, value| name != "status" || !value.is_object());
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

    /// Replaces the uids in the text of a response, and the version in the message about a failed precondition.
    fn replace_in(&self, mut text: String) -> String {
        for (number, uid) in self.uids.iter().enumerate() {
            text = text.replace(uid, &format!("(uid {number})"));
        }
        let Some((before, after)) = text.split_once("the ResourceVersion in record (") else { return text };
        let after = after.trim_start_matches(|letter: char| letter.is_ascii_digit());
        format!("{before}the ResourceVersion in record (some version{after}")
    }
}

fn normalize(response: &mut Value, identifiers: &mut Identifiers) {
    let is_list = response["items"].is_array();
    match response {
        Value::Array(items) => items.iter_mut().for_each(|item| normalize(item, identifiers)),
        Value::Object(fields) => {
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                normalize_metadata(metadata, is_list, identifiers);
            }
            if let Some(Value::Object(details)) = fields.get("details") {
                identifiers.add_uid(details.get("uid").unwrap_or(&Value::Null));
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
        // The version of a list is the version of the whole store, which other tests change.
        let shown = if is_list {
            "(list)".into()
        } else {
            format!("(version {})", identifiers.version_number(uid, version.take()))
        };
        *version = json!(shown);
    }
}
