//! Applies children by server-side apply, and sends nothing for a child that is already as desired.

use std::{collections::hash_map::Entry, hash::BuildHasher, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Resource,
    api::{GetParams, Patch, PatchParams},
};
use reknit_apis::{Key, OwnedBy, Scope};
use reknit_injection::Cached;
use serde::Serialize;

use super::{
    desired::{Desired, Observed},
    error::{NotApplied, kind_and_key},
    lister::Owned,
    owner::{Owner, controller_of, is_controlled_by},
};
use crate::object_client::{at, status_code};

type Applied<T> = Result<T, NotApplied>;

/// An object with a child's name, as it concerns one owner.
enum Existing<T> {
    Absent,
    Ours(Arc<T>),
    /// It has another controller, or none.
    Foreign(Option<OwnerReference>),
}

impl<T: Cached<DynamicType = ()>> Owned<T> {
    /// Creates the child or restores its fields, and returns it as it then is.
    ///
    /// The child is applied by server-side apply with force. Its field manager is the component and the owner's uid, as
    /// in `controller-4a5827a9-c3b8-4025-800f-b6b7920f7396`. Fields that are set here get these values, fields that an
    /// earlier apply set and this one does not are removed, and fields of other managers are kept. So set the fields that
    /// the controller decides and no others. The child gets the owner's namespace, if any, and the owner as its
    /// controller. Of its metadata, labels, annotations, finalizers and further owners are applied. Its status is not.
    ///
    /// An unset `Option` is not applied. An explicit null in free-form JSON, such as a `serde_json::Value` with Helm
    /// values, is applied as null.
    ///
    /// No request is sent for a child that was last applied with the same content and still has these values. The
    /// annotation `reknit.dev/applied` holds a hash of the applied content, since the cache does not know the managers
    /// of fields. The API server may store a value in another form, such as `1000m` as `1`. Each process applies such a
    /// child once and then remembers the stored form. The answer is in the cache before this returns.
    ///
    /// Only the API server knows which maps and lists are atomic, such as a selector or the rules of a Role, so that
    /// entries that others add must be removed. Every change of the child outside metadata and status therefore leads to
    /// one request, which changes nothing if nothing differs. An entry that was added while no process of the controller
    /// ran is removed with the next change.
    ///
    /// A child that is being deleted is left alone, and the owner's key is enqueued when it is gone. Apply each child
    /// once per controller: two calls with different content undo each other.
    ///
    /// Requires the verbs get, create and patch on the child, besides list and watch, and, with the admission plugin
    /// OwnerReferencesPermissionEnforcement, update on the owner's `finalizers` subresource.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
    /// use reknit_reconciler::{Error, NotApplied, Outcome, Owned, Result};
    ///
    /// struct Reconciler {
    ///     maps: Owned<ConfigMap>,
    /// }
    ///
    /// impl Reconciler {
    ///     async fn greet(&self, namespace: &Namespace) -> Result<Outcome> {
    ///         let mut map = ConfigMap::default();
    ///         map.metadata.name = Some("greeting".into());
    ///         map.metadata.namespace = namespace.metadata.name.clone();
    ///         map.data = Some([("text".into(), "hello".into())].into());
    ///         match self.maps.apply(namespace, map).await {
    ///             Err(NotApplied::Taken { .. }) => {
    ///                 Err(Error::permanent("somebody else has a ConfigMap of this name").reason("NameTaken"))
    ///             }
    ///             applied => {
    ///                 applied?;
    ///                 Ok(Outcome::done())
    ///             }
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`NotApplied::Taken`]: an object of this name exists and the owner is not its controller. It is not changed.
    ///   The owner's key is enqueued when the object changes or is deleted, so the error may be made permanent. That does
    ///   not hold for the children of a [selected informer](crate::Builder::owns_in), which does not see objects
    ///   outside its selection.
    /// - [`NotApplied::OwnerDeleted`]: the owner is being deleted.
    /// - [`NotApplied::Refused`]: the API server refused the request, for example because a field is immutable. A
    ///   conflict counts as a conflict of the pass.
    pub async fn apply<O>(&self, owner: &O, child: T) -> Result<Arc<T>, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Serialize + Resource<Scope: Scope + OwnedBy<O::Scope>>,
    {
        let desired = Desired::of(owner, child)?;
        if owner.meta().deletion_timestamp.is_some() {
            return Err(NotApplied::OwnerDeleted { child: desired.name, owner: kind_and_key(owner) });
        }
        match self.cached(owner, &desired.key) {
            Existing::Foreign(controller) => Err(taken(owner, desired, controller)),
            Existing::Ours(held) if self.is_up_to_date(&desired, &held) => Ok(held),
            Existing::Ours(held) => self.send(owner, desired, Some(&*held)).await,
            Existing::Absent => self.create_or_adopt(owner, desired).await,
        }
    }

    /// Looks in the cache. A foreign object is tracked first and then read again, so its deletion is not missed.
    fn cached(&self, owner: &impl Owner, key: &Key) -> Existing<T> {
        let look = || classify(owner, self.informer.get(key));
        match look() {
            Existing::Foreign(_) => {
                self.tracker.read(&Key::of(owner), key);
                look()
            }
            existing => existing,
        }
    }
}

