//! Tests of spaces on a control plane with nodes, or with the permissions of the Role.

use std::{collections::BTreeSet, time::Instant};

use futures::future::join_all;
use reknit::testing::{ControlPlane, eventually};

use super::ide::{Ide, cancel, result};
use crate::support::{file, process, wait::TIMEOUT};

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_concurrent_calls_all_get_a_running_space() {
    const SPACES: usize = 200;
    let plane = ControlPlane::start().await.expect("a control plane");
    let namespace = plane.namespace("ide").await.expect("a namespace");
    let ide = Ide::start_in(&plane, &namespace).await;
    // All on one connection.
    let calls: Vec<_> = (0..SPACES)
        .map(|number| {
            let (mut client, request) = (ide.client.clone(), ide.request(&format!("space-{number}")));
            tokio::spawn(async move { client.create_space_and_wait_for_running(request).await })
        })
        .collect();
    eventually("all are created", TIMEOUT, async || ide.pod_names().await.len() == SPACES).await;
    assert!(calls.iter().all(|call| !call.is_finished()), "there is no node yet");

    let began = Instant::now();
    plane.nodes(4).await.expect("nodes");
    let results = join_all(calls).await;
    let infos = results.into_iter().map(|result| result.expect("no panic").expect("it runs").into_inner());
    let infos: Vec<_> = infos.collect();
    assert!(
        infos
            .iter()
            .all(|info| !info.ip.is_empty() && info.port == 8443 && info.node_name.starts_with("node-"))
    );
    let addresses: BTreeSet<_> = infos.iter().map(|info| &info.ip).collect();
    println!("{SPACES} calls; all returned {:?} after the nodes were requested", began.elapsed());
    assert_eq!(addresses.len(), SPACES, "each space has an address of its own");
    assert_eq!(ide.pod_names().await.len(), SPACES);
    ide.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_in_the_namespace_of_the_spaces_is_sufficient() {
    let plane = ControlPlane::start().await.expect("a control plane");
    for name in ["namespace.yaml", "rbac.yaml", "example.yaml"] {
        plane.apply_path(file("cloud-ide", name)).await.expect("it is applied");
    }
    let kubeconfig = plane.kubeconfig_as("cloud-ide", "cloud-ide").await.expect("a kubeconfig");
    // With leader election and default flags, except for the port.
    let command = process::example("cloud-ide", &kubeconfig).with_leader_election("cloud-ide", "pod-1");
    let program = command.args(["--grpc-address", ":0"]).spawn();
    let mut ide = Ide::new(program, &plane, "cloud-ide").await;
    ide.program.wait_until_ready().await;
    let (call, _) = ide.create_and_wait_for_pod("a").await;
    ide.set_running("a").await;
    result(call).await.expect("it runs");
    let by_hand =
        ide.client.get_pod_space_info(ide.query("by-hand")).await.expect("the example").into_inner();
    assert_eq!(by_hand.port, 80);
    ide.client.delete_space(ide.query("a")).await.expect("it is deleted");
    let (call, _) = ide.create_and_wait_for_pod("b").await;
    cancel(call).await;
    ide.wait_until_gone("b").await;
    let forbidden = |line: &serde_json::Value| line.to_string().contains("forbidden");
    let lines = ide.program.stop().await;
    assert!(!lines.iter().any(forbidden), "{lines:#?}");
}
