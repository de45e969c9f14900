//! The start and the shutdown of a process.
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::{
    child::{Child, Start, json},
    server::{self, Head, Http},
    trials,
};

trials![
    sigterm_shuts_a_process_down,
    ctrl_c_shuts_a_process_down,
    a_second_signal_ends_the_process_at_once,
    a_signal_ends_a_process_that_waits_for_the_server,
    a_task_that_hangs_is_dropped_at_the_deadline,
    a_task_that_fails_ends_the_process,
    a_task_that_fails_during_the_shutdown_is_a_failure,
    a_task_that_panics_ends_the_process,
    the_process_continues_after_a_task_has_ended,
    signals_are_handled_while_all_threads_are_blocked,
    probes_and_metrics_answer,
    readiness_of_a_starting_process_has_a_reason,
    log_lines_have_the_keys_of_knative,
    config_logging_sets_the_level_unless_rust_log_is_set,
    user_flags_are_provided,
    leases_have_connections_of_their_own,
];

/// Starts a process against a server without objects.
fn start(fault: &str) -> (Start, Http) {
    let server = Http::empty();
    let start = Start::with_fault(fault).args(["--disable-ha", "--server", &server.url()]);
    (start, server)
}

fn messages(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| json(line)["message"].as_str().unwrap().to_owned()).collect()
}

fn ends_after_signal(signal: &str, name: &str) {
    let (start, _server) = start("none");
    let child = start.spawn();
    child.line("greeter runs");
    child.signal(signal);
    let (status, lines) = child.end();
    assert_eq!(status, 0, "{lines:#?}");
    let messages = messages(&lines);
    assert_eq!(messages[messages.len() - 3], format!("received {name}: shutting down"));
    assert_eq!(messages[messages.len() - 2..], ["greeter ends", "task ended"]);
}

fn sigterm_shuts_a_process_down() {
    ends_after_signal("TERM", "SIGTERM");
}

fn ctrl_c_shuts_a_process_down() {
    ends_after_signal("INT", "SIGINT");
}

fn a_second_signal_ends_the_process_at_once() {
    let (start, _server) = start("task hangs");
    let child = start.spawn();
    child.line("greeter runs");
    child.signal("TERM");
    child.line("task ended");
    child.signal("INT");
    let (status, lines) = child.end();
    assert_eq!(status, 1, "{lines:#?}");
    assert_eq!(messages(&lines).last().unwrap(), "received SIGINT while shutting down: ending at once");
}

fn a_signal_ends_a_process_that_waits_for_the_server() {
    let (_socket, address) = server::closed_port();
    let child = Start::new().args(["--disable-ha", "--server", &format!("http://{address}")]).spawn();
    child.line("unable to connect to the server");
    child.signal("TERM");
    assert_eq!(child.end().0, 0);
}

fn a_task_that_hangs_is_dropped_at_the_deadline() {
    let (start, _server) = start("task hangs");
    let child = start.arg("--shutdown-timeout=300ms").spawn();
    child.line("greeter runs");
    let start_time = Instant::now();
    child.signal("TERM");
    let (status, lines) = child.end();
    assert_eq!(status, 0, "{lines:#?}");
    assert!(start_time.elapsed() >= Duration::from_millis(300));
    assert!(
        messages(&lines).last().unwrap().starts_with("dropped tasks that were still running"),
        "{lines:#?}"
    );
}

/// Checks that the fault ends the process, and that other tasks are shut down before.
fn ends_the_process(fault: &str, with: &str) {
    let (start, _server) = start(fault);
    let (status, lines) = start.end();
    assert_eq!(status, 1, "{lines:#?}");
    let messages = messages(&lines);
    assert_eq!(messages.last().unwrap(), with);
    assert!(messages.contains(&"greeter ends".to_owned()), "{lines:#?}");
}

fn a_task_that_fails_ends_the_process() {
    ends_the_process("task fails", "task wrong failed: no luck");
}

fn a_task_that_fails_during_the_shutdown_is_a_failure() {
    let (start, _server) = start("task fails late");
    let child = start.spawn();
    child.line("greeter runs");
    child.signal("TERM");
    let (status, lines) = child.end();
    assert_eq!(status, 1, "{lines:#?}");
    assert_eq!(messages(&lines).last().unwrap(), "task wrong failed: no luck");
}

fn a_task_that_panics_ends_the_process() {
    ends_the_process("task panics", "task wrong panicked: no luck at all");
}

fn the_process_continues_after_a_task_has_ended() {
    let (start, _server) = start("task ends");
    let child = start.spawn();
    let ended = json(&child.line("task ended"));
    assert_eq!(ended["task"], "short");
    child.line("greeter runs");
    child.signal("TERM");
    assert_eq!(child.end().0, 0);
}

