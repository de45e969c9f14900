//! What a user gets wrong, and the one line that says so.
use std::net::TcpListener;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use crate::{
    child::{Start, failed_at_once_with_one_line, failed_with_one_line, json},
    server::{self, Http, Tls},
    trials,
};

trials![
    without_a_system_namespace_leader_election_says_how_to_go_on,
    without_any_kubeconfig_it_says_where_it_looked,
    a_malformed_kubeconfig_is_named,
    a_missing_kubeconfig_is_named,
    a_missing_context_is_named_with_those_there_are,
    an_unreachable_server_is_retried_and_then_named,
    a_server_that_hangs_up_is_retried_and_then_named,
    a_name_that_does_not_resolve_is_retried_and_then_named,
    a_busy_server_is_retried,
    a_wrong_token_fails_at_once,
    an_expired_client_certificate_is_named_with_its_date,
    an_expired_server_certificate_fails_at_once,
    a_server_of_another_authority_fails_at_once,
    a_server_that_is_no_api_server_is_named,
    a_server_too_old_is_refused,
    a_bad_variable_is_named,
    an_unknown_flag_is_a_usage_error,
    a_flag_of_the_users_that_there_is_already_is_a_usage_error,
    an_unknown_controller_to_disable_is_a_usage_error,
    a_runtime_around_it_is_told,
    help_and_version_are_no_errors,
    a_probes_port_in_use_is_named,
    a_metrics_port_in_use_is_named,
    an_address_of_another_machine_is_named,
    a_bad_config_map_is_named_with_its_key_and_value,
    a_config_map_that_may_not_be_read_is_named,
    two_controllers_of_one_name_are_refused,
    a_controller_whose_lease_has_no_name_ends_the_process_before_anything_is_followed,
    a_constructor_that_fails_ends_the_process,
    a_constructor_that_panics_ends_the_process_with_one_line,
];

fn kubeconfig(server: &str, user: &str) -> String {
    kubeconfig_with_ca(server, user, "")
}

fn kubeconfig_with_ca(server: &str, user: &str, ca: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Config, current-context: here,
          contexts: [{{name: here, context: {{cluster: here, user: me}}}}],
          clusters: [{{name: here, cluster: {{server: '{server}'{ca}}}}}],
          users: [{{name: me, user: {user}}}]}}"
    )
}

/// Without leader election, against this server.
fn start(server: &str, user: &str) -> Start {
    let start = Start::new().arg("--disable-ha");
    let path = start.file("config", &kubeconfig(server, user));
    start.env("KUBECONFIG", path)
}

fn without_a_system_namespace_leader_election_says_how_to_go_on() {
    let start = Start::new();
    let path = start.file("config", &kubeconfig("https://127.0.0.1:6443", "{}"));
    let start = || Start::new().env("KUBECONFIG", &path);
    let said = failed_at_once_with_one_line(start().end());
    assert!(said.starts_with("the environment variable \"SYSTEM_NAMESPACE\" is not set"), "{said}");
    assert!(said.contains("pass --disable-ha"), "{said}");
    let said = failed_at_once_with_one_line(start().arg("--context=elsewhere").end());
    assert!(said.ends_with("context \"elsewhere\" does not exist, only: here"), "{said}");
}

fn without_any_kubeconfig_it_says_where_it_looked() {
    let start = Start::new().arg("--disable-ha");
    let home = start.home().join(".kube/config").display().to_string();
    let said = failed_at_once_with_one_line(start.end());
    for place in [
        "no configuration has been provided",
        "--kubeconfig",
        "KUBECONFIG",
        &home,
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined",
    ] {
        assert!(said.contains(place), "{said}");
    }
}

