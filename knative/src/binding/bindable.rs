//! [`Bindable`], a Kind whose objects change the pod templates of other objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use reknit_apis::{KRShaped, Key, Reference, StatusOf, child_name, dns_label};
use reknit_reconciler::{Error, Result, internal::merge_changes};
use serde::Deserialize;
use serde_json::Value;

use crate::pod_specable::PodSpecable;

/// The value of the label on a bound subject.
const BOUND: &str = "bound";

/// A binding: a Kind whose objects inject something into the pod templates of other objects, their subjects. It is
/// Knative's `psbinding.Bindable`, the model of a SinkBinding.
///
/// [`Binder`](crate::Binder) injects into subjects that exist, and [`BindingMutator`](crate::BindingMutator) into
/// those that are created or updated, before they are stored. Both call [`unbind`](Self::unbind) and then
/// [`bind`](Self::bind), on a copy of the subject. Everything that is injected comes from the binding and its status,
/// so both inject the same.
///
/// ```
/// use k8s_openapi::api::core::v1::EnvVar;
/// use reknit_apis::{DuckStatus, Reference, kind};
/// use reknit_knative::{Bindable, PodSpecable};
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// /// Sets the environment variable `COLOR` in the containers of its subjects.
/// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Paint", namespaced, status = "DuckStatus")]
/// struct PaintSpec {
///     subject: Reference,
///     color: String,
/// }
///
/// kind!(Paint { status: DuckStatus, conditions: knative(["Available"]) });
///
/// impl Bindable for Paint {
///     const CONDITION: &'static str = "Available";
///
///     fn subject(&self) -> Reference {
///         self.spec.subject.clone()
///     }
///
///     fn bind(&self, _status: &DuckStatus, subject: &mut PodSpecable) {
///         for container in subject.containers_mut() {
///             let color = EnvVar { name: "COLOR".into(), value: Some(self.spec.color.clone()), value_from: None };
///             container.env.get_or_insert_default().push(color);
///         }
///     }
///
///     fn unbind(&self, subject: &mut PodSpecable) {
///         for container in subject.containers_mut() {
///             container.env.iter_mut().for_each(|env| env.retain(|variable| variable.name != "COLOR"));
///         }
///     }
/// }
/// ```
pub trait Bindable: KRShaped {
    /// The condition that is True while all subjects are bound, such as `Available`. List it in the condition set.
    const CONDITION: &'static str;

    /// The objects with a pod template to inject into, by name or by label selector. They lie in the binding's
    /// namespace.
    ///
    /// The API group and the Kind must not change after the binding is created, since subjects of another Kind are not
    /// looked for. The schema of [`BindingSpec`](crate::BindingSpec) refuses such an update. If your spec holds the
    /// reference in another way, add the rule of that schema.
    fn subject(&self) -> Reference;

    /// Injects into a subject from which [`unbind`](Self::unbind) has removed an earlier injection (Go: `Do`). Injects
    /// nothing if the status does not yet hold what is needed.
    ///
    /// Must also set the injected fields for which the API server has defaults. Without them, the injection differs
    /// from the stored subject, and each reconcile sends a patch.
    fn bind(&self, status: &StatusOf<Self>, subject: &mut PodSpecable);

    /// Removes whatever [`bind`](Self::bind) may have injected, now or with an earlier spec (Go: `Undo`). Changes
    /// nothing in a subject without an injection.
    ///
    /// Two bindings that inject the same names into one subject remove each other's injection in turn. So give a
    /// subject at most one binding of each Kind.
    fn unbind(&self, subject: &mut PodSpecable);
}

/// Injects into the subject in place of an earlier injection, and labels it.
pub(super) fn bind<K: Bindable>(binding: &K, status: &StatusOf<K>, subject: &mut PodSpecable) {
    binding.unbind(subject);
    binding.bind(status, subject);
    subject.metadata.labels.get_or_insert_default().insert(label(binding), BOUND.into());
}

