//! The key of an object within its Kind: the item of a work queue.

use std::{fmt, str::FromStr};

use kube_core::Resource;

/// A namespace and a name. Cluster-scoped objects have no namespace.
///
/// Displayed as `namespace/name`, or as `name` without a namespace, as client-go's keys are. Parsed from either form, and
/// from `/name`.
///
/// ```
/// use reknit_apis::Key;
///
/// let key: Key = "default/web".parse()?;
/// assert_eq!(key, Key::new("default", "web"));
/// assert_eq!(key, Key::new(&"default".to_owned(), "web"));
/// assert_eq!(Key::new(None, "north").to_string(), "north");
/// assert_eq!(Key::from("/north"), Key::new(None, "north"));
/// assert!("a/b/c".parse::<Key>().is_err());
/// # Ok::<_, reknit_apis::KeyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The namespace; `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

/// The namespace of a [`Key`], as callers have it.
#[doc(hidden)]
pub trait ToNamespace {
    fn to_namespace(&self) -> Option<&str>;
}

impl ToNamespace for &str {
    fn to_namespace(&self) -> Option<&str> {
        Some(self)
    }
}

impl ToNamespace for &String {
    fn to_namespace(&self) -> Option<&str> {
        Some(self)
    }
}

impl ToNamespace for Option<&str> {
    fn to_namespace(&self) -> Option<&str> {
        *self
    }
}

/// The error of parsing a malformed [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed key {0:?}: want `namespace/name`, or `name` for a cluster-scoped object")]
pub struct KeyError(String);

impl Key {
    /// Creates a key of a namespace (`&str`, `&String` or an `Option<&str>`) and a name. An empty namespace is the same as
    /// none.
    pub fn new(namespace: impl ToNamespace, name: &str) -> Self {
        let namespace = namespace.to_namespace().filter(|namespace| !namespace.is_empty());
        Self { namespace: namespace.map(Into::into), name: name.into() }
    }

    /// Returns the key of an object. The name is empty if the API server has yet to generate it (`generateName`).
    pub fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self { namespace: meta.namespace.clone(), name: meta.name.clone().unwrap_or_default() }
    }
}

/// Converts a text that is known to be well-formed, such as a literal. Everything after the first slash is the name.
/// Use [`parse`](str::parse) for any other text.
impl From<&str> for Key {
    fn from(text: &str) -> Self {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Self::new(None, text),
        }
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let key = Self::from(text);
        if key.name.is_empty() || key.name.contains('/') {
            return Err(KeyError(text.into()));
        }
        Ok(key)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_displayed_key_parses_to_the_same_key() {
        for key in [Key::new("default", "web"), Key::new(None, "north")] {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn a_name_without_a_namespace_is_cluster_scoped() {
        for text in ["north", "/north"] {
            assert_eq!(text.parse(), Ok(Key::new(None, "north")));
        }
    }

    #[test]
    fn an_empty_namespace_is_none() {
        assert_eq!(Key::new("", "north"), Key::new(None, "north"));
    }

    #[test]
    fn the_error_of_a_malformed_key_quotes_it() {
        for text in ["", "/", "ns/", "a/b/c", "//c"] {
            let error = text.parse::<Key>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("malformed key {text:?}")), "{error}");
        }
    }
}
