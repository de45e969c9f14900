//! The errors of destinations that lead to no address. The messages are Knative's.

use std::fmt;

use reknit_apis::{KReference, kind_to_resource};

/// The error of a destination without an address.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResolveError {
    #[error("destination missing Ref and URI, expected at least one")]
    Empty,
    #[error("absolute URI is not allowed when Ref or [apiVersion, kind, name] exists")]
    AbsoluteUri,
    #[error("URI is not absolute (both scheme and host should be non-empty): {0:?}")]
    RelativeUri(String),
    #[error("failed to get object {}", Missing(.0))]
    NotFound(Box<KReference>),
    #[error("{} is not an AddressableType", Text(.0))]
    NotAddressable(Box<KReference>, #[source] serde_json::Error),
    #[error("address not set for {}", Text(.0))]
    NoAddress(Box<KReference>),
    #[error("address with name {:?} not found for {}", .0, Text(.1))]
    NoAddressOfName(String, Box<KReference>),
    #[error("URL missing in address of {}", Text(.0))]
    NoUrl(Box<KReference>),
    #[error("hostname missing in address of {}", Text(.0))]
    NoHost(Box<KReference>),
}

/// A reference as Knative's messages show it.
struct Text<'a>(&'a KReference);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KReference { api_version, kind, namespace, name, address } = self.0;
        let (namespace, address) = (namespace.as_deref().unwrap_or(""), address.as_deref().unwrap_or(""));
        write!(f, "Kind = {kind}, Namespace = {namespace}, Name = {name}, APIVersion = {api_version}, ")?;
        write!(f, "Group = , Address = {address}")
    }
}

/// The namespace and the name of a missing object, and the API server's message.
struct Missing<'a>(&'a KReference);

impl fmt::Display for Missing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KReference { api_version, kind, namespace, name, .. } = self.0;
        let namespace = namespace.as_deref().unwrap_or("");
        write!(f, "{namespace}/{name}: {}", NotFound { api_version, kind, name })
    }
}

/// The API server's message for a missing object, with the resource's name guessed as client-go does.
pub(crate) struct NotFound<'a> {
    pub(crate) api_version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
}

impl fmt::Display for NotFound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&kind_to_resource(self.kind))?;
        if let Some((group, _)) = self.api_version.split_once('/') {
            write!(f, ".{group}")?;
        }
        write!(f, " {:?} not found", self.name)
    }
}
