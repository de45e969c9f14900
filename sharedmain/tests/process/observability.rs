//! Tests of metrics, traces and profiles, with real collectors and a real API server.
use std::{net::TcpListener, time::Instant};

use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use reknit_testing::eventually;
use serde_json::{Value, json};

use crate::{
    child::{Child, Start, failed_with_one_line},
    cluster::{LONG, World, wait_for_reconcile, within},
    collector::{Collector, SCOPE, attributes, value},
    life::{self, wait_for_status},
    server, trials,
};

trials![
    pushed_metrics_over_grpc_are_those_of_prometheus,
    pushed_metrics_over_http_are_those_of_prometheus,
    reconciles_are_traced_over_grpc_with_key_and_result,
    reconciles_are_traced_over_http_with_key_and_result,
    traces_on_standard_output_are_lines_of_json,
    nothing_is_traced_at_a_rate_of_zero,
    an_unreachable_collector_is_logged_once_and_gets_the_spans_later,
    a_collector_that_never_responds_delays_neither_reconciles_nor_the_shutdown,
    spans_without_a_collector_do_not_fill_the_memory,
    changes_of_the_exports_wait_for_the_next_start,
    profiles_are_served_while_the_config_map_enables_them,
    the_error_of_an_invalid_setting_has_the_allowed_values,
    the_error_of_a_profiling_port_in_use_names_its_variable,
];

impl World {
    async fn observe(&self, data: Value) {
        self.set("config-observability", data, false).await;
    }

    /// Creates three ConfigMaps, and starts a process without leader election.
    async fn three(&self) -> Start {
        for name in ["a", "b", "c"] {
            self.set(name, json!({}), true).await;
        }
        self.start("maps").arg("--disable-ha")
    }
}

fn wait_for_all_reconciles(child: &Child) {
    ["a", "b", "c"].iter().for_each(|name| wait_for_reconcile(child, name));
}

fn pushed_metrics_over_grpc_are_those_of_prometheus() {
    metrics_are_pushed("grpc");
}

fn pushed_metrics_over_http_are_those_of_prometheus() {
    metrics_are_pushed("http/protobuf");
}

const NAME: (&str, &str) = ("name", "maps");
const CONTROLLER: (&str, &str) = ("controller", "maps");

