//! [`Bindable`], a Kind whose objects change the pod templates of other objects.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use reknit_apis::{KRShaped, Key, Reference, StatusOf, child_name, dns_label};
use reknit_reconciler::{Error, Result, internal::merge_changes};
use serde::Deserialize;
use serde_json::Value;

use super::order::keep_order;
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
    /// Items that were in a list before and are injected again, all of them in the same order, stay where they were in the
    /// list. So bindings of several Kinds, or of several programs, can append to the same lists.
    ///
    /// Must also set the injected fields for which the API server has defaults. Without them, the injection differs
    /// from the stored subject, and each reconcile sends a patch.
    fn bind(&self, status: &StatusOf<Self>, subject: &mut PodSpecable);

    /// Removes whatever [`bind`](Self::bind) may have injected, now or with an earlier spec (Go: `Undo`). Changes
    /// nothing in a subject without an injection.
    ///
    /// So of two bindings that inject the same names into one subject, each removes the injection of the other. The last by name
    /// has the subject, and the condition of the other one is False with the reason `SubjectTaken`. Bindings that inject
    /// different names, as from their specs, are all bound: let each remove only its own names.
    fn unbind(&self, subject: &mut PodSpecable);
}

/// Injects into the subject in place of an earlier injection, and labels it. An injection that is there already changes
/// nothing.
pub(super) fn bind<K: Bindable>(binding: &K, status: &StatusOf<K>, subject: &mut PodSpecable) {
    let before = subject.clone();
    binding.unbind(subject);
    let rest = subject.clone();
    binding.bind(status, subject);
    keep_order(&before, &rest, subject);
    subject.metadata.labels.get_or_insert_default().insert(label(binding), BOUND.into());
}

/// Removes the injection and the label.
pub(super) fn unbind<K: Bindable>(binding: &K, subject: &mut PodSpecable) {
    binding.unbind(subject);
    let labels = &mut subject.metadata.labels;
    labels.iter_mut().for_each(|labels| drop(labels.remove(&label(binding))));
    labels.take_if(|labels| labels.is_empty());
}

/// The reason for which a subject cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChangeError {
    #[error("it is not PodSpecable: {0}")]
    Decode(#[from] serde_json::Error),
    #[error("with the injection it would have more than 3 MiB, which the API server does not store")]
    TooLarge,
}

/// The largest subject in bytes, as the API server limits the body of a request.
const MAX_SUBJECT: usize = 3 << 20;
/// The containers of a subject that are changed at once, without trying the change on fewer of them before.
const CONTAINERS: usize = 8;

/// Returns the object after changes of its metadata or pod template, one after another. Fields that [`PodSpecable`] does not
/// have are kept.
///
/// An injection into each container may be as large as the binding, and a subject may have a thousand containers. So the
/// changes are first tried on a part of them, then on twice as many, and so on.
///
/// # Errors
///
/// Fails if the object has no metadata and pod template of the right form, or if the changes make it too large.
pub(super) fn with_changes(
    object: &Value,
    changes: &[impl Fn(&mut PodSpecable)],
) -> Result<Value, ChangeError> {
    let subject = PodSpecable::deserialize(object)?;
    let before = serde_json::to_value(&subject)?;
    let mut tried = CONTAINERS;
    while let Some(part) = with_first_containers(&subject, tried) {
        apply(part, changes)?;
        tried *= 2;
    }
    let mut changed = object.clone();
    merge_changes(&mut changed, &before, &serde_json::to_value(apply(subject, changes)?)?);
    Ok(changed)
}

/// Returns the subject with at most this many containers of each sort, or `None` if it has no more.
fn with_first_containers(subject: &PodSpecable, count: usize) -> Option<PodSpecable> {
    let spec = subject.spec.template.spec.as_ref()?;
    let initial = spec.init_containers.as_deref().unwrap_or_default();
    if spec.containers.len().max(initial.len()) <= count {
        return None;
    }
    let mut part = subject.clone();
    let spec = part.spec.template.spec.as_mut()?;
    spec.containers.truncate(count);
    spec.init_containers.iter_mut().for_each(|initial| initial.truncate(count));
    Some(part)
}

fn apply(
    mut subject: PodSpecable,
    changes: &[impl Fn(&mut PodSpecable)],
) -> Result<PodSpecable, ChangeError> {
    for change in changes {
        change(&mut subject);
        if encoded_size(&subject)? > MAX_SUBJECT {
            return Err(ChangeError::TooLarge);
        }
    }
    Ok(subject)
}

/// The bytes of the subject as JSON.
fn encoded_size(subject: &PodSpecable) -> serde_json::Result<usize> {
    struct Count(usize);
    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, subject)?;
    Ok(count.0)
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
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use serde_json::json;

    use super::*;

    #[test]
    fn fields_that_a_newer_kubernetes_has_are_kept() {
        let volume = |name: &str| json!({"name": name, "newer": {"source": name}});
        let object = |volumes: Value| json!({"replicas": 2, "spec": {"template": {"spec": {"volumes": volumes, "newer": 1}}}});
        let remove = |subject: &mut PodSpecable| {
            let spec = subject.spec.template.spec.as_mut().unwrap();
            spec.volumes.iter_mut().for_each(|volumes| volumes.retain(|volume| volume.name != "ours"));
        };
        let changed = with_changes(&object(json!([volume("ours"), volume("theirs")])), &[remove]);
        assert_eq!(changed.unwrap(), object(json!([volume("theirs")])));
    }

    #[test]
    fn an_injection_that_would_be_too_large_is_tried_on_few_containers() {
        let object = |containers: usize| {
            let containers = vec![json!({"name": "main"}); containers];
            json!({"spec": {"template": {"spec": {"containers": containers, "initContainers": containers}}}})
        };
        let [calls, most] = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let inject = |length: usize| {
            let (calls, most) = (&calls, &most);
            move |subject: &mut PodSpecable| {
                let injected =
                    subject.containers_mut().map(|container| container.image = Some("x".repeat(length)));
                most.fetch_max(injected.count(), Relaxed);
                calls.fetch_add(1, Relaxed);
            }
        };
        let injected = |containers, changes: &[usize]| {
            let changes: Vec<_> = changes.iter().map(|length| inject(*length)).collect();
            let changed = with_changes(&object(containers), &changes).map_err(|error| error.to_string());
            (
                changed.map(|object| object.to_string().len()),
                [&calls, &most].map(|count| count.swap(0, Relaxed)),
            )
        };
        let refused = Err(ChangeError::TooLarge.to_string());
        assert_eq!(injected(1_000, &[1_300_000, 1]), (refused.clone(), [1, 16]));
        assert_eq!(injected(1_000, &[20_000]), (refused.clone(), [5, 256]));
        assert_eq!(injected(1, &[1_300_000, 1_600_000]), (refused, [2, 2]));
        let (changed, [calls, most]) = injected(1_000, &[1_000, 1]);
        assert!(changed.is_ok_and(|bytes| bytes < 100_000) && (calls, most) == (16, 2_000), "{calls} {most}");
    }
}
