//! Tests of metrics and traces, with a fake collector and a real API server.
use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};
use reknit_testing::eventually;
use serde_json::{Value, json};

use crate::{
    child::{Child, TestCommand, failed_with_one_line},
    cluster::{TIMEOUT, TestCluster, wait_for_reconcile, with_cluster},
    collector::{Collector, TENANT, attributes, value},
    life_cycle::{self, wait_for_status},
    server, trials,
};

trials![
    the_metrics_pushed_over_grpc_and_scraped_by_prometheus_are_the_same,
    the_metrics_pushed_over_http_and_scraped_by_prometheus_are_the_same,
    reconciles_are_traced_over_grpc_with_key_and_result,
    reconciles_are_traced_over_http_with_key_and_result,
    the_span_of_a_pass_is_linked_with_that_of_the_pass_that_led_to_it,
    failures_and_panics_of_conversions_are_counted,
    the_writes_of_a_fight_and_the_reconciles_of_a_storm_are_counted,
    traces_on_standard_output_are_lines_of_json,
    nothing_is_traced_at_a_sampling_rate_of_zero,
    an_unreachable_collector_is_logged_once_and_gets_the_spans_later,
    a_collector_that_never_responds_delays_neither_reconciles_nor_the_shutdown,
    spans_without_a_collector_do_not_fill_the_memory,
    changes_of_the_export_settings_wait_for_the_next_start,
    the_error_of_an_invalid_setting_has_the_allowed_values,
    the_error_of_a_profiling_port_in_use_names_its_variable,
];

impl TestCluster {
    pub(crate) async fn configure_observability(&self, data: Value) {
        self.configure("config-observability", data).await;
    }

    /// Applies three ConfigMaps, and returns the command of a process that reconciles them without leader election.
    pub(crate) async fn command_with_three_maps(&self) -> TestCommand {
        for name in ["a", "b", "c"] {
            self.apply_map(name, json!({})).await;
        }
        self.command("maps").arg("--disable-ha")
    }
}

pub(crate) fn wait_for_all_reconciles(child: &Child) {
    ["a", "b", "c"].iter().for_each(|name| wait_for_reconcile(child, name));
}

fn the_metrics_pushed_over_grpc_and_scraped_by_prometheus_are_the_same() {
    metrics_are_pushed("grpc");
}

fn the_metrics_pushed_over_http_and_scraped_by_prometheus_are_the_same() {
    metrics_are_pushed("http/protobuf");
}

const QUEUE_LABEL: (&str, &str) = ("name", "maps");
const CONTROLLER_LABEL: (&str, &str) = ("controller", "maps");
const RESULT_LABEL: (&str, &str) = ("result", "success");

