//! The expected effects of a reconcile.

use kube::{Resource, api::PropagationPolicy, discovery::ApiResource};
use reknit_apis::{Key, Scope};
use reknit_apiserver::resource_of;
use reknit_injection::Cached;
use reknit_reconciler::{Event, Outcome, apply_body};
use serde::Serialize;
use serde_json::{Value, json};

use super::comparable::{ComparableEffects, WriteEffect};

/// The expected effects of a reconcile: its outcome, its writes in order, and its events in order. Any other effect is
/// a failure. [`Effects::check`](super::Effects::check) compares them with the actual effects.
///
/// These are not compared: the metadata that the API server sets (`creationTimestamp`, `deletionTimestamp`,
/// `generation`, `managedFields`); the `lastTransitionTime` of conditions in `status`; resourceVersions and uids that a
/// patch, an update or a delete carries as preconditions; the annotation in which
/// [`Owned::apply`](reknit_reconciler::Owned::apply) keeps a hash; and fields that [`ignoring`](Self::ignoring) names.
/// All other times are compared. Dry runs, propagation policies and field selectors are compared too.
///
/// ```
/// use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
/// use kube::{Api, Client, ResourceExt, api::PostParams};
/// use reknit_injection::{Context, Permission};
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
///     let mut build = Controller::of::<Namespace>(cx);
///     build.allows(Permission::of::<ConfigMap>([Verb::Create]));
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
/// let effects = given(shop()).reconcile(controller, "shop").await;
/// effects.check(Want::done().create_in("shop", &map("settings")).event(Event::normal("Made", "made the settings")));
///
/// let refused = given(shop()).failing(Verb::Create, "configmaps", 403).reconcile(controller, "shop").await;
/// let message = "inducing failure for create configmaps";
/// let event = refused.events().remove(0);
/// assert_eq!(event.reason, "InternalError");
/// refused.check(Want::error(message).create_in("shop", &map("settings")).event(event));
/// # }
/// ```
#[must_use = "it is compared by `effects.check(…)`"]
#[derive(Clone, Debug)]
pub struct Want(pub(super) ComparableEffects);

impl Want {
    /// Expects the outcome [`Outcome::done`].
    pub fn done() -> Self {
        Self::outcome(&Outcome::done())
    }

    /// Expects the outcome [`Outcome::skip`], which is also the outcome of a reconcile that finds no object.
    pub fn skip() -> Self {
        Self::outcome(&Outcome::skip())
    }

    /// Expects this outcome. Its events have to be added by [`event`](Self::event).
    pub fn outcome(outcome: &Outcome) -> Self {
        Self(ComparableEffects::of_result(&Ok(outcome.clone())))
    }

    /// Expects an error that is retried and that contains this text, in its message or in the messages of its sources.
    /// The text is compared with [`Error::in_full`](reknit_reconciler::Error::in_full), which events show too.
    pub fn error(message: &str) -> Self {
        Self(ComparableEffects::of_error(message, false))
    }

    /// Expects an error that is not retried and that contains this text, as [`error`](Self::error) does.
    pub fn permanent_error(message: &str) -> Self {
        Self(ComparableEffects::of_error(message, true))
    }

    /// Expects that the object's status is written, with the status of this object. Null fields count as absent. The
    /// rest of the object is not compared.
    pub fn status<K: Cached + Serialize>(self, object: &K) -> Self {
        let (key, body) = (key(object), value(object));
        self.add_write(WriteEffect::status(&resource_of(object).plural, &key, &body["status"]))
    }

    /// Expects that the object is created, in its own namespace.
    pub fn create<K: Cached + Serialize>(self, object: &K) -> Self {
        self.add_object_write("create", &key(object), object)
    }

    /// Expects that the object is created in this namespace, which the object itself does not name.
    pub fn create_in<K: Cached + Serialize>(self, namespace: &str, object: &K) -> Self {
        self.add_object_write("create", &Key::new(namespace, &key(object).name), object)
    }

    /// Expects that a subresource of the object `namespace/name` is created: the `eviction` of a pod, its `binding`.
    pub fn create_subresource<K: Resource<DynamicType = ()>>(
        self,
        key: &str,
        subresource: &str,
        body: Value,
    ) -> Self {
        let resource = format!("{}/{subresource}", K::plural(&()));
        self.add_write(WriteEffect::with_body("create", &resource, &Key::from(key), body))
    }

    /// Expects that the object is replaced.
    pub fn update<K: Cached + Serialize>(self, object: &K) -> Self {
        self.add_object_write("update", &key(object), object)
    }

    /// Expects a merge patch or a JSON patch of the object `namespace/name`, or of the cluster-scoped object of this
    /// name.
    pub fn patch<K: Resource<DynamicType = ()>>(self, key: &str, patch: Value) -> Self {
        self.patch_of(&ApiResource::erase::<K>(&()), key, patch)
    }

    /// Expects a patch of an object of a Kind that is known only at run time, as [`patch`](Self::patch).
    pub fn patch_of(self, kind: &ApiResource, key: &str, patch: Value) -> Self {
        self.add_write(WriteEffect::with_body("patch", &kind.plural, &Key::from(key), patch))
    }

