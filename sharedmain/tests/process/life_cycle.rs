//! Tests of the start and the shutdown of a process.
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use crate::{
    child::{Child, TestCommand, parse_line},
    server::{self, Head, HttpServer},
    trials,
};

trials![
    sigterm_shuts_a_process_down,
    ctrl_c_shuts_a_process_down,
    a_second_signal_ends_the_process_at_once,
    a_signal_ends_a_process_that_waits_for_the_server,
    a_task_that_hangs_is_dropped_at_the_deadline,
    a_webhook_with_open_connections_ends_before_the_deadline,
    a_task_that_fails_ends_the_process,
    the_error_that_ends_the_process_is_in_its_termination_message,
    a_task_that_fails_during_the_shutdown_makes_the_exit_status_1,
    a_task_that_panics_ends_the_process,
    the_process_continues_after_a_task_has_ended,
    signals_are_handled_while_all_threads_are_blocked,
    probes_and_metrics_respond,
    clients_with_unfinished_heads_take_little_memory_and_shut_no_others_out,
    the_flags_of_kubebuilder_set_addresses_and_ports_and_switch_metrics_off,
    readiness_of_a_starting_process_has_a_reason,
    log_lines_have_the_field_names_of_knative,
    absent_config_maps_are_named,
    config_logging_sets_the_level_unless_rust_log_is_set,
    flags_of_the_program_are_provided_to_its_tasks,
    a_version_that_may_not_be_read_is_a_warning,
    a_list_that_fails_does_not_keep_a_webhook_from_being_ready,
    requests_for_leases_share_no_connection_with_other_requests,
];

/// Returns a command, and the server without objects that it uses.
fn command_with_server(scenario: &str) -> (TestCommand, HttpServer) {
    let server = HttpServer::without_objects();
    let command = TestCommand::with_scenario(scenario).args(["--disable-ha", "--server", &server.url()]);
    (command, server)
}

fn messages_of(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| parse_line(line)["message"].as_str().unwrap().to_owned()).collect()
}

/// Checks that this signal, with this name in the log, shuts the process down with status 0.
fn check_signal_ends_process(signal: &str, name: &str) {
    let (command, _server) = command_with_server("none");
    let child = command.spawn();
    child.wait_for_line("greeter runs");
    child.signal(signal);
    let (status, lines) = child.wait();
    assert_eq!(status, 0, "{lines:#?}");
    let messages = messages_of(&lines);
    assert_eq!(messages[messages.len() - 3], format!("received {name}: shutting down"));
    assert_eq!(messages[messages.len() - 2..], ["greeter ends", "task ended"]);
}

fn sigterm_shuts_a_process_down() {
    check_signal_ends_process("TERM", "SIGTERM");
}

fn ctrl_c_shuts_a_process_down() {
    check_signal_ends_process("INT", "SIGINT");
}

fn a_second_signal_ends_the_process_at_once() {
    let (command, _server) = command_with_server("task hangs");
    let child = command.spawn();
    child.wait_for_line("greeter runs");
    child.signal("TERM");
    child.wait_for_line("task ended");
    child.signal("INT");
    let (status, lines) = child.wait();
    assert_eq!(status, 1, "{lines:#?}");
    assert_eq!(messages_of(&lines).last().unwrap(), "received SIGINT while shutting down: ending at once");
}

fn a_signal_ends_a_process_that_waits_for_the_server() {
    let (_socket, address) = server::closed_port();
    let child = TestCommand::new().args(["--disable-ha", "--server", &format!("http://{address}")]).spawn();
    child.wait_for_line("unable to connect to the server");
    child.signal("TERM");
    assert_eq!(child.wait().0, 0);
}

fn a_task_that_hangs_is_dropped_at_the_deadline() {
    let (command, _server) = command_with_server("task hangs");
    let child = command.arg("--shutdown-timeout=300ms").spawn();
    child.wait_for_line("greeter runs");
    let start_time = Instant::now();
    child.signal("TERM");
    let (status, lines) = child.wait();
    assert_eq!(status, 0, "{lines:#?}");
    assert!(start_time.elapsed() >= Duration::from_millis(300));
    let last = parse_line(lines.last().unwrap());
    assert!(last["message"].as_str().unwrap().starts_with("dropped tasks that were still running"), "{last}");
    assert_eq!(last["tasks"], "hung");
}

