//! Children applied on a real API server, and the requests that applying them takes.

mod content;
mod finalizing;
mod meaning;
mod ownership;
mod policies;
mod restore;

use std::sync::{Arc, Mutex};

use futures::{FutureExt, future::OptionFuture};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::ConfigMap},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    client::Body,
};
use reknit_injection::{Context, Informer, Selection, select};
use reknit_reconciler::{
    Controller, Error, Key, NotApplied, Outcome, Owned, OwnedOptions, ReconcileKind, Result,
};
use reknit_testing::{ControllerExt, eventually};
use serde_json::{Value, json};

use crate::{Fixture, TIMEOUT};

/// The Deployment to apply, which a test may change between passes.
type DesiredDeployment = Arc<Mutex<Value>>;

/// Applies the desired Deployment for every owner.
struct Applier {
    deployments: Owned<Deployment>,
    desired: DesiredDeployment,
}

impl ReconcileKind for Applier {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, owner: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let desired = serde_json::from_value(self.desired.lock().unwrap().clone())?;
        self.deployments.apply(owner, desired).await?;
        Ok(Outcome::done())
    }
}

/// A process whose controller runs passes on demand, and whose requests for single Deployments are recorded.
struct Process {
    controller: Controller,
    deployments: Informer<Deployment>,
    owners: Informer<ConfigMap>,
    recorded: Arc<Mutex<Vec<String>>>,
    key: Key,
}

impl Process {
    /// Starts a process that watches the selected Deployments and whose cache has the owner.
    async fn start(fixture: &Fixture, desired: &DesiredDeployment, selection: Selection) -> Self {
        let (client, recorded) = recording_client(&fixture.client);
        let (process, informers) = {
            let cx = Context::new("applier", client);
            (Self::new(&cx, fixture, desired, selection, recorded), cx.informers())
        };
        informers.start();
        process.deployments.synced().await;
        eventually("the owner in the cache", TIMEOUT, async || process.owners.get(&process.key)).await;
        process.take_requests();
        process
    }

    /// Creates a process whose cache has these two objects, and is not updated by a watch.
    fn without_watch(
        fixture: &Fixture,
        desired: &DesiredDeployment,
        owner: &ConfigMap,
        child: &Deployment,
    ) -> Self {
        let (client, recorded) = recording_client(&fixture.client);
        let cached = vec![serde_json::to_value(owner).unwrap(), serde_json::to_value(child).unwrap()];
        let cx = Context::preloaded("applier", client, cached);
        Self::new(&cx, fixture, desired, select(), recorded)
    }

    fn new(
        cx: &Context,
        fixture: &Fixture,
        desired: &DesiredDeployment,
        selection: Selection,
        recorded: Arc<Mutex<Vec<String>>>,
    ) -> Self {
        let selection = selection.namespace(&fixture.namespace);
        let deployments = cx.informer(selection);
        let mut build = Controller::selected::<ConfigMap>(cx, select().namespace(&fixture.namespace));
        let applier = Applier {
            deployments: build.owns_in(&deployments, OwnedOptions::default()),
            desired: desired.clone(),
        };
        let controller = build.reconciler(applier).build();
        let owners = cx.informer(select().namespace(&fixture.namespace));
        Self { controller, deployments, owners, recorded, key: Key::new(fixture.namespace.as_str(), "owner") }
    }

    async fn pass(&self) -> Result<Outcome> {
        self.controller.once(&self.key).await
    }

    /// Runs a pass that succeeds, and returns its requests.
    async fn pass_requests(&self) -> Vec<String> {
        let _ = self.pass().await.unwrap();
        self.take_requests()
    }

    /// Runs a pass that fails without writing, and returns its error.
    async fn pass_error(&self) -> Error {
        let error = self.pass().await.unwrap_err();
        let recorded = self.take_requests();
        assert!(recorded.iter().all(|request| request.starts_with("GET")), "{recorded:?}");
        error
    }

