//! Tests of processes against a real API server.
use std::{future::Future, time::Duration};

use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration, coordination::v1::Lease,
        core::v1::ConfigMap, events::v1::Event,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{
    child::{Child, TestCommand, failed_with_one_line, parse_line},
    life_cycle::{get, wait_for_status},
    observability::scrape_sum,
    scenarios::{LABEL, Lamp},
    trials,
};

trials![
    a_system_namespace_that_does_not_exist_is_an_error,
    changes_of_config_logging_change_the_level,
    changes_of_config_leader_election_wait_for_the_next_start,
    a_disabled_controller_does_not_run_and_its_informer_never_starts,
    a_missing_kind_is_reported_and_takes_nothing_else_down,
    a_refused_watch_is_reported_and_takes_nothing_down,
    a_panic_of_a_reconciler_is_logged_in_one_line_with_the_key,
    the_environment_overrides_the_number_of_workers,
    a_webhook_runs_beside_the_controllers_of_its_process,
    only_clients_of_the_authority_and_the_names_of_the_environment_are_answered,
    a_process_runs_with_its_webhook_disabled_and_without_a_system_namespace,
];

/// A timeout that only a failing test reaches.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A control plane, and the system namespace of the process in it. The process also reconciles ConfigMaps of that
/// namespace.
pub(crate) struct TestCluster {
    pub(crate) plane: &'static ControlPlane,
    pub(crate) namespace: String,
    pub(crate) client: Client,
}

/// Runs a test in a namespace of its own.
pub(crate) fn with_cluster<F: Future<Output = ()>>(test: impl FnOnce(TestCluster) -> F) {
    run_on(ControlPlane::shared(), test);
}

/// Runs a test on an API server of its own, which it stops.
pub(crate) fn with_own_cluster<F: Future<Output = ()>>(test: impl FnOnce(TestCluster) -> F) {
    run_on(async { ControlPlane::start().await.map(|plane| &*Box::leak(Box::new(plane))) }, test);
}

fn run_on<F: Future<Output = ()>>(
    plane: impl Future<Output = Result<&'static ControlPlane, reknit_testing::Error>>,
    test: impl FnOnce(TestCluster) -> F,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let plane = plane.await.unwrap();
        let namespace = plane.namespace("process").await.unwrap();
        let cluster = TestCluster { client: plane.client().unwrap(), plane, namespace };
        test(cluster).await;
    });
}

impl TestCluster {
    /// Returns the command of a process that uses this cluster.
    pub(crate) fn command(&self, scenario: &str) -> TestCommand {
        let command = TestCommand::with_scenario(scenario).arg("--kubeconfig").arg(self.plane.kubeconfig());
        command.env("SYSTEM_NAMESPACE", &self.namespace).env("WATCHED", &self.namespace)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(crate) fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn events(&self) -> Api<Event> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn lease_holder(&self) -> Option<String> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.namespace);
        let lease = leases.get("faulty.maps.00-of-01").await.unwrap();
        lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty())
    }

    /// Applies a ConfigMap that the process reconciles.
    pub(crate) async fn apply_map(&self, name: &str, data: serde_json::Value) {
        self.apply(name, data, json!({ LABEL: "yes" })).await;
    }

    /// Applies a ConfigMap that configures the process.
    pub(crate) async fn configure(&self, name: &str, data: serde_json::Value) {
        self.apply(name, data, json!({})).await;
    }

    async fn apply(&self, name: &str, data: serde_json::Value, labels: serde_json::Value) {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": data,
        });
        self.config_maps()
            .patch(name, &PatchParams::apply("test").force(), &Patch::Apply(map))
            .await
            .unwrap();
    }
}

/// Waits for the start of a reconcile of this ConfigMap.
pub(crate) fn wait_for_reconcile(child: &Child, name: &str) {
    child.wait_for_line(&format!("reconcile of {name} begins"));
}

fn a_system_namespace_that_does_not_exist_is_an_error() {
    with_cluster(async |cluster| {
        let command = || cluster.command("maps").env("SYSTEM_NAMESPACE", "nowhere");
        for command in [command(), command().arg("--disable-ha")] {
            let message = failed_with_one_line(command.run());
            assert!(message.starts_with("namespaces \"nowhere\" not found"), "{message}");
            assert!(message.contains("SYSTEM_NAMESPACE"), "{message}");
        }
    });
}

