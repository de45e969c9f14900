//! Tests of processes against a real API server.
use std::{collections::BTreeSet, future::Future, time::Duration};

use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration, coordination::v1::Lease, core::v1::ConfigMap,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{
    child::{Child, Start, failed_with_one_line, json as line},
    faulty::{LABEL, Lamp},
    life::{get, wait_for_status},
    trials,
};

trials![
    a_running_reconcile_ends_before_the_lease_is_released,
    a_reconcile_that_does_not_end_is_dropped_at_the_deadline_and_the_lease_is_released,
    only_the_leader_works_and_another_replica_takes_over_after_its_sigterm,
    replicas_of_a_stateful_set_share_the_keys_without_leases,
    a_system_namespace_that_does_not_exist_is_an_error,
    a_restart_after_sigkill_reconciles_new_objects,
    changes_of_config_logging_change_the_level,
    changes_of_config_leader_election_wait_for_the_next_start,
    a_disabled_controller_does_not_run_and_its_informer_never_starts,
    readiness_names_the_missing_kind_and_other_controllers_work,
    a_panic_of_a_reconciler_is_one_log_line_with_its_key,
    the_environment_overrides_the_number_of_workers,
    a_webhook_runs_beside_the_controllers_of_its_process,
];

pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A namespace of a control plane, with the ConfigMaps of the process.
pub(crate) struct World {
    plane: &'static ControlPlane,
    pub(crate) namespace: String,
    client: Client,
}

pub(crate) fn within<F: Future<Output = ()>>(test: impl FnOnce(World) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let plane = ControlPlane::shared().await.unwrap();
        let namespace = plane.namespace("process").await.unwrap();
        let world = World { client: plane.client().unwrap(), plane, namespace };
        test(world).await;
    });
}

impl World {
    pub(crate) fn start(&self, fault: &str) -> Start {
        let start = Start::with_fault(fault).arg("--kubeconfig").arg(self.plane.kubeconfig());
        start.env("SYSTEM_NAMESPACE", &self.namespace).env("WATCHED", &self.namespace)
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn lease_holder(&self) -> Option<String> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let lease = leases.get("faulty.maps.00-of-01").await.unwrap();
        lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty())
    }

    pub(crate) async fn set(&self, name: &str, data: serde_json::Value, watched: bool) {
        let labels = if watched { json!({ LABEL: "yes" }) } else { json!({}) };
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": data,
        });
        self.maps().patch(name, &PatchParams::apply("test").force(), &Patch::Apply(map)).await.unwrap();
    }
}

/// Waits for the start of a reconcile of this ConfigMap.
pub(crate) fn wait_for_reconcile(child: &Child, name: &str) {
    child.line(&format!("reconcile of {name} begins"));
}

