//! Kinds whose CustomResourceDefinition does not exist when the controller starts.

use kube::{Api, CustomResource, api::PostParams};
use reknit::{
    apis::KRShaped,
    prelude::*,
    testing::{ControlPlane, Controllers, eventually},
};
use reknit_samples::{AddressableService, AddressableServiceStatus, SimpleDeployment};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::support::{process, server::Server, wait::TIMEOUT};

/// A Kind whose CRD is installed while the controller runs.
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
async fn a_controller_starts_once_its_crd_exists_and_the_others_do_not_wait_for_it() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("late").await;
    let (early, late) = (
        marking_controller::<AddressableService>(&objects.namespace),
        marking_controller::<Late>(&objects.namespace),
    );
    let controllers =
        Controllers::new(server.client().expect("a client")).controller(late).controller(early).start();

    objects.create_addressable("before", "web").await;
    objects.wait_for_state("before", &objects.unavailable("seen")).await;

    server.install::<Late>().await.expect("the CRD");
    let api: Api<Late> = Api::namespaced(objects.client.clone(), &objects.namespace);
    api.create(&PostParams::default(), &Late::new("late", LateSpec {})).await.expect("the object is created");
    eventually("the object of the Kind Late is reconciled", TIMEOUT, async || {
        let object = api.get("late").await.ok()?;
        let status = object.status?;
        (status.duck.observed_generation == Some(1)).then_some(())
    })
    .await;
    objects.create_addressable("after", "web").await;
    objects.wait_for_state("after", &objects.unavailable("seen")).await;
    controllers.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_waits_for_its_crd_which_the_readiness_probe_and_one_log_line_name() {
    let server = Server::own(ControlPlane::builder()).await;
    let objects = server.objects_in_new_namespace("absent").await;
    let proxy = server.proxy().await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let controller = process::controller(&kubeconfig).without_leader_election().spawn();
    let crd = "addressableservices.samples.knative.dev";
    let warning = controller
        .wait_for_line("a warning that names the CRD", |line| {
            line["severity"] == "WARNING" && line.to_string().contains(crd)
        })
        .await;
    println!("{warning}");
    eventually("readiness, with a report that names the CRD", TIMEOUT, async || {
        let (status, body) = controller.probe("/readiness?verbose").await;
        if status == 200 && body.contains(&format!("[!]informers/{crd} degraded")) {
            Ok(())
        } else {
            Err(body)
        }
    })
    .await;

    let lists = || proxy.count_requests(|request| request.is("list", "addressableservices"));
    eventually("three lists", TIMEOUT, async || lists() >= 3).await;
    let is_warning = |line: &&Value| line["severity"] == "WARNING" && line.to_string().contains(crd);
    let warnings = controller.lines().iter().filter(is_warning).count();
    println!("{} lists before the CRD existed, {warnings} warnings", lists());
    assert_eq!(
        warnings,
        1,
        "the warning that names the CRD is logged once a minute:\n{}",
        controller.last_lines()
    );

    server.install::<AddressableService>().await.expect("the CRD");
    server.install::<SimpleDeployment>().await.expect("the CRD");
    objects.create_service("web").await;
    objects.create_addressable("x", "web").await;
    objects.wait_until_ready("x", "web").await;
    controller.wait_until_ready().await;
    controller.stop().await;
}

/// Returns the constructor of a controller that sets `Ready` to False with the message `Service "seen" wasn't found.`
fn marking_controller<K>(namespace: &str) -> impl FnOnce(&Context) -> Result<Controller> + 'static
where
    K: KRShaped + kube::core::object::HasStatus<Status = AddressableServiceStatus>,
{
    let selection = select().namespace(namespace);
    move |cx| {
        Ok(Controller::selected::<K>(cx, selection)
            .reconciler(MarkingReconciler::<K>(std::marker::PhantomData))
            .build())
    }
}

struct MarkingReconciler<K>(std::marker::PhantomData<fn() -> K>);

impl<K> ReconcileKind for MarkingReconciler<K>
where
    K: KRShaped + kube::core::object::HasStatus<Status = AddressableServiceStatus>,
{
    type Kind = K;

    async fn reconcile_kind(&self, _: &K, status: &mut AddressableServiceStatus) -> Result<Outcome> {
        status.mark_service_unavailable("seen");
        Ok(Outcome::done())
    }
}
