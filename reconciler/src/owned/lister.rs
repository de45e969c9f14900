//! [`Owned`]: lists the objects that an object controls.

use std::{hash::RandomState, sync::Arc};

use kube::Resource;
use parking_lot::Mutex;
use reknit_apis::{Bounds, Key, internal::HashMap, to_json};
use reknit_injection::{
    Cached, Index, Informer, controller_name,
    internal::{LogLimit, WeakIndex},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    desired::encode_string_data,
    options::OwnedOptions,
    owner::{Owner, controller_of},
    run_again::CreatedJobs,
    up_to_date::UpToDate,
};
use crate::{
    Recorder,
    metrics::{ChildMetrics, ChildrenOfKind},
    object_client::ObjectClient,
    tracker::Tracker,
};

/// The maximum length of a field manager in bytes.
const MAX_MANAGER: usize = 128;

/// The objects of one Kind, by their owner: the object that controls them. A change of an object enqueues its owner's
/// key.
///
/// Comes from [`Builder::owns`](crate::Builder::owns). All clones share one state.
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
#[derive(Clone, derive_more::Debug)]
#[debug("Owned {{ informer: {informer:?}, .. }}")]
pub struct Owned<T: Cached> {
    pub(crate) informer: Informer<T>,
    /// Indexed by [`child_index_value`], or by [`orphan_index_value`] for an object without a controller.
    by_owner: Index<T>,
    pub(super) shared: Arc<Shared>,
}

/// An [`Owned`] that does not keep its informer open.
pub(super) struct WeakOwned<T: Cached> {
    by_owner: WeakIndex<T>,
    shared: Arc<Shared>,
}

/// The state that the clones of an [`Owned`] share.
pub(super) struct Shared {
    pub(super) client: ObjectClient,
    pub(super) options: OwnedOptions,
    pub(super) recorder: Recorder,
    pub(super) metrics: ChildrenOfKind,
    /// The fields that the API server last did not store.
    pub(super) logged_dropped: Mutex<LogLimit<Vec<String>>>,
    pub(super) created_jobs: Mutex<CreatedJobs>,
    /// The names that owners wanted for children. A change of an object of such a name enqueues the owner even if the
    /// owner does not control it.
    pub(super) tracker: Tracker,
    /// The children that need no request, by key.
    pub(super) up_to_date: Arc<Mutex<HashMap<Key, UpToDate>>>,
    pub(super) hash_builder: RandomState,
}

impl<T: Cached> Owned<T> {
    pub(crate) fn new(
        client: ObjectClient,
        informer: Informer<T>,
        options: OwnedOptions,
        tracker: Tracker,
        recorder: Recorder,
        metrics: &ChildMetrics,
    ) -> Self {
        let by_owner = informer.index(|object: &T| match controller_of(object) {
            Some(owner) => [child_index_value(&owner.uid)],
            None => [orphan_index_value(object.meta().namespace.as_deref())],
        });
        let up_to_date = Arc::<Mutex<HashMap<Key, UpToDate>>>::default();
        let hashes = up_to_date.clone();
        informer.on_key_event(move |event| {
            if event.is_deleted() {
                hashes.lock().remove(event.key());
            }
        });
        let hash_builder = RandomState::new();
        let (logged_dropped, created_jobs) = (Mutex::default(), Mutex::default());
        let metrics = metrics.of_kind(&client.kind.resource);
        let shared = Shared {
            client,
            options,
            recorder,
            metrics,
            logged_dropped,
            created_jobs,
            tracker,
            up_to_date,
            hash_builder,
        };
        Self { informer, by_owner, shared: Arc::new(shared) }
    }

    pub(super) fn downgrade(&self) -> WeakOwned<T> {
        WeakOwned { by_owner: self.by_owner.downgrade(), shared: self.shared.clone() }
    }

