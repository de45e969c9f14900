//! Finds the Kinds that the objects of a controller name at run time.

use std::{sync::atomic::Ordering, time::Duration};

use kube::{
    Resource,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use reknit_apis::{Key, dns_label, dns_subdomain};
use reknit_injection::{
    Informer, Informers, Selection,
    internal::{listed, on_kind_changed, open_unsynced},
    select,
};

use super::{
    index::{Index, Tracker},
    used_kinds::UsedKinds,
};
use crate::{Error, Kinds, Queue, Result, ResultExt, object_client::ObjectKind, queue::Cause};

/// The longest backoff of a pass that used an unknown Kind or one that cannot be listed. No watch reports when that
/// changes.
const RETRY_WITHIN: Duration = Duration::from_secs(15);

/// The error of a pass that used a Kind whose objects are not listed yet. Their list enqueues the key.
#[derive(Debug, thiserror::Error)]
#[error("the objects of {kind} of {api_version} are not listed yet")]
pub(crate) struct NotListedYet {
    api_version: String,
    kind: String,
}

/// Finds Kinds at run time for one controller, and keeps their informers open while any of its keys uses them.
#[derive(Clone)]
pub(crate) struct DynamicKinds {
    pub(crate) allowed: Kinds,
    pub(crate) informers: Informers,
    /// The namespaces of the controller.
    pub(crate) namespaces: Selection,
    /// The work queue of the controller.
    pub(crate) queue: Queue,
    pub(crate) used: UsedKinds,
}

/// The versions in which a Kind is looked for.
#[derive(Clone, Copy)]
pub(crate) enum Versions {
    /// Only the version that the reference or the template names.
    Named,
    /// If that version is not served, any other one.
    Any,
}

/// A Kind that the API server serves, and its informer.
pub(crate) struct FoundKind {
    pub(crate) kind: ObjectKind,
    pub(crate) informer: Informer<DynamicObject>,
}

impl DynamicKinds {
    /// Creates the Kinds of a builder call. When the API server serves one of them in another way or no longer, its
    /// informer closes, and the keys that use the Kind are enqueued.
    pub(crate) fn new(
        allowed: Kinds,
        informers: Informers,
        namespaces: Selection,
        queue: Queue,
        used: UsedKinds,
    ) -> Self {
        let (changed, changed_queue) = (used.clone(), queue.clone());
        on_kind_changed(&informers, move |kind| {
            let cause = Cause::Kind(kind.kind.as_str().into());
            let observers = changed.close(kind).into_iter();
            observers.for_each(|observer| changed_queue.add_for(observer, cause.clone()));
        });
        Self { allowed, informers, namespaces, queue, used }
    }

    /// Finds a Kind for this observer if it is allowed, and opens its informer, which may start a watch. The informer
    /// closes again when the result is dropped, unless [`record`](Self::record) keeps it.
    pub(crate) async fn find(
        &self,
        observer: &Key,
        api_version: &str,
        kind: &str,
        versions: Versions,
    ) -> Result<FoundKind> {
        let found = self.find_known(observer, api_version, kind, versions).await?;
        let unknown = || {
            format!(
                "the API server does not know {kind} of {api_version}: is its CustomResourceDefinition installed?"
            )
        };
        found.ok_or_else(unknown).reason("KindNotInstalled").retry_within(RETRY_WITHIN)
    }

    /// Finds a Kind as [`find`](Self::find) does. `None` if the API server does not know it.
    pub(crate) async fn find_known(
        &self,
        observer: &Key,
        api_version: &str,
        kind: &str,
        versions: Versions,
    ) -> Result<Option<FoundKind>> {
        let Some((group, version)) = group_and_version(api_version) else {
            return Err(Error::permanent(format!(
                "{api_version:?} is not an API version such as v1 or apps/v1"
            )));
        };
        let check_allowed = |plural: Option<&str>| match self.allowed.admit(group, plural) {
            true => Ok(()),
            false => Err(Error::permanent(format!(
                "{kind} of {api_version} is not among the Kinds that this controller may use: they are those in the \
                 `Kinds` of its builder call"
            ))),
        };
        check_allowed(None)?; // no request for a Kind of another group
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resolved = match versions {
            Versions::Named => self.informers.resolve(&gvk).await,
            Versions::Any => self.informers.resolve_in_any_version(&gvk).await,
        };
        let Some((resource, scope)) = resolved.retry_within(RETRY_WITHIN)? else { return Ok(None) };
        check_allowed(Some(&resource.plural))?;
        if !self.allowed.names(&resource) {
            self.used.check_room(&resource, observer)?;
        }
        let is_namespaced = scope == Scope::Namespaced;
        let selection = if is_namespaced { self.namespaces.clone() } else { select() };
        let informer = open_unsynced(&self.informers, &resource, selection);
        Ok(Some(FoundKind { kind: ObjectKind { resource, is_namespaced }, informer }))
    }

    /// The namespace to read from; `None` for a cluster-scoped Kind.
    pub(super) fn namespace<'a, O: Resource>(
        &self,
        observer: &'a O,
        named: Option<&'a str>,
        found: &FoundKind,
    ) -> Result<Option<&'a str>> {
        if !found.kind.is_namespaced {
            return Ok(None);
        }
        let ApiResource { api_version, kind, .. } = &found.kind.resource;
        let named = named.filter(|namespace| !namespace.is_empty());
        match named.or(observer.meta().namespace.as_deref()) {
            None => Err(Error::permanent(format!(
                "the reference to a {kind} of {api_version} names no namespace, and {} is cluster-scoped: name the \
                 namespace",
                Key::of(observer).name
            ))),
            Some(namespace) if !self.namespaces.selects_namespace(namespace) => {
                Err(Error::permanent(format!(
                    "the reference to a {kind} of {api_version} leads to the namespace {namespace}, which this \
                     controller does not read"
                )))
            }
            namespace => Ok(namespace),
        }
    }

    /// Records a read of the Kind, and returns its tracker if the objects of the namespace are listed. `None` is a
    /// cluster-scoped Kind, or all namespaces, of which those that cannot be listed are left out unless none can. The
    /// first read keeps the informer open, and makes its later events enqueue the observers.
    ///
    /// Never waits. If the first list has neither succeeded nor failed yet, returns [`NotListedYet`], and the list
    /// enqueues the key. A failure is retried like an unknown Kind. The read is recorded before the list is checked, so
    /// that neither its end nor a later change is missed.
    pub(crate) fn record(
        &self,
        found: &FoundKind,
        namespace: Option<&str>,
        read: impl FnOnce(&mut Index),
    ) -> Result<Tracker> {
        let FoundKind { kind: ObjectKind { resource, .. }, informer } = found;
        let is_named = self.allowed.names(resource);
        let (tracker, is_read) = self.used.record(resource, informer, is_named, &self.queue, read);
        let not_listed_yet = || {
            let ApiResource { api_version, kind, .. } = resource.clone();
            NotListedYet { api_version, kind }
        };
        if namespace.is_some() || !informer.handle().is_synced() {
            listed(informer, namespace).ok_or_else(not_listed_yet)?.retry_within(RETRY_WITHIN)?;
        }
        is_read.store(true, Ordering::Release);
        Ok(tracker)
    }
}

