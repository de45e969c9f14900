//! Tests of invalid input, for which a process logs one error in one line.
use std::net::TcpListener;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use crate::{
    child::{TestCommand, failed_at_once_with_one_line, failed_with_one_line, parse_line},
    server::{self, HttpServer, TlsServer},
    trials,
};

trials![
    leader_election_without_a_system_namespace_is_an_error,
    the_error_without_a_kubeconfig_lists_all_sources,
    the_error_of_a_malformed_kubeconfig_has_its_path,
    the_error_of_a_missing_kubeconfig_has_its_path,
    the_error_of_a_missing_context_lists_the_existing_ones,
    an_unreachable_server_is_retried,
    a_server_that_closes_connections_is_retried,
    a_name_that_does_not_resolve_is_retried,
    an_overloaded_server_is_retried,
    an_invalid_token_fails_at_once,
    the_error_of_an_expired_client_certificate_has_its_date,
    an_expired_server_certificate_fails_at_once,
    a_server_certificate_of_an_unknown_authority_fails_at_once,
    a_response_that_is_not_from_an_api_server_is_an_error,
    an_incompatible_version_is_refused,
    the_version_of_a_build_outside_of_a_release_is_accepted,
    the_first_file_with_a_current_context_sets_it,
    the_error_of_an_invalid_variable_has_name_and_value,
    an_unknown_flag_is_a_usage_error,
    a_user_flag_with_the_name_of_a_framework_flag_is_a_usage_error,
    an_unknown_controller_to_disable_is_a_usage_error,
    main_within_a_tokio_runtime_is_an_error,
    a_plan_that_the_program_does_not_allow_is_a_usage_error,
    help_and_version_exit_with_status_0,
    the_error_of_a_probes_port_in_use_names_its_variable,
    the_error_of_a_metrics_port_in_use_has_its_address,
    the_error_of_an_address_of_another_machine_names_its_variable,
    the_error_of_an_invalid_config_map_has_key_and_value,
    a_forbidden_config_map_is_an_error,
    two_controllers_with_the_same_name_are_refused,
    an_invalid_lease_name_ends_the_process_before_any_list,
    a_constructor_that_fails_ends_the_process,
    a_constructor_that_panics_ends_the_process_with_one_line,
];

fn kubeconfig(server: &str, user: &str) -> String {
    kubeconfig_with_ca(server, user, "")
}

fn kubeconfig_with_ca(server: &str, user: &str, ca_field: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Config, current-context: here,
          contexts: [{{name: here, context: {{cluster: here, user: me}}}}],
          clusters: [{{name: here, cluster: {{server: '{server}'{ca_field}}}}}],
          users: [{{name: me, user: {user}}}]}}"
    )
}

/// Returns a command without leader election, whose kubeconfig names this server and this user.
fn command_for(server: &str, user: &str) -> TestCommand {
    let command = TestCommand::new().arg("--disable-ha");
    let path = command.file("config", &kubeconfig(server, user));
    command.env("KUBECONFIG", path)
}

/// Returns a command as [`command_for`] does, whose kubeconfig has the certificate of the server.
fn command_for_tls(server: &TlsServer, user: &str) -> TestCommand {
    let command = TestCommand::new().arg("--disable-ha");
    command.file("ca.pem", &server.ca);
    let config = kubeconfig_with_ca(&server.url(), user, ", certificate-authority: ca.pem");
    let path = command.file("config", &config);
    command.env("KUBECONFIG", path)
}

fn leader_election_without_a_system_namespace_is_an_error() {
    let command = TestCommand::new();
    let path = command.file("config", &kubeconfig("https://127.0.0.1:6443", "{}"));
    let command = || TestCommand::new().env("KUBECONFIG", &path);
    let message = failed_at_once_with_one_line(command().run());
    assert!(message.starts_with("the environment variable \"SYSTEM_NAMESPACE\" is not set"), "{message}");
    assert!(message.contains("pass --disable-ha"), "{message}");
    // The kubeconfig is checked before the variable.
    let message = failed_at_once_with_one_line(command().arg("--context=elsewhere").run());
    assert!(message.ends_with("context \"elsewhere\" does not exist, only: here"), "{message}");
}

