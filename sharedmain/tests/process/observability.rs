//! Tests of metrics, traces and profiles, with a fake collector and a real API server.
use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use kube::api::ListParams;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
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
    traces_on_standard_output_are_lines_of_json,
    nothing_is_traced_at_a_sampling_rate_of_zero,
    an_unreachable_collector_is_logged_once_and_gets_the_spans_later,
    a_collector_that_never_responds_delays_neither_reconciles_nor_the_shutdown,
    spans_without_a_collector_do_not_fill_the_memory,
    changes_of_the_export_settings_wait_for_the_next_start,
    profiles_are_served_while_the_config_map_enables_them,
    the_console_is_on_localhost_at_the_port_of_its_flag_and_refuses_other_names,
    log_event_and_dump_say_where_a_pass_waits_for_a_silent_server,
    failed_passes_are_recorded_while_the_config_map_names_a_folder,
    the_error_of_an_invalid_setting_has_the_allowed_values,
    the_error_of_a_profiling_port_in_use_names_its_variable,
];

impl TestCluster {
    async fn configure_observability(&self, data: Value) {
        self.configure("config-observability", data).await;
    }

    /// The notes of the events with this reason.
    async fn notes(&self, reason: &str) -> Vec<String> {
        let events = self.events().list(&ListParams::default()).await.unwrap().items.into_iter();
        events
            .filter(|event| event.reason.as_deref() == Some(reason))
            .filter_map(|event| event.note)
            .collect()
    }

    /// Applies three ConfigMaps, and returns the command of a process that reconciles them without leader election.
    async fn command_with_three_maps(&self) -> TestCommand {
        for name in ["a", "b", "c"] {
            self.apply_map(name, json!({})).await;
        }
        self.command("maps").arg("--disable-ha")
    }
}

fn wait_for_all_reconciles(child: &Child) {
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
            assert_eq!(span_attributes["result"], result);
            assert_eq!(span.status.as_ref().map_or(0, |status| status.code), status as i32, "{span:#?}");
            let begins = format!("reconcile of {name} begins");
            assert!(span.events.iter().any(|event| event.name == begins), "{span:#?}");
        }
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
    with_cluster(async |cluster| {
        let child = cluster.command("burns").arg("--disable-ha").spawn();
        wait_for_status(&child, "/readiness", 200);
        let address = child.wait_for_address("profiling");
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        let (status, why) = life_cycle::get(&address, "/debug/pprof/profile?seconds=1");
        assert_eq!(status, 404);
        assert!(why.starts_with("profiling is not enabled"), "{why}");
        cluster.configure_observability(json!({"runtime-profiling": "enabled"})).await;
        child.wait_for_line("profiling is enabled");
        let (status, body) = life_cycle::get_bytes(&address, "/debug/pprof/profile?seconds=2");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
        // KEEP_PROFILE is a path at which the profile is kept for go tool pprof.
        if let Some(path) = std::env::var_os("KEEP_PROFILE") {
            std::fs::write(path, &body).unwrap();
        }
        let profile = Profile::decode(&*body).unwrap();
        let samples: i64 = profile.samples.iter().map(|sample| sample.values[0]).sum();
        let name = |function: &Function| &profile.strings[function.name as usize];
        let burn_cpu = profile.functions.iter().filter(|function| name(function).contains("burn_cpu"));
        let burn_cpu_ids: Vec<_> = burn_cpu.map(|function| function.id).collect();
        let burning = profile
            .samples
            .iter()
            .filter(|sample| sample.locations.iter().any(|location| burn_cpu_ids.contains(location)));
        let burning: i64 = burning.map(|sample| sample.values[0]).sum();
        println!("{samples} samples in two seconds, {burning} of them in burn_cpu");
        assert_eq!(profile.nanoseconds, 2_000_000_000);
        assert!(burning > 5 && burning * 2 > samples, "{burning} of {samples}: {:#?}", profile.strings);
        assert_eq!(life_cycle::get(&address, "/debug/pprof/heap").0, 501);
        cluster.configure_observability(json!({"runtime-profiling": "disabled"})).await;
        child.wait_for_line("profiling is disabled");
        assert_eq!(life_cycle::get(&address, "/debug/pprof/profile?seconds=1").0, 404);
    });
}

