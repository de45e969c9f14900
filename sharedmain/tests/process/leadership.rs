//! Tests of replicas that share, hand over and lose their Leases on a real API server.
use std::collections::BTreeSet;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use reknit_testing::eventually;
use serde_json::json;

use crate::{
    child::{Child, parse_line},
    cluster::{TIMEOUT, TestCluster, wait_for_reconcile, with_cluster},
    life_cycle::{SHUTTING_DOWN, get, wait_for_status},
    trials,
};

trials![
    a_running_reconcile_ends_before_the_lease_is_released,
    a_reconcile_that_does_not_end_is_dropped_at_the_deadline_and_the_lease_is_released,
    a_process_whose_worker_threads_are_blocked_answers_probes_and_names_the_passes,
    a_leader_whose_worker_threads_are_blocked_is_replaced_and_ends_in_time,
    only_the_leader_reconciles_and_after_its_sigterm_another_replica_takes_over,
    replicas_of_a_stateful_set_share_the_keys_without_leases,
    the_leases_of_a_process_in_another_cluster_are_owned_by_no_pod,
    a_restart_after_sigkill_reconciles_new_objects,
    a_program_with_leases_in_kube_system_warns_of_its_permission,
    processes_that_share_leases_and_select_other_namespaces_name_each_other,
];

