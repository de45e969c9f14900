//! The state before a reconcile that a test runs.

use kube::Resource;
use reknit_apis::Key;
use reknit_injection::{Cached, Context};
use reknit_reconciler::{Controller, Result};
use serde::Serialize;
use serde_json::Value;

use super::{
    Passed,
    account::{difference, yaml},
    input::{self, Changed, Opens},
};
use crate::{ApiServer, ControllerExt, Verb, Write};

/// The state before a reconcile: objects, injected values, and requests that fail. [`pass`](Self::pass) runs the
/// reconcile.
///
/// The constructor of the controller is the one that the program uses. Its informers hold the given objects, and what
/// is written during the reconcile. An [`ApiServer`] in memory with the same objects answers its requests.
///
/// ```
/// use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Event, Outcome, Owned, ReconcileKind, Result};
/// use reknit_testing::{Verb, given};
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
/// let passed = given(shop).failing(Verb::Create, "pods", 403).pass(controller, "shop").await;
/// assert!(passed.result.is_ok());
/// assert_eq!(passed.events(), [Event::warning("NoQuota", "the namespace has no quota")]);
/// assert!(passed.writes().is_empty());
/// # }
/// ```
#[must_use = "nothing happens before `.pass(…)`"]
pub struct Given {
    server: ApiServer,
    objects: Vec<Value>,
    inputs: Vec<Opens>,
    provide: Vec<Provide>,
    system_namespace: String,
    following: bool,
}

type Provide = Box<dyn FnOnce(&Context)>;

/// Creates a state with this object.
pub fn given<K: Cached + Resource<DynamicType = ()> + Serialize>(object: K) -> Given {
    nothing().and(object)
}

/// Creates a state without objects.
pub fn nothing() -> Given {
    Given {
        server: ApiServer::new(),
        objects: Vec::new(),
        inputs: Vec::new(),
        provide: Vec::new(),
        system_namespace: "reknit-system".into(),
        following: false,
    }
}

impl Given {
    /// Adds an object. Its resourceVersion is 1 unless it has one.
    pub fn and<K: Cached + Resource<DynamicType = ()> + Serialize>(self, object: K) -> Self {
        let held = self.server.hold(&object);
        self.with::<K>(held)
    }

    /// Adds an object that this field manager applied before. A field that the manager no longer applies is removed.
    pub fn applied<K: Cached + Resource<DynamicType = ()> + Serialize>(
        self,
        object: K,
        manager: &str,
    ) -> Self {
        let held = self.server.hold_applied(&object, manager);
        self.with::<K>(held)
    }

    fn with<K: Cached + Resource<DynamicType = ()> + Serialize>(mut self, held: Value) -> Self {
        self.objects.push(held.clone());
        self.inputs.push(input::opens::<K>(held));
        self
    }

    /// Makes such requests fail with this code: `failing(Verb::Patch, "addressableservices/status", 409)`.
    pub fn failing(self, verb: Verb, resource: &str, code: u16) -> Self {
        self.server.fail(verb, resource, code);
        self
    }

    /// Makes the next `times` requests of this kind fail with this code.
    pub fn failing_times(self, verb: Verb, resource: &str, code: u16, times: usize) -> Self {
        self.server.fail_times(verb, resource, code, times);
        self
    }

    /// Adds a value to the constructor's [`Context`]. It replaces the value that would be injected.
    pub fn provide<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.provide.push(Box::new(|cx| cx.provide(value)));
        self
    }

    /// Sets the namespace of the process's ConfigMaps. The default is `reknit-system`.
    pub fn system_namespace(mut self, namespace: &str) -> Self {
        self.system_namespace = namespace.into();
        self
    }

    /// Runs the reconcile as a process that does not lead the key.
    pub fn following(mut self) -> Self {
        self.following = true;
        self
    }

    /// Runs one reconcile of this key: `namespace/name`, or the name alone of a cluster-scoped object.
    ///
    /// # Panics
    ///
    /// Panics if the constructor fails, if no object of the controller's Kind can have such a key, and if a given
    /// object was changed in memory by anything but a request.
    #[expect(clippy::panic, reason = "a test that asks for what cannot be has failed")]
    pub async fn pass(self, constructor: impl FnOnce(&Context) -> Result<Controller>, key: &str) -> Passed {
        self.tried(constructor, key).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs the reconcile, unless no object can have this key.
    pub(super) async fn tried(
        self,
        constructor: impl FnOnce(&Context) -> Result<Controller>,
        key: &str,
    ) -> Result<Passed> {
        let Self { server, objects, inputs, provide, system_namespace, following } = self;
        let (controller, inputs) = {
            let cx = Context::builder("test", server.client())
                .system_namespace(Some(system_namespace))
                .preloaded(objects)
                .build();
            provide.into_iter().for_each(|provide| provide(&cx));
            #[expect(clippy::panic, reason = "a test whose controller cannot be made has failed")]
            let controller =
                constructor(&cx).unwrap_or_else(|error| panic!("the constructor failed: {error}"));
            (controller, inputs.into_iter().filter_map(|open| open(&cx)).collect::<Vec<_>>())
        };
        let key = Key::from(key);
        controller.check_key(&key)?;
        let result =
            if following { controller.once_following(&key).await } else { controller.once(&key).await };
        let writes = server.writes();
        check_untouched(&inputs, &writes);
        Ok(Passed::new(result, controller.queued(), writes, server))
    }
}

#[expect(clippy::panic, reason = "it is an assertion")]
fn check_untouched(inputs: &[Changed], writes: &[Write]) {
    let written = input::written(writes);
    if let Some((before, after)) = inputs.iter().find_map(|changed| changed(&written)) {
        let difference = difference(&yaml(&before), &yaml(&after), "given", "now").unwrap_or_default();
        panic!("the reconcile changed a given object in memory:\n{difference}");
    }
}