fn the_console_is_on_localhost_at_the_port_of_its_flag_and_refuses_other_names() {
    with_cluster(async |cluster| {
        let command = cluster.command_with_three_maps().await.arg("--console-bind-address=:0");
        let child = command.spawn();
        wait_for_all_reconciles(&child);
        let address = child.wait_for_address("the console");
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        let (status, why) = life_cycle::get(&address, "/debug/reknit/v1/passes");
        assert_eq!((status, why.contains("localhost")), (403, true), "{why}");
        let passes = life_cycle::get_as("localhost", &address, "/debug/reknit/v1/passes");
        let passes: Value = serde_json::from_slice(&passes.1).unwrap();
        let finished = passes["finished"].as_array().unwrap();
        for name in ["a", "b", "c"] {
            let is_of =
                |pass: &Value| pass["key"].as_str().is_some_and(|key| key.ends_with(&format!("/{name}")));
            assert!(finished.iter().any(is_of), "{passes:#}");
        }
    });
}

fn log_event_and_dump_say_where_a_pass_waits_for_a_silent_server() {
    with_cluster(async |cluster| {
        let server = TcpListener::bind("127.0.0.1:0").unwrap(); // accepts, and never answers
        let address = server.local_addr().unwrap().to_string();
        cluster.apply_map("asking", json!({"ask": address})).await;
        cluster.apply_map("blocking", json!({"block": "30000"})).await;
        let child = cluster.command("slow maps").arg("--disable-ha").spawn();
        let line = child.wait_for_line("the pass is slow");
        println!("{line}");
        assert!(line.contains("\"waits\":\"in ") && line.contains("scenarios.rs:"), "{line}");
        let again = format!("{:?}", Duration::from_secs(3));
        child.wait_for_line(&format!("\"age\":\"{again}\""));
        let note = eventually("the event of the slow pass", TIMEOUT, async || {
            cluster.notes("SlowReconcile").await.into_iter().next().ok_or("none")
        })
        .await;
        println!("{note}");
        assert!(
            note.starts_with("the pass has been running for ") && note.contains("scenarios.rs:"),
            "{note}"
        );

        let address = child.wait_for_address("profiling");
        assert_eq!(life_cycle::get(&address, "/debug/passes").0, 404);
        cluster.configure_observability(json!({"runtime-profiling": "enabled"})).await;
        child.wait_for_line("profiling is enabled");
        assert!(life_cycle::get(&address, "/debug/").1.contains("/debug/passes"));
        let (status, dump) = life_cycle::get(&address, "/debug/passes");
        println!("{dump}");
        assert_eq!(status, 200);
        let asking = format!("maps {}/asking, pass ", cluster.namespace);
        assert!(dump.contains("running passes: 2\n") && dump.contains(&asking), "{dump}");
        assert!(dump.contains("TcpStream") && dump.contains("scenarios.rs:"), "{dump}");
        assert!(dump.contains("  its code has not returned for a second"), "{dump}");
    });
}

fn failed_passes_are_recorded_while_the_config_map_names_a_folder() {
    with_cluster(async |cluster| {
        let (_closed, address) = server::closed_port();
        let asking = json!({"ask": address.to_string()});
        let folder = tempfile::tempdir().unwrap();
        let is_recorded = |name: &str| {
            let mut files = std::fs::read_dir(folder.path()).unwrap();
            files.any(|file| file.unwrap().file_name().to_str().unwrap().ends_with(&format!("_{name}.json")))
        };
        let child = cluster.command("maps").arg("--disable-ha").spawn();
        let fails = async |name: &str| {
            cluster.apply_map(name, asking.clone()).await;
            let key = format!("\"{}/{name}\"", cluster.namespace);
            eventually("a second pass to fail", TIMEOUT, async || {
                let lines = child.lines();
                let is_second =
                    |line: &&String| line.contains("the pass failed") && line.contains("retry 1 after");
                lines.iter().find(|line| line.contains(&key) && is_second(line)).map(drop).ok_or(lines.len())
            })
            .await;
        };
        fails("before").await;
        cluster.configure_observability(json!({"record-failures": folder.path()})).await;
        child.wait_for_line("failed passes are recorded");
        fails("meanwhile").await;
        eventually("the pass to be recorded", TIMEOUT, async || {
            is_recorded("meanwhile").then_some(()).ok_or("none")
        })
        .await;
        cluster.configure_observability(json!({})).await;
        child.wait_for_line("failed passes are no longer recorded");
        fails("after").await;
        assert!(!is_recorded("after"));
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
