//! Predicates on objects.

use std::ops;

use kube::Resource;

/// A predicate on objects. `&`, `|` and `!` combine predicates.
///
/// ```
/// use k8s_openapi::api::core::v1::Secret;
/// use reknit_injection::{Filter, label, named, namespace};
///
/// let wanted: Filter<Secret> = label("part-of", "shop") & !namespace("kube-system")
///     & (named("tls") | Filter::new(|s: &Secret| s.immutable == Some(true)));
///
/// let mut secret = Secret::default();
/// secret.metadata.name = Some("tls".into());
/// assert!(!wanted.admits(&secret));
/// secret.metadata.labels = Some([("part-of".into(), "shop".into())].into());
/// assert!(wanted.admits(&secret));
/// ```
#[derive(derive_more::Debug)]
#[debug("Filter")]
pub struct Filter<T>(Box<dyn Fn(&T) -> bool + Send + Sync>);

impl<T: 'static> Filter<T> {
    /// Creates a filter from a function.
    pub fn new(admits: impl Fn(&T) -> bool + Send + Sync + 'static) -> Self {
        Self(Box::new(admits))
    }

    /// Returns true if the filter admits the object.
    pub fn admits(&self, object: &T) -> bool {
        (self.0)(object)
    }
}

impl<T: 'static> ops::BitAnd for Filter<T> {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self::new(move |object| self.admits(object) && other.admits(object))
    }
}

impl<T: 'static> ops::BitOr for Filter<T> {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self::new(move |object| self.admits(object) || other.admits(object))
    }
}

impl<T: 'static> ops::Not for Filter<T> {
    type Output = Self;

    fn not(self) -> Self {
        Self::new(move |object| !self.admits(object))
    }
}

/// Creates a filter that admits objects with this label.
pub fn label<T: Resource + 'static>(key: &str, value: &str) -> Filter<T> {
    let (key, value) = (key.to_owned(), value.to_owned());
    Filter::new(move |object: &T| object.meta().labels.as_ref().and_then(|all| all.get(&key)) == Some(&value))
}

/// Creates a filter that admits objects with this annotation.
pub fn annotation<T: Resource + 'static>(key: &str, value: &str) -> Filter<T> {
    let (key, value) = (key.to_owned(), value.to_owned());
    Filter::new(move |object: &T| {
        object.meta().annotations.as_ref().and_then(|all| all.get(&key)) == Some(&value)
    })
}

/// Creates a filter that admits objects in this namespace.
pub fn namespace<T: Resource + 'static>(name: &str) -> Filter<T> {
    let name = name.to_owned();
    Filter::new(move |object: &T| object.meta().namespace.as_ref() == Some(&name))
}

/// Creates a filter that admits objects of this name.
pub fn named<T: Resource + 'static>(name: &str) -> Filter<T> {
    let name = name.to_owned();
    Filter::new(move |object: &T| object.meta().name.as_ref() == Some(&name))
}

/// Creates a filter that admits objects whose controller is an `O`.
pub fn controlled_by<O: Resource<DynamicType = ()>, T: Resource + 'static>() -> Filter<T> {
    Filter::new(|object: &T| controller_name::<O, T>(object).is_some())
}

/// Returns the name of the `O` that controls this object, if any, from its owner references. The reference must have
/// the Kind and the group of `O`; its version may differ.
pub fn controller_name<O: Resource<DynamicType = ()>, T: Resource>(object: &T) -> Option<&str> {
    let owners = object.meta().owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
    (owner.kind == O::kind(&()) && group == O::group(&())).then_some(&owner.name)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::{
            apps::v1::{Deployment, ReplicaSet},
            core::v1::Pod,
        },
        apimachinery::pkg::apis::meta::v1::OwnerReference,
    };

    use super::*;

    fn owned_by(api_version: &str, kind: &str, controller: Option<bool>) -> Pod {
        let owner = OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: "web".into(),
            controller,
            ..Default::default()
        };
        let mut pod = Pod::default();
        pod.metadata.owner_references = Some(vec![owner]);
        pod
    }

    #[test]
    fn only_a_controller_of_the_kind_and_group_matches() {
        let is_controlled = |pod: &Pod| controlled_by::<ReplicaSet, Pod>().admits(pod);
        assert!(is_controlled(&owned_by("apps/v1", "ReplicaSet", Some(true))));
        assert!(
            is_controlled(&owned_by("apps/v1beta2", "ReplicaSet", Some(true))),
            "the version does not matter"
        );
        assert!(!is_controlled(&owned_by("apps/v1", "ReplicaSet", None)));
        assert!(!is_controlled(&owned_by("other.io/v1", "ReplicaSet", Some(true))));
        assert!(!is_controlled(&owned_by("v1", "ReplicaSet", Some(true))));
        assert!(!controlled_by::<Deployment, Pod>().admits(&owned_by("apps/v1", "ReplicaSet", Some(true))));
        assert!(!is_controlled(&Pod::default()));
    }

    #[test]
    fn annotations_match_by_value() {
        let mut pod = Pod::default();
        assert!(!annotation("class", "a").admits(&pod));
        pod.metadata.annotations = Some([("class".into(), "a".into())].into());
        assert!(annotation("class", "a").admits(&pod));
        assert!((!annotation("class", "b")).admits(&pod));
    }
}