fn a_webhook_with_open_connections_ends_before_the_deadline() {
    let (command, _server) = command_with_server("webhook alone");
    let command = command.env("SYSTEM_NAMESPACE", "system").env("WEBHOOK_PORT", "0");
    let child = command.arg("--shutdown-timeout=3s").spawn();
    let _connection = TcpStream::connect(child.wait_for_address("the webhook")).unwrap();
    child.wait_for_line("greeter runs");
    child.signal("TERM");
    let (status, lines) = child.wait();
    assert_eq!(status, 0, "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("dropped tasks")), "{lines:#?}");
}

/// Checks that the scenario ends the process with status 1, and that the other task is shut down before that.
fn check_scenario_ends_process(scenario: &str, last_message: &str) {
    let (command, _server) = command_with_server(scenario);
    let (status, lines) = command.run();
    assert_eq!(status, 1, "{lines:#?}");
    let messages = messages_of(&lines);
    assert_eq!(messages.last().unwrap(), last_message);
    assert!(messages.contains(&"greeter ends".to_owned()), "{lines:#?}");
}

fn a_task_that_fails_ends_the_process() {
    check_scenario_ends_process("task fails", "task wrong failed: no luck");
}

fn the_error_that_ends_the_process_is_in_its_termination_message() {
    let message = tempfile::NamedTempFile::new().unwrap();
    let (command, _server) = command_with_server("task fails");
    let (status, _) = command.env("TERMINATION_MESSAGE_PATH", message.path().to_str().unwrap()).run();
    assert_eq!(status, 1);
    assert_eq!(std::fs::read_to_string(message.path()).unwrap(), "task wrong failed: no luck\n");
}

fn a_task_that_fails_during_the_shutdown_makes_the_exit_status_1() {
    let (command, _server) = command_with_server("task fails late");
    let child = command.spawn();
    child.wait_for_line("greeter runs");
    child.signal("TERM");
    let (status, lines) = child.wait();
    assert_eq!(status, 1, "{lines:#?}");
    assert_eq!(messages_of(&lines).last().unwrap(), "task wrong failed: no luck");
}

fn a_task_that_panics_ends_the_process() {
    check_scenario_ends_process("task panics", "task wrong panicked: no luck at all");
}

fn the_process_continues_after_a_task_has_ended() {
    let (command, _server) = command_with_server("task ends");
    let child = command.spawn();
    let ended = parse_line(&child.wait_for_line("task ended"));
    assert_eq!(ended["task"], "short");
    child.wait_for_line("greeter runs");
    child.signal("TERM");
    assert_eq!(child.wait().0, 0);
}

fn signals_are_handled_while_all_threads_are_blocked() {
    let (command, _server) = command_with_server("task blocks");
    let child = command.arg("--shutdown-timeout=300ms").spawn();
    child.wait_for_line("blocking");
    child.signal("TERM");
    child.wait_for_line("received SIGTERM");
    assert_eq!(child.wait().0, 0);
}

pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let (status, body) = get_bytes(address, path);
    (status, String::from_utf8(body).unwrap())
}

pub(crate) fn get_bytes(address: &str, path: &str) -> (u16, Vec<u8>) {
    get_as("probe", address, path)
}

/// Sends a request to this host.
pub(crate) fn get_as(host: &str, address: &str, path: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    let end = response.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&response[..end]).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), response[end + 4..].to_vec())
}

/// The body of the readiness probe of a process that is shutting down.
pub(crate) const SHUTTING_DOWN: &str = "[-]shutdown failed: shutting down\nreadiness check failed\n";

