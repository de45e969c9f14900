//! The errors of binding subjects.

use kube::Resource;
use reknit_apis::{Key, Reference};

use crate::{Error, resolver::NotFound};

/// A failure to bind, with the reason of the condition that it makes False.
pub(super) struct BindingError {
    pub(super) reason: &'static str,
    pub(super) source: Error,
}

impl BindingError {
    pub(super) fn missing(subject: &Reference) -> Self {
        let name = subject.name.as_deref().unwrap_or_default();
        let not_found = NotFound { api_version: &subject.api_version, kind: &subject.kind, name };
        Self { reason: "SubjectMissing", source: Error::permanent(not_found.to_string()) }
    }

    pub(super) fn unavailable(source: Error) -> Self {
        Self { reason: "SubjectUnavailable", source }
    }

    pub(super) fn failed(source: Error) -> Self {
        Self { reason: "BindingFailed", source }
    }
}

/// The error of a subject in another namespace than the binding.
#[derive(Debug, thiserror::Error)]
#[error(
    "{binding} refers to a {kind} in the namespace {namespace}: a subject has to be in the namespace of its binding"
)]
pub(super) struct OtherNamespace {
    binding: String,
    kind: String,
    namespace: String,
}

impl OtherNamespace {
    pub(super) fn new<K: Resource>(subject: &Reference, binding: &K) -> Self {
        let namespace = subject.namespace.clone().unwrap_or_default();
        Self { binding: Key::of(binding).to_string(), kind: subject.kind.clone(), namespace }
    }
}
