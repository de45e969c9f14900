//! Applies what an object controls: creates it, puts drift back, and sends nothing where nothing differs.

mod claim;
mod error;
mod one_of_many;
mod wanted;

use std::{
    borrow::Borrow,
    collections::{
        HashMap,
        hash_map::{Entry, RandomState},
    },
    hash::BuildHasher,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Client, Resource,
    api::{GetParams, Patch, PatchParams},
    core::{Request, request::Error as RequestError},
};
use parking_lot::Mutex;
use reknit_apis::{Key, OwnedBy, Scope};
use reknit_injection::{Cached, Informer, controller_name};
use serde::Serialize;

pub use self::{error::NotApplied, wanted::applied};
use self::{
    error::said,
    wanted::{Found, Wanted},
};
use crate::{
    Owned,
    endpoint::code,
    tracker::{Tracker, controller_of},
};

/// What writes the objects of one Kind that a controller's objects control.
#[derive(Clone)]
pub(crate) struct Children<T: Cached> {
    pub(crate) informer: Informer<T>,
    pub(crate) client: Client,
    /// Who is shown to have written, in `metadata.managedFields`; what is applied also says for whom.
    pub(crate) manager: String,
    /// Wakes the owners whose child's name is taken.
    pub(crate) tracker: Tracker,
    /// The states of the children in which nothing is to be sent, as hashes.
    settled: Arc<Mutex<HashMap<Key, u64>>>,
    hashes: RandomState,
}

/// Of whom an object is, as far as this owner is concerned.
enum Control<T> {
    /// There is none of this name.
    Absent,
    Ours(T),
    Foreign(Option<OwnerReference>),
}

impl<T: Cached<DynamicType = ()>> Owned<T> {
    /// Makes the child of this name what it is to be: creates it, or puts back what differs; answers the child as it is
    /// then.
    ///
    /// The child is applied by server-side apply, under the name of this component and the owner's uid (as in
    /// `controller-4a5827a9-c3b8-4025-800f-b6b7920f7396`) and by force: the fields that are set here become what they
    /// are here, those that were set here before and are no longer go, and those that others set stay. So set what the
    /// controller decides and nothing else. The child gets the owner's namespace, if it has one, and the owner as its
    /// controller; of its metadata labels, annotations, finalizers and further owners are applied; a status is not.
    ///
    /// Nothing is sent where the child has all that would be set, and was last set to just this. (The annotation
    /// `reknit.dev/applied` holds a hash of what was applied, since the cache does not know whose a field is. A
    /// child that the API server writes in another form than it was given, `1000m` as `1`, is applied once more by each
    /// process, which then remembers.) What is answered is in the cache before this returns.
    ///
    /// Only the API server knows which maps and lists are set as a whole, such as a selector or the rules of a Role, so
    /// that what somebody adds to one is to go: whatever changes of the child beside its metadata and status leads to
    /// one request, which changes nothing where nothing is to be put back. What somebody added so while no process of the
    /// controller looked is put back with the next change.
    ///
    /// A child that is being deleted is left as it is, and the owner is woken when it is gone. One call for each child, in one
    /// controller: two that differ undo each other's, pass after pass.
    ///
    /// It takes the verbs get, create and patch on the child, beside list and watch, and where the admission plugin
    /// OwnerReferencesPermissionEnforcement is on, update on the owner's `finalizers` subresource.
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
    /// [`NotApplied::Taken`], where an object of this name exists that this owner does not control, be it another's or
    /// nobody's: it is not touched, and the owner is woken when it changes or goes, so the error may be made permanent;
    /// not so where the children are those of a [selected informer](crate::Builder::owns_in), which hears nothing of
    /// what it does not select.
    /// [`NotApplied::OwnerDeleted`], where the owner is being deleted. [`NotApplied::Refused`] with what the API server
    /// answered, say of a field that cannot be changed; a conflict in it counts as one for the pass.
    pub async fn apply<O>(&self, owner: &O, child: T) -> Result<Arc<T>, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Serialize + Resource<Scope: Scope + OwnedBy<O::Scope>>,
    {
        let wanted = Wanted::of(owner, child)?;
        if owner.meta().deletion_timestamp.is_some() {
            return Err(NotApplied::OwnerDeleted { child: wanted.said, owner: said(owner) });
        }
        match self.children.control(owner, &wanted.key) {
            Control::Foreign(controller) => Err(taken(owner, wanted, controller)),
            Control::Ours(held) if self.children.is_settled(&wanted, &held) => Ok(held),
            Control::Ours(held) => self.children.send(owner, wanted, Some(&*held)).await,
            Control::Absent => self.children.create(owner, wanted).await,
        }
    }
}

impl<T: Cached<DynamicType = ()>> Children<T> {
    pub(crate) fn new(informer: Informer<T>, client: Client, manager: String, tracker: Tracker) -> Self {
        let settled = Arc::<Mutex<HashMap<Key, u64>>>::default();
        let forgetting = settled.clone();
        informer.on_key_event(move |event| {
            if event.is_deleted() {
                forgetting.lock().remove(event.key());
            }
        });
        Self { informer, client, manager, tracker, settled, hashes: RandomState::new() }
    }

    /// Looks in the cache. What stands in the way is tracked before it is believed.
    fn control<O: Resource<DynamicType = ()>>(&self, owner: &O, key: &Key) -> Control<Arc<T>> {
        let look = || control::<O, T, _>(owner, self.informer.get(key));
        match look() {
            Control::Foreign(_) => {
                self.tracker.read(&Key::of(owner), key);
                look()
            }
            control => control,
        }
    }
}

