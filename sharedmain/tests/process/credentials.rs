//! Tests of credentials and proxies.
use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

use crate::{
    child::{TestCommand, failed_at_once_with_one_line, failed_with_one_line},
    server::{self, HttpServer, TlsServer},
    trials,
};

trials![
    the_token_of_an_exec_plugin_is_used,
    an_exec_plugin_is_run_again_before_its_token_expires,
    an_exec_plugin_is_run_again_after_its_token_was_refused,
    a_client_certificate_of_an_exec_plugin_is_replaced_before_it_expires,
    the_error_of_a_failed_exec_plugin_shows_its_standard_error_and_no_secret,
    a_token_file_may_end_with_a_newline,
    a_rotated_token_file_is_read_again,
    the_proxy_of_the_environment_is_used_unless_no_proxy_excludes_the_server,
    the_proxy_is_chosen_for_the_url_of_the_server_flag,
    a_socks_proxy_is_used,
    a_socks_proxy_with_a_password_is_used,
    the_error_of_an_unsupported_proxy_does_not_show_its_password,
    requests_have_a_user_agent,
];

fn kubeconfig(server: &str, user: &str) -> String {
    format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],
          clusters: [{{name: c, cluster: {{server: '{server}'}}}}], users: [{{name: u, user: {user}}}]}}"
    )
}

/// The user of a kubeconfig whose credentials the plugin of [`write_plugin`] prints.
const PLUGIN_USER: &str =
    "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}";

/// A server that accepts only this token.
fn server_for(token: &'static str) -> HttpServer {
    HttpServer::new(move |head| {
        if head.contains(&format!("authorization: bearer {token}")) {
            (200, server::VERSION.into())
        } else {
            server::status(401, "Unauthorized", "Unauthorized")
        }
    })
}

/// Writes an exec plugin, a shell script, into the home of the process.
fn write_plugin(command: &TestCommand, script: &str) {
    let path = command.file("plugin", &format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn the_token_of_an_exec_plugin_is_used() {
    let server = server_for("from-plugin");
    let command = TestCommand::new().arg("--disable-ha");
    let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}"#;
    write_plugin(&command, &format!("echo called >> \"$HOME/calls\"; echo '{credential}'"));
    let path = command.file("config", &kubeconfig(&server.url(), PLUGIN_USER));
    let calls = command.home().join("calls");
    let child = command.env("KUBECONFIG", path).spawn();
    child.wait_for_line("greeter runs");
    assert!(fs::read_to_string(calls).unwrap().starts_with("called\n"));
}

fn an_exec_plugin_is_run_again_before_its_token_expires() {
    let server = HttpServer::without_objects();
    let command = TestCommand::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    // Half a minute is so short that the plugin runs for each request.
    let script = r#"echo called >> "$HOME/calls"
        in_half_a_minute=$(date -u -d @$(($(date +%s) + 30)) +%Y-%m-%dT%H:%M:%SZ)
        echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{
            \"token\":\"call-$(wc -l < "$HOME/calls")\",\"expirationTimestamp\":\"$in_half_a_minute\"}}""#;
    write_plugin(&command, script);
    let path = command.file("config", &kubeconfig(&server.url(), PLUGIN_USER));
    let child = command.env("KUBECONFIG", path).spawn();
    child.wait_for_line("greeter runs");
    let tokens: BTreeSet<_> =
        server.heads().iter().flatten().filter(|line| line.contains("bearer call-")).cloned().collect();
    assert!(tokens.len() >= 3, "{tokens:?}");
}

fn an_exec_plugin_is_run_again_after_its_token_was_refused() {
    let server = HttpServer::new(|head| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        _ => server::status(401, "Unauthorized", "Unauthorized"),
    });
    let command = TestCommand::with_scenario("maps").arg("--disable-ha").env("WATCHED", "system");
    let script = r#"echo called >> "$HOME/calls"
        echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{
            \"token\":\"call-$(wc -l < "$HOME/calls")\"}}""#;
    write_plugin(&command, script);
    let path = command.file("config", &kubeconfig(&server.url(), PLUGIN_USER));
    let _child = command.env("KUBECONFIG", path).spawn();
    server.wait_for_requests(1, |line| line == "authorization: bearer call-2");
}

fn a_client_certificate_of_an_exec_plugin_is_replaced_before_it_expires() {
    let authority = Authority::new();
    let server = TlsServer::requiring_client_certificates(authority.certificate.der());
    let command = TestCommand::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    let ca = command.file("ca.pem", &server.ca);
    // The first certificate expires so soon that it is replaced at once. The second expires much later.
    let clients = [authority.client(), authority.client()];
    for (n, (certificate, key)) in (1..).zip(&clients) {
        command.file(
            &format!("credential-{n}"),
            &serde_json::json!({
                "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {
                    "clientCertificateData": certificate.pem(), "clientKeyData": key.serialize_pem(),
                    "expirationTimestamp": "EXPIRES",
                },
            })
            .to_string(),
        );
    }
    write_plugin(
        &command,
        r#"echo called >> "$HOME/calls"
        case $(wc -l < "$HOME/calls") in 1) n=1 in='30 seconds';; *) n=2 in='1 hour';; esac
        sed "s/EXPIRES/$(date -u -d "$in" +%Y-%m-%dT%H:%M:%SZ)/" "$HOME/credential-$n""#,
    );
    let config = kubeconfig(&server.url(), PLUGIN_USER)
        .replace("{server: ", &format!("{{certificate-authority: '{}', server: ", ca.display()));
    let path = command.file("config", &config);
    let calls = command.home().join("calls");
    let child = command.env("KUBECONFIG", path).spawn();
    child.wait_for_line("greeter runs");
    let certificate = format!("{:?}", &**clients[1].0.der());
    server.http.wait_for_requests(1, |line| line == certificate);
    assert_eq!(fs::read_to_string(calls).unwrap().lines().count(), 2);
}

