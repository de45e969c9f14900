//! Kinds that the API server does not know yet.

use kube::{Api, CustomResource, api::PostParams};
use reknit::{
    prelude::*,
    testing::{ControlPlane, eventually},
};
use samples_apis::{AddressableService, AddressableServiceStatus, SimpleDeployment};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::support::{
    in_process::{InProcess, make},
    process,
    server::Server,
    wait::SOON,
};

/// A Kind whose definition is installed late.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(
    group = "tests.reknit.dev",
    version = "v1",
    kind = "Late",
    namespaced,
    status = "AddressableServiceStatus"
)]
struct LateSpec {}

kind!(Late { status: AddressableServiceStatus, conditions: knative() });

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_starts_by_itself_once_its_crd_exists_and_the_others_worked_all_along() {
    let server = Server::shared().await;
    let objects = server.objects("late").await;
    let (early, late) =
        (marking::<AddressableService>(&objects.namespace), marking::<Late>(&objects.namespace));
    let controllers = InProcess::start(server.config().expect("a configuration"), [make(late), make(early)]);

    objects.create("before", "web").await;
    objects.shows("before", &objects.unavailable("seen")).await;

    server.install::<Late>().await.expect("the CRD");
    let api: Api<Late> = Api::namespaced(objects.client.clone(), &objects.namespace);
    api.create(&PostParams::default(), &Late::new("late", LateSpec {})).await.expect("the object is created");
    eventually("the late Kind is reconciled", SOON, async || {
        let object = api.get("late").await.ok()?;
        let status = object.status?;
        (status.duck.observed_generation == Some(1)).then_some(())
    })
    .await;
    objects.create("after", "web").await;
    objects.shows("after", &objects.unavailable("seen")).await;
    controllers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_waits_for_its_crd_and_says_so() {
    let server = Server::own(ControlPlane::builder()).await;
    let objects = server.objects("absent").await;
    let proxy = server.proxy().await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let controller = process::controller(&kubeconfig).alone().spawn();
    let crd = "addressableservices.samples.knative.dev";
    let warned = controller
        .line("a warning that names the CRD", |line| {
            line["severity"] == "WARNING" && line.to_string().contains(crd)
        })
        .await;
    println!("{warned}");
    let (status, body) = controller.probe("/readiness").await;
    assert_ne!(status, 200, "ready without its Kind");
    assert!(body.contains(crd), "readiness does not name what is missing: {body}");

    let lists = || proxy.count(|request| request.is("list", "addressableservices"));
    eventually("three tries", SOON, async || lists() >= 3).await;
    let warns = |line: &&Value| line["severity"] == "WARNING" && line.to_string().contains(crd);
    let warnings = controller.lines().iter().filter(warns).count();
    println!("{} tries before the CRD was there, {warnings} warnings", lists());
    assert_eq!(warnings, 1, "it warns once a minute:\n{}", controller.tail());

    server.install::<AddressableService>().await.expect("the CRD");
    server.install::<SimpleDeployment>().await.expect("the CRD");
    objects.create_service("web").await;
    objects.create("x", "web").await;
    objects.ready("x", "web").await;
    controller.ready().await;
    controller.stop().await;
}

fn marking<K>(namespace: &str) -> impl FnOnce(&Context) -> Result<Controller> + 'static
where
    K: KRShaped + kube::core::object::HasStatus<Status = AddressableServiceStatus>,
{
    let selection = select().namespace(namespace);
    move |cx| {
        Ok(Controller::selected::<K>(cx, selection)
            .reconciler(Marking::<K>(std::marker::PhantomData))
            .build())
    }
}

struct Marking<K>(std::marker::PhantomData<fn() -> K>);

impl<K> ReconcileKind for Marking<K>
where
    K: KRShaped + kube::core::object::HasStatus<Status = AddressableServiceStatus>,
{
    type Kind = K;

    async fn reconcile_kind(&self, _: &K, status: &mut AddressableServiceStatus) -> Result<Outcome> {
        status.mark_service_unavailable("seen");
        Ok(Outcome::done())
    }
}
