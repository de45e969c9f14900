//! A server under comparison, and its responses.

use std::error::Error;

use http::{Method, Request, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::{Map, Value, json};

/// A server and its responses so far.
pub(crate) struct Asked {
    client: Client,
    answers: Vec<(String, u16, Value)>,
}

impl Asked {
    pub(crate) fn of(client: Client) -> Self {
        Self { client, answers: Vec::new() }
    }

    /// Sends a request and returns the body of the response.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Value, Box<dyn Error>> {
        let sent = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder().method(method.clone()).uri(path).header(CONTENT_TYPE, content);
        let answer = self.client.send(request.body(Body::from(sent.clone().into_bytes()))?).await?;
        let code = answer.status().as_u16();
        let answer = answer.into_body().collect().await?.to_bytes();
        let answer: Value = serde_json::from_slice(&answer)?;
        let n = self.answers.len();
        let path = path.split_once("&continue=").map_or(path, |(path, _)| path);
        self.answers.push((format!("{n}: {method} {path} {content}"), code, answer.clone()));
        Ok(answer)
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

    pub(crate) async fn merge(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PATCH, path, "application/merge-patch+json", Some(&body)).await
    }

    pub(crate) async fn json(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PATCH, path, "application/json-patch+json", Some(&body)).await
    }

    pub(crate) async fn apply(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PATCH, path, "application/apply-patch+yaml", Some(&body)).await
    }

    pub(crate) async fn delete(&mut self, path: &str, options: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::DELETE, path, "application/json", Some(&options)).await
    }

    pub(crate) async fn strategic(&mut self, path: &str, body: Value) -> Result<Value, Box<dyn Error>> {
        self.send(Method::PATCH, path, "application/strategic-merge-patch+json", Some(&body)).await
    }

    pub(crate) async fn delete_by_query(&mut self, path: &str) -> Result<Value, Box<dyn Error>> {
        self.send(Method::DELETE, path, "application/json", None).await
    }

    /// Returns each request with its response as a text, without values that differ between servers: times become
    /// `(time)`, and uids and versions are numbered in the order of their first appearance.
    pub(crate) fn answers(self) -> Vec<String> {
        let mut seen = Seen::default();
        let mut texts = Vec::new();
        for (asked, code, mut answer) in self.answers {
            plain(&mut answer, &mut seen);
            let text = serde_yaml_ng::to_string(&json!({"asked": asked, "code": code, "answer": answer}));
            texts.push(seen.renamed(text.unwrap_or_default()));
        }
        texts
    }
}

/// The uids, and the versions of each, in the order of their first appearance.
#[derive(Default)]
struct Seen {
    uids: Vec<String>,
    versions: Vec<(Value, Value)>,
}

impl Seen {
    fn note_uid(&mut self, uid: &Value) {
        if let Some(uid) = uid.as_str().filter(|uid| !self.uids.iter().any(|known| known == uid)) {
            self.uids.push(uid.into());
        }
    }

    /// The number of this version of this object. Versions of different Kinds are not comparable.
    fn version(&mut self, uid: Value, version: Value) -> usize {
        let pair = (uid, version);
        self.versions.iter().position(|known| *known == pair).unwrap_or_else(|| {
            self.versions.push(pair);
            self.versions.len() - 1
        })
    }

    /// Replaces uids and versions within messages too.
    fn renamed(&self, mut text: String) -> String {
        for (n, uid) in self.uids.iter().enumerate() {
            text = text.replace(uid, &format!("(uid {n})"));
        }
        let Some((before, after)) = text.split_once("the ResourceVersion in record (") else { return text };
        let after = after.trim_start_matches(|letter: char| letter.is_ascii_digit());
        format!("{before}the ResourceVersion in record (some version{after}")
    }
}

fn plain(answer: &mut Value, seen: &mut Seen) {
    let list = answer["items"].is_array();
    match answer {
        Value::Array(all) => all.iter_mut().for_each(|one| plain(one, seen)),
        Value::Object(fields) => {
            if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
                plain_metadata(metadata, list, seen);
            }
            if let Some(Value::Object(details)) = fields.get("details") {
                seen.note_uid(details.get("uid").unwrap_or(&Value::Null));
            }
            // The real API server repeats some causes.
            let causes = fields.get_mut("details").and_then(|details| details.get_mut("causes"));
            if let Some(causes) = causes.and_then(Value::as_array_mut) {
                causes.dedup();
            }
            fields
                .values_mut()
                .filter(|value| value.is_object() || value.is_array())
                .for_each(|value| plain(value, seen));
        }
        _ => {}
    }
}

fn plain_metadata(metadata: &mut Map<String, Value>, of_list: bool, seen: &mut Seen) {
    metadata.remove("managedFields");
    for time in ["creationTimestamp", "deletionTimestamp"] {
        if let Some(at) = metadata.get_mut(time).filter(|at| at.is_string()) {
            *at = json!("(time)");
        }
    }
    if let Some(token) = metadata.get_mut("continue").filter(|token| **token != "") {
        *token = json!("(token)");
    }
    if let Some(prefix) = metadata.get("generateName").and_then(Value::as_str).map(str::to_owned) {
        let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default();
        let made = name.strip_prefix(&prefix).is_some_and(|rest| rest.len() == 5);
        let shown = if made { format!("{prefix}(five letters)") } else { name.to_owned() };
        metadata.insert("name".into(), json!(shown));
    }
    let uid = metadata.get("uid").cloned().unwrap_or_default();
    seen.note_uid(&uid);
    if let Some(version) = metadata.get_mut("resourceVersion") {
        // The version of a list is the version of the whole store, which other tests change.
        let shown = if of_list {
            "(list)".into()
        } else {
            format!("(version {})", seen.version(uid, version.take()))
        };
        *version = json!(shown);
    }
}