/// An authority that signs client certificates.
struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self { certificate: params.self_signed(&key).unwrap(), issuer: Issuer::new(params, key) }
    }

    fn client(&self) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec!["me".into()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }
}

fn the_error_of_a_failed_exec_plugin_shows_its_standard_error_and_no_secret() {
    let command = TestCommand::new().arg("--disable-ha");
    write_plugin(&command, "echo hunter2; echo 'please log in first' >&2; exit 3");
    let user =
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never,
        args: [--secret=hunter2], env: [{name: SECRET, value: hunter2}]}}";
    let path = command.file("config", &kubeconfig("http://127.0.0.1:1", user));
    let message = failed_with_one_line(command.env("KUBECONFIG", &path).run());
    for part in
        [&*path.display().to_string(), "the credential plugin", "exit status: 3", "please log in first"]
    {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("hunter2"), "{message}");
}

fn a_token_file_may_end_with_a_newline() {
    let server = server_for("from-file");
    let command = TestCommand::new().arg("--disable-ha");
    command.file("token", "from-file\n");
    let path = command.file(".kube/config", &kubeconfig(&server.url(), "{tokenFile: ../token}"));
    assert!(path.exists());
    command.spawn().wait_for_line("greeter runs");
}

fn a_rotated_token_file_is_read_again() {
    let server = HttpServer::without_objects();
    let command = TestCommand::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    let token = command.file("token", "first");
    command.file(".kube/config", &kubeconfig(&server.url(), "{tokenFile: ../token}"));
    let child = command.spawn();
    child.wait_for_line("greeter runs");
    assert!(server.heads()[0].contains(&"authorization: bearer first".to_owned()));
    fs::write(token, "second").unwrap();
    // Informers keep requesting ConfigMaps that do not exist.
    server.wait_for_requests(1, |line| line == "authorization: bearer second");
}

