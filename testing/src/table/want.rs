//! What a pass is to do.

use kube::{Resource, api::PropagationPolicy};
use reknit_apis::{Key, Scope};
use reknit_reconciler::{Event, Outcome, applied};
use serde::Serialize;
use serde_json::{Value, json};

use super::account::{Account, Entry};

/// What a pass is to do, and nothing else: how it ends, every write in order, every event in order. What is not said
/// must not happen. To be compared by [`Passed::check`](super::Passed::check).
///
/// Times are not compared, where Kubernetes or a controller writes them: those of conditions, and others of `status` and
/// `metadata`. Neither are resourceVersions and uids that a patch, an update or a delete carries as preconditions, and the
/// annotation in which [`Owned::apply`](reknit_reconciler::Owned::apply) notes what it applied. A dry run, a policy of
/// propagation and a field selector are compared.
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
/// use kube::{Api, Client, ResourceExt, api::PostParams};
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Event, Outcome, ReconcileKind, Result};
/// use reknit_testing::{Verb, Want, given};
/// use serde_json::json;
///
/// /// Makes a ConfigMap in each namespace.
/// struct Maker(Client);
///
/// impl ReconcileKind for Maker {
///     type Kind = Namespace;
///     async fn reconcile_kind(&self, namespace: &Namespace, _: &mut ()) -> Result<Outcome> {
///         let maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), &namespace.name_any());
///         maps.create(&PostParams::default(), &map("settings")).await?;
///         Ok(Outcome::done().event(Event::normal("Made", "made the settings")))
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     let build = Controller::of::<Namespace>(cx);
///     let client = build.client();
///     Ok(build.reconciler(Maker(client)).build())
/// }
///
/// fn map(name: &str) -> ConfigMap {
///     let mut map = ConfigMap::default();
///     map.metadata.name = Some(name.into());
///     map
/// }
///
/// # fn shop() -> Namespace {
/// #     let mut shop = Namespace::default();
/// #     shop.metadata.name = Some("shop".into());
/// #     shop
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let passed = given(shop()).pass(controller, "shop").await;
/// passed.check(Want::done().create_in("shop", &map("settings")).event(Event::normal("Made", "made the settings")));
///
/// let refused = given(shop()).failing(Verb::Create, "configmaps", 403).pass(controller, "shop").await;
/// let message = "inducing failure for create configmaps";
/// let event = refused.events().remove(0);
/// assert_eq!(event.reason, "InternalError");
/// refused.check(Want::error(message).create_in("shop", &map("settings")).event(event));
/// # }
/// ```
#[must_use = "it is compared by `passed.check(…)`"]
#[derive(Clone, Debug)]
pub struct Want(Account);

impl Want {
    /// The pass ends in [`Outcome::done`].
    pub fn done() -> Self {
        Self::outcome(&Outcome::done())
    }

    /// It ends in [`Outcome::skip`], as does one that finds no object.
    pub fn skip() -> Self {
        Self::outcome(&Outcome::skip())
    }

    /// It ends in this, events aside.
    pub fn outcome(outcome: &Outcome) -> Self {
        Self(Account::ending(&Ok(outcome.clone())))
    }

    /// It fails with an error that says this, maybe among other things, and is retried.
    pub fn error(message: &str) -> Self {
        Self(Account::failing(message, false))
    }

    /// It fails with an error that says this and is not retried.
    pub fn permanent_error(message: &str) -> Self {
        Self(Account::failing(message, true))
    }

    /// The status of this object becomes as it is here; a field that is null is not there. Other fields of the object are
    /// not looked at.
    pub fn status<K: Resource<DynamicType = ()> + Serialize>(self, object: &K) -> Self {
        let (key, body) = (key(object), value(object));
        self.write(Entry::status(&K::plural(&()), &key, &body["status"]))
    }

    /// This object is created. The namespace that the request was sent to is that of the object.
    pub fn create<K: Resource<DynamicType = ()> + Serialize>(self, object: &K) -> Self {
        self.object("create", &key(object), object)
    }

    /// This object, which does not say in which namespace, is created in this one.
    pub fn create_in<K: Resource<DynamicType = ()> + Serialize>(self, namespace: &str, object: &K) -> Self {
        self.object("create", &Key::new(namespace, &key(object).name), object)
    }

    /// This is created in a subresource of the object `namespace/name`: the `eviction` of a pod, its `binding`.
    pub fn create_subresource<K: Resource<DynamicType = ()>>(
        self,
        key: &str,
        subresource: &str,
        body: Value,
    ) -> Self {
        let resource = format!("{}/{subresource}", K::plural(&()));
        self.write(Entry::sent("create", &resource, &Key::from(key), body))
    }