    /// Lists the objects whose controlling owner reference holds the uid of `owner`. An owner without a uid, which only
    /// tests construct, is matched by Kind and name.
    ///
    /// An object in another namespace than its owner is not a child, even if it has the owner reference of one, such as a
    /// copy: the garbage collector deletes it.
    ///
    /// An object that cannot be decoded as `T` is logged and left out. If your controller must not create a second
    /// child in that case, derive the names of the children from the owner.
    pub fn of<O: Resource<DynamicType = ()>>(&self, owner: &O) -> impl Iterator<Item = Arc<T>> + use<T, O> {
        let found: Vec<_> = match owner.meta().uid.as_deref() {
            Some(uid) => self.by_owner.get(&child_index_value(uid)).collect(),
            None => self.owned_by_name(&Key::of(owner).name, |object| controller_name::<O, T>(object)),
        };
        let namespace = owner.meta().namespace.clone();
        let is_child = move |child: &Arc<T>| namespace.is_none() || child.meta().namespace == namespace;
        found.into_iter().filter(is_child)
    }

    /// Lists the objects without any controller, in this namespace; cluster-scoped objects if `None`.
    pub(super) fn orphans_in(&self, namespace: Option<&str>) -> impl Iterator<Item = Arc<T>> + use<T> {
        self.by_owner.get(&orphan_index_value(namespace))
    }

    fn owned_by_name(&self, owner: &str, controller_name: impl Fn(&T) -> Option<&str>) -> Vec<Arc<T>> {
        self.informer.list().filter(|object| controller_name(object) == Some(owner)).collect()
    }

    /// The field manager for the applied children of this owner. Each owner has its own: a manager replaces its own
    /// fields, such as the owner references, without a conflict. With a shared manager, an owner would take over a child
    /// that another owner of the same Kind has just created.
    pub(super) fn manager_for(&self, owner: &impl Owner) -> String {
        let manager = &self.shared.client.manager;
        match &owner.meta().uid {
            Some(uid) => manager_of(manager, uid),
            None => manager.to_string(),
        }
    }

    /// The JSON of a child, with its API version and its Kind.
    pub(super) fn to_json(&self, child: &T) -> kube::Result<Value>
    where
        T: Serialize,
    {
        let mut json = to_json(child).map_err(kube::Error::SerdeError)?;
        let resource = &self.shared.client.kind.resource;
        if let Some(fields) = json.as_object_mut() {
            encode_string_data(resource, fields);
        }
        json["apiVersion"] = json!(resource.api_version);
        json["kind"] = json!(resource.kind);
        Ok(json)
    }
}

impl<T: Cached> WeakOwned<T> {
    /// Returns the same children again if their informer is still open.
    pub(super) fn upgrade(&self) -> Option<Owned<T>> {
        let by_owner = self.by_owner.upgrade()?;
        Some(Owned { informer: by_owner.informer().clone(), by_owner, shared: self.shared.clone() })
    }
}

/// The field manager of a component for the children of the owner with this uid.
pub(super) fn manager_of(component: &str, uid: &str) -> String {
    let room = MAX_MANAGER.saturating_sub(uid.len() + 1);
    format!("{}-{uid}", Bounds::FIELD_MANAGER.within(room).apply(component))
}

/// The index value of the objects whose controller has this uid. The API server accepts any text as the uid of an owner.
fn child_index_value(uid: &str) -> String {
    format!("uid {uid}")
}

/// The index value of objects without a controller. It differs from that of any uid.
fn orphan_index_value(namespace: Option<&str>) -> String {
    format!("in {}", namespace.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_has_at_most_128_printable_bytes() {
        let uid = "4a5827a9-c3b8-4025-800f-b6b7920f7396";
        assert_eq!(manager_of("controller", uid), format!("controller-{uid}"));
        for component in ["é".repeat(200), "c".repeat(200), "a\tb\n".repeat(50)] {
            let manager = manager_of(&component, uid);
            assert!(manager.len() <= MAX_MANAGER && manager.ends_with(uid), "{manager}");
            assert!(manager.bytes().all(|byte| byte.is_ascii_graphic()), "{manager}");
        }
    }
}