fn signals_are_handled_while_all_threads_are_blocked() {
    let (start, _server) = start("task blocks");
    let child = start.arg("--shutdown-timeout=300ms").spawn();
    child.line("blocking");
    child.signal("TERM");
    child.line("received SIGTERM");
    assert_eq!(child.end().0, 0);
}

pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let (status, body) = get_bytes(address, path);
    (status, String::from_utf8(body).unwrap())
}

pub(crate) fn get_bytes(address: &str, path: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: probe\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&answer[..end]).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), answer[end + 4..].to_vec())
}

/// Waits until the path has this status, and returns the body.
pub(crate) fn wait_for_status(child: &Child, path: &str, status: u16) -> String {
    let (address, start) = (child.address("probes"), Instant::now());
    loop {
        let (actual, body) = get(&address, path);
        if actual == status {
            return body;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{path} answers {actual}: {body}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn probes_and_metrics_answer() {
    let (start, _server) = start("task hangs");
    let child = start.spawn();
    wait_for_status(&child, "/readiness", 200);
    wait_for_status(&child, "/health", 200);
    assert_eq!(get(&child.address("probes"), "/elsewhere").0, 404);
    let (status, text) = get(&child.address("metrics"), "/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("process_resident_memory_bytes "), "{text}");
    child.signal("TERM");
    assert_eq!(wait_for_status(&child, "/readiness", 503), "shutting down\n");
    wait_for_status(&child, "/health", 200);
}

fn readiness_of_a_starting_process_has_a_reason() {
    let (_socket, address) = server::closed_port();
    let child = Start::new().args(["--disable-ha", "--server", &format!("http://{address}")]).spawn();
    assert_eq!(wait_for_status(&child, "/readiness", 503), "waiting for the API server\n");
    wait_for_status(&child, "/health", 200);
}

fn log_lines_have_the_keys_of_knative() {
    let (start, _server) = start("none");
    let child = start.env("POD_NAME", "faulty-0").spawn();
    let line = child.line("greeter runs");
    assert!(line.starts_with(r#"{"severity":"INFO","timestamp":"20"#), "{line}");
    let line = json(&line);
    assert_eq!(line["logger"], "faulty");
    assert_eq!(line["knative.dev/pod"], "faulty-0");
    assert!(line["caller"].as_str().unwrap().starts_with(concat!(env!("CARGO_CRATE_NAME"), "/")), "{line}");
    assert_eq!(line["greeting"], "hello");
}

fn config_logging_sets_the_level_unless_rust_log_is_set() {
    let server = Http::new(|head| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        path if path.contains("GET /api/v1/namespaces/system/configmaps/config-logging ") => {
            let map = r#"{"metadata": {"name": "config-logging"}, "data": {"loglevel.faulty": "error"}}"#;
            (200, map.into())
        }
        _ => server::missing(),
    });
    let start = || {
        let args = ["--disable-ha", "--server", &server.url()];
        Start::with_fault("task fails").args(args).env("SYSTEM_NAMESPACE", "system")
    };
    let (_, lines) = start().end();
    assert!(!messages(&lines).contains(&"greeter ends".to_owned()), "{lines:#?}");
    let (_, lines) = start().env("RUST_LOG", "info").end();
    assert!(messages(&lines).contains(&"greeter ends".to_owned()), "{lines:#?}");
}

fn user_flags_are_provided() {
    let (start, _server) = start("none");
    let child = start.args(["--greeting", "goodbye"]).spawn();
    assert_eq!(json(&child.line("greeter runs"))["greeting"], "goodbye");
}

fn leases_have_connections_of_their_own() {
    let server = Http::new(|head| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        path if path.contains("GET /api/v1/namespaces/system/configmaps/config-leader-election ") => {
            let data = r#"{"lease-duration": "3s", "renew-deadline": "2s", "retry-period": "1s"}"#;
            (200, format!(r#"{{"metadata": {{"name": "config-leader-election"}}, "data": {data}}}"#))
        }
        _ => server::missing(),
    });
    let start = Start::with_fault("busy").args(["--server", &server.url()]);
    let _child = start.env("SYSTEM_NAMESPACE", "system").spawn();
    let of_leases = |line: &str| line.contains("/namespaces/system/leases");
    server.wait_for_requests(4, of_leases);
    let (leases, others): (Vec<_>, Vec<_>) = server.heads().into_iter().partition(|head| of_leases(&head[0]));
    let peers =
        |heads: &[Head]| heads.iter().filter_map(|head| head.last().cloned()).collect::<BTreeSet<_>>();
    let (leases, others) = (peers(&leases), peers(&others));
    assert!(leases.is_disjoint(&others), "{leases:?} {others:?}");
}
