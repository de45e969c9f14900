//! The metrics that the programs export, against what the docs, the dashboard and the alerts name.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use reknit::testing::{ControlPlane, Program, RunningProgram, eventually};
use serde_json::json;

use crate::{
    load::Load,
    manifests::{TestResult, root},
};

const SYSTEM_NAMESPACE: &str = "knative-samples";
const TIMEOUT: Duration = Duration::from_secs(60);
/// The metrics that this test does not change, with the file and the test that read them from the endpoint of a process.
const CHANGED_ELSEWHERE: &[(&str, &str, &str)] = &[
    (
        "controller_runtime_conversion_webhook_panics_total",
        "sharedmain/tests/process/observability.rs",
        "failures_and_panics_of_conversions_are_counted",
    ),
    (
        "controller_runtime_reconcile_panics_total",
        "sharedmain/tests/process/cluster.rs",
        "a_panic_of_a_reconciler_is_logged_in_one_line_with_the_key",
    ),
    (
        "reflector_failures_total",
        "sharedmain/tests/process/cluster.rs",
        "a_missing_kind_is_reported_and_takes_nothing_else_down",
    ),
    (
        "reflector_unsynced",
        "sharedmain/tests/process/cluster.rs",
        "a_missing_kind_is_reported_and_takes_nothing_else_down",
    ),
    (
        "reknit_fight_writes_total",
        "sharedmain/tests/process/observability.rs",
        "the_writes_of_a_fight_and_the_reconciles_of_a_storm_are_counted",
    ),
    (
        "reknit_held_keys",
        "sharedmain/tests/process/brake.rs",
        "an_upgrade_changes_children_at_the_pace_of_the_brake_while_new_objects_are_reconciled_at_once",
    ),
    (
        "reknit_shadow_differing_keys",
        "samples/tests/integration/shadow.rs",
        "the_deployment_of_the_shadow_works_and_writes_nothing",
    ),
    (
        "reknit_shadow_uncompared_keys",
        "samples/tests/integration/shadow.rs",
        "the_deployment_of_the_shadow_works_and_writes_nothing",
    ),
    (
        "reknit_slow_reconciles",
        "sharedmain/tests/process/debugging.rs",
        "log_event_and_dump_say_where_a_pass_waits_for_a_silent_server",
    ),
    (
        "reknit_storm_reconciles_total",
        "sharedmain/tests/process/observability.rs",
        "the_writes_of_a_fight_and_the_reconciles_of_a_storm_are_counted",
    ),
    (
        "reknit_unprompted_writes_total",
        "sharedmain/tests/process/brake.rs",
        "an_upgrade_changes_children_at_the_pace_of_the_brake_while_new_objects_are_reconciled_at_once",
    ),
    (
        "reknit_webhook_conversion_failures_total",
        "sharedmain/tests/process/observability.rs",
        "failures_and_panics_of_conversions_are_counted",
    ),
];
/// The metrics that tests read from the registry, which the endpoint shows, since a whole process is hard to bring there: to a
/// broken Secret, an object of an older schema, a deadline, an error or a panic as planned, a thousand events at once,
/// a queue without workers, or a handover.
const CHANGED_IN_REGISTRY: &[(&str, &str, &str)] = &[
    (
        "certwatcher_read_certificate_errors_total",
        "webhook/src/certificates/metrics.rs",
        "the_expiry_is_that_of_the_last_certificate_that_could_be_read",
    ),
    (
        "controller_runtime_reconcile_timeouts_total",
        "reconciler/src/controller/tests.rs",
        "slow_passes_missed_deadlines_and_permanent_errors_are_counted",
    ),
    (
        "controller_runtime_terminal_reconcile_errors_total",
        "reconciler/src/controller/tests.rs",
        "slow_passes_missed_deadlines_and_permanent_errors_are_counted",
    ),
    (
        "controller_runtime_webhook_panics_total",
        "webhook/tests/webhook/server/responses.rs",
        "a_panic_in_the_code_of_a_kind_is_answered_with_500_and_counted",
    ),
    (
        "reflector_undecodable_objects",
        "injection/src/reflector/tests/undecodable.rs",
        "objects_that_cannot_be_decoded_are_counted_until_they_are_decodable_or_gone",
    ),
    (
        "reknit_child_fields_dropped_total",
        "reconciler/tests/integration/children/meaning.rs",
        "a_field_that_the_schema_of_a_child_lacks_is_reported_and_sent_once",
    ),
    (
        "reknit_events_dropped_total",
        "reconciler/tests/passes/events.rs",
        "recording_never_waits_and_at_most_a_thousand_events_are_pending",
    ),
    (
        "reknit_leader_election_buckets_in_transition",
        "leadership/src/tests/metrics.rs",
        "a_bucket_is_in_transition_from_the_change_of_its_member_until_that_member_leads_it",
    ),
    (
        "reknit_leader_election_buckets_unowned",
        "leadership/src/tests/metrics.rs",
        "a_bucket_is_unowned_once_its_leader_has_stopped_renewing",
    ),
    (
        "reknit_no_op_writes_total",
        "reconciler/tests/integration/storms.rs",
        "a_write_that_only_says_the_stored_state_in_another_form_is_counted_and_leads_to_no_reconcile",
    ),
    (
        "reknit_oldest_queued_seconds",
        "reconciler/src/metrics/queue.rs",
        "a_running_pass_and_a_queued_key_are_measured_before_they_end",
    ),
    (
        "workqueue_depth",
        "reconciler/tests/passes/limits.rs",
        "dropping_a_controller_that_never_ran_empties_its_queue_and_keeps_it_empty",
    ),
];
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

