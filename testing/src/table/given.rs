//! The state before a reconcile that a test runs.

use std::collections::BTreeSet;

use kube::{
    CustomResourceExt,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use reknit_apis::{Key, kubernetes_schema};
use reknit_apiserver::resource_of;
use reknit_injection::{Cached, Context, Permission};
use reknit_reconciler::{Controller, Result};
use reknit_webhook::Webhook;
use serde::Serialize;
use serde_json::Value;

use super::{
    authorization::authorize,
    comparable::{unified_diff, yaml},
    effects::Effects,
    mutation::{self, MutationCheck, StartMutationCheck},
};
use crate::{ApiServer, ControllerExt, Verb, Write};

/// The state before a reconcile: objects, injected values, and requests that fail. [`reconcile`](Self::reconcile) runs
/// the reconcile.
///
/// The constructor of the controller is the one that the program uses. The controller's informers contain the objects
/// of this state and what the reconcile writes. An [`ApiServer`] in memory with the same objects answers its requests.
///
/// ```
/// use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Event, Outcome, Owned, ReconcileKind, Result};
/// use reknit_testing::given;
///
/// struct Quotas {
///     quotas: Owned<ResourceQuota>,
/// }
///
/// impl ReconcileKind for Quotas {
///     type Kind = Namespace;
///     async fn reconcile_kind(&self, namespace: &Namespace, _status: &mut ()) -> Result<Outcome> {
///         match self.quotas.of(namespace).count() {
///             0 => Ok(Outcome::done().event(Event::warning("NoQuota", "the namespace has no quota"))),
///             _ => Ok(Outcome::done()),
///         }
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     let mut build = Controller::of::<Namespace>(cx);
///     let quotas = build.owns();
///     Ok(build.reconciler(Quotas { quotas }).build())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut shop = Namespace::default();
/// shop.metadata.name = Some("shop".into());
///
/// let effects = given(shop).reconcile(controller, "shop").await;
/// assert!(effects.result.is_ok());
/// assert_eq!(effects.events(), [Event::warning("NoQuota", "the namespace has no quota")]);
/// assert!(effects.writes().is_empty());
/// # }
/// ```
#[must_use = "nothing happens before `.reconcile(…)`"]
pub struct Given {
    pub(super) server: ApiServer,
    pub(super) component: String,
    pub(super) kinds: Vec<(GroupVersionKind, Option<(ApiResource, Scope)>)>,
    objects: Vec<Value>,
    mutation_checks: Vec<StartMutationCheck>,
    provided: Vec<Provide>,
    system_namespace: String,
    following: bool,
    /// Verbs and resources that the test takes away.
    denied: Vec<(Verb, String)>,
}

/// Adds one value to the context.
type Provide = Box<dyn FnOnce(&Context)>;

/// Creates a state with this object.
pub fn given<K: Cached + Serialize>(object: K) -> Given {
    nothing().and(object)
}

/// Creates a state without objects.
pub fn nothing() -> Given {
    Given {
        server: ApiServer::new(),
        component: "test".into(),
        kinds: Vec::new(),
        objects: Vec::new(),
        mutation_checks: Vec::new(),
        provided: Vec::new(),
        system_namespace: "reknit-system".into(),
        following: false,
        denied: Vec::new(),
    }
}

impl Given {
    /// Adds an object. A `DynamicObject` must have its apiVersion and kind. The resourceVersion is 1 unless the object
    /// has one.
    pub fn and<K: Cached + Serialize>(self, object: K) -> Self {
        let stored = self.server.insert(&object);
        self.with_stored::<K>(&resource_of(&object), stored)
    }

    /// Adds the CustomResourceDefinition of a Kind, as derived from its type, with the schema that
    /// [`kubernetes_schema`] makes of it, as in a cluster. The API server then validates, prunes and defaults objects of the
    /// Kind by its schema, and merges its lists by their keys. Add it before objects that were [applied](Self::applied).
    pub fn crd<K: CustomResourceExt>(self) -> Self {
        self.server.insert(&kubernetes_schema(K::crd()));
        self
    }

    /// Adds an object that this field manager applied before. If the reconcile applies it as the same manager without
    /// one of its fields, that field is removed.
    pub fn applied<K: Cached + Serialize>(self, object: K, manager: &str) -> Self {
        let stored = self.server.insert_applied(&object, manager);
        self.with_stored::<K>(&resource_of(&object), stored)
    }

    pub(super) fn objects(&self) -> &[Value] {
        &self.objects
    }

    /// Adds an object of a Kind that is known only at run time.
    pub(super) fn and_of(self, kind: &ApiResource, object: Value) -> Self {
        let stored = self.server.insert_of(kind, object);
        self.with_stored::<DynamicObject>(kind, stored)
    }

    fn with_stored<K: Cached + Serialize>(mut self, resource: &ApiResource, object: Value) -> Self {
        self.objects.push(object.clone());
        self.mutation_checks.push(mutation::mutation_check::<K>(resource.clone(), object));
        self
    }

    /// Makes requests of this verb and resource fail with this code: `failing(Verb::Patch, "lamps/status", 409)`.
    pub fn failing(self, verb: Verb, resource: &str, code: u16) -> Self {
        self.server.fail(verb, resource, code);
        self
    }

    /// Makes the next `times` requests of this verb and resource fail with this code.
    pub fn failing_times(self, verb: Verb, resource: &str, code: u16, times: usize) -> Self {
        self.server.fail_times(verb, resource, code, times);
        self
    }

    /// Adds a value to the constructor's [`Context`]. It replaces the value that would be injected.
    pub fn provide<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.provided.push(Box::new(|cx| cx.provide(value)));
        self
    }

    /// Sets the namespace of the process's ConfigMaps. The default is `reknit-system`.
    pub fn system_namespace(mut self, namespace: &str) -> Self {
        self.system_namespace = namespace.into();
        self
    }

    /// Makes [`reconcile`](Self::reconcile) run as in a process that does not lead the key.
    pub fn following(mut self) -> Self {
        self.following = true;
        self
    }

    /// Grants a permission that the constructor does not declare, as an additional Role in a cluster does.
    pub fn allowing(mut self, permission: Permission) -> Self {
        self.provided.push(Box::new(|cx| cx.allows(permission)));
        self
    }

    /// Takes a permission away, although the constructor declares it: `denying(Verb::Delete, "pods")`. A reconcile that
    /// sends such a request fails the test.
    pub fn denying(mut self, verb: Verb, resource: &str) -> Self {
        self.denied.push((verb, resource.into()));
        self
    }

    /// Runs one reconcile of this key: `namespace/name`, or the name alone of a cluster-scoped object.
    ///
    /// # Panics
    ///
    /// Panics if the constructor fails, or if no object of the controller's Kind can have such a key. Panics if the
    /// reconcile changed an object of this state in the cache without a request to write it. Panics if the reconcile
    /// sent a request that the declared permissions do not cover, and names the missing declaration.
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    pub async fn reconcile(
        self,
        constructor: impl FnOnce(&Context) -> Result<Controller>,
        key: &str,
    ) -> Effects {
        self.try_reconcile(constructor, key).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Constructs the program's webhook, whose caches contain the objects of this state. Its
    /// [`admit`](Webhook::admit) then answers as the webhook of a process would.
    ///
    /// ```
    /// use kube::{Client, CustomResource};
    /// use reknit_apis::kind;
    /// use reknit_injection::Context;
    /// use reknit_reconciler::Result;
    /// use reknit_testing::nothing;
    /// use reknit_webhook::{TestRequest, Webhook};
    /// use schemars::JsonSchema;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
    /// #[kube(group = "example.com", version = "v1", kind = "Lamp", namespaced)]
    /// struct LampSpec {
    ///     #[serde(default)]
    ///     watts: u32,
    /// }
    ///
    /// kind!(Lamp { defaults: |lamp| lamp.spec.watts = lamp.spec.watts.max(40) });
    ///
    /// fn webhook(_: &Context) -> Result<Webhook> {
    ///     Ok(Webhook::new("example.com").defaulting::<Lamp>())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let lamp = Lamp::new("hall", LampSpec { watts: 0 });
    /// let admitted = nothing().webhook(webhook).admit(TestRequest::create(&lamp)).await.unwrap();
    /// assert_eq!(admitted.object["spec"]["watts"], 40);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if the constructor fails.
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    pub fn webhook(self, constructor: impl FnOnce(&Context) -> Result<Webhook>) -> Webhook {
        let (cx, ..) = self.into_context();
        constructor(&cx).unwrap_or_else(|error| panic!("the constructor failed: {error}"))
    }

    /// Creates the Context of the constructor, and provides the values to it.
    fn into_context(self) -> (Context, ApiServer, Vec<StartMutationCheck>) {
        let Self { server, component, kinds, objects, mutation_checks, provided, system_namespace, .. } =
            self;
        let builder = Context::builder(&component, server.client())
            .system_namespace(Some(system_namespace))
            .preloaded(objects);
        let cx = kinds.into_iter().fold(builder, |cx, (kind, found)| cx.preloaded_kind(kind, found)).build();
        provided.into_iter().for_each(|provide| provide(&cx));
        (cx, server, mutation_checks)
    }

    /// Runs the reconcile. Fails if no object of the controller's Kind can have this key, or if the declared
    /// permissions do not cover a request.
    pub(super) async fn try_reconcile(
        self,
        constructor: impl FnOnce(&Context) -> Result<Controller>,
        key: &str,
    ) -> Result<Effects> {
        let (following, denied) = (self.following, self.denied.clone());
        let (cx, server, mutation_checks) = self.into_context();
        #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
        let controller = constructor(&cx).unwrap_or_else(|error| panic!("the constructor failed: {error}"));
        let mutation_checks: Vec<_> = mutation_checks.into_iter().filter_map(|open| open(&cx)).collect();
        let permissions = cx.permissions();
        drop(cx);
        let key = Key::from(key);
        reknit_reconciler::internal::check_key(&controller, &key)?;
        let refused = authorize(&server, permissions.clone(), denied);
        let result =
            if following { controller.once_following(&key).await } else { controller.once(&key).await };
        check_permissions(&refused.lock())?;
        let writes = server.take_writes();
        check_no_mutation(&mutation_checks, &writes);
        Ok(Effects::new(
            result,
            reknit_reconciler::internal::take_queued_with_causes(&controller),
            writes,
            server,
            permissions,
        ))
    }
}

fn check_permissions(refused: &BTreeSet<String>) -> Result<()> {
    if refused.is_empty() {
        return Ok(());
    }
    let refused = Vec::from_iter(refused.iter().cloned()).join("\n  ");
    Err(format!("the permissions of the controller do not cover a request:\n  {refused}").into())
}

#[expect(clippy::panic, reason = "a failed assertion of a test panics")]
fn check_no_mutation(checks: &[MutationCheck], writes: &[Write]) {
    let written = mutation::written(writes);
    if let Some((before, after)) = checks.iter().find_map(|check| check(&written)) {
        let diff = unified_diff(&yaml(&before), &yaml(&after), "before", "after").unwrap_or_default();
        panic!("the reconcile changed an object in the cache without a request:\n{diff}");
    }
}
