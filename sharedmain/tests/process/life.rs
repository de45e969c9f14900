//! How a process runs and ends.
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
    sigterm_ends_a_process_in_good_order,
    ctrl_c_does_the_same,
    a_second_signal_ends_it_at_once,
    a_signal_while_it_waits_for_the_server_ends_it,
    a_task_that_hangs_is_dropped_at_the_deadline,
    a_task_that_fails_ends_the_process,
    a_task_that_fails_to_end_is_a_failure,
    a_task_that_panics_ends_the_process,
    a_task_that_ends_is_done,
    signals_are_heeded_while_all_threads_are_busy,
    probes_and_metrics_answer,
    readiness_says_what_a_starting_process_waits_for,
    log_lines_are_knatives,
    the_level_follows_config_logging_unless_rust_log_is_set,
    flags_of_the_users_own_are_provided,
    leases_are_kept_by_connections_that_nobody_else_uses,
];

/// Runs against a server that knows nothing.
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

fn sigterm_ends_a_process_in_good_order() {
    ends_after_signal("TERM", "SIGTERM");
}

fn ctrl_c_does_the_same() {
    ends_after_signal("INT", "SIGINT");
}

fn a_second_signal_ends_it_at_once() {
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

fn a_signal_while_it_waits_for_the_server_ends_it() {
    let (_nobody, address) = server::nobody();
    let child = Start::new().args(["--disable-ha", "--server", &format!("http://{address}")]).spawn();
    child.line("cannot be used yet");
    child.signal("TERM");
    assert_eq!(child.end().0, 0);
}

fn a_task_that_hangs_is_dropped_at_the_deadline() {
    let (start, _server) = start("task hangs");
    let child = start.arg("--shutdown-timeout=300ms").spawn();
    child.line("greeter runs");
    let began = Instant::now();
    child.signal("TERM");
    let (status, lines) = child.end();
    assert_eq!(status, 0, "{lines:#?}");
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert!(messages(&lines).last().unwrap().starts_with("tasks that had not ended"), "{lines:#?}");
}

/// The others end in good order first.
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

fn a_task_that_fails_to_end_is_a_failure() {
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

fn a_task_that_ends_is_done() {
    let (start, _server) = start("task ends");
    let child = start.spawn();
    let ended = json(&child.line("task ended"));
    assert_eq!(ended["task"], "short");
    child.line("greeter runs");
    child.signal("TERM");
    assert_eq!(child.end().0, 0);
}

fn signals_are_heeded_while_all_threads_are_busy() {
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

/// Asks until it answers so.
pub(crate) fn until_status(child: &Child, path: &str, status: u16) -> String {
    let (address, began) = (child.address("probes"), Instant::now());
    loop {
        let (got, body) = get(&address, path);
        if got == status {
            return body;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{path} answers {got}: {body}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn probes_and_metrics_answer() {
    let (start, _server) = start("task hangs");
    let child = start.spawn();
    until_status(&child, "/readiness", 200);
    until_status(&child, "/health", 200);
    assert_eq!(get(&child.address("probes"), "/elsewhere").0, 404);
    let (status, text) = get(&child.address("metrics"), "/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("process_resident_memory_bytes "), "{text}");
    child.signal("TERM");
    assert_eq!(until_status(&child, "/readiness", 503), "shutting down\n");
    until_status(&child, "/health", 200);
}

fn readiness_says_what_a_starting_process_waits_for() {
    let (_nobody, address) = server::nobody();
    let child = Start::new().args(["--disable-ha", "--server", &format!("http://{address}")]).spawn();
    assert_eq!(until_status(&child, "/readiness", 503), "waiting for the API server\n");
    until_status(&child, "/health", 200);
}

fn log_lines_are_knatives() {
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

fn the_level_follows_config_logging_unless_rust_log_is_set() {
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

fn flags_of_the_users_own_are_provided() {
    let (start, _server) = start("none");
    let child = start.args(["--greeting", "goodbye"]).spawn();
    assert_eq!(json(&child.line("greeter runs"))["greeting"], "goodbye");
}

fn leases_are_kept_by_connections_that_nobody_else_uses() {
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
    server.until_asked(4, of_leases);
    let (leases, others): (Vec<_>, Vec<_>) = server.heads().into_iter().partition(|head| of_leases(&head[0]));
    let peers =
        |heads: &[Head]| heads.iter().filter_map(|head| head.last().cloned()).collect::<BTreeSet<_>>();
    let (leases, others) = (peers(&leases), peers(&others));
    assert!(leases.is_disjoint(&others), "{leases:?} {others:?}");
}
