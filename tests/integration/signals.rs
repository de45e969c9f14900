//! SIGTERM and SIGKILL during reconciles.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};
use reknit::testing::eventually;

use crate::support::{
    objects::Objects,
    process::{self, Process, Signal},
    proxy::{Proxy, request::Request},
    server::Server,
    wait::{SOON, settled},
};

fn says_dropped(controller: &Process) -> bool {
    controller.lines().into_iter().any(|line| line.to_string().contains("dropped"))
}

fn is_status_write(request: &Request) -> bool {
    request.is("patch", "addressableservices/status")
}

/// Starts the sample with leader election, through a proxy.
async fn started(server: &Server, objects: &Objects, proxy: &Proxy, args: &[&str]) -> Process {
    let kubeconfig = server.kubeconfig_through(proxy, server.kubeconfig());
    let built =
        process::controller(&kubeconfig).within(&objects.namespace).electing(&objects.namespace, "pod");
    let controller = built.args(args).spawn();
    controller.ready().await;
    assert_eq!(holders(objects).await.len(), 1, "it leads");
    controller
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reconcile_in_flight_at_sigterm_finishes_and_the_lease_is_released() {
    let server = Server::shared().await;
    let objects = server.objects("term").await;
    let proxy = server.proxy().await;
    let mut controller = started(&server, &objects, &proxy, &[]).await;
    let gate = proxy.hold_answers(is_status_write);
    objects.create("x", "web").await;
    gate.arrived(1).await;

    controller.signal(Signal::TERM);
    controller.line("that it shuts down", |line| line.to_string().contains("shutting down")).await;
    settled(Duration::from_millis(500), "what it says", async || controller.lines().len()).await;
    assert!(controller.is_running(), "it did not wait for its pass:\n{}", controller.tail());
    assert_eq!(holders(&objects).await.len(), 1, "it gave up its lease before its work was done");
    gate.open();

    let status = controller.ended().await;
    assert_eq!(status.code(), Some(0), "{}", controller.tail());
    assert!(!says_dropped(&controller), "it dropped its pass:\n{}", controller.tail());
    assert_eq!(holders(&objects).await, [""; 0], "the lease is still held");
    objects.shows("x", &objects.unavailable("web")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_reconcile_at_sigterm_is_dropped_at_the_deadline() {
    let server = Server::shared().await;
    let objects = server.objects("deadline").await;
    let proxy = server.proxy().await;
    let mut controller = started(&server, &objects, &proxy, &["--shutdown-timeout", "2s"]).await;
    let gate = proxy.hold_answers(is_status_write);
    objects.create("x", "web").await;
    gate.arrived(1).await;

    controller.signal(Signal::TERM);
    let began = std::time::Instant::now();
    let status = controller.ended().await;
    println!("ended {:?} after SIGTERM with a deadline of 2 s: {status}", began.elapsed());
    assert_eq!(status.code(), Some(0), "{}", controller.tail());
    assert!(began.elapsed().as_secs_f64() >= 1.9, "it did not wait for the deadline");
    assert_eq!(holders(&objects).await, [""; 0], "the lease is still held");
    assert!(says_dropped(&controller), "nothing says that a pass was dropped:\n{}", controller.tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once_with_status_1() {
    let server = Server::shared().await;
    let objects = server.objects("second").await;
    let proxy = server.proxy().await;
    let mut controller = started(&server, &objects, &proxy, &[]).await;
    let gate = proxy.hold_answers(is_status_write);
    objects.create("x", "web").await;
    gate.arrived(1).await;

    controller.signal(Signal::TERM);
    controller.line("that it shuts down", |line| line.to_string().contains("shutting down")).await;
    controller.signal(Signal::INT);
    assert_eq!(controller.ended().await.code(), Some(1), "{}", controller.tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_sigkill_nothing_is_lost() {
    const OBJECTS: usize = 100;
    let server = Server::shared().await;
    let objects = server.objects("kill").await;
    let proxy = server.proxy().await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let start = || process::controller(&kubeconfig).alone().within(&objects.namespace).spawn();
    let mut controller = start();
    objects.create_service("web").await;
    for n in 0..OBJECTS {
        objects.create(&format!("x{n}"), "web").await;
    }
    proxy.asked("it is in the middle of its work", is_status_write).await;
    controller.signal(Signal::KILL);
    controller.ended().await;

    // An object is deleted and a Service is missing while no controller runs.
    objects.delete("x0").await;
    objects.create("y", "none").await;
    let controller = start();
    objects.gone("x0").await;
    objects.shows("y", &objects.unavailable("none")).await;
    for n in 1..OBJECTS {
        objects.ready(&format!("x{n}"), "web").await;
    }
    println!("killed amid {OBJECTS} objects; all Ready after the restart");
    controller.stop().await;
}

/// The holders of the leases of AddressableServices in the namespace.
pub(crate) async fn holders(objects: &Objects) -> Vec<String> {
    let leases: Api<Lease> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let listed = eventually("the leases", SOON, async || leases.list(&ListParams::default()).await).await;
    let ours =
        |lease: &Lease| lease.metadata.name.as_ref().is_some_and(|name| name.contains("addressableservices"));
    let holders = listed.into_iter().filter(ours).filter_map(|lease| lease.spec?.holder_identity);
    holders.filter(|holder| !holder.is_empty()).collect()
}
