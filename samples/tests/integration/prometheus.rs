//! A real Prometheus that scrapes the sample: dashboards find data, and alerts can be evaluated.

mod alerts;

use std::{
    env, fs,
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use kube::{Client, Config};
use reknit::testing::{ControlPlane, Program, RunningProgram, eventually};
use serde_json::{Value, json};

use crate::{
    load::Load,
    manifests::{SYSTEM_NAMESPACE, TestResult, root},
};

/// The time for series to appear, and for rates over the shortest range.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The series that are not observed here, with the reason. Expressions of them have no number.
const NOT_OBSERVED: [(&str, &str); 1] = [(
    "reknit_requeue_after_seconds",
    "no reconciler of the sample asks for a delay while Prometheus scrapes",
)];

/// The label of a pod's component in the ServiceMonitor.
const COMPONENT: &str = "__meta_kubernetes_pod_label_app_kubernetes_io_component";

/// Returns the configuration of a scrape for each endpoint of the ServiceMonitor. The targets are addresses by component.
fn scrape_configs(targets: &[(&str, String)], token: &str) -> TestResult<Vec<Value>> {
    let manifests = fs::read_to_string(root().join("config/monitoring/service-monitor.yaml"))?;
    let manifests: Vec<Value> = serde_saphyr::from_multiple(&manifests)?;
    let monitor =
        manifests.iter().find(|manifest| manifest["kind"] == "ServiceMonitor").ok_or("no ServiceMonitor")?;
    let static_configs: Vec<_> = targets
        .iter()
        .map(|(pod, address)| {
            let (job, namespace) = (SYSTEM_NAMESPACE, SYSTEM_NAMESPACE);
            let labels = json!({"job": job, "namespace": namespace, "pod": pod, COMPONENT: pod});
            json!({"targets": [address], "labels": labels})
        })
        .collect();
    let endpoints = monitor["spec"]["endpoints"].as_array().into_iter().flatten().enumerate();
    let configs = endpoints.map(|(n, endpoint)| -> TestResult<Value> {
        let relabelings = endpoint["relabelings"].to_string();
        let relabelings =
            relabelings.replace("sourceLabels", "source_labels").replace("targetLabel", "target_label");
        let mut config = json!({
            "job_name": format!("endpoint-{n}"), "static_configs": static_configs,
            "scheme": endpoint["scheme"].as_str().unwrap_or("http"),
            "relabel_configs": serde_json::from_str::<Value>(&relabelings)?,
            "tls_config": {"insecure_skip_verify": endpoint["tlsConfig"]["insecureSkipVerify"] == true},
        });
        if endpoint["bearerTokenFile"].is_string() {
            config["authorization"] = json!({ "credentials": token });
        }
        Ok(config)
    });
    configs.collect()
}

/// A Prometheus, which is killed on drop.
struct Prometheus {
    child: Child,
    client: Client,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // A process that has exited already cannot be killed.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

impl Prometheus {
    /// Starts the program that PROMETHEUS names.
    async fn start(folder: &Path, scrape_configs: &[Value]) -> TestResult<Self> {
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [folder.join("rules.yaml")],
            "scrape_configs": scrape_configs,
        });
        let rules = fs::read_to_string(root().join("config/monitoring/rules.yaml"))?;
        let rules: Value = serde_saphyr::from_str(&rules)?;
        // JSON is YAML.
        fs::write(folder.join("rules.yaml"), rules["spec"].to_string())?;
        fs::write(folder.join("prometheus.yaml"), config.to_string())?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let program = env::var("PROMETHEUS").map_err(|_| "PROMETHEUS is not set: run hack/prometheus.sh")?;
        let child = Command::new(program)
            .arg(format!("--config.file={}", folder.join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stderr(fs::File::create(folder.join("prometheus.log"))?)
            .spawn()?;
        let client = Client::try_from(Config::new(format!("http://127.0.0.1:{port}").parse()?))?;
        Ok(Self { child, client })
    }

    /// Returns `data` in the response of a path of the HTTP API.
    async fn get(&self, path: &str) -> Result<Value, String> {
        let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        let mut response: Value = self.client.request(request).await.map_err(|error| error.to_string())?;
        Ok(response["data"].take())
    }

    /// Waits until the expression has a sample that is a number.
    async fn wait_for_data(&self, expression: &str) {
        let path: String = url_encode(expression);
        eventually(format!("data for {expression}"), TIMEOUT, async || {
            let data = self.get(&format!("/api/v1/query?query={path}")).await?;
            let samples = data["result"].as_array().into_iter().flatten();
            match samples.filter_map(|sample| sample["value"][1].as_str()).any(|value| value != "NaN") {
                true => Ok(()),
                false => Err(data.to_string()),
            }
        })
        .await;
    }
}

fn url_encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Returns the expressions in the text of a dashboard, with values for Grafana's variables.
fn expressions(text: &str) -> TestResult<Vec<String>> {
    let quoted = text.split(r#""expr": "#).skip(1);
    let expression = |rest: &str| -> TestResult<String> {
        let first =
            serde_json::Deserializer::from_str(rest).into_iter::<String>().next().ok_or("no string")??;
        Ok(first
            .replace("$job", SYSTEM_NAMESPACE)
            .replace("$namespace", SYSTEM_NAMESPACE)
            .replace("$pod", "controller")
            .replace("$__rate_interval", "5m")
            // Draws nothing while all is well.
            .trim_end_matches(" > 0")
            .to_owned())
    };
    quoted.map(expression).collect()
}

/// Waits until each expression of kubebuilder's dashboards and of `config/monitoring` has data, and returns their number.
async fn query_dashboards(prometheus: &Prometheus) -> TestResult<usize> {
    let mut number = 0;
    let templates = env::var("KUBEBUILDER_DASHBOARDS").map_err(|_| "run hack/prometheus.sh")?;
    let files = [
        Path::new(&templates).join("runtime.go"),
        Path::new(&templates).join("resources.go"),
        root().join("config/monitoring/dashboard.json"),
    ];
    for file in files {
        for expression in expressions(&fs::read_to_string(&file)?)? {
            match NOT_OBSERVED.iter().find(|(series, _)| expression.contains(series)) {
                Some((_, why)) => println!("{expression}: {why}"),
                None => prometheus.wait_for_data(&expression).await,
            }
            number += 1;
        }
    }
    Ok(number)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Prometheus: hack/prometheus.sh"]
async fn the_dashboards_find_data_and_the_alerts_are_evaluated() -> TestResult {
    let plane = ControlPlane::start().await?;
    plane.apply_path(root().join("config")).await?;
    plane
        .apply_yaml(
            "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: prometheus},
            roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: knative-samples-metrics-reader},
            subjects: [{kind: ServiceAccount, name: prometheus, namespace: default}]}",
        )
        .await?;
    let load = Load::prepare(&plane.client()?).await?;
    let start = async |part: &str, account: &str| -> TestResult<RunningProgram> {
        let access = plane.kubeconfig_as(SYSTEM_NAMESPACE, account).await?;
        let program = Program::new(env!("CARGO_BIN_EXE_controller"), &access)
            .args(["--metrics-secure", "--only", part])
            .env("WEBHOOK_PORT", "0")
            .with_leader_election(SYSTEM_NAMESPACE, account);
        Ok(program.spawn())
    };
    let controller = start("controllers", "controller").await?;
    let webhook = start("webhook", "webhook").await?;
    let access = plane.kubeconfig_as(SYSTEM_NAMESPACE, "controller").await?;
    let shadow = Program::new(env!("CARGO_BIN_EXE_controller"), &access).args(["--shadow"]);
    let shadow = shadow.env("SYSTEM_NAMESPACE", SYSTEM_NAMESPACE).spawn();
    let addresses = [
        ("controller", controller.address("metrics").await),
        ("webhook", webhook.address("metrics").await),
        ("controller-shadow", shadow.address("metrics").await),
    ];
    let token = plane.config_as("default", "prometheus").await?.auth_info.token.ok_or("no token")?;
    let token = secrecy::ExposeSecret::expose_secret(&token).to_owned();
    let prometheus = Prometheus::start(plane.folder(), &scrape_configs(&addresses, &token)?).await?;
    prometheus.wait_for_data(&format!("count(up{{job=\"{SYSTEM_NAMESPACE}\"}} == 1) == 2")).await;
    let differing = "count(reknit_shadow_differing_keys{job=\"knative-samples-shadow\"})";
    prometheus.wait_for_data(differing).await;
    webhook.wait_until_ready().await;
    tokio::select! {
        worked = load.work(webhook.address("webhook").await) => worked?,
        number = query_dashboards(&prometheus) => {
            let number = number?;
            println!("{number} expressions of dashboards have data");
            assert!(number > 30, "only {number} expressions were found");
        }
    }

    let rules = eventually("evaluated alerts", TIMEOUT, async || {
        let groups = prometheus.get("/api/v1/rules").await?;
        let rules: Vec<Value> = groups["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        match rules.iter().all(|rule| rule["health"] == "ok") && !rules.is_empty() {
            true => Ok(rules),
            false => Err(groups.to_string()),
        }
    })
    .await;
    println!("{} alerts are evaluated", rules.len());
    Ok(())
}