    /// Takes the requests for single Deployments that were recorded since the last call.
    fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.recorded.lock().unwrap())
    }

    /// Waits until the cached child meets the condition.
    async fn wait_for_child(&self, what: &str, condition: impl Fn(Option<&Deployment>) -> bool) {
        let child = Key { name: "child".into(), ..self.key.clone() };
        eventually(what, TIMEOUT, async || condition(self.deployments.get(&child).as_deref())).await;
    }

    async fn wait_until_owner_is_enqueued(&self, cause: &str) {
        eventually(format!("the owner to be enqueued after {cause}"), TIMEOUT, async || {
            self.controller.take_queued().contains(&self.key)
        })
        .await;
    }
}

/// Returns a client that records its requests for single Deployments, as the method and the name.
pub(crate) fn recording_client(client: &Client) -> (Client, Arc<Mutex<Vec<String>>>) {
    let (client, recorded) = (client.clone(), Arc::<Mutex<Vec<String>>>::default());
    let log = recorded.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let path = request.uri().path().to_owned();
        if let Some(name) = path.rsplit_once("/deployments/").map(|(_, name)| name) {
            log.lock().unwrap().push(format!("{} {name}", request.method()));
        }
        let client = client.clone();
        async move { client.send(request).await }
    });
    (Client::new(service, "default"), recorded)
}

/// Returns a client that awaits the hook before it sends its first patch.
pub(crate) fn client_with_hook_before_patch(
    client: &Client,
    hook: impl Future<Output = ()> + Send + 'static,
) -> Client {
    let (client, hook) = (client.clone(), Arc::new(Mutex::new(Some(hook.boxed()))));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let hook = (*request.method() == http::Method::PATCH).then(|| hook.lock().unwrap().take()).flatten();
        let client = client.clone();
        async move {
            OptionFuture::from(hook).await;
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

/// Returns the Deployments of a controller of this component. Its cache is empty, and no watch updates it.
fn deployments_of(component: &str, client: Client) -> Owned<Deployment> {
    Controller::of::<ConfigMap>(&Context::preloaded(component, client, vec![])).owns()
}

fn desired_deployment(replicas: u8) -> DesiredDeployment {
    Arc::new(Mutex::new(json!({
        "metadata": {"name": "child", "labels": {"one": "1", "two": "2"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "a", "image": "a", "ports": [{"containerPort": 80}]}]},
            },
        },
    })))
}

fn set(desired: &DesiredDeployment, pointer: &str, value: Value) {
    *desired.lock().unwrap().pointer_mut(pointer).unwrap() = value;
}

/// The cause of a failed pass.
fn not_applied(error: &Error) -> &NotApplied {
    error.source().downcast_ref().unwrap()
}

impl Fixture {
    async fn child(&self) -> Deployment {
        self.deployments().get("child").await.unwrap()
    }

    async fn replicas(&self) -> Option<i32> {
        self.child().await.spec.unwrap().replicas
    }

    /// Changes the child by another client.
    async fn change_child(&self, patch: Value) {
        self.deployments().patch("child", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Creates a Deployment of the child's name by another client.
    async fn create_foreign_deployment(&self, owner: Option<OwnerReference>, labels: Value) -> Deployment {
        let mut foreign: Deployment =
            serde_json::from_value(desired_deployment(5).lock().unwrap().clone()).unwrap();
        foreign.metadata.labels = serde_json::from_value(labels).unwrap();
        foreign.metadata.owner_references = owner.map(|owner| vec![owner]);
        self.deployments().create(&PostParams::default(), &foreign).await.unwrap()
    }

    async fn assert_unchanged(&self, foreign: &Deployment) {
        assert_eq!(self.child().await.resource_version(), foreign.resource_version());
    }
}

fn controlled_by(kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

const APPLY: &str = "PATCH child";
const NO_REQUESTS: [&str; 0] = [];
