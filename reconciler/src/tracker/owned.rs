//! Lists what an object controls.

use std::{fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use reknit_apis::{Key, Scope};
use reknit_injection::{Cached, Index, Informer, controller_name};

use crate::child::Children;

/// Objects of one Kind by the object that controls them; each wakes its controller when it changes.
///
/// Comes from [`Builder::owns`](crate::Builder::owns). Clones are one.
///
/// ```
/// use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
/// use reknit_reconciler::Owned;
///
/// fn missing(pods: &Owned<Pod>, set: &ReplicaSet) -> usize {
///     let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
///     usize::try_from(wanted).unwrap_or_default().saturating_sub(pods.of(set).count())
/// }
/// ```
#[derive(Clone)]
pub struct Owned<T: Cached> {
    informer: Informer<T>,
    /// By the uid of the controller, or where there is none by a slash and the namespace.
    by_owner: Index<T>,
    pub(crate) children: Children<T>,
}

impl<T: Cached> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").field("informer", &self.informer).finish_non_exhaustive()
    }
}

impl<T: Cached<DynamicType = ()>> Owned<T> {
    pub(crate) fn new(children: Children<T>) -> Self {
        let informer = children.informer.clone();
        let by_owner = informer.index(|object: &T| match controller_of(object) {
            Some(owner) => [owner.uid.clone()],
            None => [orphans(object.meta().namespace.as_deref())],
        });
        Self { informer, by_owner, children }
    }

    /// What this object controls: the objects whose controlling owner reference holds its uid. An owner without a
    /// uid, which no API server made, is known by its Kind and name. What cannot be decoded as a `T` is not among them: it is
    /// in the log, and who must not make a second one makes children whose names follow from the owner.
    pub fn of<O: Resource<DynamicType = ()>>(&self, owner: &O) -> impl Iterator<Item = Arc<T>> + use<T, O> {
        let found: Vec<_> = match owner.meta().uid.as_deref() {
            Some(uid) => self.by_owner.get(uid).collect(),
            None => self.by_name(&Key::of(owner), |object| controller_name::<O, T>(object)),
        };
        found.into_iter()
    }

    /// What no object of any Kind controls, in one namespace or of no namespace.
    pub(crate) fn orphans_in(&self, namespace: Option<&str>) -> impl Iterator<Item = Arc<T>> + use<T> {
        self.by_owner.get(&orphans(namespace))
    }

    fn by_name(&self, owner: &Key, name: impl Fn(&T) -> Option<&str>) -> Vec<Arc<T>> {
        let is_owned = |object: &Arc<T>| {
            name(object) == Some(&owner.name)
                && (owner.namespace.is_none() || object.meta().namespace == owner.namespace)
        };
        self.informer.list().filter(is_owned).collect()
    }
}

/// The key of the `O` that controls the object, if one does.
pub(crate) fn owner_key<O: Resource<DynamicType = (), Scope: Scope>, T: Resource>(object: &T) -> Option<Key> {
    let namespace = object.meta().namespace.as_deref().filter(|_| O::Scope::NAMESPACED);
    Some(Key::new(namespace, controller_name::<O, T>(object)?))
}

/// No uid has a slash.
fn orphans(namespace: Option<&str>) -> String {
    format!("/{}", namespace.unwrap_or_default())
}

pub(crate) fn controller_of<T: Resource>(object: &T) -> Option<&OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}