/// Removes a field from the status of the definition of SimpleDeployments, as if it was older than the program.
async fn forget_observed_generation(client: &Client) -> TestResult {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let field = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/observedGeneration";
    let patch = Patch::<()>::Json(serde_json::from_value(json!([{"op": "remove", "path": field}]))?);
    definitions.patch("simpledeployments.samples.knative.dev", &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Starts a part of the program.
fn start(part: &str, pod: &str, access: &Path) -> RunningProgram {
    let program = Program::new(env!("CARGO_BIN_EXE_controller"), access).args(["--only", part]);
    program.env("WEBHOOK_PORT", "0").with_leader_election(SYSTEM_NAMESPACE, pod).spawn()
}

#[test]
fn the_tests_that_change_the_other_metrics_exist_and_name_them() -> TestResult {
    for (metric, file, test) in CHANGED_ELSEWHERE.iter().chain(CHANGED_IN_REGISTRY) {
        let text = fs::read_to_string(root().join(file))?;
        assert!(text.contains(&format!("fn {test}(")), "{file} has no test {test}");
        assert!(
            text.contains(&format!("\"{metric}\"")) || text.contains(&format!("\"{metric}{{")),
            "{file}: {metric}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_that_docs_dashboard_and_alerts_name_are_exported_and_no_others() -> TestResult {
    let plane = ControlPlane::start().await?;
    plane.apply_path(root().join("config")).await?;
    forget_observed_generation(&plane.client()?).await?;
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
    tokio::select! {
        worked = load.work(webhook.address("webhook").await) => worked,
        () = wait_until_changed(&own, [&controller, &webhook]) => Ok(()),
    }
}

/// Waits until the metrics have changed, except for those that other tests change. A metric has changed if a series of it
/// is not zero.
async fn wait_until_changed(metrics: &Metrics, programs: [&RunningProgram; 2]) {
    let elsewhere = CHANGED_ELSEWHERE.iter().chain(CHANGED_IN_REGISTRY);
    let unchanged: BTreeSet<&str> = elsewhere.map(|(name, ..)| *name).collect();
    let changed = RefCell::new(BTreeSet::new());
    eventually("changes of all metrics", TIMEOUT * 2, async || {
        for program in programs {
            let text = program.metrics().await;
            let samples = text.lines().filter(|line| !line.starts_with('#'));
            let samples = samples.filter_map(|line| line.rsplit_once(' ')).filter(|(_, value)| *value != "0");
            let names = samples.filter_map(|(series, _)| series.split('{').next().map(str::to_owned));
            changed.borrow_mut().extend(names);
        }
        let changed = changed.borrow();
        let is_changed = |name: &str| changed.contains(name) || changed.contains(&format!("{name}_count"));
        let names = metrics.keys().map(String::as_str);
        let left: Vec<&str> = names.filter(|name| !is_changed(name) && !unchanged.contains(name)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("unchanged: {left:?}")) }
    })
    .await;
}
