//! The verb and the resource of a request, as RBAC names them.

use http::{Method, Uri};
use kube::discovery::verbs;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::collection::Collection;

/// The attributes by which RBAC authorizes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The verb, such as `deletecollection`.
    pub verb: &'static str,
    /// The API group, empty for the core group.
    pub group: String,
    /// The plural name, with the subresource if there is one: `pods/status`.
    pub resource: String,
    /// The namespace in the path.
    pub namespace: Option<String>,
    /// The name of the object. A request that creates an object has none.
    pub name: Option<String>,
    /// The rules that the request grants to others, if the verb is `bind` or `escalate`: who holds all of them needs
    /// neither verb. `None` if the rules are not known, because the role does not exist, or is aggregated and has none yet.
    pub grants: Option<Value>,
}

impl RequestInfo {
    /// Parses the path and the query of a request. `None` if the path names no resource, or if RBAC has no verb for the
    /// method.
    ///
    /// ```
    /// use http::Method;
    /// use reknit_apiserver::RequestInfo;
    ///
    /// let uri = "/api/v1/namespaces/shop/pods?watch=true".parse()?;
    /// let watch = RequestInfo::of(&Method::GET, &uri).unwrap();
    /// assert_eq!((watch.verb, &*watch.resource, watch.namespace.as_deref()), ("watch", "pods", Some("shop")));
    /// assert_eq!(RequestInfo::of(&Method::GET, &"/version".parse()?), None);
    /// # Ok::<_, http::uri::InvalidUri>(())
    /// ```
    pub fn of(method: &Method, uri: &Uri) -> Option<Self> {
        let (collection, name, subresource) = parse_path(uri.path())?;
        let query = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        let is_watch = query.into_iter().any(|(name, value)| name == "watch" && is_true(&value));
        let verb = verb_of(method, name.is_some(), is_watch)?;
        let resource = resource(&collection.plural, subresource.as_deref());
        Some(Self {
            verb,
            group: collection.group,
            resource,
            namespace: collection.namespace,
            name,
            grants: None,
        })
    }
}

/// Returns true if a parameter of this value is set.
pub(crate) fn is_true(value: &str) -> bool {
    value != "false" && value != "0"
}

/// `pods`, `pods/status`.
pub(crate) fn resource(plural: &str, subresource: Option<&str>) -> String {
    subresource.map_or_else(|| plural.to_owned(), |subresource| format!("{plural}/{subresource}"))
}

/// The collection, the name and the subresource that a path such as `/api/v1/namespaces/shop/pods/web/status` names.
pub(crate) fn parse_path(path: &str) -> Option<(Collection, Option<String>, Option<String>)> {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", version, rest),
        ["apis", group, version, rest @ ..] => (*group, version, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        // The subresources of a Namespace.
        ["namespaces", _, "status" | "finalize"] => (None, rest),
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
        _ => (None, rest),
    };
    let (plural, rest) = rest.split_first()?;
    let part =
        |index: usize| rest.get(index).map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned());
    Some((Collection::new(group, version, plural, namespace), part(0), part(1)))
}

pub(crate) fn verb_of(method: &Method, has_name: bool, is_watch: bool) -> Option<&'static str> {
    Some(match (method.as_str(), has_name) {
        ("GET", true) => verbs::GET,
        ("GET", false) if is_watch => verbs::WATCH,
        ("GET", false) => verbs::LIST,
        ("POST", _) => verbs::CREATE,
        ("PUT", _) => verbs::UPDATE,
        ("PATCH", _) => verbs::PATCH,
        ("DELETE", true) => verbs::DELETE,
        ("DELETE", false) => verbs::DELETE_COLLECTION,
        _ => return None,
    })
}