/// Splits an API version such as `v1` or `apps/v1`. `None` if no API version can have this form.
pub(crate) fn group_and_version(api_version: &str) -> Option<(&str, &str)> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let is_valid = (group.is_empty() || dns_subdomain(group).is_empty()) && dns_label(version).is_empty();
    is_valid.then_some((group, version))
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use reknit_injection::Context;
    use reknit_testing::{ApiServer, InformerExt};
    use tokio::time::Instant;

    use super::*;
    use crate::tracker::used_kinds::{CLOSED_FOR, MAX_KINDS, MAX_KINDS_OF_NAMESPACE};

    fn kinds_of(cx: &Context, allowed: Kinds) -> DynamicKinds {
        DynamicKinds::new(allowed, cx.informers(), select(), Queue::new(), UsedKinds::default())
    }

    fn preloaded() -> Context {
        Context::preloaded("test", ApiServer::new().client(), vec![])
    }

    /// Reads this Kind in a pass of the observer.
    async fn read(kinds: &DynamicKinds, observer: &Key, kind: &str) -> Result<FoundKind> {
        let found = kinds.find(observer, "example.com/v1", kind, Versions::Named).await?;
        kinds.record(&found, Some("default"), |reads| reads.use_kind(observer))?;
        Ok(found)
    }

    async fn reason(kinds: &DynamicKinds, observer: &Key, kind: &str) -> String {
        read(kinds, observer, kind)
            .await
            .err()
            .map(|error| error.event_reason().to_owned())
            .unwrap_or_default()
    }

    /// A client of an API server that never answers.
    fn silent_client() -> Client {
        let answer = |_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_does_not_come_is_not_waited_for_and_enqueues_the_keys_when_it_is_overdue() {
        let cx = Context::new("test", silent_client());
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        cx.informers().start();
        let informer: Informer<DynamicObject> = cx.informer_of(&resource, select());
        let found = FoundKind { kind: ObjectKind { resource, is_namespaced: true }, informer };
        let (kinds, key, start) = (kinds_of(&cx, Kinds::any()), Key::new("default", "x"), Instant::now());
        let record = || kinds.record(&found, None, |reads| reads.use_kind(&key)).err().unwrap();
        let waiting = record().context("reading the sink");
        assert!(waiting.is_waiting() && !waiting.is_permanent(), "{waiting:#}");
        assert_eq!((start.elapsed(), kinds.queue.take_all()), (Duration::ZERO, vec![]));

        let claimed = kinds.queue.next().await.unwrap();
        assert_eq!(
            (&*claimed, &*claimed.causes.to_string()),
            (&key, "the state of the Kind configmaps changed")
        );
        assert_eq!(start.elapsed().as_secs(), 10);
        let overdue = record();
        assert!(!overdue.is_waiting() && !overdue.is_permanent(), "{overdue:#}");
        assert!(overdue.to_string().ends_with("the API server has not answered yet"), "{overdue:#}");
        assert_eq!(*overdue.retry_wait().end(), RETRY_WITHIN);
    }

    #[tokio::test]
    async fn the_objects_of_a_namespace_open_a_limited_number_of_kinds_and_leave_room_for_other_namespaces() {
        let kinds = kinds_of(&preloaded(), Kinds::of([("example.com", "nameds")]).or_any());
        let (hostile, honest) = (Key::new("hostile", "x"), Key::new("honest", "x"));
        for n in 0..MAX_KINDS_OF_NAMESPACE {
            read(&kinds, &hostile, &format!("Kind{n}")).await.unwrap();
        }
        assert_eq!(reason(&kinds, &Key::new("hostile", "y"), "Another").await, "TooManyKinds");
        read(&kinds, &hostile, "Named").await.unwrap();
        read(&kinds, &honest, "Another").await.unwrap();
        read(&kinds, &hostile, "Another").await.unwrap();
        for n in MAX_KINDS_OF_NAMESPACE + 1..MAX_KINDS {
            read(&kinds, &Key::new(&format!("hostile{}", n % 9), "x"), &format!("Kind{n}")).await.unwrap();
        }
        let error = read(&kinds, &honest, "OneMore").await.err().unwrap();
        assert_eq!(
            error.to_string(),
            "OneMore of example.com/v1 is not read: the references and templates in the objects of the controller use \
             100 other Kinds, which is the limit. Name fewer Kinds, or name this one in the `Kinds` of the controller"
        );
        kinds.used.for_each_index(|index| index.forget(&hostile));
        kinds.used.close_unused();
        read(&kinds, &honest, "OneMore").await.unwrap();
    }

    /// Puts an object with this name and about this size into the informer, with a limit of 1000 bytes.
    fn insert(kinds: &DynamicKinds, found: &FoundKind, name: &str, size: usize) {
        let mut object = DynamicObject::new(name, &found.kind.resource).within("default");
        object.data["data"] = "x".repeat(size).into();
        found.informer.insert(object);
        kinds.queue.take_all();
        kinds.used.close_excess(1000, &kinds.queue);
    }

    #[tokio::test(start_paused = true)]
    async fn the_kind_whose_objects_take_the_most_closes_if_all_are_too_large_together() {
        let cx = preloaded();
        let kinds = kinds_of(&cx, Kinds::of([("example.com", "nameds")]).or_any());
        let (hostile, honest) = (Key::new("hostile", "x"), Key::new("honest", "x"));
        for kind in ["Named", "Large"] {
            read(&kinds, &hostile, kind).await.unwrap();
        }
        insert(&kinds, &read(&kinds, &hostile, "Named").await.unwrap(), "o", 2000);
        insert(&kinds, &read(&kinds, &honest, "Small").await.unwrap(), "o", 250);
        let large = read(&kinds, &hostile, "Large").await.unwrap();
        insert(&kinds, &large, "o", 600);
        assert_eq!(kinds.queue.take_all(), [], "there is room for both");
        let small = read(&kinds, &honest, "Small").await.unwrap();
        insert(&kinds, &small, "last", 150);
        assert_eq!(
            kinds.queue.take_all(),
            std::slice::from_ref(&hostile),
            "although the small one grew last"
        );
        assert_eq!(reason(&kinds, &hostile, "Large").await, "KindsTooLarge");
        for kind in ["Small", "Named"] {
            assert_eq!(reason(&kinds, &honest, kind).await, "");
        }
        tokio::time::advance(CLOSED_FOR).await;
        assert_eq!(reason(&kinds, &hostile, "Large").await, "", "it is tried again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_listed_again_counts_as_large_as_it_was() {
        let cx = Context::new("test", silent_client());
        let (kinds, key) = (kinds_of(&cx, Kinds::any()), Key::new("default", "x"));
        let found = |kind: &str| {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", kind));
            let informer = open_unsynced(&cx.informers(), &resource, select());
            FoundKind { kind: ObjectKind { resource, is_namespaced: true }, informer }
        };
        let open = |kind: &str| {
            let found = found(kind);
            let not_listed = kinds.record(&found, None, |reads| reads.use_kind(&key)).err().unwrap();
            assert!(not_listed.is_waiting(), "{not_listed:#}");
            found
        };
        let is_open = |kind: &str| kinds.used.check_room(&found(kind).kind.resource, &key).is_ok();
        insert(&kinds, &open("Small"), "o", 300);
        insert(&kinds, &open("Large"), "o", 900);
        assert_eq!(["Small", "Large"].map(is_open), [true, false]);
        tokio::time::advance(CLOSED_FOR).await;
        let large = open("Large");
        insert(&kinds, &large, "o", 200);
        assert_eq!(["Small", "Large"].map(is_open), [true, true]);
        insert(&kinds, &open("Small"), "last", 500);
        assert_eq!(["Small", "Large"].map(is_open), [true, false], "its list has not ended");
    }

    #[tokio::test]
    async fn nothing_is_kept_of_a_kind_that_no_key_uses_any_more() {
        let (cx, key) = (preloaded(), Key::new("default", "x"));
        let kinds = kinds_of(&cx, Kinds::any());
        for n in 0..1000 {
            read(&kinds, &key, &format!("Kind{n}")).await.unwrap();
            kinds.used.for_each_index(|index| index.forget(&key));
            kinds.used.close_unused();
        }
        assert!(kinds.used.is_empty());
        assert_eq!(cx.informers().states(), []);
    }
}
