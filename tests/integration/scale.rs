//! Many objects: one reconcile and one status write each, and no write after a restart.

use std::{path::Path, time::Instant};

use futures::{StreamExt, stream};
use reknit::testing::eventually;
use samples_apis::AddressableService;

use crate::support::{
    objects::Objects,
    process::{self, Process},
    proxy::{Proxy, request::Request},
    server::Server,
    tally::{Tally, Write},
    wait::{SOON, settled},
};

const OBJECTS: usize = 2_000;
const SERVICES: usize = 50;
const NAME: &str = "addressableservices.samples.knative.dev";

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_objects_take_one_reconcile_and_one_status_write_each_and_none_after_a_restart() {
    let server = Server::shared().await;
    let objects = server.objects("scale").await;
    let proxy = server.proxy().await;
    let kubeconfig = server.kubeconfig_through(&proxy, server.kubeconfig());
    let tally = Tally::of::<AddressableService>(&objects.client, &objects.namespace).await;
    for n in 0..SERVICES {
        objects.create_service(&service(n)).await;
    }

    // Half of the objects exist when the controller starts, and half are created while it runs.
    create(&objects, 0..OBJECTS / 2).await;
    let controller = start(&kubeconfig, &objects);
    let began = Instant::now();
    create(&objects, OBJECTS / 2..OBJECTS).await;
    objects.all_ready(OBJECTS).await;
    println!("{OBJECTS} objects Ready {:?} after the start", began.elapsed());
    one_pass_and_one_status_write_each(&controller, &tally, &proxy).await;
    controller.stop().await;

    proxy.forget();
    let before = tally.total();
    let controller = start(&kubeconfig, &objects);
    let passes = passes(&controller, OBJECTS).await;
    let writes = writes(&proxy);
    println!("after a restart: {passes} passes, {} writes, {} events", writes.len(), tally.total() - before);
    assert_eq!(passes, OBJECTS, "passes after a restart");
    assert_eq!(writes, [""; 0], "writes after a restart");
    assert_eq!(tally.total(), before, "events of the objects after a restart");
    controller.stop().await;
}

async fn one_pass_and_one_status_write_each(controller: &Process, tally: &Tally, proxy: &Proxy) {
    let passes = passes(controller, OBJECTS).await;
    let (fewest, most, statuses) = tally.spread(Write::Status);
    let finalizers = tally.spread(Write::Finalizers);
    let others = tally.spread(Write::Other);
    let asked = proxy.count(is_status_write);
    let bare = proxy.count(|request| is_status_write(request) && !is_preconditioned(request));
    println!(
        "{passes} passes; status events: {statuses}, {fewest} to {most} an object; status patches sent: {asked}"
    );
    let counted = controller.metric("reknit_status_writes_total", &[("controller", NAME)]).await as usize;
    println!("finalizer events: {} to {} an object; other events: {}", finalizers.0, finalizers.1, others.2);
    assert_eq!(passes, OBJECTS, "passes");
    assert_eq!((fewest, most, statuses), (1, 1, OBJECTS), "status writes seen by a watch");
    assert_eq!((asked, counted), (OBJECTS, OBJECTS), "status writes sent, and counted by the controller");
    assert_eq!(bare, 0, "status writes that name no resourceVersion");
    assert_eq!(finalizers, (1, 1, OBJECTS), "finalizer writes seen by a watch");
    assert_eq!(others.2, 0, "other writes seen by a watch");
}

fn is_status_write(request: &Request) -> bool {
    request.is("patch", "addressableservices/status")
}

fn is_preconditioned(request: &Request) -> bool {
    request.body["metadata"]["resourceVersion"].is_string()
}

/// The number of reconciles, once the queue is empty and the number no longer changes.
async fn passes(controller: &Process, at_least: usize) -> usize {
    let count = async || controller.metric("reknit_reconcile_total", &[("controller", NAME)]).await as usize;
    eventually(format!("{at_least} passes"), SOON, async || {
        let depth = controller.metric("workqueue_depth", &[("name", NAME)]).await;
        (count().await >= at_least && depth == 0.0).then_some(())
    })
    .await;
    settled(std::time::Duration::from_secs(1), "the number of passes", count).await
}

/// All write requests, including events.
fn writes(proxy: &Proxy) -> Vec<String> {
    let writes = proxy.answered().into_iter().filter(|answered| answered.request.writes());
    writes.map(|answered| format!("{} {}", answered.request.verb, answered.request.path)).collect()
}

fn start(kubeconfig: &Path, objects: &Objects) -> Process {
    process::controller(kubeconfig).alone().within(&objects.namespace).spawn()
}

async fn create(objects: &Objects, numbers: std::ops::Range<usize>) {
    let creations = stream::iter(numbers).map(|n| async move {
        objects.create(&format!("x{n}"), &service(n)).await;
    });
    creations.buffer_unordered(16).collect::<Vec<_>>().await;
}

fn service(n: usize) -> String {
    format!("web{}", n % SERVICES)
}