/// Metrics of three finished reconciles. Each row has the line of /metrics, and name, label and value of the pushed
/// metric. Tests wait for all rows, because a reconcile does not update its metrics atomically.
const AFTER_THREE_RECONCILES: [(&str, &str, (&str, &str), f64); 5] = [
    (
        r#"controller_runtime_reconcile_total{controller="maps",result="success"} 3"#,
        "controller_runtime_reconcile_total",
        RESULT_LABEL,
        3.0,
    ),
    (
        r#"controller_runtime_reconcile_time_seconds_count{controller="maps"} 3"#,
        "controller_runtime_reconcile_time_seconds",
        CONTROLLER_LABEL,
        3.0,
    ),
    (r#"workqueue_adds_total{controller="maps",name="maps"} 3"#, "workqueue_adds_total", QUEUE_LABEL, 3.0),
    (r#"workqueue_depth{controller="maps",name="maps",priority="0"} 0"#, "workqueue_depth", QUEUE_LABEL, 0.0),
    (
        r#"workqueue_work_duration_seconds_count{controller="maps",name="maps"} 3"#,
        "workqueue_work_duration_seconds",
        QUEUE_LABEL,
        3.0,
    ),
];

fn metrics_are_pushed(protocol: &str) {
    with_cluster(async |cluster| {
        let scraped = cluster.command_with_three_maps().await.spawn();
        wait_for_all_reconciles(&scraped);
        let text = eventually("three reconciles to be counted", TIMEOUT, async || {
            let (_, text) = life_cycle::get(&scraped.wait_for_address("metrics"), "/metrics");
            let all = AFTER_THREE_RECONCILES
                .iter()
                .all(|(line, ..)| text.lines().any(|exported| exported == *line));
            if all { Ok(text) } else { Err(text) }
        })
        .await;
        let collector = Collector::new(protocol);
        let settings = json!({
            "metrics-protocol": protocol, "metrics-endpoint": collector.url(), "metrics-export-interval": "100ms",
        });
        cluster.configure_observability(settings).await;
        let command = cluster.command_with_three_maps().await.env("POD_NAME", "faulty-0");
        let pushing = command.env("OTEL_EXPORTER_OTLP_HEADERS", format!("{TENANT}=lamps")).spawn();
        let metrics = eventually("three reconciles to be pushed", TIMEOUT, async || {
            let metrics = collector.metrics();
            let is_pushed = |(_, name, label, count)| value(&metrics, name, label) == Some(count);
            if AFTER_THREE_RECONCILES.into_iter().all(is_pushed) {
                Ok(metrics)
            } else {
                Err(format!("{metrics:#?}"))
            }
        })
        .await;
        let (mut pushed_names, mut scraped_names): (Vec<_>, Vec<_>) = (
            metrics.iter().map(|metric| &*metric.name).collect(),
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect(),
        );
        pushed_names.sort_unstable();
        scraped_names.sort_unstable();
        assert_eq!(pushed_names, scraped_names);
        println!("{} families, the same by name over {protocol} and in /metrics", pushed_names.len());
        let resource = collector.resource();
        assert_eq!(resource["service.name"], "faulty");
        assert_eq!(resource["service.version"], "1.2.3");
        assert_eq!(resource["k8s.pod.name"], "faulty-0");
        assert_eq!(resource["k8s.namespace.name"], cluster.namespace);
        assert!(
            collector.tenants().iter().all(|tenant| tenant == "lamps") && !collector.tenants().is_empty()
        );
        assert!(!pushing.lines().iter().any(|line| line.contains("listening for metrics")));
    });
}

fn the_writes_of_a_fight_and_the_reconciles_of_a_storm_are_counted() {
    with_cluster(async |cluster| {
        cluster.apply_map("a", json!({})).await;
        let start = |color: &str| cluster.command("children").env("COLOR", color).arg("--disable-ha").spawn();
        let fighting = start("red");
        let children: Api<ConfigMap> = Api::namespaced(cluster.client(), &cluster.namespace);
        eventually("the writes of a fight", TIMEOUT, async || {
            let theirs = Patch::Merge(json!({"data": {"color": "blue"}}));
            _ = children.patch("a-child", &PatchParams::default(), &theirs).await; // it may not exist yet
            tokio::time::sleep(Duration::from_millis(200)).await;
            scrape_sum(&fighting, "reknit_fight_writes_total") > 0.0
        })
        .await;
        fighting.signal("TERM");
        assert_eq!(fighting.wait().0, 0);
        let storming = start("changing");
        eventually("the reconciles of a storm", TIMEOUT, async || {
            scrape_sum(&storming, "reknit_storm_reconciles_total") > 0.0
        })
        .await;
    });
}

fn reconciles_are_traced_over_grpc_with_key_and_result() {
    reconciles_are_traced("grpc");
}

fn reconciles_are_traced_over_http_with_key_and_result() {
    reconciles_are_traced("http/protobuf");
}

/// Checks the spans after the process has ended, because the last ones are exported during the shutdown.
fn reconciles_are_traced(protocol: &str) {
    with_cluster(async |cluster| {
        let collector = Collector::new(protocol);
        let settings = json!({
            "tracing-protocol": protocol, "tracing-endpoint": collector.url(), "tracing-sampling-rate": "1",
        });
        cluster.configure_observability(settings).await;
        cluster.apply_map("wrong", json!({"panic": "no lamp"})).await;
        // The log level does not affect spans.
        let filter = concat!("error,", env!("CARGO_CRATE_NAME"), "=info");
        let child = cluster.command_with_three_maps().await.env("RUST_LOG", filter).spawn();
        wait_for_all_reconciles(&child);
        child.wait_for_line("panicked: no lamp");
        child.signal("TERM");
        assert_eq!(child.wait().0, 0);
        let spans = collector.spans();
        for (name, result, status) in [
            ("a", "success", StatusCode::Unset),
            ("b", "success", StatusCode::Unset),
            ("wrong", "panic", StatusCode::Error),
        ] {
            let key = format!("{}/{name}", cluster.namespace);
            let has_key = |attributes: &std::collections::BTreeMap<String, String>| {
                attributes.get("knative.dev/key") == Some(&key)
            };
            let span = spans.iter().find(|span| has_key(&attributes(&span.attributes)));
            let span = span.unwrap_or_else(|| panic!("no span of {key} in {spans:#?}"));
            let span_attributes = attributes(&span.attributes);
            assert_eq!(span.name, "reconcile");
            assert_eq!(span_attributes["knative.dev/controller"], "maps");
            assert_eq!(span_attributes["knative.dev/kind"], "ConfigMap");
            assert!(span_attributes["causes"].starts_with("the object added ("), "{span_attributes:?}");
            assert_eq!(span_attributes["result"], result);
            assert_eq!(span.status.as_ref().map_or(0, |status| status.code), status as i32, "{span:#?}");
            let begins = format!("reconcile of {name} begins");
            assert!(span.events.iter().any(|event| event.name == begins), "{span:#?}");
        }
    });
}

fn the_span_of_a_pass_is_linked_with_that_of_the_pass_that_led_to_it() {
    with_cluster(async |cluster| {
        let collector = Collector::new("grpc");
        let settings = json!({
            "tracing-protocol": "grpc", "tracing-endpoint": collector.url(), "tracing-sampling-rate": "1",
        });
        cluster.configure_observability(settings).await;
        cluster.apply_map("a", json!({})).await;
        let command = cluster.command("children").env("COLOR", "red").arg("--disable-ha");
        let _child = command.env("OTEL_BSP_SCHEDULE_DELAY", "100").spawn();
        let is_linked = |span: &&Span| span.name == "reconcile" && !span.links.is_empty();
        let spans = eventually("a span with a link", TIMEOUT, async || {
            let spans = collector.spans();
            if spans.iter().any(|span| is_linked(&span)) { Ok(spans) } else { Err(format!("{spans:#?}")) }
        })
        .await;
        let led = spans.iter().find(is_linked).unwrap();
        let causes = &attributes(&led.attributes)["causes"];
        let namespace = &cluster.namespace;
        assert!(causes.starts_with(&format!("configmaps {namespace}/a-child added (")), "{causes}");
        assert!(causes.ends_with(&format!(" of maps {namespace}/a, owned")), "{causes}");
        let [link] = &led.links[..] else { panic!("{led:#?}") };
        let writer = spans.iter().find(|span| span.span_id == link.span_id).unwrap();
        assert_eq!((&writer.trace_id, &*writer.name), (&link.trace_id, "reconcile"));
        let key = format!("{namespace}/a");
        assert_eq!(attributes(&writer.attributes)["knative.dev/key"], key);
    });
}

/// Sends a review of the conversion of an oven to a webhook, and returns the answer.
pub(crate) async fn convert_oven(address: &str, degrees: i64) -> kube::Result<String> {
    let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
    config.accept_invalid_certs = true;
    let oven = json!({"apiVersion": "process.reknit.dev/v1alpha1", "kind": "Oven", "metadata": {"name": "a"},
        "spec": {"degrees": degrees}});
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {
        "uid": "1", "desiredAPIVersion": "process.reknit.dev/v1", "objects": [oven]}});
    let request = http::Request::post("/resource-conversion").header("content-type", "application/json");
    let request = request.body(serde_json::to_vec(&review).unwrap()).unwrap();
    kube::Client::try_from(config).unwrap().request_text(request).await
}

