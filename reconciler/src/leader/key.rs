//! Stands in for `reknit_apis::Key` until that lands.

/// Namespace and name; no namespace for cluster-scoped objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The namespace; none for a cluster-scoped object.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

impl Key {
    /// The key of this name, in this namespace if there is one.
    pub fn new<'a>(namespace: impl Into<Option<&'a str>>, name: &str) -> Self {
        Self { namespace: namespace.into().map(Into::into), name: name.into() }
    }
}
