//! Parsing of requests.

use std::{collections::BTreeMap, sync::Arc};

use http::{
    StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderName},
};
use kube::{core::response::reason, discovery::verbs};
use serde_json::Value;

use crate::{
    collection::Collection,
    representation::Representation,
    request_info::{is_true, parse_path, resource, verb_of},
    response::{Response, bad_request, failure, not_supported},
    write::Write,
};

#[derive(Clone)]
pub(crate) struct Request {
    /// One of [`verbs`].
    pub(crate) verb: &'static str,
    pub(crate) collection: Collection,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
    pub(crate) query: BTreeMap<String, String>,
    /// The format of a patch.
    pub(crate) patch: PatchKind,
    pub(crate) body: Value,
    /// True for a dry run.
    pub(crate) is_dry_run: bool,
    /// The representation of objects that the client accepts.
    pub(crate) representation: Representation,
    /// The error response to a malformed request, which does not depend on the stored objects.
    pub(crate) rejection: Option<Response>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Merge,
    Json,
    /// Server-side apply.
    Apply,
}

impl Request {
    /// Parses a request. A malformed write is parsed too, with a [`rejection`](Self::rejection), so that it can be
    /// recorded.
    pub(crate) fn parse(request: &http::Request<impl AsRef<[u8]>>) -> Result<Self, Response> {
        let (method, uri) = (request.method(), request.uri());
        let query = uri.query().unwrap_or_default();
        let query: BTreeMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let path = uri.path();
        let (collection, name, subresource) =
            parse_path(path).ok_or_else(|| not_supported(&format!("the path {path}")))?;
        let has_name = name.is_some();
        let unsupported = || not_supported(&format!("{method} {path}"));
        let is_watch = query.get("watch").is_some_and(|value| is_true(value));
        let verb = verb_of(method, has_name, is_watch).ok_or_else(unsupported)?;
        let is_wrong_path = match verb {
            verbs::CREATE => has_name && matches!(subresource.as_deref(), None | Some("status")),
            verbs::UPDATE | verbs::PATCH => !has_name,
            _ => false,
        };
        let header = |name: HeaderName| {
            request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
        };
        let patch = match verb {
            verbs::PATCH => patch_kind(header(CONTENT_TYPE), &collection),
            _ => Ok(PatchKind::Merge),
        };
        let (patch, patch_rejection) = split_rejection(patch, PatchKind::Merge);
        let (body, body_rejection) = split_rejection(parse_body(path, request.body().as_ref()), Value::Null);
        let (representation, accept_rejection) =
            split_rejection(Representation::accepted(header(ACCEPT)), Representation::Object);
        let rejection = is_wrong_path.then(unsupported).or(patch_rejection).or(body_rejection);
        let rejection = rejection.or(accept_rejection);
        let is_dry_run = match &body {
            // The body of a delete replaces its query.
            Value::Object(options) if is_delete(verb) => options.contains_key("dryRun"),
            _ => query.contains_key("dryRun"),
        };
        Ok(Self {
            verb,
            collection,
            name,
            subresource,
            query,
            patch,
            body,
            is_dry_run,
            representation,
            rejection,
        })
    }

    /// The request of this verb without parameters. A patch is a merge patch.
    pub(crate) fn of(verb: &'static str, collection: Collection, name: Option<String>, body: Value) -> Self {
        Self {
            verb,
            collection,
            name,
            subresource: None,
            query: BTreeMap::new(),
            patch: PatchKind::Merge,
            body,
            is_dry_run: false,
            representation: Representation::Object,
            rejection: None,
        }
    }

    pub(crate) fn resource(&self) -> String {
        resource(&self.collection.plural, self.subresource.as_deref())
    }

    /// Returns the record of this write, with the object that it stores.
    pub(crate) fn to_write(&self, result: Option<Arc<Value>>) -> Write {
        let metadata_field =
            |field: &str| self.body["metadata"][field].as_str().filter(|text| !text.is_empty());
        let name = self.name.as_deref().or(metadata_field("name"));
        let name = name.or(metadata_field("generateName")).unwrap_or_default();
        let selector = |name| self.query.get(name).filter(|_| self.verb == verbs::DELETE_COLLECTION).cloned();
        Write {
            verb: self.verb,
            resource: self.resource(),
            namespace: self.collection.namespace.clone(),
            name: name.to_owned(),
            selector: selector("labelSelector"),
            field_selector: selector("fieldSelector"),
            propagation_policy: self.propagation_policy().filter(|_| is_delete(self.verb)).map(Into::into),
            dry_run: self.is_dry_run,
            is_apply: self.is_apply(),
            body: self.body.clone(),
            result,
        }
    }

    pub(crate) fn is_apply(&self) -> bool {
        self.verb == verbs::PATCH && self.patch == PatchKind::Apply
    }

    /// The propagation policy of a delete: the policy that the request names, or else the default of the Kind if that
    /// is `Orphan`.
    fn propagation_policy(&self) -> Option<&str> {
        let default = self.collection.orphans_by_default().then_some("Orphan");
        self.explicit_propagation_policy().or(default)
    }

    /// The propagation policy that a delete names, in its body or else in its query.
    pub(crate) fn explicit_propagation_policy(&self) -> Option<&str> {
        match &self.body {
            Value::Object(options) => options.get("propagationPolicy").and_then(Value::as_str),
            _ => self.query.get("propagationPolicy").map(String::as_str),
        }
    }

    pub(crate) fn field_manager(&self) -> &str {
        self.query.get("fieldManager").map_or("unknown", String::as_str)
    }

    /// A parameter of the query, or an empty string.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

fn is_delete(verb: &str) -> bool {
    matches!(verb, verbs::DELETE | verbs::DELETE_COLLECTION)
}

/// Returns the value, or the default and the response that rejects the request.
fn split_rejection<T>(parsed: Result<T, Response>, default: T) -> (T, Option<Response>) {
    parsed.map_or_else(|rejection| (default, Some(rejection)), |value| (value, None))
}

fn parse_body(path: &str, body: &[u8]) -> Result<Value, Response> {
    match body {
        [] => Ok(Value::Null),
        text => serde_json::from_slice(text)
            .map_err(|error| bad_request(&format!("the body of {path} is not JSON: {error}"))),
    }
}

fn patch_kind(content_type: &str, collection: &Collection) -> Result<PatchKind, Response> {
    match content_type.split(';').next().unwrap_or_default() {
        "application/merge-patch+json" => Ok(PatchKind::Merge),
        "application/json-patch+json" => Ok(PatchKind::Json),
        "application/apply-patch+yaml" => Ok(PatchKind::Apply),
        "application/strategic-merge-patch+json" if collection.is_built_in() => {
            let (_, status) =
                not_supported(&format!("strategic merge patches, here of {}", collection.plural));
            let message = status["message"].as_str().unwrap_or_default();
            Err(failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason::UNSUPPORTED_MEDIA_TYPE, message))
        }
        _ => {
            let message = "the body of the request was in an unknown format - accepted media types include: \
                application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
            Err(failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message))
        }
    }
}
