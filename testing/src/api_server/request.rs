//! Parsing of requests.

use std::collections::BTreeMap;

use http::{Method, StatusCode, header::CONTENT_TYPE, request::Parts};
use reknit_apis::Key;
use reknit_injection::internal::ResourcePath;
use serde_json::Value;

use super::{
    answer::{Answer, bad_request, failure, not_supported},
    place::Place,
    write::{Verb, Write},
};

#[derive(Clone)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) place: Place,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
    pub(super) query: BTreeMap<String, String>,
    /// The format of a patch.
    pub(super) patch: PatchKind,
    pub(super) body: Value,
    /// The refusal of a request that is refused whatever is stored.
    pub(super) refused: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchKind {
    Merge,
    Json,
    /// Server-side apply.
    Apply,
}

impl Request {
    /// Parses a request. A write that is refused for its own sake is still parsed, so that it can be recorded.
    pub(super) fn parse(head: &Parts, body: &[u8]) -> Result<Self, Answer> {
        let query = head.uri.query().unwrap_or_default();
        let query: BTreeMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let path = head.uri.path();
        let found = ResourcePath::read(path).ok_or_else(|| not_supported(&format!("the path {path}")))?;
        let place = Place::new(found.group, found.version, found.plural, found.namespace);
        let (name, subresource) = (found.name.map(str::to_owned), found.subresource().map(str::to_owned));
        if query.get("watch").is_some_and(|watch| watch != "false" && watch != "0") {
            return Err(not_supported(&format!("watching {}", place.plural)));
        }
        let named = name.is_some();
        let unknown = || not_supported(&format!("{} {path}", head.method));
        let verb = verb(&head.method, named).ok_or_else(unknown)?;
        let misplaced = match verb {
            Verb::Create => named && matches!(subresource.as_deref(), None | Some("status")),
            Verb::Update | Verb::Patch => !named,
            _ => false,
        };
        let content =
            head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let patch = if verb == Verb::Patch { patch_kind(content, &place) } else { Ok(PatchKind::Merge) };
        let (patch, not_patched) = or_refused(patch, PatchKind::Merge);
        let (body, not_read) = or_refused(read(path, body), Value::Null);
        let refused = misplaced.then(unknown).or(not_patched).or(not_read);
        Ok(Self { verb, place, name, subresource, query, patch, body, refused })
    }

    /// `pods`, `pods/status`.
    pub(super) fn resource(&self) -> String {
        match &self.subresource {
            Some(subresource) => format!("{}/{subresource}", self.place.plural),
            None => self.place.plural.clone(),
        }
    }

    pub(super) fn write(&self, meant: Option<Value>) -> Write {
        let sent = |field: &str| self.body["metadata"][field].as_str().filter(|name| !name.is_empty());
        let name = self.name.as_deref().or(sent("name")).or(sent("generateName")).unwrap_or_default();
        let selector = |name| self.query.get(name).filter(|_| self.verb == Verb::DeleteCollection).cloned();
        Write {
            verb: self.verb,
            resource: self.resource(),
            key: Key::new(self.place.namespace.as_deref(), name),
            selector: selector("labelSelector"),
            field_selector: selector("fieldSelector"),
            propagation_policy: self.policy().filter(|_| self.deletes()).map(Into::into),
            dry_run: self.is_dry(),
            applies: self.applies(),
            body: self.body.clone(),
            meant,
        }
    }

    pub(super) fn applies(&self) -> bool {
        self.verb == Verb::Patch && self.patch == PatchKind::Apply
    }

    /// Returns true for a dry run. The body of a delete replaces its query.
    pub(super) fn is_dry(&self) -> bool {
        match &self.body {
            Value::Object(options) if self.deletes() => options.contains_key("dryRun"),
            _ => self.query.contains_key("dryRun"),
        }
    }

    fn deletes(&self) -> bool {
        matches!(self.verb, Verb::Delete | Verb::DeleteCollection)
    }

    /// The propagation policy of a delete, from its body or else from its query.
    pub(super) fn policy(&self) -> Option<&str> {
        match &self.body {
            Value::Object(options) => options.get("propagationPolicy").and_then(Value::as_str),
            _ => self.query.get("propagationPolicy").map(String::as_str),
        }
    }

    pub(super) fn manager(&self) -> &str {
        self.query.get("fieldManager").map_or("unknown", String::as_str)
    }

    /// A parameter of the query, or an empty text.
    pub(super) fn asked(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

fn verb(method: &Method, named: bool) -> Option<Verb> {
    Some(match (method.as_str(), named) {
        ("GET", true) => Verb::Get,
        ("GET", false) => Verb::List,
        ("POST", _) => Verb::Create,
        ("PUT", _) => Verb::Update,
        ("PATCH", _) => Verb::Patch,
        ("DELETE", true) => Verb::Delete,
        ("DELETE", false) => Verb::DeleteCollection,
        _ => return None,
    })
}

fn or_refused<T>(found: Result<T, Answer>, otherwise: T) -> (T, Option<Answer>) {
    found.map_or_else(|refusal| (otherwise, Some(refusal)), |found| (found, None))
}

fn read(path: &str, body: &[u8]) -> Result<Value, Answer> {
    match body {
        [] => Ok(Value::Null),
        sent => serde_json::from_slice(sent)
            .map_err(|error| bad_request(&format!("the body of {path} is no JSON: {error}"))),
    }
}

fn patch_kind(content: &str, place: &Place) -> Result<PatchKind, Answer> {
    match content.split(';').next().unwrap_or_default() {
        "application/merge-patch+json" => Ok(PatchKind::Merge),
        "application/json-patch+json" => Ok(PatchKind::Json),
        "application/apply-patch+yaml" => Ok(PatchKind::Apply),
        "application/strategic-merge-patch+json" if place.is_built_in() => {
            Err(not_supported(&format!("strategic merge patches, here of {}", place.plural)))
        }
        _ => {
            let message = "the body of the request was in an unknown format - accepted media types include: \
                application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
            Err(failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message))
        }
    }
}
