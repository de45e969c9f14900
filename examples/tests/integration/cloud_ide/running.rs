//! Spaces that nodes run.

use std::{collections::BTreeSet, time::Instant};

use futures::future::join_all;
use reknit::testing::{ControlPlane, eventually};

use super::ide::Ide;
use crate::support::{file, process, wait::SOON};

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_creations_in_flight_are_all_answered() {
    const SPACES: usize = 200;
    let plane = ControlPlane::start().await.expect("a control plane");
    let namespace = plane.namespace("ide").await.expect("a namespace");
    let ide = Ide::within(&plane, &namespace).await;
    // All on one connection.
    let calls: Vec<_> = (0..SPACES)
        .map(|n| {
            let (mut client, request) = (ide.client.clone(), ide.request(&format!("space-{n}")));
            tokio::spawn(async move { client.create_space_and_wait_for_running(request).await })
        })
        .collect();
    eventually("all are created", SOON, async || ide.names().await.len() == SPACES).await;
    assert!(calls.iter().all(|call| !call.is_finished()), "there is no node yet");

    let began = Instant::now();
    plane.nodes(4).await.expect("nodes");
    let answers = join_all(calls).await;
    let places = answers.into_iter().map(|answer| answer.expect("no panic").expect("it runs").into_inner());
    let places: Vec<_> = places.collect();
    assert!(
        places
            .iter()
            .all(|place| !place.ip.is_empty() && place.port == 8443 && place.node_name.starts_with("node-"))
    );
    let addresses: BTreeSet<_> = places.iter().map(|place| &place.ip).collect();
    println!("{SPACES} in flight; all answered {:?} after the nodes were asked for", began.elapsed());
    assert_eq!(addresses.len(), SPACES, "each space has an address of its own");
    assert_eq!(ide.names().await.len(), SPACES);
    ide.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_its_own_namespace_is_enough() {
    let plane = ControlPlane::start().await.expect("a control plane");
    for name in ["role.yaml", "example.yaml"] {
        plane.apply_path(file("cloud-ide", name)).await.expect("it is applied");
    }
    let kubeconfig = plane.kubeconfig_as("cloud-ide", "cloud-ide").await.expect("a kubeconfig");
    // With leader election, and every flag its default but for the port.
    let built = process::example("cloud-ide", &kubeconfig).electing("cloud-ide", "pod-1");
    let program = built.args(&["--grpc-address", ":0"]).spawn();
    let mut ide = Ide::of(program, &plane, "cloud-ide").await;
    ide.program.ready().await;
    let (call, _) = ide.waiting("a").await;
    ide.run("a").await;
    super::ide::ended(call).await.expect("it runs");
    let by_hand =
        ide.client.get_pod_space_info(ide.query("by-hand")).await.expect("the example").into_inner();
    assert_eq!(by_hand.port, 80);
    ide.client.delete_space(ide.query("a")).await.expect("it is deleted");
    let (call, _) = ide.waiting("b").await;
    super::ide::hang_up(call).await;
    ide.gone("b").await;
    let forbidden = |line: &serde_json::Value| line.to_string().contains("forbidden");
    let lines = ide.program.stop().await;
    assert!(!lines.iter().any(forbidden), "{lines:#?}");
}
