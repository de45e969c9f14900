//! Many objects: one reconcile and one status write each, and no write after a restart.

use std::{path::Path, time::Instant};

use futures::{StreamExt, stream};
use reknit::testing::eventually;
use reknit_samples::AddressableService;

use crate::support::{
    objects::Objects,
    process::{self, Process},
    proxy::{Proxy, request::Request},
    server::Server,
    wait::{TIMEOUT, wait_until_settled},
    watch_recorder::{WatchRecorder, Write, WriteCounts},
};

const OBJECTS: usize = 2_000;
const SERVICES: usize = 50;
const CONTROLLER: &str = "addressableservices.samples.knative.dev";

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_objects_take_one_reconcile_and_one_status_write_each_and_no_write_after_a_restart() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("scale").await;
    let proxy = server.proxy().await;
    let kubeconfig = proxy.kubeconfig(server.kubeconfig());
    let recorder = WatchRecorder::start::<AddressableService>(&objects.client, &objects.namespace).await;
    for n in 0..SERVICES {
        objects.create_service(&service_name(n)).await;
    }

    // Half of the objects exist when the controller starts, and half are created while it runs.
    create_objects(&objects, 0..OBJECTS / 2).await;
    let controller = start(&kubeconfig, &objects);
    let began = Instant::now();
    create_objects(&objects, OBJECTS / 2..OBJECTS).await;
    objects.wait_until_all_ready(OBJECTS).await;
    println!("{OBJECTS} objects Ready {:?} after the start", began.elapsed());
    assert_one_pass_and_one_status_write_each(&controller, &recorder, &proxy).await;
    controller.stop().await;

    proxy.clear_records();
    let before = recorder.event_count();
    let controller = start(&kubeconfig, &objects);
    let passes = settled_passes(&controller, OBJECTS).await;
    let writes = write_requests(&proxy);
    println!(
        "after a restart: {passes} passes, {} writes, {} events",
        writes.len(),
        recorder.event_count() - before
    );
    assert_eq!(passes, OBJECTS, "passes after a restart");
    assert_eq!(writes, [""; 0], "writes after a restart");
    assert_eq!(recorder.event_count(), before, "events of the objects after a restart");
    controller.stop().await;
}

/// Asserts that each object took one reconcile, one finalizer write, one status write and no other write.
async fn assert_one_pass_and_one_status_write_each(
    controller: &Process,
    recorder: &WatchRecorder,
    proxy: &Proxy,
) {
    let passes = settled_passes(controller, OBJECTS).await;
    let status_writes = recorder.counts(Write::Status);
    let finalizer_writes = recorder.counts(Write::Finalizers);
    let other_writes = recorder.counts(Write::Other).sum;
    let sent = proxy.count_requests(is_status_write);
    let unconditional = proxy.count_requests(|request| is_status_write(request) && !is_conditional(request));
    let counted =
        controller.metric("reknit_status_writes_total", &[("controller", CONTROLLER)]).await as usize;
    println!("{passes} passes; status writes sent: {sent}");
    println!("status: {status_writes:?}; finalizers: {finalizer_writes:?}; other writes: {other_writes}");
    assert_eq!(passes, OBJECTS, "passes");
    let one_each = WriteCounts { min: 1, max: 1, sum: OBJECTS };
    assert_eq!(status_writes, one_each, "status writes reported by a watch");
    assert_eq!((sent, counted), (OBJECTS, OBJECTS), "status writes sent, and counted by the controller");
    assert_eq!(unconditional, 0, "status writes without a resourceVersion");
    assert_eq!(finalizer_writes, one_each, "finalizer writes reported by a watch");
    assert_eq!(other_writes, 0, "other writes reported by a watch");
}

fn is_status_write(request: &Request) -> bool {
    request.is("patch", "addressableservices/status")
}

fn is_conditional(request: &Request) -> bool {
    request.body["metadata"]["resourceVersion"].is_string()
}

/// Waits until there were `at_least` reconciles, the queue is empty, and the number of reconciles no longer changes.
/// Returns the number.
async fn settled_passes(controller: &Process, at_least: usize) -> usize {
    let count = async || {
        controller.metric("controller_runtime_reconcile_total", &[("controller", CONTROLLER)]).await as usize
    };
    eventually(format!("{at_least} passes"), TIMEOUT, async || {
        let depth = controller.metric("workqueue_depth", &[("name", CONTROLLER)]).await;
        (count().await >= at_least && depth == 0.0).then_some(())
    })
    .await;
    wait_until_settled(std::time::Duration::from_secs(1), "the number of passes", count).await
}

/// The verb and the path of each write request so far, including those that write Kubernetes Events.
fn write_requests(proxy: &Proxy) -> Vec<String> {
    let requests = proxy.exchanges().into_iter().map(|exchange| exchange.request);
    requests.filter(Request::is_write).map(|request| format!("{} {}", request.verb, request.path)).collect()
}

fn start(kubeconfig: &Path, objects: &Objects) -> Process {
    process::controller(kubeconfig).without_leader_election().in_namespace(&objects.namespace).spawn()
}

/// Creates the AddressableServices of these numbers, sixteen at a time.
async fn create_objects(objects: &Objects, numbers: std::ops::Range<usize>) {
    let creations = stream::iter(numbers).map(|n| async move {
        objects.create_addressable(&format!("x{n}"), &service_name(n)).await;
    });
    creations.buffer_unordered(16).collect::<Vec<_>>().await;
}

fn service_name(n: usize) -> String {
    format!("web{}", n % SERVICES)
}