fn changes_of_config_logging_change_the_level() {
    with_cluster(async |cluster| {
        let child = cluster.command("maps").arg("--disable-ha").spawn();
        wait_for_status(&child, "/readiness", 200);
        cluster.configure("config-logging", json!({"log-level.faulty": "debug"})).await;
        child.wait_for_line("log-level.faulty (is loglevel.* meant?)");
        cluster.configure("config-logging", json!({"loglevel.faulty": "debug"})).await;
        child.wait_for_line("the log level changes from info to debug");
        // The process logs this message before the change, so the first reconciles may have the old level.
        let mut names = (0..).map(|n| format!("quiet-{n}"));
        eventually("a debug message", TIMEOUT, || {
            let (name, cluster, child) = (names.next().unwrap_or_default(), &cluster, &child);
            async move {
                cluster.apply_map(&name, json!({})).await;
                child.lines().iter().any(|line| line.contains("a debug message"))
            }
        })
        .await;
        cluster.configure("config-logging", json!({"loglevel.faulty": "loud"})).await;
        let refused = child.wait_for_line("the previous settings stay in effect");
        assert!(refused.contains("loglevel.faulty: \\\"loud\\\" is not one of"), "{refused}");
        assert!(refused.contains("a process that starts now ends with this error"), "{refused}");
        cluster.config_maps().delete("config-logging", &DeleteParams::default()).await.unwrap();
        child.wait_for_line("config-logging was deleted: the defaults are used");
        child.wait_for_line("the log level changes from debug to info");
    });
}

fn changes_of_config_leader_election_wait_for_the_next_start() {
    with_cluster(async |cluster| {
        cluster.apply_map("first", json!({})).await;
        let child = cluster.command("maps").spawn();
        wait_for_reconcile(&child, "first");
        let configure = async |data| cluster.configure("config-leader-election", data).await;
        // An explicit default is not a change.
        configure(json!({"buckets": "1"})).await;
        configure(json!({"buckets": "none"})).await;
        let refused = child.wait_for_line("the previous settings stay in effect");
        assert!(refused.contains("failed to parse \\\"buckets\\\""), "{refused}");
        let warning = "leader election changes at the next start";
        assert!(!child.lines().iter().any(|line| line.contains(warning)), "{:#?}", child.lines());
        configure(json!({"buckets": "2"})).await;
        let warned = child.wait_for_line(warning);
        assert_eq!(parse_line(&warned)["severity"], "WARNING");
        assert!(warned.contains("scale to 0 first"), "{warned}");
    });
}

fn a_disabled_controller_does_not_run_and_its_informer_never_starts() {
    with_cluster(async |cluster| {
        let command = || cluster.command("maps and lamps").arg("--disable-ha");
        let child = command().arg("--disable-controllers=lamps.process.reknit.dev").spawn();
        wait_for_status(&child, "/readiness", 200);
        let (_, metrics) = get(&child.wait_for_address("metrics"), "/metrics");
        assert!(metrics.contains("reflector_lists_total{name=\"configmaps "), "{metrics}");
        assert!(!metrics.contains("reflector_lists_total{name=\"lamps."), "{metrics}");
        let (status, lines) = command().arg("--disable-controllers=lamps").run();
        assert_eq!(status, 2, "{lines:#?}");
        let message = parse_line(lines.last().unwrap());
        assert_eq!(
            message["message"],
            "--disable-controllers: there is no controller \"lamps\", only: maps, lamps.process.reknit.dev"
        );
    });
}