fn a_malformed_kubeconfig_is_named() {
    let start = Start::new().arg("--disable-ha");
    let path = start.file("config", "clusters: [\n- token: hunter2\n");
    let said = failed_at_once_with_one_line(start.arg("--kubeconfig").arg(&path).end());
    assert!(said.starts_with(&format!("kubeconfig {}: malformed YAML: ", path.display())), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
}

fn a_missing_kubeconfig_is_named() {
    let said = failed_at_once_with_one_line(
        Start::new().arg("--disable-ha").arg("--kubeconfig=/nowhere/config").end(),
    );
    assert!(said.starts_with("kubeconfig /nowhere/config: No such file"), "{said}");
}

fn a_missing_context_is_named_with_those_there_are() {
    let said = failed_with_one_line(start("https://127.0.0.1:1", "{}").arg("--context=there").end());
    assert!(said.ends_with(r#"context "there" does not exist, only: here"#), "{said}");
}

/// It says at once that it retries, and gives up with one line. The minute is shortened here.
#[track_caller]
fn retried(server: &str, cause: &str) {
    let (status, lines) = start(server, "{}").arg("--startup-timeout=1s").end();
    assert_eq!(status, 1, "{lines:#?}");
    let severities: Vec<_> = lines.iter().map(|line| json(line)["severity"].clone()).collect();
    assert_eq!(severities, ["INFO", "WARNING", "EMERGENCY"], "{lines:#?}");
    for (line, said) in [(&lines[1], "; retrying for"), (&lines[2], "gave up after 1s")] {
        let message = json(line)["message"].as_str().unwrap().to_owned();
        for part in [server, cause, said] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    }
}

fn an_unreachable_server_is_retried_and_then_named() {
    let (_nobody, address) = server::nobody();
    retried(&format!("https://{address}"), "Connection refused");
}

fn a_server_that_hangs_up_is_retried_and_then_named() {
    retried(&format!("https://{}", server::hanging_up()), "");
    retried(&format!("http://{}", server::hanging_up()), "");
}

fn a_name_that_does_not_resolve_is_retried_and_then_named() {
    retried("https://api.nowhere.invalid:6443", "failed to lookup address information");
}

fn a_busy_server_is_retried() {
    let busy = Http::new(|_| server::status(429, "TooManyRequests", "come back later"));
    retried(&busy.url(), "come back later (429)");
    let failing = Http::new(|_| server::status(503, "ServiceUnavailable", "starting"));
    retried(&failing.url(), "starting (503)");
}

fn a_wrong_token_fails_at_once() {
    let server = Http::new(|_| server::status(401, "Unauthorized", "Unauthorized"));
    let start = start(&server.url(), "{token: hunter2}");
    let path = start.home().join("config").display().to_string();
    let said = failed_with_one_line(start.end());
    for part in [&*server.url(), &path, "you must be logged in to the server: Unauthorized (401)"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("hunter2"), "{said}");
    assert_eq!(server.heads().len(), 1);
}

fn an_expired_client_certificate_is_named_with_its_date() {
    let mut params = CertificateParams::new(vec!["me".into()]).unwrap();
    (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(2020, 1, 1));
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let server = Http::new(|_| server::status(401, "Unauthorized", "Unauthorized"));
    let start = start(&server.url(), "{client-certificate: cert.pem, client-key: key.pem}");
    start.file("cert.pem", &certificate);
    start.file("key.pem", &key.serialize_pem());
    let said = failed_with_one_line(start.end());
    assert!(said.contains("the client certificate expired on 2020-01-01T00:00:00Z"), "{said}");
}

/// Trusts the certificate but for what is wrong with it.
fn tls_failure(server: &Tls, ca: &str) -> String {
    let start = Start::new().arg("--disable-ha");
    let ca = start.file("ca.pem", ca).display().to_string();
    let url = format!("https://{}", server.address);
    let config = kubeconfig_with_ca(&url, "{}", &format!(", certificate-authority: '{ca}'"));
    let path = start.file("config", &config);
    let said = failed_with_one_line(start.arg("--kubeconfig").arg(path).end());
    assert!(said.contains(&url), "{said}");
    said
}

fn an_expired_server_certificate_fails_at_once() {
    let server = Tls::valid_from_to(2019, 2020);
    let said = tls_failure(&server, &server.ca);
    assert!(said.contains("certificate expired"), "{said}");
}

fn a_server_of_another_authority_fails_at_once() {
    let (server, other) = (Tls::valid_from_to(2020, 3000), Tls::valid_from_to(2020, 3000));
    let said = tls_failure(&server, &other.ca);
    assert!(said.contains("invalid peer certificate"), "{said}");
}

fn a_server_that_is_no_api_server_is_named() {
    let server = Http::new(|_| (200, "<html>welcome</html>".into()));
    let said = failed_with_one_line(start(&server.url(), "{}").end());
    assert!(said.contains(&server.url()), "{said}");
    assert!(said.contains("the response is not from a Kubernetes API server"), "{said}");
}

fn a_server_too_old_is_refused() {
    let server = Http::empty();
    let said =
        failed_with_one_line(start(&server.url(), "{}").env("KUBERNETES_MIN_VERSION", "v1.37.0").end());
    assert!(
        said.starts_with(r#"kubernetes version "v1.36.3" is not compatible, need at least "v1.37.0""#),
        "{said}"
    );
}

fn a_bad_variable_is_named() {
    for (name, value) in [("K_THREADS_PER_CONTROLLER", "abc"), ("RUST_LOG", "a=loud")] {
        let said = failed_with_one_line(Start::new().arg("--disable-ha").env(name, value).end());
        assert!(said.starts_with(&format!("{name}={value:?} in the environment is not ")), "{said}");
    }
}

fn an_unknown_flag_is_a_usage_error() {
    for args in [["--unknown"], ["--kube-api-qps=many"], ["--shutdown-timeout=soon"], ["--bind-address=here"]]
    {
        let (status, lines) = Start::new().arg(args[0]).end();
        assert_eq!(status, 2, "{lines:#?}");
        assert!(lines.len() == 1 && lines[0].starts_with("error: "), "{lines:#?}");
    }
}

fn a_flag_of_the_users_that_there_is_already_is_a_usage_error() {
    let (status, lines) = Start::with_fault("flags clash").end();
    assert_eq!(status, 2, "{lines:#?}");
    assert_eq!(lines, ["error: flags are defined twice: server; try --help"]);
}

fn an_unknown_controller_to_disable_is_a_usage_error() {
    let (status, lines) =
        start("http://127.0.0.1:1", "{}").arg("--disable-controllers=lamps.example.com").end();
    assert_eq!(status, 2, "{lines:#?}");
    let said = json(lines.last().unwrap());
    let said = said["message"].as_str().unwrap();
    assert!(
        said.starts_with(
            r#"--disable-controllers: controller "lamps.example.com" does not exist, only: (none)"#
        ),
        "{said}"
    );
}

fn a_runtime_around_it_is_told() {
    let said = failed_at_once_with_one_line(Start::with_fault("within a runtime").end());
    assert!(said.starts_with("main was called from within a tokio runtime"), "{said}");
}

fn help_and_version_are_no_errors() {
    let (status, lines) = Start::new().arg("--help").end();
    assert_eq!(status, 0);
    for flag in ["--kubeconfig", "--disable-ha", "--greeting"] {
        assert!(lines.iter().any(|line| line.contains(flag)), "{lines:#?}");
    }
    assert_eq!(Start::new().arg("--version").end(), (0, vec!["faulty 1.2.3".into()]));
}

fn a_probes_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let server = Http::empty();
    let start = start(&server.url(), "{}").env("KNATIVE_HEALTH_PROBES_PORT", &port);
    let said = failed_with_one_line(start.end());
    assert!(
        said.starts_with(&format!("cannot listen on 127.0.0.1:{port} for probes: Address already in use"))
    );
    assert!(said.ends_with("KNATIVE_HEALTH_PROBES_PORT chooses another port"), "{said}");
}

fn a_metrics_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let server = Http::empty();
    let said = failed_with_one_line(start(&server.url(), "{}").env("METRICS_PROMETHEUS_PORT", &port).end());
    assert!(
        said.starts_with(&format!("cannot listen on 127.0.0.1:{port} for metrics: Address already in use"))
    );
}

fn an_address_of_another_machine_is_named() {
    let server = Http::empty();
    let start = start(&server.url(), "{}").env("METRICS_PROMETHEUS_HOST", "192.0.2.1");
    let said = failed_with_one_line(start.env("METRICS_PROMETHEUS_PORT", "9090").end());
    assert_eq!(
        said,
        "cannot listen on 192.0.2.1:9090 for metrics: 192.0.2.1 is not an address of this machine; \
         METRICS_PROMETHEUS_HOST chooses another"
    );
}

fn a_bad_config_map_is_named_with_its_key_and_value() {
    for (name, key, value) in [
        ("config-logging", "loglevel.faulty", "loud"),
        ("config-observability", "metrics-protocol", "pigeon"),
        ("config-observability", "metrics-endpoint", "collector.observability:4317"),
        ("config-leader-election", "lease-duration", "long"),
        ("config-leader-election", "map-lease-prefix.other.lamps", "Bad/Name"),
    ] {
        let server = Http::new(move |head| match &head[0] {
            path if path.contains(" /version ") => (200, server::VERSION.into()),
            path if path.contains(&format!("/namespaces/system/configmaps/{name} ")) => {
                (200, format!(r#"{{"metadata": {{"name": "{name}"}}, "data": {{"{key}": "{value}"}}}}"#))
            }
            _ => server::missing(),
        });
        let said = failed_with_one_line(start(&server.url(), "{}").env("SYSTEM_NAMESPACE", "system").end());
        for part in [&*format!("ConfigMap system/{name}: "), key, value] {
            assert!(said.contains(part), "{said}");
        }
    }
}

fn a_config_map_that_may_not_be_read_is_named() {
    let server = Http::new(|head| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        _ => server::status(403, "Forbidden", r#"configmaps "config-logging" is forbidden"#),
    });
    let said = failed_with_one_line(start(&server.url(), "{}").env("SYSTEM_NAMESPACE", "system").end());
    assert!(said.contains(r#"configmaps "config-logging" is forbidden (403)"#), "{said}");
}

fn a_controller_whose_lease_has_no_name_ends_the_process_before_anything_is_followed() {
    let server = Http::empty();
    let start = Start::with_fault("long name").args(["--server", &server.url()]);
    let (status, lines) = start.env("SYSTEM_NAMESPACE", "system").end();
    assert_eq!(status, 1, "{lines:#?}");
    let said = json(lines.last().unwrap())["message"].as_str().unwrap().to_owned();
    assert!(said.contains("lease") && said.contains("xxx"), "{said}");
    let followed = |line: &str| line.contains("limit=");
    assert!(!server.heads().iter().any(|head| followed(&head[0])), "{:#?}", server.heads());
}

fn two_controllers_of_one_name_are_refused() {
    let start = Start::with_fault("twins").arg("--disable-ha").arg("--server=http://127.0.0.1:1");
    let said = failed_with_one_line(start.end());
    assert_eq!(said, "two controllers are named maps: give one of them another name by .name(..)");
}

fn a_constructor_that_fails_ends_the_process() {
    let said = failed_with_one_line(
        Start::with_fault("constructor fails").arg("--disable-ha").arg("--server=http://127.0.0.1:1").end(),
    );
    assert_eq!(said, "failed to construct task 2 of 2: no such file");
}

fn a_constructor_that_panics_ends_the_process_with_one_line() {
    let start = Start::with_fault("constructor panics").arg("--disable-ha").env("RUST_BACKTRACE", "1");
    let said = failed_with_one_line(start.arg("--server=http://127.0.0.1:1").end());
    assert_eq!(said, "failed to construct task 2 of 2: Inject goes round in a circle: A → B → A");
}