/// Waits until the path has this status, and returns the body.
pub(crate) fn wait_for_status(child: &Child, path: &str, status: u16) -> String {
    let (address, start) = (child.wait_for_address("probes"), Instant::now());
    loop {
        let (actual, body) = get(&address, path);
        if actual == status {
            return body;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{path} answers {actual}: {body}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn probes_and_metrics_respond() {
    let (command, _server) = command_with_server("task hangs");
    let child = command.spawn();
    wait_for_status(&child, "/readiness", 200);
    wait_for_status(&child, "/health", 200);
    assert_eq!(get(&child.wait_for_address("probes"), "/elsewhere").0, 404);
    let (status, text) = get(&child.wait_for_address("metrics"), "/metrics");
    assert_eq!(status, 200);
    assert!(text.contains("process_resident_memory_bytes "), "{text}");
    child.signal("TERM");
    assert_eq!(wait_for_status(&child, "/readiness", 503), SHUTTING_DOWN);
    wait_for_status(&child, "/health", 200);
}

fn clients_with_unfinished_heads_take_little_memory_and_shut_no_others_out() {
    let (command, _server) = command_with_server("none");
    let command = command.arg("--console-bind-address=:0").env("SYSTEM_NAMESPACE", "system");
    let child = command.spawn();
    child.wait_for_line("greeter runs");
    for (port, path, status) in [
        ("probes", "/health", 200),
        ("metrics", "/metrics", 200),
        ("profiling", "/debug/pprof/", 404),
        ("the console", "/debug/reknit/", 403), // since the host is not localhost
    ] {
        let (address, before) = (child.wait_for_address(port), child.resident_mib());
        let mut clients = Vec::new();
        for _ in 0..400 {
            let mut client = TcpStream::connect(&address).unwrap();
            client.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            // The server may close the connection.
            let _ = write!(client, "GET / HTTP/1.1\r\nx: {}", "x".repeat(300 * 1024));
            clients.push(client);
        }
        let grown = child.resident_mib().saturating_sub(before);
        assert!(grown < 40, "400 clients of the port for {port} took {grown} MiB");
        assert_eq!(get(&address, path).0, status);
        drop(clients);
        let mut silent = TcpStream::connect(&address).unwrap();
        silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap(), 0, "the port for {port} keeps a client without a request");
    }
}

fn the_flags_of_kubebuilder_set_addresses_and_ports_and_switch_metrics_off() {
    let server = HttpServer::without_objects();
    let arguments = ["--leader-elect=false", "--server", &server.url(), "--metrics-bind-address=0"];
    let child = TestCommand::with_scenario("task hangs")
        .args(arguments)
        .args(["--health-probe-bind-address=127.0.0.1:0"])
        .env("KNATIVE_HEALTH_PROBES_PORT", "1")
        .spawn();
    wait_for_status(&child, "/readyz", 200);
    assert!(!child.lines().iter().any(|line| line.contains("listening for metrics")));
    let child = TestCommand::with_scenario("task hangs")
        .args(["--leader-elect=false", "--server", &server.url(), "--metrics-bind-address=localhost:0"])
        .env("METRICS_PROMETHEUS_PORT", "1")
        .spawn();
    assert_eq!(get(&child.wait_for_address("metrics"), "/metrics").0, 200);
    let child = TestCommand::with_scenario("webhook alone")
        .args(["--leader-elect=false", "--server", &server.url(), "--webhook-port=0"])
        .env("SYSTEM_NAMESPACE", "system")
        .env("WEBHOOK_PORT", "1")
        .spawn();
    assert!(!child.wait_for_address("the webhook").ends_with(":1"), "the environment sets the port");
}

fn readiness_of_a_starting_process_has_a_reason() {
    let (_socket, address) = server::closed_port();
    let child = TestCommand::new().args(["--disable-ha", "--server", &format!("http://{address}")]).spawn();
    assert_eq!(
        wait_for_status(&child, "/readiness", 503),
        "[-]startup failed: waiting for the API server\nreadiness check failed\n"
    );
    wait_for_status(&child, "/health", 200);
}

/// The list may need the webhook of this very process, which has no endpoints until the process is ready.
fn a_list_that_fails_does_not_keep_a_webhook_from_being_ready() {
    let server = HttpServer::new(|head| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        path if path.contains("limit=") => {
            server::status(500, "", "conversion webhook for v1 failed: connection refused")
        }
        path if path.contains(" /api/v1/namespaces/shop ") => {
            (200, r#"{"kind": "PartialObjectMetadata", "metadata": {"name": "shop"}}"#.into())
        }
        _ => server::not_found(),
    });
    for (scenario, check) in
        [("maps", "[-]informers/maps failed"), ("maps and a webhook", "[!]informers/maps degraded")]
    {
        let command = TestCommand::with_scenario(scenario).args(["--disable-ha", "--server", &server.url()]);
        let child =
            command.env("SYSTEM_NAMESPACE", "shop").env("WATCHED", "shop").env("WEBHOOK_PORT", "0").spawn();
        let expected = format!("{check}: waiting for configmaps");
        let (address, start) = (child.wait_for_address("probes"), Instant::now());
        loop {
            let (_, checks) = get(&address, "/readiness?verbose");
            if checks.contains(&expected) && checks.contains("conversion webhook for v1 failed") {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{checks}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn absent_config_maps_are_named() {
    let (command, _server) = command_with_server("none");
    let child =
        command.env("SYSTEM_NAMESPACE", "system").env("CONFIG_LOGGING_NAME", "config-logging-2").spawn();
    child.wait_for_line("greeter runs");
    for name in ["config-logging-2", "config-observability"] {
        let line = parse_line(&child.wait_for_line(&format!("\"{name}\"")));
        assert_eq!(line["message"], "the ConfigMap does not exist: the defaults are used");
        assert_eq!([&line["severity"], &line["namespace"]], ["INFO", "system"], "{line}");
    }
}

fn log_lines_have_the_field_names_of_knative() {
    let (command, _server) = command_with_server("none");
    let child = command.env("POD_NAME", "faulty-0").spawn();
    let line = child.wait_for_line("greeter runs");
    assert!(line.starts_with(r#"{"severity":"INFO","timestamp":"20"#), "{line}");
    let line = parse_line(&line);
    assert_eq!(line["logger"], "faulty");
    assert_eq!(line["knative.dev/pod"], "faulty-0");
    assert!(line["caller"].as_str().unwrap().starts_with(concat!(env!("CARGO_CRATE_NAME"), "/")), "{line}");
    assert_eq!(line["greeting"], "hello");
}

fn config_logging_sets_the_level_unless_rust_log_is_set() {
    let server = HttpServer::new(|head| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        path if path.contains("GET /api/v1/namespaces/system/configmaps/config-logging ") => {
            let map = r#"{"metadata": {"name": "config-logging"}, "data": {"loglevel.faulty": "error"}}"#;
            (200, map.into())
        }
        _ => server::not_found(),
    });
    let command = || {
        let args = ["--disable-ha", "--server", &server.url()];
        TestCommand::with_scenario("task fails").args(args).env("SYSTEM_NAMESPACE", "system")
    };
    let (_, lines) = command().run();
    assert!(!messages_of(&lines).contains(&"greeter ends".to_owned()), "{lines:#?}");
    let (_, lines) = command().env("RUST_LOG", "info").run();
    assert!(messages_of(&lines).contains(&"greeter ends".to_owned()), "{lines:#?}");
}

fn a_version_that_may_not_be_read_is_a_warning() {
    let server = HttpServer::new(|head| match &head[0] {
        path if path.contains(" /version ") => {
            server::status(403, "Forbidden", r#"forbidden: User \"x\" cannot get path \"/version\""#)
        }
        _ => server::not_found(),
    });
    let child = TestCommand::new().args(["--disable-ha", "--server", &server.url()]).spawn();
    let warning = parse_line(&child.wait_for_line("the version of the API server may not be read"));
    assert!(warning["error"].as_str().unwrap().contains("/version"), "{warning}");
    child.wait_for_line("greeter runs");
}

fn flags_of_the_program_are_provided_to_its_tasks() {
    let (command, _server) = command_with_server("none");
    let child = command.args(["--greeting", "goodbye"]).spawn();
    assert_eq!(parse_line(&child.wait_for_line("greeter runs"))["greeting"], "goodbye");
}

fn requests_for_leases_share_no_connection_with_other_requests() {
    let server = HttpServer::new(|head| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        path if path.contains("GET /api/v1/namespaces/system/configmaps/config-leader-election ") => {
            let data = r#"{"lease-duration": "3s", "renew-deadline": "2s", "retry-period": "1s"}"#;
            (200, format!(r#"{{"metadata": {{"name": "config-leader-election"}}, "data": {data}}}"#))
        }
        _ => server::not_found(),
    });
    let command = TestCommand::with_scenario("busy").args(["--server", &server.url()]);
    let _child = command.env("SYSTEM_NAMESPACE", "system").spawn();
    let is_lease_request = |line: &str| line.contains("/leases");
    server.wait_for_requests(4, is_lease_request);
    let (leases, others): (Vec<_>, Vec<_>) =
        server.heads().into_iter().partition(|head| is_lease_request(&head[0]));
    let peers =
        |heads: &[Head]| heads.iter().filter_map(|head| head.last().cloned()).collect::<BTreeSet<_>>();
    let (leases, others) = (peers(&leases), peers(&others));
    assert!(leases.is_disjoint(&others), "{leases:?} {others:?}");
}