impl<T: Cached<DynamicType = ()> + Serialize> Children<T> {
    /// Whether the child is as it was last set, and that is what is wanted; or is to go, whatever is wanted.
    fn is_settled(&self, wanted: &Wanted, held: &T) -> bool {
        if held.meta().deletion_timestamp.is_some() {
            return true;
        }
        let Ok(found) = wanted.found_in(held) else { return false };
        let state = self.state(wanted, &found);
        match self.settled.lock().entry(wanted.key.clone()) {
            Entry::Occupied(settled) => *settled.get() == state,
            Entry::Vacant(unknown) if found.fields == wanted.body => {
                unknown.insert(state);
                true
            }
            Entry::Vacant(_) => false,
        }
    }

    fn state(&self, wanted: &Wanted, found: &Found) -> u64 {
        self.hashes.hash_one((&wanted.hash, &found.fields, found.whole))
    }

    /// The cache holds no child, but it may be late, or hold a selection only: what it does not know must not be taken
    /// over. So the API server is asked first; and whoever comes in between is not forced.
    async fn create<O: Resource<DynamicType = ()>>(
        &self,
        owner: &O,
        wanted: Wanted,
    ) -> Result<Arc<T>, NotApplied> {
        match control::<O, T, _>(owner, self.read(owner, &wanted).await?) {
            Control::Absent => self.send(owner, wanted, None).await,
            Control::Ours(live) => self.send(owner, wanted, Some(&live)).await,
            Control::Foreign(controller) => Err(taken(owner, wanted, controller)),
        }
    }

    /// Tracked before it is asked for: what is found may be gone when the answer comes.
    async fn read<O: Resource<DynamicType = ()>>(
        &self,
        owner: &O,
        wanted: &Wanted,
    ) -> Result<Option<T>, NotApplied> {
        self.tracker.read(&Key::of(owner), &wanted.key);
        let request = at::<T>(&wanted.key).get(&wanted.key.name, &GetParams::default());
        match self.request(request).await {
            Err(error) if code(&error) == Some(404) => Ok(None),
            answer => answer.map(Some).map_err(|error| wanted.refused(error)),
        }
    }

    /// Applies over this very object, or over none.
    async fn send<O: Resource<DynamicType = ()>>(
        &self,
        owner: &O,
        wanted: Wanted,
        over: Option<&T>,
    ) -> Result<Arc<T>, NotApplied> {
        let params = PatchParams { force: over.is_some(), ..PatchParams::apply(&self.manager_for(owner)) };
        let uid = over.and_then(|over| over.meta().uid.clone());
        let body = wanted.to_send(uid);
        let request = at::<T>(&wanted.key).patch(&wanted.key.name, &params, &Patch::Apply(body));
        match self.request(request).await {
            Ok(answer) => {
                self.remember(wanted, &answer);
                Ok(Arc::new(answer))
            }
            Err(error) => Err(self.refused(owner, wanted, error).await),
        }
    }

    /// Another for each owner, and so the API server refuses that one takes over what another of the same Kind created a
    /// moment ago: what a manager applied itself it replaces without a conflict, the controller too.
    fn manager_for<O: Resource<DynamicType = ()>>(&self, owner: &O) -> String {
        match &owner.meta().uid {
            Some(uid) => format!("{:.91}-{uid}", self.manager),
            None => self.manager.clone(),
        }
    }

    /// A conflict, and a second controller, which is invalid, are what is answered where another came first.
    async fn refused<O>(&self, owner: &O, wanted: Wanted, error: kube::Error) -> NotApplied
    where
        O: Resource<DynamicType = ()>,
    {
        if let Some(409 | 422) = code(&error)
            && let Ok(found) = self.read(owner, &wanted).await
            && let Control::Foreign(controller) = control::<O, T, _>(owner, found)
        {
            return taken(owner, wanted, controller);
        }
        wanted.refused(error)
    }

    async fn request(&self, request: Result<http::Request<Vec<u8>>, RequestError>) -> Result<T, kube::Error> {
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Only of what the cache holds: of nothing else will it be told when it goes.
    fn remember(&self, wanted: Wanted, answer: &T) {
        let Ok(found) = wanted.found_in(answer) else { return };
        let state = self.state(&wanted, &found);
        self.settled.lock().insert(wanted.key.clone(), state);
        if !self.informer.contains(&wanted.key) {
            self.settled.lock().remove(&wanted.key);
        }
    }
}

fn control<O, T, P>(owner: &O, found: Option<P>) -> Control<P>
where
    O: Resource<DynamicType = ()>,
    T: Resource,
    P: Borrow<T>,
{
    match found {
        None => Control::Absent,
        Some(child) if is_controlled_by(owner, child.borrow()) => Control::Ours(child),
        Some(child) => Control::Foreign(controller_of(child.borrow()).cloned()),
    }
}

/// By uid; where the owner has none, which no API server made, by Kind and name.
fn is_controlled_by<O: Resource<DynamicType = ()>, T: Resource>(owner: &O, child: &T) -> bool {
    match &owner.meta().uid {
        Some(uid) => controller_of(child).is_some_and(|controller| controller.uid == *uid),
        None => controller_name::<O, T>(child) == owner.meta().name.as_deref(),
    }
}

fn taken<O: Resource<DynamicType = ()>>(owner: &O, wanted: Wanted, by: Option<OwnerReference>) -> NotApplied {
    NotApplied::Taken { child: wanted.said, owner: said(owner), by: by.map(Box::new) }
}

/// Works for either scope: the path holds the namespace that the key has.
fn at<T: Resource<DynamicType = ()>>(key: &Key) -> Request {
    Request::new(T::url_path(&(), key.namespace.as_deref()))
}