fn failures_and_panics_of_conversions_are_counted() {
    with_cluster(async |cluster| {
        let child = cluster.command("ovens").env("WEBHOOK_PORT", "0").spawn();
        let address = child.wait_for_address("the webhook");
        let converted = eventually("an answer", TIMEOUT, async || convert_oven(&address, 180).await).await;
        assert!(converted.contains(r#""status":"Success""#), "{converted}");
        let counts = || {
            ["reknit_webhook_conversion_failures_total", "controller_runtime_conversion_webhook_panics_total"]
                .map(|name| scrape_sum(&child, name))
        };
        assert_eq!(counts(), [0.0, 0.0]);
        let failed = convert_oven(&address, -1).await.unwrap();
        assert!(failed.contains("an oven does not freeze"), "{failed}");
        assert_eq!(counts(), [1.0, 0.0]);
        convert_oven(&address, 0).await.unwrap_err();
        assert_eq!(counts(), [1.0, 1.0]);
    });
}

fn traces_on_standard_output_are_lines_of_json() {
    with_cluster(async |cluster| {
        cluster
            .configure_observability(json!({"tracing-protocol": "stdout", "tracing-sampling-rate": "1.0"}))
            .await;
        let child = cluster.command_with_three_maps().await.spawn();
        wait_for_all_reconciles(&child);
        child.signal("TERM");
        let (status, lines) = child.wait();
        assert_eq!(status, 0, "{lines:#?}");
        let batches = lines.iter().filter(|line| line.starts_with(r#"{"resourceSpans":"#));
        let batches: Vec<Value> = batches.map(|line| serde_json::from_str(line).unwrap()).collect();
        let spans = batches.iter().flat_map(|batch| {
            batch["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
        });
        assert!(spans.filter(|span| span["name"] == "reconcile").count() >= 3, "{batches:#?}");
    });
}

fn nothing_is_traced_at_a_sampling_rate_of_zero() {
    with_cluster(async |cluster| {
        let collector = Collector::new("grpc");
        let settings = json!({
            "tracing-protocol": "grpc", "tracing-endpoint": collector.url(), "tracing-sampling-rate": "0",
            "metrics-protocol": "grpc", "metrics-endpoint": collector.url(), "metrics-export-interval": "1h",
        });
        cluster.configure_observability(settings).await;
        let child = cluster.command_with_three_maps().await.spawn();
        wait_for_all_reconciles(&child);
        child.signal("TERM");
        assert_eq!(child.wait().0, 0);
        assert_eq!(
            value(&collector.metrics(), "controller_runtime_reconcile_total", RESULT_LABEL),
            Some(3.0)
        );
        assert_eq!(collector.spans(), []);
    });
}

fn count_lines(child: &Child, text: &str) -> usize {
    child.lines().iter().filter(|line| line.contains(text)).count()
}

fn an_unreachable_collector_is_logged_once_and_gets_the_spans_later() {
    with_cluster(async |cluster| {
        let (socket, address) = server::closed_port();
        let endpoint = format!("http://{address}");
        let settings = json!({
            "tracing-protocol": "grpc", "tracing-endpoint": endpoint, "tracing-sampling-rate": "1",
            "metrics-protocol": "grpc", "metrics-endpoint": endpoint, "metrics-export-interval": "50ms",
        });
        cluster.configure_observability(settings).await;
        let child = cluster.command_with_three_maps().await.env("OTEL_BSP_SCHEDULE_DELAY", "100").spawn();
        child.wait_for_line(&format!("failed to export traces to {endpoint}: "));
        child.wait_for_line(&format!("failed to export metrics to {endpoint}: "));
        wait_for_all_reconciles(&child);
        let start_time = Instant::now();
        let collector = Collector::listening_on(socket, "grpc");
        child.wait_for_line(&format!("exporting traces to {endpoint} again"));
        child.wait_for_line(&format!("exporting metrics to {endpoint} again"));
        eventually("three spans", TIMEOUT, async || collector.spans().len() >= 3).await;
        println!("spans arrived {:?} after the collector started", start_time.elapsed());
        assert_eq!(
            (count_lines(&child, "failed to export traces"), count_lines(&child, "failed to export metrics")),
            (1, 1)
        );
        drop(collector);
        cluster.apply_map("d", json!({})).await;
        wait_for_reconcile(&child, "d");
    });
}

fn a_collector_that_never_responds_delays_neither_reconciles_nor_the_shutdown() {
    with_cluster(async |cluster| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let settings = json!({
            "tracing-protocol": "http/protobuf", "tracing-endpoint": endpoint, "tracing-sampling-rate": "1",
            "metrics-protocol": "grpc", "metrics-endpoint": endpoint, "metrics-export-interval": "50ms",
        });
        cluster.configure_observability(settings).await;
        let child = cluster.command_with_three_maps().await.env("OTEL_BSP_SCHEDULE_DELAY", "100").spawn();
        wait_for_all_reconciles(&child);
        wait_for_status(&child, "/health", 200);
        cluster.apply_map("d", json!({})).await;
        wait_for_reconcile(&child, "d");
        child.signal("TERM");
        let start_time = Instant::now();
        assert_eq!(child.wait().0, 0);
        println!("ended {:?} after SIGTERM", start_time.elapsed());
        assert!(start_time.elapsed().as_secs() < 20, "{:?}", start_time.elapsed());
    });
}

/// Returns the sum of all series with this name in /metrics.
pub(crate) fn scrape_sum(child: &Child, name: &str) -> f64 {
    let (_, text) = life_cycle::get(&child.wait_for_address("metrics"), "/metrics");
    let series =
        text.lines().filter(|line| line.strip_prefix(name).is_some_and(|l| l.starts_with(['{', ' '])));
    series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Waits for this many reconciles, and returns the resident memory in megabytes.
async fn resident_megabytes_after(child: &Child, reconciles: f64) -> f64 {
    eventually("enough reconciles", TIMEOUT * 4, async || {
        let done = scrape_sum(child, "controller_runtime_reconcile_total");
        if done >= reconciles { Ok(()) } else { Err(done.to_string()) }
    })
    .await;
    scrape_sum(child, "process_resident_memory_bytes") / 1e6
}

fn spans_without_a_collector_do_not_fill_the_memory() {
    with_cluster(async |cluster| {
        let (_socket, address) = server::closed_port();
        let endpoint = format!("http://{address}");
        let settings =
            json!({"tracing-protocol": "grpc", "tracing-endpoint": endpoint, "tracing-sampling-rate": "1"});
        cluster.configure_observability(settings).await;
        let child = cluster.command("busy").arg("--disable-ha").spawn();
        child.wait_for_line("failed to export traces to");
        let before = resident_megabytes_after(&child, 10_000.0).await;
        let after = resident_megabytes_after(&child, 60_000.0).await;
        println!("{before:.1} MB after 10,000 reconciles, {after:.1} MB after 60,000, each with a span");
        assert!(after < before + 16.0, "{before} MB, then {after} MB");
    });
}

fn changes_of_the_export_settings_wait_for_the_next_start() {
    with_cluster(async |cluster| {
        let child = cluster.command_with_three_maps().await.spawn();
        wait_for_all_reconciles(&child);
        wait_for_status(&child, "/readiness", 200);
        cluster
            .configure_observability(json!({"tracing-protocol": "stdout", "tracing-sampling-rate": "1"}))
            .await;
        child.wait_for_line("the export of metrics and traces changes at the next start");
        cluster.configure_observability(json!({"tracing-protocol": "zipkin"})).await;
        let refused = child.wait_for_line("the previous settings stay in effect");
        assert!(refused.contains("tracing-protocol: \\\"zipkin\\\" is not one of"), "{refused}");
    });
}

fn the_error_of_an_invalid_setting_has_the_allowed_values() {
    with_cluster(async |cluster| {
        for (key, bad, allowed) in [
            ("tracing-protocol", "zipkin", "none, grpc, http/protobuf, stdout"),
            ("metrics-protocol", "statsd", "none, prometheus, grpc, http/protobuf"),
            ("tracing-sampling-rate", "11", "a number from 0 to 1"),
            ("runtime-profiling", "on", "enabled, disabled"),
        ] {
            cluster.configure_observability(json!({key: bad})).await;
            let message = failed_with_one_line(cluster.command_with_three_maps().await.run());
            let namespace = &cluster.namespace;
            let expected = format!("ConfigMap {namespace}/config-observability: {key}: {bad:?} is not ");
            assert!(message.starts_with(&expected) && message.ends_with(allowed), "{message}");
        }
    });
}

fn the_error_of_a_profiling_port_in_use_names_its_variable() {
    with_cluster(async |cluster| {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let command =
            cluster.command_with_three_maps().await.env("PROFILING_PORT", address.port().to_string());
        let message = failed_with_one_line(command.run());
        let expected = format!("cannot listen on {address} for profiling: Address already in use");
        assert!(
            message.starts_with(&expected) && message.ends_with("PROFILING_PORT chooses another port"),
            "{message}"
        );
    });
}