fn the_error_without_a_kubeconfig_lists_all_sources() {
    let command = TestCommand::new().arg("--disable-ha");
    let home = command.home().join(".kube/config").display().to_string();
    let message = failed_at_once_with_one_line(command.run());
    for part in [
        "no configuration has been provided",
        "--kubeconfig",
        "KUBECONFIG",
        &home,
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

fn the_error_of_a_malformed_kubeconfig_has_its_path() {
    let command = TestCommand::new().arg("--disable-ha");
    let path = command.file("config", "clusters: [\n- token: hunter2\n");
    let message = failed_at_once_with_one_line(command.arg("--kubeconfig").arg(&path).run());
    assert!(message.starts_with(&format!("kubeconfig {}: malformed YAML: ", path.display())), "{message}");
    assert!(!message.contains("hunter2"), "{message}");
}

fn the_error_of_a_missing_kubeconfig_has_its_path() {
    let message = failed_at_once_with_one_line(
        TestCommand::new().arg("--disable-ha").arg("--kubeconfig=/nowhere/config").run(),
    );
    assert!(message.starts_with("kubeconfig /nowhere/config: No such file"), "{message}");
}

fn the_error_of_a_missing_context_lists_the_existing_ones() {
    let message = failed_with_one_line(command_for("https://127.0.0.1:1", "{}").arg("--context=there").run());
    assert!(message.ends_with(r#"context "there" does not exist, only: here"#), "{message}");
}

/// A text that every cause contains.
const ANY_CAUSE: &str = "";

/// Checks that the process logs one retry and then gives up, with a timeout shorter than the usual minute.
#[track_caller]
fn check_retried(server: &str, cause: &str) {
    let (status, lines) = command_for(server, "{}").arg("--startup-timeout=1s").run();
    assert_eq!(status, 1, "{lines:#?}");
    let severities: Vec<_> = lines.iter().map(|line| parse_line(line)["severity"].clone()).collect();
    assert_eq!(severities, ["INFO", "WARNING", "EMERGENCY"], "{lines:#?}");
    for (line, end) in [(&lines[1], "; retrying for"), (&lines[2], "gave up after 1s")] {
        let message = parse_line(line)["message"].as_str().unwrap().to_owned();
        for part in [server, cause, end] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    }
}

fn an_unreachable_server_is_retried() {
    let (_socket, address) = server::closed_port();
    check_retried(&format!("https://{address}"), "Connection refused");
}

fn a_server_that_closes_connections_is_retried() {
    check_retried(&format!("https://{}", server::closing_server()), ANY_CAUSE);
    check_retried(&format!("http://{}", server::closing_server()), ANY_CAUSE);
}

fn a_name_that_does_not_resolve_is_retried() {
    check_retried("https://api.nowhere.invalid:6443", "failed to lookup address information");
}

fn an_overloaded_server_is_retried() {
    let overloaded = HttpServer::new(|_| server::status(429, "TooManyRequests", "try again later"));
    check_retried(&overloaded.url(), "try again later (429)");
    let failing = HttpServer::new(|_| server::status(503, "ServiceUnavailable", "starting"));
    check_retried(&failing.url(), "starting (503)");
}

fn an_invalid_token_fails_at_once() {
    let server = TlsServer::answering(|_, _| server::status(401, "Unauthorized", "Unauthorized"));
    let command = command_for_tls(&server, "{token: hunter2}");
    let path = command.home().join("config").display().to_string();
    let message = failed_with_one_line(command.run());
    for part in [&*server.url(), &path, "you must be logged in to the server: Unauthorized (401)"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("hunter2"), "{message}");
    assert_eq!(server.http.heads().len(), 1);
}

fn the_error_of_an_expired_client_certificate_has_its_date() {
    let mut params = CertificateParams::new(vec!["me".into()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let server = TlsServer::answering(|_, _| server::status(401, "Unauthorized", "Unauthorized"));
    let command = command_for_tls(&server, "{client-certificate: cert.pem, client-key: key.pem}");
    command.file("cert.pem", &certificate);
    command.file("key.pem", &key.serialize_pem());
    let message = failed_with_one_line(command.run());
    assert!(message.contains("the client certificate expired on 2020-01-01T00:00:00Z"), "{message}");
}

/// Runs a process that trusts this authority, and returns its error.
fn tls_failure(server: &TlsServer, ca: &str) -> String {
    let command = TestCommand::new().arg("--disable-ha");
    let ca = command.file("ca.pem", ca).display().to_string();
    let url = server.url();
    let config = kubeconfig_with_ca(&url, "{}", &format!(", certificate-authority: '{ca}'"));
    let path = command.file("config", &config);
    let message = failed_with_one_line(command.arg("--kubeconfig").arg(path).run());
    assert!(message.contains(&url), "{message}");
    message
}

fn an_expired_server_certificate_fails_at_once() {
    let server = TlsServer::valid_from_to(2019, 2020);
    let message = tls_failure(&server, &server.ca);
    assert!(message.contains("certificate expired"), "{message}");
}

fn a_server_certificate_of_an_unknown_authority_fails_at_once() {
    let (server, other) = (TlsServer::valid_from_to(2020, 3000), TlsServer::valid_from_to(2020, 3000));
    let message = tls_failure(&server, &other.ca);
    assert!(message.contains("invalid peer certificate"), "{message}");
}

fn a_response_that_is_not_from_an_api_server_is_an_error() {
    let server = HttpServer::new(|_| (200, "<html>welcome</html>".into()));
    let message = failed_with_one_line(command_for(&server.url(), "{}").run());
    assert!(message.contains(&server.url()), "{message}");
    assert!(message.contains("the response is not from a Kubernetes API server"), "{message}");
}

fn an_incompatible_version_is_refused() {
    let server = HttpServer::without_objects();
    let message =
        failed_with_one_line(command_for(&server.url(), "{}").env("KUBERNETES_MIN_VERSION", "v1.37.0").run());
    assert!(
        message.starts_with(r#"kubernetes version "v1.36.3" is not compatible, need at least "v1.37.0""#),
        "{message}"
    );
}

fn the_version_of_a_build_outside_of_a_release_is_accepted() {
    for (version, is_readable) in [
        ("v1.36.3+$Format:%h$", true),
        ("v1.36", true),
        ("v1.33.1-x.06", true),
        ("v0.0.0-master+$Format:%H$", false),
        ("", false),
    ] {
        let info = format!(
            r#"{{"major":"","minor":"","gitVersion":"{version}","gitCommit":"","gitTreeState":"","buildDate":"",
                "goVersion":"","compiler":"","platform":""}}"#
        );
        let server = HttpServer::new(move |_| (200, info.clone()));
        let child = command_for(&server.url(), "{}").spawn();
        child.wait_for_line("greeter runs");
        let has_warning = child.lines().iter().any(|line| line.contains("cannot be read"));
        assert_eq!(has_warning, !is_readable, "{version:?}");
    }
}

fn the_first_file_with_a_current_context_sets_it() {
    let server = HttpServer::without_objects();
    let command = TestCommand::new().arg("--disable-ha");
    let empty = command.file("empty", "current-context: ''\nclusters: null\ncontexts: []\nusers: null\n");
    let path = command.file("config", &kubeconfig(&server.url(), "{}"));
    let list = std::env::join_paths([empty, command.home().join("missing"), path]).unwrap();
    command.env("KUBECONFIG", list).spawn().wait_for_line("greeter runs");
}

fn the_error_of_an_invalid_variable_has_name_and_value() {
    for (name, value) in [("K_THREADS_PER_CONTROLLER", "abc"), ("RUST_LOG", "a=loud")] {
        let message = failed_with_one_line(TestCommand::new().arg("--disable-ha").env(name, value).run());
        assert!(message.starts_with(&format!("{name}={value:?} in the environment is not ")), "{message}");
    }
}

fn an_unknown_flag_is_a_usage_error() {
    for arg in ["--unknown", "--kube-api-qps=many", "--shutdown-timeout=soon", "--bind-address=here"] {
        let (status, lines) = TestCommand::new().arg(arg).run();
        assert_eq!(status, 2, "{lines:#?}");
        assert!(lines.len() == 1 && lines[0].starts_with("error: "), "{lines:#?}");
    }
}

fn a_user_flag_with_the_name_of_a_framework_flag_is_a_usage_error() {
    let (status, lines) = TestCommand::with_scenario("flags clash").run();
    assert_eq!(status, 2, "{lines:#?}");
    assert_eq!(lines, ["error: flags are defined twice: server; try --help"]);
}

fn an_unknown_controller_to_disable_is_a_usage_error() {
    let (status, lines) =
        command_for("http://127.0.0.1:1", "{}").arg("--disable-controllers=lamps.example.com").run();
    assert_eq!(status, 2, "{lines:#?}");
    let message = parse_line(lines.last().unwrap());
    let message = message["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            r#"--disable-controllers: there is no controller "lamps.example.com", only: (none)"#
        ),
        "{message}"
    );
}

fn main_within_a_tokio_runtime_is_an_error() {
    let message = failed_at_once_with_one_line(TestCommand::with_scenario("within a runtime").run());
    assert!(message.starts_with("main was called from within a tokio runtime"), "{message}");
}

fn a_plan_that_the_program_does_not_allow_is_a_usage_error() {
    let (status, lines) = TestCommand::new().arg("--plan").run();
    assert_eq!(status, 2);
    assert!(lines.concat().contains("--plan: the program does not allow it"), "{lines:?}");
}

fn help_and_version_exit_with_status_0() {
    let (status, lines) = TestCommand::new().arg("--help").run();
    assert_eq!(status, 0);
    for flag in ["--kubeconfig", "--disable-ha", "--greeting"] {
        assert!(lines.iter().any(|line| line.contains(flag)), "{lines:#?}");
    }
    assert_eq!(TestCommand::new().arg("--version").run(), (0, vec!["faulty 1.2.3".into()]));
}

fn the_error_of_a_probes_port_in_use_names_its_variable() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let server = HttpServer::without_objects();
    let command = command_for(&server.url(), "{}").env("KNATIVE_HEALTH_PROBES_PORT", &port);
    let message = failed_with_one_line(command.run());
    assert!(
        message.starts_with(&format!("cannot listen on 127.0.0.1:{port} for probes: Address already in use"))
    );
    assert!(message.ends_with("KNATIVE_HEALTH_PROBES_PORT chooses another port"), "{message}");
}

fn the_error_of_a_metrics_port_in_use_has_its_address() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let server = HttpServer::without_objects();
    let message =
        failed_with_one_line(command_for(&server.url(), "{}").env("METRICS_PROMETHEUS_PORT", &port).run());
    assert!(
        message
            .starts_with(&format!("cannot listen on 127.0.0.1:{port} for metrics: Address already in use"))
    );
}

fn the_error_of_an_address_of_another_machine_names_its_variable() {
    let server = HttpServer::without_objects();
    let command = command_for(&server.url(), "{}").env("METRICS_PROMETHEUS_HOST", "192.0.2.1");
    let message = failed_with_one_line(command.env("METRICS_PROMETHEUS_PORT", "9090").run());
    assert_eq!(
        message,
        "cannot listen on 192.0.2.1:9090 for metrics: 192.0.2.1 is not an address of this machine; \
         METRICS_PROMETHEUS_HOST chooses another"
    );
}

fn the_error_of_an_invalid_config_map_has_key_and_value() {
    for (name, key, value) in [
        ("config-logging", "loglevel.faulty", "loud"),
        ("config-observability", "metrics-protocol", "smtp"),
        ("config-observability", "metrics-endpoint", "collector.observability:4317"),
        ("config-leader-election", "lease-duration", "long"),
        ("config-leader-election", "map-lease-prefix.other.lamps", "Bad/Name"),
    ] {
        let server = HttpServer::new(move |head| match &head[0] {
            path if path.contains(" /version ") => (200, server::VERSION.into()),
            path if path.contains(&format!("/namespaces/system/configmaps/{name} ")) => {
                (200, format!(r#"{{"metadata": {{"name": "{name}"}}, "data": {{"{key}": "{value}"}}}}"#))
            }
            _ => server::not_found(),
        });
        let command = TestCommand::new(); // with leader election, or its ConfigMap would not be read
        let path = command.file("config", &kubeconfig(&server.url(), "{}"));
        let message =
            failed_with_one_line(command.env("KUBECONFIG", path).env("SYSTEM_NAMESPACE", "system").run());
        for part in [&*format!("ConfigMap system/{name}: "), key, value] {
            assert!(message.contains(part), "{message}");
        }
    }
}

fn a_forbidden_config_map_is_an_error() {
    let server = HttpServer::new(|head| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        _ => server::status(403, "Forbidden", r#"configmaps "config-logging" is forbidden"#),
    });
    let message =
        failed_with_one_line(command_for(&server.url(), "{}").env("SYSTEM_NAMESPACE", "system").run());
    assert!(message.contains(r#"configmaps "config-logging" is forbidden (403)"#), "{message}");
}

fn an_invalid_lease_name_ends_the_process_before_any_list() {
    let server = HttpServer::without_objects();
    let command = TestCommand::with_scenario("long name").args(["--server", &server.url()]);
    let (status, lines) = command.env("SYSTEM_NAMESPACE", "system").run();
    assert_eq!(status, 1, "{lines:#?}");
    let message = parse_line(lines.last().unwrap())["message"].as_str().unwrap().to_owned();
    assert!(message.contains("lease") && message.contains("xxx"), "{message}");
    let is_list = |line: &str| line.contains("limit=");
    assert!(!server.heads().iter().any(|head| is_list(&head[0])), "{:#?}", server.heads());
}

fn two_controllers_with_the_same_name_are_refused() {
    let command = TestCommand::with_scenario("twins").arg("--disable-ha").arg("--server=http://127.0.0.1:1");
    let message = failed_with_one_line(command.run());
    assert_eq!(message, "two controllers are named maps: give one of them another name by .name(..)");
}

fn a_constructor_that_fails_ends_the_process() {
    let message = failed_with_one_line(
        TestCommand::with_scenario("constructor fails")
            .arg("--disable-ha")
            .arg("--server=http://127.0.0.1:1")
            .run(),
    );
    assert_eq!(message, "failed to construct task 2 of 2: no such file");
}

fn a_constructor_that_panics_ends_the_process_with_one_line() {
    let command =
        TestCommand::with_scenario("constructor panics").arg("--disable-ha").env("RUST_BACKTRACE", "1");
    let message = failed_with_one_line(command.arg("--server=http://127.0.0.1:1").run());
    assert_eq!(message, "failed to construct task 2 of 2: cyclic Inject: A → B → A");
}
