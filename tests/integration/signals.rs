//! SIGTERM and SIGKILL during reconciles.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::ListParams};
use reknit::testing::eventually;

use crate::support::{
    objects::Objects,
    process::{self, Process, SendSignal, Signal},
    proxy::{Proxy, request::Request},
    server::Server,
    wait::{TIMEOUT, wait_until_settled},
};

fn has_logged_a_dropped_pass(controller: &Process) -> bool {
    controller.lines().into_iter().any(|line| line.to_string().contains("dropped"))
}

fn is_status_write(request: &Request) -> bool {
    request.is("patch", "addressableservices/status")
}

/// Starts the sample controller with leader election and through the proxy, and asserts that it leads once it is ready.
async fn start_leader(server: &Server, objects: &Objects, proxy: &Proxy, args: &[&str]) -> Process {
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let builder = process::controller(&kubeconfig)
        .in_namespace(&objects.namespace)
        .with_leader_election(&objects.namespace, "pod");
    let controller = builder.args(args).spawn();
    controller.wait_until_ready().await;
    assert_eq!(lease_holders(objects).await.len(), 1, "the controller does not lead");
    controller
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reconcile_in_flight_at_sigterm_finishes_and_the_lease_is_released() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("term").await;
    let proxy = server.proxy().await;
    let mut controller = start_leader(&server, &objects, &proxy, &[]).await;
    let gate = proxy.hold_responses(is_status_write);
    objects.create_addressable("x", "web").await;
    gate.wait_for_arrivals(1).await;

    controller.signal(Signal::TERM);
    controller.wait_for_line("the shutdown", |line| line.to_string().contains("shutting down")).await;
    wait_until_settled(Duration::from_millis(500), "the log", async || controller.lines().len()).await;
    assert!(
        controller.is_running(),
        "the controller did not wait for the running pass:\n{}",
        controller.last_lines()
    );
    assert_eq!(lease_holders(&objects).await.len(), 1, "the lease was released before the pass finished");
    gate.open();

    let status = controller.wait_for_exit().await;
    assert_eq!(status.code(), Some(0), "{}", controller.last_lines());
    assert!(
        !has_logged_a_dropped_pass(&controller),
        "the running pass was dropped:\n{}",
        controller.last_lines()
    );
    assert_eq!(lease_holders(&objects).await, [""; 0], "the lease is still held");
    objects.wait_for_state("x", &objects.unavailable("web")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_reconcile_at_sigterm_is_dropped_at_the_deadline() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("deadline").await;
    let proxy = server.proxy().await;
    let mut controller = start_leader(&server, &objects, &proxy, &["--shutdown-timeout", "2s"]).await;
    let gate = proxy.hold_responses(is_status_write);
    objects.create_addressable("x", "web").await;
    gate.wait_for_arrivals(1).await;

    controller.signal(Signal::TERM);
    let began = std::time::Instant::now();
    let status = controller.wait_for_exit().await;
    println!("exited {:?} after SIGTERM with a deadline of 2 s: {status}", began.elapsed());
    assert_eq!(status.code(), Some(0), "{}", controller.last_lines());
    assert!(began.elapsed().as_secs_f64() >= 1.9, "the controller did not wait for the deadline");
    assert_eq!(lease_holders(&objects).await, [""; 0], "the lease is still held");
    assert!(
        has_logged_a_dropped_pass(&controller),
        "no log line says that a pass was dropped:\n{}",
        controller.last_lines()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_process_at_once_with_status_1() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("second").await;
    let proxy = server.proxy().await;
    let mut controller = start_leader(&server, &objects, &proxy, &[]).await;
    let gate = proxy.hold_responses(is_status_write);
    objects.create_addressable("x", "web").await;
    gate.wait_for_arrivals(1).await;

    controller.signal(Signal::TERM);
    controller.wait_for_line("the shutdown", |line| line.to_string().contains("shutting down")).await;
    controller.signal(Signal::INT);
    assert_eq!(controller.wait_for_exit().await.code(), Some(1), "{}", controller.last_lines());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_after_sigkill_catches_up_on_all_changes() {
    const OBJECTS: usize = 100;
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("kill").await;
    let proxy = server.proxy().await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let start = || {
        process::controller(&kubeconfig).without_leader_election().in_namespace(&objects.namespace).spawn()
    };
    let mut controller = start();
    objects.create_service("web").await;
    for n in 0..OBJECTS {
        objects.create_addressable(&format!("x{n}"), "web").await;
    }
    proxy.wait_for_request("the first status write", is_status_write).await;
    controller.signal(Signal::KILL);
    controller.wait_for_exit().await;

    // While no controller runs, an object is deleted, and another object is created, whose Service does not exist.
    objects.delete_addressable("x0").await;
    objects.create_addressable("y", "none").await;
    let controller = start();
    objects.wait_until_gone("x0").await;
    objects.wait_for_state("y", &objects.unavailable("none")).await;
    for n in 1..OBJECTS {
        objects.wait_until_ready(&format!("x{n}"), "web").await;
    }
    println!("killed while it reconciled {OBJECTS} objects; all are Ready after the restart");
    controller.stop().await;
}

/// The current holders of the leases of the AddressableService controller in the namespace.
pub(crate) async fn lease_holders(objects: &Objects) -> Vec<String> {
    let leases: Api<Lease> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let list = eventually("the leases", TIMEOUT, async || leases.list(&ListParams::default()).await).await;
    let is_ours =
        |lease: &Lease| lease.metadata.name.as_ref().is_some_and(|name| name.contains("addressableservices"));
    let holders = list.into_iter().filter(is_ours).filter_map(|lease| lease.spec?.holder_identity);
    holders.filter(|holder| !holder.is_empty()).collect()
}