fn a_running_reconcile_ends_before_the_lease_is_released() {
    within(async |world| {
        world.set("slow", json!({"sleep": "10000"}), true).await;
        let child = world.start("maps").spawn();
        wait_for_reconcile(&child, "slow");
        assert!(world.lease_holder().await.is_some());
        child.signal("TERM");
        assert_eq!(wait_for_status(&child, "/readiness", 503), "shutting down\n");
        assert!(world.lease_holder().await.is_some(), "no other replica may start while this reconcile runs");
        assert!(!child.lines().iter().any(|line| line.contains("reconcile of slow ends")));
        world.set("late", json!({}), true).await;
        let (status, lines) = child.end();
        assert_eq!(status, 0, "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("reconcile of slow ends")), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("reconcile of late begins")), "{lines:#?}");
        assert_eq!(world.lease_holder().await, None);
    });
}

fn a_reconcile_that_does_not_end_is_dropped_at_the_deadline_and_the_lease_is_released() {
    within(async |world| {
        world.set("endless", json!({"sleep": "3600000"}), true).await;
        let child = world.start("maps").arg("--shutdown-timeout=300ms").spawn();
        wait_for_reconcile(&child, "endless");
        child.signal("TERM");
        let (status, lines) = child.end();
        assert_eq!(status, 0, "{lines:#?}");
        assert!(
            lines.iter().any(|line| line.contains("dropped reconciles that were still running")),
            "{lines:#?}"
        );
        assert_eq!(world.lease_holder().await, None);
    });
}

fn only_the_leader_works_and_another_replica_takes_over_after_its_sigterm() {
    within(async |world| {
        world.set("first", json!({}), true).await;
        let start = |pod| world.start("maps").env("POD_NAME", pod);
        world
            .set(
                "config-leader-election",
                json!({"lease-duration": "60s", "renew-deadline": "40s", "retry-period": "1s"}),
                false,
            )
            .await;
        let leader = start("one").spawn();
        wait_for_reconcile(&leader, "first");
        assert!(world.lease_holder().await.unwrap().starts_with("one_"));
        let other = start("two").spawn();
        other.line("lease is held by another process");
        wait_for_status(&other, "/readiness", 200);
        world.set("second", json!({}), true).await;
        wait_for_reconcile(&leader, "second");
        assert_eq!(reconciled(&other), BTreeSet::new());
        leader.signal("TERM");
        assert_eq!(leader.end().0, 0);
        wait_for_reconcile(&other, "first");
        wait_for_reconcile(&other, "second");
    });
}

/// The names of the ConfigMaps whose reconciles have started.
fn reconciled(child: &Child) -> BTreeSet<String> {
    let started = child.lines().into_iter().filter_map(|message| {
        let message = line(&message)["message"].as_str()?.to_owned();
        Some(message.strip_prefix("reconcile of ")?.strip_suffix(" begins")?.to_owned())
    });
    started.collect()
}

fn replicas_of_a_stateful_set_share_the_keys_without_leases() {
    within(async |world| {
        world.set("config-leader-election", json!({"buckets": "2"}), false).await;
        let names: BTreeSet<String> = (0..20).map(|n| format!("map-{n}")).collect();
        for name in &names {
            world.set(name, json!({}), true).await;
        }
        let start = |ordinal| {
            let start = world.start("maps").env("STATEFUL_CONTROLLER_ORDINAL", format!("faulty-{ordinal}"));
            start.env("STATEFUL_SERVICE_NAME", "faulty").spawn()
        };
        let (zero, one) = (start(0), start(1));
        eventually("all keys to be reconciled", LONG, async || {
            let all = &reconciled(&zero) | &reconciled(&one);
            if all == names { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
        // A replica that led keys of the other one as well would have reconciled them before this one.
        world.set("last", json!({}), true).await;
        eventually("one more", LONG, async || {
            let all = &reconciled(&zero) | &reconciled(&one);
            if all.contains("last") { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
        let (zeros, ones) = (reconciled(&zero), reconciled(&one));
        println!("{} keys reconciled by ordinal 0, {} by ordinal 1", zeros.len(), ones.len());
        assert!(zeros.is_disjoint(&ones), "{zeros:?} {ones:?}");
        assert!(!zeros.is_empty() && !ones.is_empty(), "{zeros:?} {ones:?}");
        [zero, one].iter().for_each(|child| child.signal("TERM"));
        let leases: Api<Lease> = Api::namespaced(world.client.clone(), &world.namespace);
        assert_eq!(leases.list(&ListParams::default()).await.unwrap().items, []);
    });
}

fn a_system_namespace_that_does_not_exist_is_an_error() {
    within(async |world| {
        let start = || world.start("maps").env("SYSTEM_NAMESPACE", "nowhere");
        for start in [start(), start().arg("--disable-ha")] {
            let message = failed_with_one_line(start.end());
            assert!(message.starts_with("namespaces \"nowhere\" not found"), "{message}");
            assert!(message.contains("SYSTEM_NAMESPACE"), "{message}");
        }
    });
}

fn a_restart_after_sigkill_reconciles_new_objects() {
    within(async |world| {
        world.set("kept", json!({}), true).await;
        let child = world.start("maps").arg("--disable-ha").spawn();
        wait_for_reconcile(&child, "kept");
        child.signal("KILL");
        assert_eq!(child.end().0, -1);
        world.maps().delete("kept", &DeleteParams::default()).await.unwrap();
        world.set("new", json!({}), true).await;
        let child = world.start("maps").arg("--disable-ha").spawn();
        wait_for_reconcile(&child, "new");
    });
}

fn changes_of_config_logging_change_the_level() {
    within(async |world| {
        let child = world.start("maps").arg("--disable-ha").spawn();
        wait_for_status(&child, "/readiness", 200);
        world.set("config-logging", json!({"loglevel.faulty": "debug"}), false).await;
        child.line("the log level changes from info to debug");
        // The message comes before the change.
        let mut names = (0..).map(|n| format!("quiet-{n}"));
        eventually("a debug message", LONG, || {
            let (name, world, child) = (names.next().unwrap_or_default(), &world, &child);
            async move {
                world.set(&name, json!({}), true).await;
                child.lines().iter().any(|line| line.contains("a debug message"))
            }
        })
        .await;
        world.set("config-logging", json!({"loglevel.faulty": "loud"}), false).await;
        let refused = child.line("the previous settings stay in effect");
        assert!(refused.contains("loglevel.faulty: \\\"loud\\\" is not one of"), "{refused}");
        world.maps().delete("config-logging", &DeleteParams::default()).await.unwrap();
        child.line("the log level changes from debug to info");
    });
}

fn changes_of_config_leader_election_wait_for_the_next_start() {
    within(async |world| {
        world.set("first", json!({}), true).await;
        let child = world.start("maps").spawn();
        wait_for_reconcile(&child, "first");
        let set = async |data| world.set("config-leader-election", data, false).await;
        // The default, set explicitly, is no change.
        set(json!({"buckets": "1"})).await;
        set(json!({"buckets": "none"})).await;
        let refused = child.line("the previous settings stay in effect");
        assert!(refused.contains("failed to parse \\\"buckets\\\""), "{refused}");
        let warning = "leader election changes at the next start";
        assert!(!child.lines().iter().any(|line| line.contains(warning)), "{:#?}", child.lines());
        set(json!({"buckets": "2"})).await;
        let warned = child.line(warning);
        assert_eq!(line(&warned)["severity"], "WARNING");
        assert!(warned.contains("scale to 0 first"), "{warned}");
    });
}

fn a_disabled_controller_does_not_run_and_its_informer_never_starts() {
    within(async |world| {
        let start = || world.start("maps and lamps").arg("--disable-ha");
        let child = start().arg("--disable-controllers=lamps.process.reknit.dev").spawn();
        wait_for_status(&child, "/readiness", 200);
        let (_, metrics) = get(&child.address("metrics"), "/metrics");
        assert!(metrics.contains("reflector_lists_total{name=\"configmaps "), "{metrics}");
        assert!(!metrics.contains("reflector_lists_total{name=\"lamps."), "{metrics}");
        let (status, lines) = start().arg("--disable-controllers=lamps").end();
        assert_eq!(status, 2, "{lines:#?}");
        let message = line(lines.last().unwrap());
        assert_eq!(
            message["message"],
            "--disable-controllers: controller \"lamps\" does not exist, only: maps, lamps.process.reknit.dev"
        );
    });
}

fn readiness_names_the_missing_kind_and_other_controllers_work() {
    within(async |world| {
        world.set("works", json!({}), true).await;
        let child = world.start("maps and lamps").arg("--disable-ha").spawn();
        wait_for_reconcile(&child, "works");
        let why = eventually("the reason", LONG, async || {
            let (status, why) = get(&child.address("probes"), "/readiness");
            let is_expected = status == 503 && why.contains("does not know") && why.lines().count() == 1;
            is_expected.then_some(why.clone()).ok_or(why)
        })
        .await;
        assert!(why.starts_with("lamps.process.reknit.dev: waiting for lamps.process.reknit.dev"), "{why}");
        world.plane.install::<Lamp>().await.unwrap();
        wait_for_status(&child, "/readiness", 200);
        let lamps: Api<Lamp> = Api::namespaced(world.client.clone(), &world.namespace);
        lamps.create(&PostParams::default(), &Lamp::new("one", Default::default())).await.unwrap();
        child.line("lamp one seen");
    });
}

fn a_panic_of_a_reconciler_is_one_log_line_with_its_key() {
    within(async |world| {
        world.set("wrong", json!({"panic": "out of oil"}), true).await;
        let child = world.start("maps").arg("--disable-ha").spawn();
        let panic = line(&child.line("panicked: out of oil"));
        assert_eq!(panic["severity"], "ERROR");
        assert_eq!(panic["knative.dev/key"], format!("{}/wrong", world.namespace));
        world.set("right", json!({}), true).await;
        wait_for_reconcile(&child, "right");
        child.lines().iter().for_each(|message| drop(line(message)));
    });
}

fn the_environment_overrides_the_number_of_workers() {
    within(async |world| {
        for name in ["a", "b", "c", "d"] {
            world.set(name, json!({"sleep": "3600000"}), true).await;
        }
        let child = world.start("maps").arg("--disable-ha").arg("--shutdown-timeout=0s");
        let child = child.env("K_THREADS_PER_CONTROLLER", "4").spawn();
        ["a", "b", "c", "d"].iter().for_each(|name| wait_for_reconcile(&child, name));
    });
}

fn a_webhook_runs_beside_the_controllers_of_its_process() {
    within(async |world| {
        let child = world.start("maps and a webhook").env("WEBHOOK_PORT", "0").spawn();
        let name = format!("config.webhook.{}", world.namespace);
        let configuration = json!({"metadata": {"name": name}, "webhooks": [{
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": format!("https://{}/config-validation", child.address("the webhook"))},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.namespace}},
        }]});
        let configuration: ValidatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
        Api::all(world.client.clone()).create(&PostParams::default(), &configuration).await.unwrap();
        let logging = |level: &str| {
            let data = json!({"loglevel.faulty": level});
            serde_json::from_value::<ConfigMap>(json!({"metadata": {"name": "config-logging"}, "data": data}))
                .unwrap()
        };
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        eventually("a bad level to be refused", LONG, async || {
            match world.maps().create(&dry, &logging("loud")).await {
                Err(kube::Error::Api(status))
                    if status.message.contains("loglevel.faulty: \"loud\" is not") =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        world.maps().create(&dry, &logging("debug")).await.unwrap();
        world.set("one", json!({}), true).await;
        wait_for_reconcile(&child, "one");
        child.signal("TERM");
        let (status, lines) = child.end();
        assert_eq!(status, 0, "{lines:#?}");
    });
}
