//! A parsed request to an API server, with its verb and resource as in RBAC rules, and a parsed line of a watch.

use http::Method;
use serde_json::Value;

/// A request to an API server.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `other`.
    pub verb: &'static str,
    /// The resource and subresource: `pods`, `addressableservices/status`. Empty if the path names no resource.
    pub resource: String,
    pub path: String,
    pub query: String,
    /// The body, or null if it is not JSON.
    pub body: Value,
}

impl Request {
    pub(crate) fn parse(method: &Method, path: &str, query: &str, body: &[u8]) -> Self {
        let (resource, names_object) = parse_resource(path);
        Self {
            verb: verb(method, names_object, query),
            resource,
            path: path.to_owned(),
            query: query.to_owned(),
            body: serde_json::from_slice(body).unwrap_or_default(),
        }
    }

    pub(crate) fn is(&self, verb: &str, resource: &str) -> bool {
        self.verb == verb && self.resource == resource
    }

    /// Returns true if the request lists all objects of the resource. An informer's list with `limit=1` does not: it
    /// only reads the current resourceVersion.
    pub(crate) fn lists_all(&self, resource: &str) -> bool {
        self.is("list", resource) && self.query.split('&').all(|pair| pair != "limit=1")
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self.verb, "create" | "update" | "patch" | "delete")
    }
}

fn verb(method: &Method, names_object: bool, query: &str) -> &'static str {
    let is_watch = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch"));
    match method.as_str() {
        "GET" if is_watch => "watch",
        "GET" if names_object => "get",
        "GET" => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}

/// Returns the resource with its subresource, and whether the path names one object.
fn parse_resource(path: &str) -> (String, bool) {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let after_version = match segments.as_slice() {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
        _ => &[],
    };
    let after_namespace = match after_version {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        _ => after_version,
    };
    let resource = match after_namespace {
        [resource, _, subresource] => format!("{resource}/{subresource}"),
        [resource, ..] => (*resource).to_owned(),
        [] => String::new(),
    };
    (resource, after_namespace.len() > 1)
}

/// One line of a watch.
#[derive(Clone, Debug)]
pub(crate) struct WatchLine {
    pub resource: String,
    /// The type: `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub event: String,
    pub object: Value,
}

impl WatchLine {
    pub(crate) fn parse(resource: &str, line: &[u8]) -> Self {
        let mut line: Value = serde_json::from_slice(line).unwrap_or_default();
        let event = line["type"].as_str().unwrap_or_default().to_owned();
        Self { resource: resource.to_owned(), event, object: line["object"].take() }
    }

    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub(crate) fn is(&self, event: &str, resource: &str, name: &str) -> bool {
        self.event == event && self.resource == resource && self.name() == name
    }
}