/// The metrics of three finished reconciles: lines of /metrics, and the same as pushed. They are not updated atomically.
const AFTER_THREE_RECONCILES: [(&str, &str, (&str, &str), f64); 5] = [
    (
        r#"reknit_reconcile_total{controller="maps",result="success"} 3"#,
        "reknit_reconcile_total",
        CONTROLLER,
        3.0,
    ),
    (
        r#"reknit_reconcile_time_seconds_count{controller="maps"} 3"#,
        "reknit_reconcile_time_seconds",
        CONTROLLER,
        3.0,
    ),
    (r#"workqueue_adds_total{name="maps"} 3"#, "workqueue_adds_total", NAME, 3.0),
    (r#"workqueue_depth{name="maps"} 0"#, "workqueue_depth", NAME, 0.0),
    (r#"workqueue_work_duration_seconds_count{name="maps"} 3"#, "workqueue_work_duration_seconds", NAME, 3.0),
];

fn metrics_are_pushed(protocol: &str) {
    within(async |world| {
        let scraped = world.three().await.spawn();
        wait_for_all_reconciles(&scraped);
        let text = eventually("three reconciles to be counted", LONG, async || {
            let (_, text) = life::get(&scraped.address("metrics"), "/metrics");
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
        world.observe(settings).await;
        let start = world.three().await.env("POD_NAME", "faulty-0");
        let pushing = start.env("OTEL_EXPORTER_OTLP_HEADERS", format!("{SCOPE}=lamps")).spawn();
        let metrics = eventually("three reconciles to be pushed", LONG, async || {
            let metrics = collector.metrics();
            let is_pushed = |(_, name, label, count)| value(&metrics, name, label) == Some(count);
            if AFTER_THREE_RECONCILES.into_iter().all(is_pushed) {
                Ok(metrics)
            } else {
                Err(format!("{metrics:#?}"))
            }
        })
        .await;
        let (mut names, mut read): (Vec<_>, Vec<_>) = (
            metrics.iter().map(|metric| &*metric.name).collect(),
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect(),
        );
        names.sort_unstable();
        read.sort_unstable();
        assert_eq!(names, read);
        println!("{} families, the same by name over {protocol} and in /metrics", names.len());
        let resource = collector.resource();
        assert_eq!(resource["service.name"], "faulty");
        assert_eq!(resource["service.version"], "1.2.3");
        assert_eq!(resource["k8s.pod.name"], "faulty-0");
        assert_eq!(resource["k8s.namespace.name"], world.namespace);
        assert!(collector.scopes().iter().all(|scope| scope == "lamps") && !collector.scopes().is_empty());
        assert!(!pushing.lines().iter().any(|line| line.contains("listening for metrics")));
    });
}

fn reconciles_are_traced_over_grpc_with_key_and_result() {
    passes_are_traced("grpc");
}

fn reconciles_are_traced_over_http_with_key_and_result() {
    passes_are_traced("http/protobuf");
}

/// Spans are exported during the shutdown at the latest.
fn passes_are_traced(protocol: &str) {
    within(async |world| {
        let collector = Collector::new(protocol);
        let settings = json!({
            "tracing-protocol": protocol, "tracing-endpoint": collector.url(), "tracing-sampling-rate": "1",
        });
        world.observe(settings).await;
        world.set("wrong", json!({"panic": "out of oil"}), true).await;
        // The log level does not affect spans.
        let filter = concat!("error,", env!("CARGO_CRATE_NAME"), "=info");
        let child = world.three().await.env("RUST_LOG", filter).spawn();
        wait_for_all_reconciles(&child);
        child.line("panicked: out of oil");
        child.signal("TERM");
        assert_eq!(child.end().0, 0);
        let spans = collector.spans();
        for (name, result, status) in [
            ("a", "success", StatusCode::Unset),
            ("b", "success", StatusCode::Unset),
            ("wrong", "panic", StatusCode::Error),
        ] {
            let key = format!("{}/{name}", world.namespace);
            let of_key =
                |at: &std::collections::BTreeMap<String, String>| at.get("knative.dev/key") == Some(&key);
            let span = spans.iter().find(|span| of_key(&attributes(&span.attributes)));
            let span = span.unwrap_or_else(|| panic!("no span of {key} in {spans:#?}"));
            let attributes = attributes(&span.attributes);
            assert_eq!(span.name, "reconcile");
            assert_eq!(attributes["knative.dev/controller"], "maps");
            assert_eq!(attributes["knative.dev/kind"], "ConfigMap");
            assert_eq!(attributes["result"], result);
            assert_eq!(span.status.as_ref().map_or(0, |status| status.code), status as i32, "{span:#?}");
            let begins = format!("reconcile of {name} begins");
            assert!(span.events.iter().any(|event| event.name == begins), "{span:#?}");
        }
    });
}

fn traces_on_standard_output_are_lines_of_json() {
    within(async |world| {
        world.observe(json!({"tracing-protocol": "stdout", "tracing-sampling-rate": "1.0"})).await;
        let child = world.three().await.spawn();
        wait_for_all_reconciles(&child);
        child.signal("TERM");
        let (status, lines) = child.end();
        assert_eq!(status, 0, "{lines:#?}");
        let batches = lines.iter().filter(|line| line.starts_with(r#"{"resourceSpans":"#));
        let batches: Vec<Value> = batches.map(|line| serde_json::from_str(line).unwrap()).collect();
        let spans = batches.iter().flat_map(|batch| {
            batch["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
        });
        assert!(spans.filter(|span| span["name"] == "reconcile").count() >= 3, "{batches:#?}");
    });
}

fn nothing_is_traced_at_a_rate_of_zero() {
    within(async |world| {
        let collector = Collector::new("grpc");
        let settings = json!({
            "tracing-protocol": "grpc", "tracing-endpoint": collector.url(), "tracing-sampling-rate": "0",
            "metrics-protocol": "grpc", "metrics-endpoint": collector.url(), "metrics-export-interval": "1h",
        });
        world.observe(settings).await;
        let child = world.three().await.spawn();
        wait_for_all_reconciles(&child);
        child.signal("TERM");
        assert_eq!(child.end().0, 0);
        assert_eq!(value(&collector.metrics(), "reknit_reconcile_total", CONTROLLER), Some(3.0));
        assert_eq!(collector.spans(), []);
    });
}

fn count_lines(child: &Child, text: &str) -> usize {
    child.lines().iter().filter(|line| line.contains(text)).count()
}

fn an_unreachable_collector_is_logged_once_and_gets_the_spans_later() {
    within(async |world| {
        let (socket, address) = server::closed_port();
        let endpoint = format!("http://{address}");
        let settings = json!({
            "tracing-protocol": "grpc", "tracing-endpoint": endpoint, "tracing-sampling-rate": "1",
            "metrics-protocol": "grpc", "metrics-endpoint": endpoint, "metrics-export-interval": "50ms",
        });
        world.observe(settings).await;
        let child = world.three().await.env("OTEL_BSP_SCHEDULE_DELAY", "100").spawn();
        child.line(&format!("failed to export traces to {endpoint}: "));
        child.line(&format!("failed to export metrics to {endpoint}: "));
        wait_for_all_reconciles(&child);
        let start_time = Instant::now();
        let collector = Collector::on(socket, "grpc");
        child.line(&format!("exporting traces to {endpoint} again"));
        child.line(&format!("exporting metrics to {endpoint} again"));
        eventually("three spans", LONG, async || collector.spans().len() >= 3).await;
        println!("spans arrived {:?} after the collector started", start_time.elapsed());
        assert_eq!(
            (count_lines(&child, "failed to export traces"), count_lines(&child, "failed to export metrics")),
            (1, 1)
        );
        drop(collector);
        world.set("d", json!({}), true).await;
        wait_for_reconcile(&child, "d");
    });
}

fn a_collector_that_never_responds_delays_neither_reconciles_nor_the_shutdown() {
    within(async |world| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let settings = json!({
            "tracing-protocol": "http/protobuf", "tracing-endpoint": endpoint, "tracing-sampling-rate": "1",
            "metrics-protocol": "grpc", "metrics-endpoint": endpoint, "metrics-export-interval": "50ms",
        });
        world.observe(settings).await;
        let child = world.three().await.env("OTEL_BSP_SCHEDULE_DELAY", "100").spawn();
        wait_for_all_reconciles(&child);
        wait_for_status(&child, "/health", 200);
        world.set("d", json!({}), true).await;
        wait_for_reconcile(&child, "d");
        child.signal("TERM");
        let start_time = Instant::now();
        assert_eq!(child.end().0, 0);
        println!("ended {:?} after SIGTERM", start_time.elapsed());
        assert!(start_time.elapsed().as_secs() < 10, "{:?}", start_time.elapsed());
    });
}

/// Returns the sum of all series with this name.
fn scraped(child: &Child, name: &str) -> f64 {
    let (_, text) = life::get(&child.address("metrics"), "/metrics");
    let series =
        text.lines().filter(|line| line.strip_prefix(name).is_some_and(|l| l.starts_with(['{', ' '])));
    series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

async fn resident_after(child: &Child, reconciles: f64) -> f64 {
    eventually("enough reconciles", LONG * 4, async || {
        let done = scraped(child, "reknit_reconcile_total");
        if done >= reconciles { Ok(()) } else { Err(done.to_string()) }
    })
    .await;
    scraped(child, "process_resident_memory_bytes") / 1e6
}

fn spans_without_a_collector_do_not_fill_the_memory() {
    within(async |world| {
        let (_socket, address) = server::closed_port();
        let endpoint = format!("http://{address}");
        let settings =
            json!({"tracing-protocol": "grpc", "tracing-endpoint": endpoint, "tracing-sampling-rate": "1"});
        world.observe(settings).await;
        let child = world.start("busy").arg("--disable-ha").spawn();
        child.line("failed to export traces to");
        let before = resident_after(&child, 10_000.0).await;
        let after = resident_after(&child, 60_000.0).await;
        println!("{before:.1} MB after 10,000 reconciles, {after:.1} MB after 60,000, each with a span");
        assert!(after < before + 16.0, "{before} MB, then {after} MB");
    });
}

fn changes_of_the_exports_wait_for_the_next_start() {
    within(async |world| {
        let child = world.three().await.spawn();
        wait_for_all_reconciles(&child);
        wait_for_status(&child, "/readiness", 200);
        world.observe(json!({"tracing-protocol": "stdout", "tracing-sampling-rate": "1"})).await;
        child.line("the export of metrics and traces changes at the next start");
        world.observe(json!({"tracing-protocol": "zipkin"})).await;
        let refused = child.line("the previous settings stay in effect");
        assert!(refused.contains("tracing-protocol: \\\"zipkin\\\" is not one of"), "{refused}");
    });
}

/// The parts of pprof's format that the test reads.
#[derive(prost::Message)]
struct Profile {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, repeated, tag = "5")]
    functions: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
    #[prost(int64, tag = "10")]
    nanoseconds: i64,
}

#[derive(prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
}

#[derive(prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
}

fn profiles_are_served_while_the_config_map_enables_them() {
    within(async |world| {
        let child = world.start("burns").arg("--disable-ha").spawn();
        wait_for_status(&child, "/readiness", 200);
        let address = child.address("profiling");
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        let (status, why) = life::get(&address, "/debug/pprof/profile?seconds=1");
        assert_eq!(status, 404);
        assert!(why.starts_with("profiling is not enabled"), "{why}");
        world.observe(json!({"runtime-profiling": "enabled"})).await;
        child.line("profiling is enabled");
        let (status, body) = life::get_bytes(&address, "/debug/pprof/profile?seconds=2");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        if let Some(path) = std::env::var_os("KEEP_PROFILE") {
            std::fs::write(path, &body).unwrap();
        }
        let profile = Profile::decode(&*body).unwrap();
        let samples: i64 = profile.samples.iter().map(|sample| sample.values[0]).sum();
        let name = |function: &Function| &profile.strings[function.name as usize];
        let burns = profile.functions.iter().filter(|function| name(function).contains("burn_cpu"));
        let burns: Vec<_> = burns.map(|function| function.id).collect();
        let burning =
            profile.samples.iter().filter(|sample| sample.locations.iter().any(|l| burns.contains(l)));
        let burning: i64 = burning.map(|sample| sample.values[0]).sum();
        println!("{samples} samples in two seconds, {burning} of them in burn_cpu");
        assert_eq!(profile.nanoseconds, 2_000_000_000);
        assert!(burning > 5 && burning * 2 > samples, "{burning} of {samples}: {:#?}", profile.strings);
        assert_eq!(life::get(&address, "/debug/pprof/heap").0, 501);
        world.observe(json!({"runtime-profiling": "disabled"})).await;
        child.line("profiling is disabled");
        assert_eq!(life::get(&address, "/debug/pprof/profile?seconds=1").0, 404);
    });
}

fn the_error_of_an_invalid_setting_has_the_allowed_values() {
    within(async |world| {
        for (key, bad, allowed) in [
            ("tracing-protocol", "zipkin", "none, grpc, http/protobuf, stdout"),
            ("metrics-protocol", "statsd", "none, prometheus, grpc, http/protobuf"),
            ("tracing-sampling-rate", "11", "a number from 0 to 1"),
            ("runtime-profiling", "on", "enabled, disabled"),
        ] {
            world.observe(json!({key: bad})).await;
            let message = failed_with_one_line(world.three().await.end());
            let namespace = &world.namespace;
            let named = format!("ConfigMap {namespace}/config-observability: {key}: {bad:?} is not ");
            assert!(message.starts_with(&named) && message.ends_with(allowed), "{message}");
        }
    });
}

fn the_error_of_a_profiling_port_in_use_names_its_variable() {
    within(async |world| {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let start = world.three().await.env("PROFILING_PORT", address.port().to_string());
        let message = failed_with_one_line(start.end());
        let named = format!("cannot listen on {address} for profiling: Address already in use");
        assert!(
            message.starts_with(&named) && message.ends_with("PROFILING_PORT chooses another port"),
            "{message}"
        );
    });
}