fn a_missing_kind_is_reported_and_takes_nothing_else_down() {
    with_cluster(async |cluster| {
        cluster.apply_map("works", json!({})).await;
        let child = cluster.command("maps, lamps and a webhook").env("WEBHOOK_PORT", "0").spawn();
        wait_for_reconcile(&child, "works");
        let report = "[!]informers/lamps.process.reknit.dev degraded: waiting for lamps.process.reknit.dev";
        let wait_for_report = async || {
            eventually("readiness with a report", TIMEOUT, async || {
                let (status, checks) = get(&child.wait_for_address("probes"), "/readiness?verbose");
                if status == 200 && checks.contains(report) { Ok(()) } else { Err(checks) }
            })
            .await;
        };
        wait_for_report().await;
        assert_eq!(get(&child.wait_for_address("probes"), "/readiness"), (200, "ok\n".into()));
        assert_eq!(get(&child.wait_for_address("probes"), "/health").0, 200);
        let (_, metrics) = get(&child.wait_for_address("metrics"), "/metrics");
        let metric = metrics.lines().find(|line| line.starts_with("reflector_unsynced{name=\"lamps."));
        assert!(metric.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
        assert!(scrape_sum(&child, "reflector_failures_total") >= 1.0);

        cluster.plane.install::<Lamp>().await.unwrap();
        let lamps: Api<Lamp> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
        lamps.create(&PostParams::default(), &Lamp::new("one", Default::default())).await.unwrap();
        child.wait_for_line("lamp one seen");
        eventually("readiness without a report", TIMEOUT, async || {
            let (status, checks) = get(&child.wait_for_address("probes"), "/readiness?verbose");
            if status == 200 && !checks.contains("[!]") { Ok(()) } else { Err(checks) }
        })
        .await;

        let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        definitions.delete("lamps.process.reknit.dev", &DeleteParams::default()).await.unwrap();
        eventually("the report, while the process stays ready", TIMEOUT, async || {
            let (status, checks) = get(&child.wait_for_address("probes"), "/readiness?verbose");
            assert_eq!(status, 200, "{checks}");
            if checks.contains(report) { Ok(()) } else { Err(checks) }
        })
        .await;
        cluster.apply_map("still-works", json!({})).await;
        wait_for_reconcile(&child, "still-works");
    });
}

fn a_refused_watch_is_reported_and_takes_nothing_down() {
    with_cluster(async |cluster| {
        cluster.apply_map("listed", json!({})).await;
        let TestCluster { plane, namespace, .. } = &cluster;
        let kubeconfig = plane.kubeconfig_as(namespace, "lister").await.unwrap();
        let metadata = json!({"name": "lister", "namespace": namespace});
        let group = "rbac.authorization.k8s.io";
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]);
        let role = json!({"apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata, "rules": rules});
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "lister"},
            "subjects": [{"kind": "ServiceAccount", "name": "lister", "namespace": namespace}],
        });
        for object in [role, binding] {
            plane.apply_yaml(&object.to_string()).await.unwrap();
        }
        let command =
            TestCommand::with_scenario("maps").arg("--disable-ha").arg("--kubeconfig").arg(kubeconfig);
        let child = command.env("SYSTEM_NAMESPACE", namespace).env("WATCHED", namespace).spawn();
        wait_for_reconcile(&child, "listed");
        eventually("readiness with a report", TIMEOUT, async || {
            let (status, checks) = get(&child.wait_for_address("probes"), "/readiness?verbose");
            let report =
                checks.lines().find(|line| line.starts_with("[!]informers/maps degraded: configmaps"));
            let is_refusal = |line: &str| {
                line.contains("cannot be watched, and changes are seen up to a minute later")
                    && line.contains("forbidden")
            };
            if status == 200 && report.is_some_and(is_refusal) { Ok(()) } else { Err(checks) }
        })
        .await;
        assert_eq!(get(&child.wait_for_address("probes"), "/health").0, 200);
    });
}

fn a_panic_of_a_reconciler_is_logged_in_one_line_with_the_key() {
    with_cluster(async |cluster| {
        cluster.apply_map("wrong", json!({"panic": "no lamp"})).await;
        let child = cluster.command("maps").arg("--disable-ha").spawn();
        let panic = parse_line(&child.wait_for_line("panicked: no lamp"));
        assert_eq!(panic["severity"], "ERROR");
        assert_eq!(panic["knative.dev/key"], format!("{}/wrong", cluster.namespace));
        eventually("the panic to be counted", TIMEOUT, async || {
            scrape_sum(&child, "controller_runtime_reconcile_panics_total") >= 1.0
        })
        .await;
        cluster.apply_map("right", json!({})).await;
        wait_for_reconcile(&child, "right");
        child.lines().iter().for_each(|message| drop(parse_line(message)));
    });
}

