//! A parsed request to an API server, with its verb and resource as in RBAC rules, and a parsed line of a watch.

use http::{Method, Uri};
use reknit_apiserver::RequestInfo;
use serde_json::Value;

/// A request to an API server.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The verb of RBAC. Empty if the path names no resource.
    pub verb: &'static str,
    /// The resource and subresource: `pods`, `addressableservices/status`. Empty if the path names no resource.
    pub resource: String,
    pub path: String,
    pub query: String,
    /// The body, or null if it is not JSON.
    pub body: Value,
}

impl Request {
    pub(crate) fn parse(method: &Method, uri: &Uri, body: &[u8]) -> Self {
        let info = RequestInfo::of(method, uri);
        let (verb, resource) = info.map_or_else(Default::default, |info| (info.verb, info.resource));
        let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
        Self { verb, resource, path, query, body: serde_json::from_slice(body).unwrap_or_default() }
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
