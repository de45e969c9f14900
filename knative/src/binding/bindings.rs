//! The bindings of one Kind, by their subjects.

use std::sync::Arc;

use kube::{
    ResourceExt,
    api::ObjectMeta,
    core::{Selector, SelectorExt},
};
use reknit_apis::Reference;
use reknit_injection::{Index, Informer};
use serde::Deserialize;
use serde_json::Value;

use super::bindable::{Bindable, subject_of};

/// The bindings of one Kind in the cache, by the Kind and namespace of their subjects, and by the name or a label that these
/// have. So the time to find those of one object does not depend on how many others there are.
#[derive(Clone, derive_more::Debug)]
#[debug("Bindings")]
pub(super) struct Bindings<K: Bindable>(Index<K>);

impl<K: Bindable> Bindings<K> {
    pub(super) fn new(informer: &Informer<K>) -> Self {
        Self(informer.index(|binding| subject_of(binding).map(|subject| index_value(&subject)).ok()))
    }

    /// The bindings that refer to this object, in the order of their names. Each removes what those before it have injected
    /// under the same names.
    ///
    /// # Errors
    ///
    /// Fails if the object has no Kind or no metadata.
    pub(super) fn of(&self, object: &Value) -> serde_json::Result<Vec<Arc<K>>> {
        let metadata = ObjectMeta::deserialize(&object["metadata"])?;
        let subject = Reference {
            api_version: String::deserialize(&object["apiVersion"])?,
            kind: String::deserialize(&object["kind"])?,
            namespace: metadata.namespace.clone(),
            ..Reference::default()
        };
        let values = values_of(&subject, &metadata);
        let mut bindings: Vec<_> = values.iter().flat_map(|value| self.0.get(value)).collect();
        bindings.retain(|binding| subject_of(&**binding).is_ok_and(|subject| refers_to(&subject, &metadata)));
        bindings.sort_by_key(|binding| binding.name_any());
        Ok(bindings)
    }
}

/// The index value of a binding with this subject: the name of the subject, or a label that its selector requires. The version
/// does not matter, as in Knative.
fn index_value(subject: &Reference) -> String {
    let labels = subject.selector.iter().flat_map(|selector| &selector.match_labels);
    match (subject.name.as_deref().unwrap_or_default(), labels.flatten().next()) {
        ("", Some(label)) => value_with_label(subject, label),
        ("", None) => value_without_label(subject),
        (name, _) => value_with_name(subject, name),
    }
}

/// The index values of all bindings that may refer to an object of this Kind and namespace.
fn values_of(kind: &Reference, metadata: &ObjectMeta) -> Vec<String> {
    let labels = metadata.labels.iter().flatten().map(|label| value_with_label(kind, label));
    let name = metadata.name.as_deref().map(|name| value_with_name(kind, name));
    name.into_iter().chain([value_without_label(kind)]).chain(labels).collect()
}

fn value_with_name(subject: &Reference, name: &str) -> String {
    format!("{} name {name}", kind_and_namespace(subject))
}

fn value_with_label(subject: &Reference, (key, value): (&String, &String)) -> String {
    format!("{} label {key}={value}", kind_and_namespace(subject))
}

fn value_without_label(subject: &Reference) -> String {
    format!("{} any", kind_and_namespace(subject))
}

fn kind_and_namespace(subject: &Reference) -> String {
    let group = subject.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    format!("{group}/{}/{}", subject.kind, subject.namespace.as_deref().unwrap_or_default())
}

/// Returns true if the reference names or selects the object. The caller has compared the Kind and the namespace.
fn refers_to(subject: &Reference, metadata: &ObjectMeta) -> bool {
    match (subject.name.as_deref().unwrap_or_default(), &subject.selector) {
        ("", None) => false,
        ("", Some(labels)) => Selector::try_from(labels.clone())
            .is_ok_and(|selector| selector.matches(metadata.labels.as_ref().unwrap_or(&Default::default()))),
        (name, _) => metadata.name.as_deref() == Some(name),
    }
}