fn the_environment_overrides_the_number_of_workers() {
    with_cluster(async |cluster| {
        for name in ["a", "b", "c", "d"] {
            cluster.apply_map(name, json!({"sleep": "3600000"})).await;
        }
        let command = cluster.command("maps").arg("--disable-ha").arg("--shutdown-timeout=0s");
        let child = command.env("K_THREADS_PER_CONTROLLER", "4").spawn();
        ["a", "b", "c", "d"].iter().for_each(|name| wait_for_reconcile(&child, name));
    });
}

fn a_webhook_runs_beside_the_controllers_of_its_process() {
    with_cluster(async |cluster| {
        let child = cluster.command("maps and a webhook").env("WEBHOOK_PORT", "0").spawn();
        let name = format!("config.webhook.{}", cluster.namespace);
        let configuration = json!({"metadata": {"name": name}, "webhooks": [{
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": format!("https://{}/config-validation", child.wait_for_address("the webhook"))},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
        }]});
        let configuration: ValidatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
        Api::all(cluster.client.clone()).create(&PostParams::default(), &configuration).await.unwrap();
        let logging = |level: &str| {
            let data = json!({"loglevel.faulty": level});
            serde_json::from_value::<ConfigMap>(json!({"metadata": {"name": "config-logging"}, "data": data}))
                .unwrap()
        };
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        eventually("a bad level to be refused", TIMEOUT, async || {
            match cluster.config_maps().create(&dry_run, &logging("loud")).await {
                Err(kube::Error::Api(status))
                    if status.message.contains("loglevel.faulty: \"loud\" is not") =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        cluster.config_maps().create(&dry_run, &logging("debug")).await.unwrap();
        cluster.apply_map("one", json!({})).await;
        wait_for_reconcile(&child, "one");
        child.signal("TERM");
        let (status, lines) = child.wait();
        assert_eq!(status, 0, "{lines:#?}");
    });
}

/// Posts a review to a webhook with this client certificate, and returns the status of the answer.
pub(crate) async fn post_review(address: &str, client: Option<&(String, String)>) -> kube::Result<u16> {
    let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
    config.accept_invalid_certs = true;
    if let Some((certificate, key)) = client {
        let encoded =
            |pem: &str| serde_json::to_value(ByteString(pem.into())).unwrap().as_str().unwrap().to_owned();
        config.auth_info.client_certificate_data = Some(encoded(certificate));
        config.auth_info.client_key_data = Some(encoded(key).into());
    }
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config-logging"}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "kind": {"group": "", "version": "v1", "kind": "ConfigMap"}, "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "configmaps"}, "userInfo": {}, "object": map}});
    let request = http::Request::post("/config-validation").header("content-type", "application/json");
    let body = serde_json::to_vec(&review).unwrap().into();
    let response = Client::try_from(config)?.send(request.body(body).unwrap()).await?;
    Ok(response.status().as_u16())
}

fn only_clients_of_the_authority_and_the_names_of_the_environment_are_answered() {
    with_cluster(async |cluster| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issue = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let key = KeyPair::generate().unwrap();
            (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, authority.pem()).unwrap();
        let command = cluster.command("maps and a webhook").env("WEBHOOK_PORT", "0");
        let command = command.env("WEBHOOK_CLIENT_CA_FILE", file.to_str().unwrap());
        let child = command.env("WEBHOOK_CLIENT_NAMES", "front, kube-apiserver").spawn();
        let (address, known) = (child.wait_for_address("the webhook"), issue("kube-apiserver"));
        let answer = async || match post_review(&address, Some(&known)).await {
            Ok(200) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        eventually("an answer", TIMEOUT, answer).await;
        assert_eq!(post_review(&address, None).await.unwrap(), 401);
        assert_eq!(post_review(&address, Some(&issue("system:node:a"))).await.unwrap(), 401);
    });
}

fn a_process_runs_with_its_webhook_disabled_and_without_a_system_namespace() {
    with_cluster(async |cluster| {
        cluster.apply_map("works", json!({})).await;
        let laptop = || cluster.command("maps and a webhook").arg("--disable-ha").env("SYSTEM_NAMESPACE", "");
        for command in
            [laptop().arg("--disable-controllers=webhook"), laptop().env("ENABLE_WEBHOOKS", "false")]
        {
            let child = command.spawn();
            child.wait_for_line("reconcile of works ends");
            wait_for_status(&child, "/readiness", 200);
            assert!(!child.lines().iter().any(|line| line.contains("listening for the webhook")));
        }
    });
}