    /// This object takes the place of that of its name.
    pub fn update<K: Resource<DynamicType = ()> + Serialize>(self, object: &K) -> Self {
        self.object("update", &key(object), object)
    }

    /// The object `namespace/name`, or the cluster-scoped one of this name, is patched with this: a merge patch or a JSON
    /// patch.
    pub fn patch<K: Resource<DynamicType = ()>>(self, key: &str, patch: Value) -> Self {
        self.write(Entry::sent("patch", &K::plural(&()), &Key::from(key), patch))
    }

    /// The finalizers of the object `namespace/name` become these, by a merge patch.
    pub fn finalizers<K: Resource<DynamicType = ()>>(self, key: &str, finalizers: &[&str]) -> Self {
        self.patch::<K>(key, json!({ "metadata": { "finalizers": finalizers } }))
    }

    /// These fields are applied: server-side apply, whoever else owns them or not.
    pub fn apply<K: Resource<DynamicType = ()> + Serialize>(self, object: &K) -> Self {
        self.object("apply", &key(object), object)
    }

    /// This child is applied as [`Owned::apply`](reknit_reconciler::Owned::apply) does it: given as the reconciler gives
    /// it, beside its owner and controlled by it, without a status and what is null.
    ///
    /// # Panics
    ///
    /// Where it is no child that can be applied, such as one without a name.
    #[expect(clippy::expect_used, reason = "a test has to see what is wrong with it")]
    pub fn child<O, K>(self, owner: &O, child: &K) -> Self
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        K: Resource<DynamicType = (), Scope: Scope> + Serialize + Clone,
    {
        let body = applied(owner, child.clone()).expect("a child that can be applied");
        let of = |field: &str| body["metadata"][field].as_str();
        let key = Key::new(of("namespace"), of("name").unwrap_or_default());
        self.write(Entry::sent("apply", &K::plural(&()), &key, body))
    }

    /// The object `namespace/name`, or the cluster-scoped one of this name, is deleted.
    pub fn delete<K: Resource<DynamicType = ()>>(self, key: &str) -> Self {
        self.write(Entry::bare(format!("delete {} {}", K::plural(&()), Key::from(key))))
    }

    /// All objects are deleted in this namespace, or everywhere where it is empty, that the label selector selects.
    pub fn delete_collection<K: Resource<DynamicType = ()>>(self, namespace: &str, selector: &str) -> Self {
        self.write(Entry::delete_collection(&K::plural(&()), &Key::new(namespace, ""), Some(selector)))
    }

    /// The write said last is a dry run.
    ///
    /// # Panics
    ///
    /// This and the next two where no write was said.
    pub fn dry_run(self) -> Self {
        self.option("dryRun=All".into())
    }

    /// The deletion said last asks for this to become of dependents: `delete::<Pod>("shop/web").propagating(Foreground)`.
    pub fn propagating(self, policy: PropagationPolicy) -> Self {
        self.option(format!("propagationPolicy={}", value(&policy).as_str().unwrap_or_default()))
    }

    /// The collection said last is selected from by these fields, too.
    pub fn fields(self, selector: &str) -> Self {
        self.option(format!("fieldSelector={selector}"))
    }

    /// This event is recorded.
    pub fn event(mut self, event: Event) -> Self {
        self.0.events.push(event);
        self
    }

    pub(super) fn account(self) -> Account {
        self.0
    }

    #[expect(clippy::expect_used, reason = "a test has to see what is wrong with it")]
    fn option(mut self, option: String) -> Self {
        let last = self.0.writes.last_mut().expect("a write is said before what else is asked of it");
        last.options.insert(option);
        self
    }

    fn object<K: Resource<DynamicType = ()> + Serialize>(self, action: &str, key: &Key, object: &K) -> Self {
        self.write(Entry::sent(action, &K::plural(&()), key, value(object)))
    }

    fn write(mut self, entry: Entry) -> Self {
        self.0.writes.push(entry);
        self
    }
}

fn key<K: Resource>(object: &K) -> Key {
    let meta = object.meta();
    let name = meta.name.as_deref().or(meta.generate_name.as_deref());
    Key::new(meta.namespace.as_deref(), name.unwrap_or_default())
}

#[expect(clippy::expect_used, reason = "objects of Kubernetes are JSON, and this is for tests")]
fn value<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).expect("an object is JSON")
}
