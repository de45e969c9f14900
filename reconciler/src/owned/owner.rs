//! Owner references: the controller of an object, and the reference that makes an object the controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use reknit_apis::{Key, Scope, internal::HashSet};
use reknit_injection::controller_name;

/// An object of a Kind that is known at compile time, which may control others.
pub(super) trait Owner: Resource<DynamicType = (), Scope: Scope> {}

impl<O: Resource<DynamicType = (), Scope: Scope>> Owner for O {}

/// Returns the owner reference of the object's controller, if it has one.
pub(super) fn controller_of<T: Resource>(object: &T) -> Option<&OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Returns the key of the `O` that controls the object, if one does.
pub(crate) fn owner_key<O: Resource<DynamicType = (), Scope: Scope>, T: Resource>(object: &T) -> Option<Key> {
    let namespace = object.meta().namespace.as_deref().filter(|_| O::Scope::NAMESPACED);
    Some(Key::new(namespace, controller_name::<O, T>(object)?))
}

/// Returns true if `owner` is the child's controller: by uid or, for an owner without one, which only tests construct,
/// by Kind and name.
pub(super) fn is_controlled_by<O: Resource<DynamicType = ()>, T: Resource>(owner: &O, child: &T) -> bool {
    match &owner.meta().uid {
        Some(uid) => controller_of(child).is_some_and(|controller| controller.uid == *uid),
        None => controller_name::<O, T>(child) == owner.meta().name.as_deref(),
    }
}

/// Makes `owner` the controller of the object instead of another one.
pub(super) fn set_controller<O: Resource<DynamicType = ()>>(meta: &mut ObjectMeta, owner: &O) {
    let controller = controller_reference(owner);
    let owners = other_owners(meta, &controller).cloned().chain([controller.clone()]).collect();
    meta.owner_references = Some(owners);
}

/// The owners of an object that stay beside this controller, each once: the API server refuses to apply two references
/// with the same uid.
pub(super) fn other_owners<'a>(
    meta: &'a ObjectMeta,
    controller: &'a OwnerReference,
) -> impl Iterator<Item = &'a OwnerReference> {
    let mut uids = HashSet::from_iter([&controller.uid]);
    let owners = meta.owner_references.iter().flatten();
    owners.filter(move |owner| owner.controller != Some(true) && uids.insert(&owner.uid))
}

/// Sets the version of the reference to this owner, which is an older one if the Kind has got a new version.
pub(super) fn update_version<O: Resource<DynamicType = ()>>(meta: &mut ObjectMeta, owner: &O) {
    let owners = meta.owner_references.iter_mut().flatten();
    owners
        .filter(|other| Some(&other.uid) == owner.meta().uid.as_ref())
        .for_each(|own| own.api_version = O::api_version(&()).into_owned());
}

/// Returns the owner reference that makes `owner` the controller of an object, as Knative's `kmeta.NewControllerRef`
/// does. The reference has an empty uid if the owner has none, as in a test. [`Owned`](crate::Owned) sets this
/// reference by itself.
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMap, Pod};
/// use reknit_reconciler::controller_reference;
///
/// fn copy_of(map: &ConfigMap, owner: &Pod) -> ConfigMap {
///     let mut copy = ConfigMap { data: map.data.clone(), ..ConfigMap::default() };
///     copy.metadata.owner_references = Some(vec![controller_reference(owner)]);
///     copy
/// }
/// ```
pub fn controller_reference<O: Resource<DynamicType = ()>>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::api_version(&()).into_owned(),
        kind: O::kind(&()).into_owned(),
        name: Key::of(owner).name,
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
