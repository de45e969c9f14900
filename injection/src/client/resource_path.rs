//! The path of a request to the Kubernetes API.

use std::borrow::Cow;

use kube::discovery::ApiResource;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use reknit_apis::Key;

/// The characters that are encoded in a segment of a path.
const RESERVED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'\\');

/// The parts of the longest path: `apis`, group, version, `namespaces`, namespace, plural, name and subresource.
const MAX_PARTS: usize = 8;

/// The parts of a path such as `/api/v1/namespaces/shop/pods/web/status`.
///
/// ```
/// use reknit_injection::internal::ResourcePath;
///
/// let subresource = |path| ResourcePath::parse(path).and_then(|path| path.subresource());
/// assert_eq!(subresource("/api/v1/namespaces/shop/pods/web/log"), Some("log"));
/// assert_eq!(subresource("/api/v1/namespaces/shop/pods/log"), None, "a pod named log");
/// assert_eq!(ResourcePath::parse("/version"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourcePath<'a> {
    /// The API group, empty for the core group.
    pub group: &'a str,
    /// The version of the group.
    pub version: &'a str,
    /// The namespace, if the path contains one.
    pub namespace: Option<&'a str>,
    /// The plural name of the resource.
    pub plural: &'a str,
    /// The name of the object, as the path has it.
    name: Option<&'a str>,
    subresource: Option<&'a str>,
}

/// Returns the name of an object as a segment of a path. kube does not encode it, so a name with a question mark would change
/// the request. [`ResourcePath::name`] decodes it.
pub fn path_segment(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

/// Returns the name of a resource with its group and subresource, each of which may be empty: `deployments.apps/scale`.
pub fn resource_name(group: &str, plural: &str, subresource: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    let slash = if subresource.is_empty() { "" } else { "/" };
    format!("{plural}{dot}{group}{slash}{subresource}")
}

impl<'a> ResourcePath<'a> {
    /// Parses the path of a request, without its query. `None` if it does not name a resource.
    pub fn parse(path: &'a str) -> Option<Self> {
        let (mut parts, mut length) = ([""; MAX_PARTS], 0);
        for (slot, part) in parts.iter_mut().zip(path.trim_matches('/').split('/')) {
            *slot = part;
            length += 1;
        }
        let (group, version, rest) = match &parts[..length] {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            // The subresources of a Namespace.
            ["namespaces", _, "status" | "finalize"] => (None, rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            _ => (None, rest),
        };
        let (plural, rest) = rest.split_first()?;
        let (name, subresource) = (rest.first().copied(), rest.get(1).copied());
        Some(Self { group, version, namespace, plural, name, subresource })
    }

    /// Returns true if the path names this resource or an object of it.
    pub(crate) fn is_of(&self, kind: &ApiResource) -> bool {
        (self.group, self.version, self.plural) == (&kind.group, &kind.version, &kind.plural)
    }

    /// The name of the object; `None` for a collection.
    pub fn name(&self) -> Option<Cow<'a, str>> {
        self.name.map(|name| percent_decode_str(name).decode_utf8_lossy())
    }

    /// Returns true if the path names no object.
    pub fn is_collection(&self) -> bool {
        self.name.is_none()
    }

    /// The key of the object; `None` for a collection.
    pub(crate) fn key(&self) -> Option<Key> {
        self.name().map(|name| Key::new(self.namespace, &name))
    }

    /// The path of the collection.
    pub fn collection_path(&self) -> String {
        let Self { group, version, namespace, plural, .. } = self;
        let root = if group.is_empty() { "/api".into() } else { format!("/apis/{group}") };
        match namespace {
            Some(namespace) => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{version}/{plural}"),
        }
    }

    /// The subresource; `None` for an object itself or a collection.
    pub fn subresource(&self) -> Option<&'a str> {
        self.subresource
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_decoded_as_the_api_server_decodes_it() {
        for name in ["team a", "x?dryRun=All#a b", "system:node:a", "100%", "ü"] {
            let path = format!("/apis/g.io/v1/namespaces/shop/things/{}/status", path_segment(name));
            let parsed = ResourcePath::parse(&path).unwrap();
            assert_eq!(
                (parsed.name().as_deref(), parsed.subresource()),
                (Some(name), Some("status")),
                "{path}"
            );
            assert_eq!(parsed.key(), Some(Key::new("shop", name)));
            assert!(path.parse::<http::Uri>().is_ok(), "{path}");
        }
    }

    #[test]
    fn paths_are_parsed_into_group_resource_key_and_subresource() {
        for (path, group, plural, key, subresource) in [
            ("/api/v1/namespaces/shop/pods/web/status", "", "pods", Some("shop/web"), Some("status")),
            ("/api/v1/namespaces/shop/pods", "", "pods", None, None),
            ("/api/v1/namespaces", "", "namespaces", None, None),
            ("/api/v1/namespaces/shop", "", "namespaces", Some("/shop"), None),
            ("/api/v1/namespaces/shop/finalize", "", "namespaces", Some("/shop"), Some("finalize")),
            ("/api/v1/nodes/n/status", "", "nodes", Some("/n"), Some("status")),
            ("/api/v1/namespaces/a/services/b/proxy/c/d/e/f", "", "services", Some("a/b"), Some("proxy")),
            (
                "/apis/apps/v1/namespaces/shop/deployments/web/scale",
                "apps",
                "deployments",
                Some("shop/web"),
                Some("scale"),
            ),
            ("/apis/g.io/v1/things/a/?x=y", "g.io", "things", Some("/a"), Some("?x=y")),
        ] {
            let parsed = ResourcePath::parse(path).unwrap();
            assert_eq!((parsed.group, parsed.plural), (group, plural), "{path}");
            assert_eq!((parsed.key(), parsed.subresource), (key.map(Key::from), subresource), "{path}");
            assert!(path.starts_with(&parsed.collection_path()), "{path}: {}", parsed.collection_path());
        }
        for path in ["/healthz", "/", "/api", "/api/v1", "/apis/apps", "/openapi/v3"] {
            assert_eq!(ResourcePath::parse(path), None, "{path}");
        }
    }
}
