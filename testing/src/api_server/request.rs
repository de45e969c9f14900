//! Reads a request as an API server does: what is to be done, to which object, with what.

use std::collections::BTreeMap;

use http::{Method, request::Parts};
use reknit_apis::Key;
use serde_json::Value;

use super::{
    objects::Place,
    write::{Verb, Write},
};

pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) place: Place,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
    pub(super) query: BTreeMap<String, String>,
    /// Whether it is server-side apply.
    pub(super) applies: bool,
    pub(super) body: Value,
}

impl Request {
    pub(super) fn parse(head: &Parts, body: &[u8]) -> Result<Self, String> {
        let query = query_of(head.uri.query().unwrap_or_default());
        let content = head.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let (place, name, subresource) = split(head.uri.path())?;
        let verb = match (&head.method, &name) {
            _ if query.get("watch").is_some_and(|watch| watch != "false") => {
                return Err("this server does not watch".into());
            }
            (&Method::GET, Some(_)) => Verb::Get,
            (&Method::GET, None) => Verb::List,
            (&Method::POST, None) => Verb::Create,
            (&Method::PUT, Some(_)) => Verb::Update,
            (&Method::PATCH, Some(_)) => Verb::Patch,
            (&Method::DELETE, Some(_)) => Verb::Delete,
            (method, _) => return Err(format!("this server does not {method} {}", head.uri.path())),
        };
        let is = |kind| content.is_some_and(|content: &str| content.contains(kind));
        if verb == Verb::Patch && is("json-patch") {
            return Err("this server does not take JSON patches".into());
        }
        let body = match body {
            [] => Value::Null,
            sent => serde_json::from_slice(sent).map_err(|error| format!("the body is no JSON: {error}"))?,
        };
        Ok(Self { verb, place, name, subresource, query, applies: is("apply-patch"), body })
    }

    /// `pods`, `pods/status`.
    pub(super) fn resource(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.place.plural),
            None => self.place.plural.clone(),
        }
    }

    pub(super) fn write(&self) -> Write {
        let sent = |field: &str| self.body["metadata"][field].as_str().filter(|name| !name.is_empty());
        let name = self.name.as_deref().or(sent("name")).or(sent("generateName")).unwrap_or_default();
        Write {
            verb: self.verb,
            resource: self.resource(),
            key: Key::new(self.place.namespace.as_deref(), name),
            body: self.body.clone(),
        }
    }

    pub(super) fn is_dry(&self) -> bool {
        self.query.contains_key("dryRun")
    }
}

/// Where the objects are, and which one, and which part of it.
fn split(path: &str) -> Result<(Place, Option<String>, Option<String>), String> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (api, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => (format!("api/{version}"), rest),
        ["apis", group, version, rest @ ..] => (format!("apis/{group}/{version}"), rest),
        _ => return Err(format!("no resource has the path {path}")),
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
        rest => (None, rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (plural, None, None),
        [plural, name] => (plural, Some((*name).to_owned()), None),
        [plural, name, subresource] => (plural, Some((*name).to_owned()), Some((*subresource).to_owned())),
        _ => return Err(format!("no resource has the path {path}")),
    };
    Ok((Place { api, plural: (*plural).to_owned(), namespace }, name, subresource))
}

fn query_of(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (unescaped(name), unescaped(value))
        })
        .collect()
}

/// A text of a query as it was before it was escaped.
fn unescaped(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut plain = Vec::new();
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'+' => b' ',
            b'%' => {
                let hex: String = bytes.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&hex, 16).unwrap_or(b'%')
            }
            byte => byte,
        });
    }
    String::from_utf8_lossy(&plain).into_owned()
}