fn a_running_reconcile_ends_before_the_lease_is_released() {
    with_cluster(async |cluster| {
        cluster.apply_map("slow", json!({"sleep": "10000"})).await;
        let child = cluster.command("maps").spawn();
        wait_for_reconcile(&child, "slow");
        assert!(cluster.lease_holder().await.is_some());
        child.signal("TERM");
        assert_eq!(wait_for_status(&child, "/readiness", 503), SHUTTING_DOWN);
        assert!(
            cluster.lease_holder().await.is_some(),
            "the lease was released while the reconcile was running"
        );
        assert!(!child.lines().iter().any(|line| line.contains("reconcile of slow ends")));
        cluster.apply_map("late", json!({})).await;
        let (status, lines) = child.wait();
        assert_eq!(status, 0, "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("reconcile of slow ends")), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("reconcile of late begins")), "{lines:#?}");
        assert_eq!(cluster.lease_holder().await, None);
    });
}

fn a_reconcile_that_does_not_end_is_dropped_at_the_deadline_and_the_lease_is_released() {
    with_cluster(async |cluster| {
        cluster.apply_map("endless", json!({"sleep": "3600000"})).await;
        let child = cluster.command("maps").arg("--shutdown-timeout=300ms").spawn();
        wait_for_reconcile(&child, "endless");
        child.signal("TERM");
        let (status, lines) = child.wait();
        assert_eq!(status, 0, "{lines:#?}");
        assert!(
            lines.iter().any(|line| line.contains("dropped reconciles that were still running")),
            "{lines:#?}"
        );
        assert_eq!(cluster.lease_holder().await, None);
    });
}

/// Applies ConfigMaps whose reconciles block more threads than the process has.
async fn block_all_threads(cluster: &TestCluster, milliseconds: &str) -> usize {
    let count = std::thread::available_parallelism().unwrap().get().max(2) + 2;
    for n in 0..count {
        cluster.apply_map(&format!("block-{n}"), json!({"block": milliseconds})).await;
    }
    count
}

fn a_process_whose_worker_threads_are_blocked_answers_probes_and_names_the_passes() {
    with_cluster(async |cluster| {
        let count = block_all_threads(&cluster, "8000").await;
        let child = cluster.command("maps").env("K_THREADS_PER_CONTROLLER", count.to_string()).spawn();
        child.wait_for_line("reconcile of block-");
        let (probes, metrics) = (child.wait_for_address("probes"), child.wait_for_address("metrics"));
        let report = "[+]workers ok: blocking code has occupied all worker threads for ";
        let health = eventually("a report of the blocked threads", TIMEOUT, async || {
            let (status, health) = get(&probes, "/health?verbose");
            assert_eq!(status, 200, "{health}");
            if health.contains(report) { Ok(health) } else { Err(health) }
        });
        let health = health.await;
        assert!(health.contains(&format!("maps {}/block-", cluster.namespace)), "{health}");
        assert_eq!(get(&probes, "/readiness").0, 200);
        assert_eq!(get(&metrics, "/metrics").0, 200);
        let warning = child.wait_for_line("move blocking code to tokio::task::spawn_blocking");
        assert!(warning.contains(&format!("maps {}/block-", cluster.namespace)), "{warning}");
        child.wait_for_line("the worker threads run again");
        assert!(!child.lines().iter().any(|line| line.contains("lost leadership")), "{:#?}", child.lines());
    });
}

fn a_leader_whose_worker_threads_are_blocked_is_replaced_and_ends_in_time() {
    with_cluster(async |cluster| {
        let times = json!({"lease-duration": "6s", "renew-deadline": "4s", "retry-period": "1s"});
        cluster.configure("config-leader-election", times).await;
        let count = block_all_threads(&cluster, "3600000").await;
        let command = || cluster.command("maps").env("K_THREADS_PER_CONTROLLER", count.to_string());
        let leader = command().arg("--shutdown-timeout=300ms").spawn();
        leader.wait_for_line("reconcile of block-");
        leader.wait_for_line("lost leadership");
        command().spawn().wait_for_line("became leader");
        leader.signal("TERM");
        let (status, lines) = leader.wait();
        assert_eq!(status, 0, "{lines:#?}");
    });
}

fn only_the_leader_reconciles_and_after_its_sigterm_another_replica_takes_over() {
    with_cluster(async |cluster| {
        cluster.apply_map("first", json!({})).await;
        let command = |pod| cluster.command("maps").env("POD_NAME", pod);
        cluster
            .configure(
                "config-leader-election",
                json!({"lease-duration": "60s", "renew-deadline": "40s", "retry-period": "1s"}),
            )
            .await;
        let leader = command("one").spawn();
        wait_for_reconcile(&leader, "first");
        assert!(cluster.lease_holder().await.unwrap().starts_with("one_"));
        let other = command("two").spawn();
        other.wait_for_line("lease is held by another process");
        let led = |child| {
            let checks = wait_for_status(child, "/readiness?verbose", 200);
            checks.lines().find(|line| line.starts_with("[+]leader-election/")).unwrap().to_owned()
        };
        assert!(led(&leader).ends_with(".00-of-01"), "{}", led(&leader));
        assert!(led(&other).ends_with(" ok: leads no bucket"), "{}", led(&other));
        cluster.apply_map("second", json!({})).await;
        wait_for_reconcile(&leader, "second");
        assert_eq!(started_reconciles(&other), BTreeSet::new());
        leader.signal("TERM");
        assert_eq!(leader.wait().0, 0);
        wait_for_reconcile(&other, "first");
        wait_for_reconcile(&other, "second");
    });
}

/// The names of the ConfigMaps whose reconciles have started.
fn started_reconciles(child: &Child) -> BTreeSet<String> {
    let started = child.lines().into_iter().filter_map(|line| {
        let message = parse_line(&line)["message"].as_str()?.to_owned();
        Some(message.strip_prefix("reconcile of ")?.strip_suffix(" begins")?.to_owned())
    });
    started.collect()
}

fn replicas_of_a_stateful_set_share_the_keys_without_leases() {
    with_cluster(async |cluster| {
        cluster.configure("config-leader-election", json!({"buckets": "2"})).await;
        let names: BTreeSet<String> = (0..20).map(|n| format!("map-{n}")).collect();
        for name in &names {
            cluster.apply_map(name, json!({})).await;
        }
        let spawn = |ordinal| {
            let command =
                cluster.command("maps").env("STATEFUL_CONTROLLER_ORDINAL", format!("faulty-{ordinal}"));
            command.env("STATEFUL_SERVICE_NAME", "faulty").spawn()
        };
        let (zero, one) = (spawn(0), spawn(1));
        eventually("all keys to be reconciled", TIMEOUT, async || {
            let all = &started_reconciles(&zero) | &started_reconciles(&one);
            if all == names { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
        // A replica that also led keys of the other would have reconciled them before `last`.
        cluster.apply_map("last", json!({})).await;
        eventually("the last key to be reconciled", TIMEOUT, async || {
            let all = &started_reconciles(&zero) | &started_reconciles(&one);
            if all.contains("last") { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
        let (zeros, ones) = (started_reconciles(&zero), started_reconciles(&one));
        println!("{} keys reconciled by ordinal 0, {} by ordinal 1", zeros.len(), ones.len());
        assert!(zeros.is_disjoint(&ones), "{zeros:?} {ones:?}");
        assert!(!zeros.is_empty() && !ones.is_empty(), "{zeros:?} {ones:?}");
        [zero, one].iter().for_each(|child| child.signal("TERM"));
        let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        assert_eq!(leases.list(&ListParams::default()).await.unwrap().items, []);
    });
}

/// The garbage collector deletes what a Pod owns that the cluster does not have.
fn the_leases_of_a_process_in_another_cluster_are_owned_by_no_pod() {
    with_cluster(async |cluster| {
        let uid = "6f3a6f2e-0000-4000-8000-000000000000";
        let _child = cluster.command("maps").env("POD_NAME", "elsewhere").env("POD_UID", uid).spawn();
        let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let held = eventually("the leases of the process", TIMEOUT, async || {
            let found = leases.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let is_member = |lease: &Lease| lease.name_any().contains(".member.");
            if found.len() > 1 && found.iter().any(is_member) {
                Ok(found)
            } else {
                Err(found.len().to_string())
            }
        })
        .await;
        let owners: Vec<_> = held.iter().flat_map(ResourceExt::owner_references).collect();
        assert!(owners.is_empty(), "{owners:?}");
    });
}

fn a_restart_after_sigkill_reconciles_new_objects() {
    with_cluster(async |cluster| {
        cluster.apply_map("kept", json!({})).await;
        let child = cluster.command("maps").arg("--disable-ha").spawn();
        wait_for_reconcile(&child, "kept");
        child.signal("KILL");
        assert_eq!(child.wait().0, -1);
        cluster.config_maps().delete("kept", &DeleteParams::default()).await.unwrap();
        cluster.apply_map("new", json!({})).await;
        let child = cluster.command("maps").arg("--disable-ha").spawn();
        wait_for_reconcile(&child, "new");
    });
}

fn a_program_with_leases_in_kube_system_warns_of_its_permission() {
    with_cluster(async |cluster| {
        let command = |namespace: &str| cluster.command("maps").env("SYSTEM_NAMESPACE", namespace);
        let is_warning = |line: &String| line.contains("the program runs in kube-system");
        for (command, is_warned) in [
            (command("kube-system"), true),
            (command("kube-system").arg("--disable-ha"), false),
            (command(&cluster.namespace), false),
        ] {
            let child = command.spawn();
            wait_for_status(&child, "/readiness", 200);
            assert_eq!(child.lines().iter().any(is_warning), is_warned, "{:#?}", child.lines());
            child.signal("TERM");
            child.wait();
        }
    });
}

fn processes_that_share_leases_and_select_other_namespaces_name_each_other() {
    with_cluster(async |cluster| {
        let times = json!({"lease-duration": "6s", "renew-deadline": "4s", "retry-period": "1s"});
        cluster.configure("config-leader-election", times).await;
        let one = cluster.command("maps").env("POD_NAME", "one").spawn();
        let other = cluster.command("maps").env("POD_NAME", "two").env("WATCHED", "default").spawn();
        let warning =
            |child: &Child| child.wait_for_line("another process shares the Leases of this controller");
        let (own, others) = (format!("namespace={}", cluster.namespace), "namespace=default");
        for (child, selects, member, other_selects) in
            [(&one, &*own, "two_", others), (&other, others, "one_", &*own)]
        {
            let line = parse_line(&warning(child));
            assert!(line["selects"].as_str().unwrap().starts_with(selects), "{line}");
            assert!(line["other_selects"].as_str().unwrap().starts_with(other_selects), "{line}");
            assert!(line["other"].as_str().unwrap().starts_with(member), "{line}");
            assert_eq!(line["knative.dev/controller"], "maps");
        }
    });
}