impl<T: Cached<DynamicType = ()> + Serialize> Owned<T> {
    /// Returns true if no request is needed. A child that is being deleted needs none either.
    fn is_up_to_date(&self, desired: &Desired, held: &T) -> bool {
        if held.meta().deletion_timestamp.is_some() {
            return true;
        }
        let Ok(observed) = desired.observe(held) else { return false };
        let state = self.state(desired, &observed);
        match self.up_to_date.lock().entry(desired.key.clone()) {
            Entry::Occupied(known) => *known.get() == state,
            Entry::Vacant(unknown) if observed.fields == desired.body => {
                unknown.insert(state);
                true
            }
            Entry::Vacant(_) => false,
        }
    }

    fn state(&self, desired: &Desired, observed: &Observed) -> u64 {
        self.hashes.hash_one((&desired.hash, &observed.fields, observed.content_hash))
    }

    /// Asks the API server first: the cache may be stale or hold a selection only, and an object that it does not hold
    /// must not be taken over. The create is not forced, so an object created in between is not taken over either.
    async fn create_or_adopt(&self, owner: &impl Owner, desired: Desired) -> Applied<Arc<T>> {
        match classify(owner, self.read(owner, &desired).await?) {
            Existing::Absent => self.send(owner, desired, None).await,
            Existing::Ours(live) => self.send(owner, desired, Some(&*live)).await,
            Existing::Foreign(controller) => Err(taken(owner, desired, controller)),
        }
    }

    /// Reads the child from the API server. It is tracked first, since it may be deleted before the answer arrives.
    async fn read(&self, owner: &impl Owner, desired: &Desired) -> Applied<Option<Arc<T>>> {
        self.tracker.read(&Key::of(owner), &desired.key);
        let request = at::<T>(&desired.key).get(&desired.key.name, &GetParams::default());
        match self.request(request).await {
            Err(error) if status_code(&error) == Some(404) => Ok(None),
            answer => answer.map(|found| Some(Arc::new(found))).map_err(|error| desired.refused(error)),
        }
    }

    /// Applies with the uid of the object to change as a precondition, or without force to create one.
    async fn send(&self, owner: &impl Owner, desired: Desired, over: Option<&T>) -> Applied<Arc<T>> {
        let params = PatchParams { force: over.is_some(), ..PatchParams::apply(&self.manager_for(owner)) };
        let body = desired.with_uid(over.and_then(|over| over.meta().uid.as_deref()));
        let request = at::<T>(&desired.key).patch(&desired.key.name, &params, &Patch::Apply(body));
        match self.request(request).await {
            Ok(answer) => {
                self.remember(desired, &answer);
                Ok(Arc::new(answer))
            }
            Err(error) => Err(self.refused(owner, desired, error).await),
        }
    }

    /// One field manager per owner. With a shared one, an owner would take over a child that another owner of the same
    /// Kind created a moment ago: a manager replaces its own fields without a conflict, the controller included.
    fn manager_for(&self, owner: &impl Owner) -> String {
        match &owner.meta().uid {
            Some(uid) => format!("{:.91}-{uid}", self.manager),
            None => self.manager.clone(),
        }
    }

    /// If another owner was faster, the API server answers a conflict, or that a second controller is invalid.
    async fn refused(&self, owner: &impl Owner, desired: Desired, error: kube::Error) -> NotApplied {
        if let Some(409 | 422) = status_code(&error)
            && let Ok(found) = self.read(owner, &desired).await
            && let Existing::Foreign(controller) = classify(owner, found)
        {
            return taken(owner, desired, controller);
        }
        desired.refused(error)
    }

    /// Remembers only a cached child: for any other the informer reports no deletion.
    fn remember(&self, desired: Desired, answer: &T) {
        let Ok(observed) = desired.observe(answer) else { return };
        let state = self.state(&desired, &observed);
        self.up_to_date.lock().insert(desired.key.clone(), state);
        if !self.informer.contains(&desired.key) {
            self.up_to_date.lock().remove(&desired.key);
        }
    }
}

fn classify<T: Resource>(owner: &impl Owner, found: Option<Arc<T>>) -> Existing<T> {
    match found {
        None => Existing::Absent,
        Some(child) if is_controlled_by(owner, &*child) => Existing::Ours(child),
        Some(child) => Existing::Foreign(controller_of(&*child).cloned()),
    }
}

fn taken(owner: &impl Owner, desired: Desired, by: Option<OwnerReference>) -> NotApplied {
    NotApplied::Taken { child: desired.name, owner: kind_and_key(owner), by: by.map(Box::new) }
}
