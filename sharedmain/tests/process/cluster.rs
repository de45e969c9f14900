//! Processes against a real API server.
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
    life::{get, until_status},
    trials,
};

trials![
    a_pass_in_flight_at_sigterm_ends_and_the_lease_is_released,
    a_pass_that_does_not_end_is_dropped_at_the_deadline_and_the_lease_is_released,
    only_the_leader_works_and_the_other_goes_on_after_its_sigterm,
    replicas_of_a_stateful_set_share_the_keys_without_leases,
    a_system_namespace_that_does_not_exist_is_named,
    a_killed_process_loses_nothing,
    the_level_follows_config_logging_at_run_time,
    how_leaders_are_elected_is_settled_at_the_start,
    a_disabled_controller_does_not_run_and_its_informer_never_starts,
    readiness_names_the_kind_that_is_missing_and_the_others_work,
    a_panic_of_a_reconciler_is_one_line_with_its_key,
    the_number_of_workers_is_overridden,
    a_webhook_runs_beside_the_controllers_of_its_process,
];

pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A namespace of a control plane, with the process's own settings in it.
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

/// A pass of this map, while the process runs.
pub(crate) fn begun(child: &Child, name: &str) {
    child.line(&format!("pass of {name} begins"));
}

fn a_pass_in_flight_at_sigterm_ends_and_the_lease_is_released() {
    within(async |world| {
        world.set("slow", json!({"sleep": "10000"}), true).await;
        let child = world.start("maps").spawn();
        begun(&child, "slow");
        assert!(world.lease_holder().await.is_some());
        child.signal("TERM");
        assert_eq!(until_status(&child, "/readiness", 503), "shutting down\n");
        assert!(world.lease_holder().await.is_some(), "nobody else may begin while this pass runs");
        assert!(!child.lines().iter().any(|line| line.contains("pass of slow ends")));
        world.set("late", json!({}), true).await;
        let (status, lines) = child.end();
        assert_eq!(status, 0, "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("pass of slow ends")), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("pass of late begins")), "{lines:#?}");
        assert_eq!(world.lease_holder().await, None);
    });
}

fn a_pass_that_does_not_end_is_dropped_at_the_deadline_and_the_lease_is_released() {
    within(async |world| {
        world.set("endless", json!({"sleep": "3600000"}), true).await;
        let child = world.start("maps").arg("--shutdown-timeout=300ms").spawn();
        begun(&child, "endless");
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

fn only_the_leader_works_and_the_other_goes_on_after_its_sigterm() {
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
        begun(&leader, "first");
        assert!(world.lease_holder().await.unwrap().starts_with("one_"));
        let other = start("two").spawn();
        other.line("lease is held by another process");
        until_status(&other, "/readiness", 200);
        world.set("second", json!({}), true).await;
        begun(&leader, "second");
        assert_eq!(served(&other), BTreeSet::new());
        leader.signal("TERM");
        assert_eq!(leader.end().0, 0);
        begun(&other, "first");
        begun(&other, "second");
    });
}

/// The names of the maps whose passes began.
fn served(child: &Child) -> BTreeSet<String> {
    let begun = child.lines().into_iter().filter_map(|said| {
        let message = line(&said)["message"].as_str()?.to_owned();
        Some(message.strip_prefix("pass of ")?.strip_suffix(" begins")?.to_owned())
    });
    begun.collect()
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
        eventually("all keys served", LONG, async || {
            let all = &served(&zero) | &served(&one);
            if all == names { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
        // What one of them would do to the other's keys it would have done when it became leader.
        world.set("last", json!({}), true).await;
        eventually("one more", LONG, async || {
            let all = &served(&zero) | &served(&one);
            if all.contains("last") { Ok(()) } else { Err(format!("{all:?}")) }
        })
        .await;
        let (zeros, ones) = (served(&zero), served(&one));
        println!("{} keys served by ordinal 0, {} by ordinal 1", zeros.len(), ones.len());
        assert!(zeros.is_disjoint(&ones), "{zeros:?} {ones:?}");
        assert!(!zeros.is_empty() && !ones.is_empty(), "{zeros:?} {ones:?}");
        [zero, one].iter().for_each(|child| child.signal("TERM"));
        let leases: Api<Lease> = Api::namespaced(world.client.clone(), &world.namespace);
        assert_eq!(leases.list(&ListParams::default()).await.unwrap().items, []);
    });
}

fn a_system_namespace_that_does_not_exist_is_named() {
    within(async |world| {
        let start = || world.start("maps").env("SYSTEM_NAMESPACE", "nowhere");
        for start in [start(), start().arg("--disable-ha")] {
            let said = failed_with_one_line(start.end());
            assert!(said.starts_with("namespaces \"nowhere\" not found"), "{said}");
            assert!(said.contains("SYSTEM_NAMESPACE"), "{said}");
        }
    });
}

fn a_killed_process_loses_nothing() {
    within(async |world| {
        world.set("kept", json!({}), true).await;
        let child = world.start("maps").arg("--disable-ha").spawn();
        begun(&child, "kept");
        child.signal("KILL");
        assert_eq!(child.end().0, -1);
        world.maps().delete("kept", &DeleteParams::default()).await.unwrap();
        world.set("new", json!({}), true).await;
        let child = world.start("maps").arg("--disable-ha").spawn();
        begun(&child, "new");
    });
}

fn the_level_follows_config_logging_at_run_time() {
    within(async |world| {
        let child = world.start("maps").arg("--disable-ha").spawn();
        until_status(&child, "/readiness", 200);
        world.set("config-logging", json!({"loglevel.faulty": "debug"}), false).await;
        child.line("the log level changes from info to debug");
        // It says so before it does.
        let mut names = (0..).map(|n| format!("quiet-{n}"));
        eventually("a word only for debugging", LONG, || {
            let (name, world, child) = (names.next().unwrap_or_default(), &world, &child);
            async move {
                world.set(&name, json!({}), true).await;
                child.lines().iter().any(|line| line.contains("a word only for debugging"))
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

fn how_leaders_are_elected_is_settled_at_the_start() {
    within(async |world| {
        world.set("first", json!({}), true).await;
        let child = world.start("maps").spawn();
        begun(&child, "first");
        let set = async |data| world.set("config-leader-election", data, false).await;
        // As it was, though somebody says so now.
        set(json!({"buckets": "1"})).await;
        set(json!({"buckets": "none"})).await;
        let refused = child.line("the previous settings stay in effect");
        assert!(refused.contains("failed to parse \\\"buckets\\\""), "{refused}");
        let told = "leader election changes at the next start";
        assert!(!child.lines().iter().any(|line| line.contains(told)), "{:#?}", child.lines());
        set(json!({"buckets": "2"})).await;
        let warned = child.line(told);
        assert_eq!(line(&warned)["severity"], "WARNING");
        assert!(warned.contains("scale to 0 first"), "{warned}");
    });
}

fn a_disabled_controller_does_not_run_and_its_informer_never_starts() {
    within(async |world| {
        let start = || world.start("maps and lamps").arg("--disable-ha");
        let child = start().arg("--disable-controllers=lamps.process.reknit.dev").spawn();
        until_status(&child, "/readiness", 200);
        let (_, metrics) = get(&child.address("metrics"), "/metrics");
        assert!(metrics.contains("reflector_lists_total{name=\"configmaps "), "{metrics}");
        assert!(!metrics.contains("reflector_lists_total{name=\"lamps."), "{metrics}");
        let (status, lines) = start().arg("--disable-controllers=lamps").end();
        assert_eq!(status, 2, "{lines:#?}");
        let said = line(lines.last().unwrap());
        assert_eq!(
            said["message"],
            "--disable-controllers: controller \"lamps\" does not exist, only: maps, lamps.process.reknit.dev"
        );
    });
}

fn readiness_names_the_kind_that_is_missing_and_the_others_work() {
    within(async |world| {
        world.set("works", json!({}), true).await;
        let child = world.start("maps and lamps").arg("--disable-ha").spawn();
        begun(&child, "works");
        let why = eventually("the reason", LONG, async || {
            let (status, why) = get(&child.address("probes"), "/readiness");
            let told = status == 503 && why.contains("does not know") && why.lines().count() == 1;
            told.then_some(why.clone()).ok_or(why)
        })
        .await;
        assert!(why.starts_with("lamps.process.reknit.dev: waiting for lamps.process.reknit.dev"), "{why}");
        world.plane.install::<Lamp>().await.unwrap();
        until_status(&child, "/readiness", 200);
        let lamps: Api<Lamp> = Api::namespaced(world.client.clone(), &world.namespace);
        lamps.create(&PostParams::default(), &Lamp::new("one", Default::default())).await.unwrap();
        child.line("lamp one seen");
    });
}

fn a_panic_of_a_reconciler_is_one_line_with_its_key() {
    within(async |world| {
        world.set("wrong", json!({"panic": "out of oil"}), true).await;
        let child = world.start("maps").arg("--disable-ha").spawn();
        let told = line(&child.line("panicked: out of oil"));
        assert_eq!(told["severity"], "ERROR");
        assert_eq!(told["knative.dev/key"], format!("{}/wrong", world.namespace));
        world.set("right", json!({}), true).await;
        begun(&child, "right");
        child.lines().iter().for_each(|said| drop(line(said)));
    });
}

fn the_number_of_workers_is_overridden() {
    within(async |world| {
        for name in ["a", "b", "c", "d"] {
            world.set(name, json!({"sleep": "3600000"}), true).await;
        }
        let child = world.start("maps").arg("--disable-ha").arg("--shutdown-timeout=0s");
        let child = child.env("K_THREADS_PER_CONTROLLER", "4").spawn();
        ["a", "b", "c", "d"].iter().for_each(|name| begun(&child, name));
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
        begun(&child, "one");
        child.signal("TERM");
        let (status, lines) = child.end();
        assert_eq!(status, 0, "{lines:#?}");
    });
}