fn the_proxy_of_the_environment_is_used_unless_no_proxy_excludes_the_server() {
    let proxy = HttpServer::new(|_| (502, String::new()));
    let command = || {
        TestCommand::new().args([
            "--disable-ha",
            "--startup-timeout=0s",
            "--server=https://api.nowhere.invalid:6443",
        ])
    };
    let with_a_user = proxy.url().replace("http://", "http://me:p%40ss@");
    let message = failed_with_one_line(command().env("HTTPS_PROXY", with_a_user).run());
    assert!(message.contains(&format!("through the proxy {}", proxy.address)), "{message}");
    let head = &proxy.heads()[0];
    assert!(head[0].starts_with("CONNECT api.nowhere.invalid:6443 "), "{head:?}");
    let basic = format!("proxy-authorization: basic {}", "bWU6cEBzcw==".to_lowercase());
    assert!(head.iter().any(|line| line.to_lowercase() == basic), "{head:?}");
    let requests = proxy.heads().len();
    let direct = command().env("HTTPS_PROXY", proxy.url()).env("NO_PROXY", ".invalid");
    let message = failed_with_one_line(direct.run());
    assert!(message.contains("failed to lookup address information"), "{message}");
    assert_eq!(proxy.heads().len(), requests);
}

fn the_proxy_is_chosen_for_the_url_of_the_server_flag() {
    let proxy = HttpServer::new(|_| (502, String::new()));
    let error_with = |server: &str, flag: &str| {
        let command = TestCommand::new().args(["--disable-ha", "--startup-timeout=0s", "--server", flag]);
        let path = command.file("config", &kubeconfig(server, "{}"));
        failed_with_one_line(command.env("KUBECONFIG", path).env("HTTPS_PROXY", proxy.url()).run())
    };
    let (_socket, here) = server::closed_port();
    let (here, elsewhere) = (format!("https://{here}"), "https://api.nowhere.invalid:6443");
    let message = error_with(elsewhere, &here);
    assert!(message.contains("Connection refused") && !message.contains("through the proxy"), "{message}");
    assert_eq!(proxy.heads().len(), 0);
    let message = error_with(&here, elsewhere);
    assert!(message.contains(&format!("through the proxy {}", proxy.address)), "{message}");
    assert!(proxy.heads()[0][0].starts_with("CONNECT api.nowhere.invalid:6443 "), "{:?}", proxy.heads());
}

fn a_socks_proxy_is_used() {
    let command = TestCommand::new().args(["--disable-ha", "--server=http://api.nowhere.invalid:8080"]);
    command
        .env("HTTP_PROXY", format!("socks5://{}", server::socks5(None)))
        .spawn()
        .wait_for_line("greeter runs");
}

fn a_socks_proxy_with_a_password_is_used() {
    let command = TestCommand::new().args(["--disable-ha", "--server=http://api.nowhere.invalid:8080"]);
    let proxy = format!("socks5://me:p%40ss@{}", server::socks5(Some(("me", "p@ss"))));
    command.env("HTTP_PROXY", proxy).spawn().wait_for_line("greeter runs");
}

fn the_error_of_an_unsupported_proxy_does_not_show_its_password() {
    let command = TestCommand::new().args(["--disable-ha", "--server=https://api.nowhere.invalid:6443"]);
    let proxy = "socks4://user:hunter2@proxy.example.com:1080";
    let message = failed_at_once_with_one_line(command.env("HTTPS_PROXY", proxy).run());
    assert!(message.contains("unsupported proxy socks4://proxy.example.com:1080"), "{message}");
    assert!(message.contains("HTTPS_PROXY") && !message.contains("hunter2"), "{message}");
}

fn requests_have_a_user_agent() {
    let server = HttpServer::without_objects();
    let child = TestCommand::new().args(["--disable-ha", "--server", &server.url()]).spawn();
    child.wait_for_line("greeter runs");
    let agent = format!("user-agent: faulty/1.2.3 reknit/{}", env!("CARGO_PKG_VERSION"));
    assert!(server.heads()[0].contains(&agent), "{:?}", server.heads());
}