    /// Expects a merge patch that sets the finalizers of the object `namespace/name`.
    pub fn finalizers<K: Resource<DynamicType = ()>>(self, key: &str, finalizers: &[&str]) -> Self {
        self.patch::<K>(key, json!({ "metadata": { "finalizers": finalizers } }))
    }

    /// Expects that these fields are applied by server-side apply, with or without force.
    pub fn apply<K: Cached + Serialize>(self, object: &K) -> Self {
        self.add_object_write("apply", &key(object), object)
    }

    /// Expects that the child is applied as [`Owned::apply`](reknit_reconciler::Owned::apply) applies it: in the
    /// namespace of its owner, with the owner as its controller, without a status and without null fields. Pass the
    /// child as the reconciler does. A `DynamicObject` needs its apiVersion and kind here.
    ///
    /// # Panics
    ///
    /// Panics if the child cannot be applied, for example because it has no name.
    #[expect(clippy::expect_used, reason = "a failed assertion of a test panics")]
    pub fn child<O, K>(self, owner: &O, child: &K) -> Self
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        K: Cached + Serialize,
    {
        let kind = resource_of(child);
        let body = apply_body(owner, child.clone(), &kind).expect("the child can be applied");
        let metadata_field = |field: &str| body["metadata"][field].as_str();
        let key = Key::new(metadata_field("namespace"), metadata_field("name").unwrap_or_default());
        self.add_write(WriteEffect::with_body("apply", &kind.plural, &key, body))
    }

    /// Expects that the object `namespace/name`, or the cluster-scoped object of this name, is deleted.
    pub fn delete<K: Resource<DynamicType = ()>>(self, key: &str) -> Self {
        self.delete_of(&ApiResource::erase::<K>(&()), key)
    }

    /// Expects that an object of a Kind that is known only at run time is deleted, as [`delete`](Self::delete).
    pub fn delete_of(self, kind: &ApiResource, key: &str) -> Self {
        self.add_write(WriteEffect::without_body(format!("delete {} {}", kind.plural, Key::from(key))))
    }

    /// Expects that all objects that the label selector selects are deleted in this namespace, or in all namespaces if
    /// it is empty.
    pub fn delete_collection<K: Resource<DynamicType = ()>>(self, namespace: &str, selector: &str) -> Self {
        self.add_write(WriteEffect::delete_collection(
            &K::plural(&()),
            &Key::new(namespace, ""),
            Some(selector),
        ))
    }

    /// Expects that the last write is a dry run.
    ///
    /// # Panics
    ///
    /// Panics if no write was added before.
    pub fn dry_run(self) -> Self {
        self.add_option("dryRun=All".into())
    }

    /// Expects this propagation policy of the last deletion: `delete::<Pod>("shop/web").propagating(Foreground)`. The
    /// default is `Background`. A deletion of a Job that names no policy propagates as `Orphan`, the default of the API
    /// server for Jobs.
    ///
    /// # Panics
    ///
    /// Panics if no write was added before.
    pub fn propagating(self, policy: PropagationPolicy) -> Self {
        match policy {
            PropagationPolicy::Background => self,
            other => {
                self.add_option(format!("propagationPolicy={}", value(&other).as_str().unwrap_or_default()))
            }
        }
    }

    /// Expects this field selector of the last deleted collection.
    ///
    /// # Panics
    ///
    /// Panics if no write was added before.
    pub fn fields(self, selector: &str) -> Self {
        self.add_option(format!("fieldSelector={selector}"))
    }

    /// Does not compare the field of this JSON pointer in any write, for example a time of the real clock:
    /// `ignoring("/status/lastProbeTime")`. In a status write the pointer begins with `/status` too.
    pub fn ignoring(mut self, pointer: &str) -> Self {
        self.0.ignored.push(pointer.into());
        self
    }

    /// Expects this event.
    pub fn event(mut self, event: Event) -> Self {
        self.0.events.push(event);
        self
    }

    #[expect(clippy::expect_used, reason = "a failed assertion of a test panics")]
    fn add_option(mut self, option: String) -> Self {
        let last = self.0.writes.last_mut().expect("dry_run, propagating and fields follow a write");
        last.options.insert(option);
        self
    }

    fn add_object_write<K: Cached + Serialize>(self, action: &str, key: &Key, object: &K) -> Self {
        self.add_write(WriteEffect::with_body(action, &resource_of(object).plural, key, value(object)))
    }

    fn add_write(mut self, write: WriteEffect) -> Self {
        self.0.writes.push(write);
        self
    }
}

fn key<K: Cached + Serialize>(object: &K) -> Key {
    let meta = object.meta();
    let name = meta.name.as_deref().or(meta.generate_name.as_deref());
    Key::new(meta.namespace.as_deref(), name.unwrap_or_default())
}

#[expect(clippy::expect_used, reason = "objects of Kubernetes are JSON, and this is for tests")]
fn value<K: Serialize>(object: &K) -> Value {
    // By way of the text, in which an `f32` of 0.1 is 0.1, as in a request.
    let text = serde_json::to_string(object).expect("an object is JSON");
    serde_json::from_str(&text).expect("JSON is read as it was written")
}