/// Removes the injection and the label.
pub(super) fn unbind<K: Bindable>(binding: &K, subject: &mut PodSpecable) {
    binding.unbind(subject);
    let labels = &mut subject.metadata.labels;
    labels.iter_mut().for_each(|labels| drop(labels.remove(&label(binding))));
    labels.take_if(|labels| labels.is_empty());
}

/// Returns the object after a change of its metadata or pod template. Fields that [`PodSpecable`] does not have are
/// kept.
///
/// # Errors
///
/// Fails if the object has no metadata and pod template of the right form.
pub(super) fn with_change(
    object: &Value,
    change: impl FnOnce(&mut PodSpecable),
) -> serde_json::Result<Value> {
    let mut subject = PodSpecable::deserialize(object)?;
    let before = serde_json::to_value(&subject)?;
    change(&mut subject);
    let mut changed = object.clone();
    merge_changes(&mut changed, &before, &serde_json::to_value(&subject)?);
    Ok(changed)
}

/// Returns the subject of the binding, in the binding's namespace.
///
/// # Errors
///
/// Fails if the subject is in another namespace. A user who may create a binding in one namespace must not change the
/// pods of another.
pub(super) fn subject_of<K: Bindable>(binding: &K) -> Result<Reference> {
    let mut subject = binding.subject();
    let namespace = &binding.meta().namespace;
    if subject.namespace.as_deref().unwrap_or_default().is_empty() {
        subject.namespace.clone_from(namespace);
    }
    if namespace.is_some() && subject.namespace != *namespace {
        return Err(Error::permanent(format!(
            "{} refers to a {} in the namespace {}: a subject has to be in the namespace of its binding",
            Key::of(binding),
            subject.kind,
            subject.namespace.unwrap_or_default(),
        )));
    }
    Ok(subject)
}

/// Selects the objects of the subject's Kind that have the label of this binding, wherever the reference leads now. A
/// namespace or a version that cannot exist was not that of the objects which the binding has changed.
pub(super) fn labelled<K: Bindable>(binding: &K) -> Reference {
    let Reference { api_version, kind, namespace, .. } = binding.subject();
    let api_version = readable_version(&api_version);
    let namespace = namespace.filter(|namespace| dns_label(namespace).is_empty());
    let labels = BTreeMap::from([(label(binding), BOUND.to_owned())]);
    let selector = LabelSelector { match_labels: Some(labels), match_expressions: None };
    let namespace = binding.meta().namespace.clone().or(namespace);
    Reference { api_version, kind, namespace, name: None, selector: Some(selector) }
}

/// Returns this API version, or one of its group if its version cannot exist. The objects are then read in the version that
/// is served.
pub(super) fn readable_version(api_version: &str) -> String {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    match (group, dns_label(version).is_empty()) {
        (_, true) => api_version.into(),
        ("", false) => "v1".into(),
        (group, false) => format!("{group}/v1"),
    }
}

/// The key of the label by which a bound subject is found after the binding has stopped referring to it. It does not
/// contain the uid, so that a binding finds its subjects after both were restored from a backup.
fn label<K: Bindable>(binding: &K) -> String {
    let name = binding.meta().name.as_deref().unwrap_or_default();
    format!("{}.{}/{}", K::plural(&()), K::group(&()), child_name(name, ""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_a_newer_kubernetes_has_are_kept() {
        let volume = |name: &str| json!({"name": name, "newer": {"source": name}});
        let object = |volumes: Value| json!({"replicas": 2, "spec": {"template": {"spec": {"volumes": volumes, "newer": 1}}}});
        let changed = with_change(&object(json!([volume("ours"), volume("theirs")])), |subject| {
            let spec = subject.spec.template.spec.as_mut().unwrap();
            spec.volumes.iter_mut().for_each(|volumes| volumes.retain(|volume| volume.name != "ours"));
        });
        assert_eq!(changed.unwrap(), object(json!([volume("theirs")])));
    }
}
