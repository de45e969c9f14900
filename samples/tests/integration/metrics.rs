//! The metrics that the programs export, against what the docs, the dashboard and the alerts name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use kube::api::PostParams;
use reknit::testing::{ControlPlane, Program, RunningProgram, eventually};
use serde_json::json;

use crate::{
    load::Load,
    manifests::{TestResult, root},
};

const SYSTEM_NAMESPACE: &str = "knative-samples";
const TIMEOUT: Duration = Duration::from_secs(60);
/// The type and the labels of a metric.
type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

/// Adds the metrics of a text in the format of Prometheus.
fn add_metrics(text: &str, metrics: &mut Metrics) {
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        if let Some((name, kind)) = line.split_once(' ') {
            metrics.entry(name.into()).or_default().0 = kind.into();
        }
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, labels) = line.split_once('{').unwrap_or((line.split(' ').next().unwrap_or(line), ""));
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| series.strip_suffix(suffix));
        let base = base.filter(|base| metrics.contains_key(*base)).unwrap_or(series);
        let labels = labels.split("\",").filter_map(|label| Some(label.split_once("=\"")?.0.to_owned()));
        let (_, known) = metrics.entry(base.into()).or_default();
        known.extend(labels.filter(|label| label != "le"));
    }
}

/// The metrics in the table of docs/operations.md, by their changes.
fn documented() -> TestResult<Metrics> {
    let page = fs::read_to_string(root().join("docs/operations.md"))?;
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.split('|').map(str::trim).skip(2);
        let (series, change) = (cells.next()?.strip_prefix('`')?.strip_suffix('`')?, cells.next()?);
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let kind = match change {
            change if change.starts_with("+1") => "counter",
            change if change.starts_with("observes ") => "histogram",
            change if change.starts_with("is ") => "gauge",
            _ => return None,
        };
        let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty());
        Some((name.to_owned(), (kind.to_owned(), labels.map(str::to_owned).collect())))
    });
    Ok(rows.collect())
}

/// The names of series in a text.
fn series_in(text: &str) -> impl Iterator<Item = &str> {
    let prefixes = [
        "certwatcher_",
        "controller_runtime_",
        "leader_election_",
        "process_",
        "reflector_",
        "reknit_",
        "rest_client_",
        "workqueue_",
    ];
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(move |word| prefixes.iter().any(|prefix| word.starts_with(prefix)))
}

/// Starts a part of the program.
fn start(part: &str, pod: &str, access: &Path) -> RunningProgram {
    let program = Program::new(env!("CARGO_BIN_EXE_controller"), access).args(["--only", part]);
    program.env("WEBHOOK_PORT", "0").with_leader_election(SYSTEM_NAMESPACE, pod).spawn()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_that_docs_dashboard_and_alerts_name_are_exported_and_no_others() -> TestResult {
    let plane = ControlPlane::start().await?;
    plane.apply_path(root().join("config")).await?;
    let load = Load::prepare(&plane.client()?).await?;
    let service = json!({"apiVersion": "samples.knative.dev/v1alpha1", "kind": "AddressableService",
        "metadata": {"name": "paused", "annotations": {"reknit.dev/paused": ""}}, "spec": {"serviceName": "a"}});
    load.services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    let controller_access = plane.kubeconfig_as(SYSTEM_NAMESPACE, "controller").await?;
    let controller = start("controllers", "controller", &controller_access);
    eventually("a child and a paused object", TIMEOUT, async || {
        let counts = [
            controller.metric("reknit_children_total", &[("result", "created")]).await,
            controller.metric("reknit_paused_keys", &[]).await,
        ];
        if counts == [1.0, 1.0] { Ok(()) } else { Err(format!("{counts:?}")) }
    })
    .await;
    let webhook_access = plane.kubeconfig_as(SYSTEM_NAMESPACE, "webhook").await?;
    let webhook = start("webhook", "webhook", &webhook_access);
    let shadow = Program::new(env!("CARGO_BIN_EXE_controller"), &controller_access).args(["--shadow"]);
    let shadow = shadow.env("SYSTEM_NAMESPACE", SYSTEM_NAMESPACE).spawn();
    let documented = documented()?;
    let exported = eventually("the documented metrics", TIMEOUT, async || {
        let mut metrics = Metrics::new();
        for program in [&controller, &webhook, &shadow] {
            add_metrics(&program.metrics().await, &mut metrics);
        }
        let missing: Vec<_> = documented.keys().filter(|name| !metrics.contains_key(*name)).collect();
        if missing.is_empty() { Ok(metrics) } else { Err(format!("{missing:?}: {}", webhook.last_lines())) }
    })
    .await;
    let own: Metrics = exported
        .iter()
        .filter(|(name, _)| !name.starts_with("process_"))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    assert_eq!(documented, own, "docs/operations.md on the left, the endpoints on the right");
    for file in ["config/monitoring/rules.yaml", "config/monitoring/dashboard.json"] {
        let text = fs::read_to_string(root().join(file))?;
        let is_exported = |series: &&str| {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| series.strip_suffix(suffix));
            exported.contains_key(*series) || base.is_some_and(|base| exported.contains_key(base))
        };
        let unknown: Vec<_> = series_in(&text).filter(|series| !is_exported(series)).collect();
        assert_eq!(unknown, [""; 0], "{file} names series that are not exported");
    }
    Ok(())
}
