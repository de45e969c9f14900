//! What users' kubeconfigs hold.
use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

use crate::{
    child::{Start, failed_at_once_with_one_line, failed_with_one_line},
    server::{self, Http, Tls},
    trials,
};

trials![
    an_exec_plugin_hands_out_the_token,
    an_exec_plugin_is_run_again_before_its_token_expires,
    an_exec_plugin_is_run_again_after_its_token_was_refused,
    a_client_certificate_of_an_exec_plugin_is_replaced_before_it_expires,
    an_exec_plugin_that_fails_is_told_by_its_complaint_alone,
    a_token_file_is_used_though_it_ends_with_a_line_end,
    a_token_file_that_rotates_is_followed,
    the_proxy_of_the_environment_is_used_unless_excepted,
    the_proxy_is_that_for_the_address_that_the_server_flag_names,
    a_socks_proxy_leads_to_the_server,
    a_socks_proxy_with_a_password_leads_to_the_server,
    a_proxy_of_no_use_is_named_without_its_password,
    requests_say_who_makes_them,
];

fn config(server: &str, user: &str) -> String {
    format!(
        "{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],
          clusters: [{{name: c, cluster: {{server: '{server}'}}}}], users: [{{name: u, user: {user}}}]}}"
    )
}

/// Takes only this token.
fn server_for(token: &'static str) -> Http {
    Http::new(move |head| {
        if head.contains(&format!("authorization: bearer {token}")) {
            (200, server::VERSION.into())
        } else {
            server::status(401, "Unauthorized", "Unauthorized")
        }
    })
}

fn plugin(start: &Start, script: &str) {
    let path = start.file("plugin", &format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn an_exec_plugin_hands_out_the_token() {
    let server = server_for("from-plugin");
    let start = Start::new().arg("--disable-ha");
    let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}"#;
    plugin(&start, &format!("echo called >> \"$HOME/calls\"; echo '{credential}'"));
    let user =
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}";
    let path = start.file("config", &config(&server.url(), user));
    let calls = start.home().join("calls");
    let child = start.env("KUBECONFIG", path).spawn();
    child.line("greeter runs");
    assert!(fs::read_to_string(calls).unwrap().starts_with("called\n"));
}

fn an_exec_plugin_is_run_again_before_its_token_expires() {
    let server = Http::empty();
    let start = Start::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    // Half a minute is so little that it is run for each request.
    let script = r#"echo called >> "$HOME/calls"
        in_half_a_minute=$(date -u -d @$(($(date +%s) + 30)) +%Y-%m-%dT%H:%M:%SZ)
        echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{
            \"token\":\"call-$(wc -l < "$HOME/calls")\",\"expirationTimestamp\":\"$in_half_a_minute\"}}""#;
    plugin(&start, script);
    let user =
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}";
    let path = start.file("config", &config(&server.url(), user));
    let child = start.env("KUBECONFIG", path).spawn();
    child.line("greeter runs");
    let tokens: BTreeSet<_> =
        server.heads().iter().flatten().filter(|line| line.contains("bearer call-")).cloned().collect();
    assert!(tokens.len() >= 3, "{tokens:?}");
}

fn an_exec_plugin_is_run_again_after_its_token_was_refused() {
    let server = Http::new(|head| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        _ => server::status(401, "Unauthorized", "Unauthorized"),
    });
    let start = Start::with_fault("maps").arg("--disable-ha").env("WATCHED", "system");
    let script = r#"echo called >> "$HOME/calls"
        echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{
            \"token\":\"call-$(wc -l < "$HOME/calls")\"}}""#;
    plugin(&start, script);
    let user =
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}";
    let path = start.file("config", &config(&server.url(), user));
    let _child = start.env("KUBECONFIG", path).spawn();
    server.until_asked(1, |line| line == "authorization: bearer call-2");
}

fn a_client_certificate_of_an_exec_plugin_is_replaced_before_it_expires() {
    let authority = Authority::new();
    let server = Tls::for_clients_of(authority.certificate.der());
    let start = Start::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    let ca = start.file("ca.pem", &server.ca);
    // The first certificate expires so soon that it is replaced at once, the second one much later.
    let clients = [authority.client(), authority.client()];
    for (n, (certificate, key)) in (1..).zip(&clients) {
        start.file(
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
    plugin(
        &start,
        r#"echo called >> "$HOME/calls"
        case $(wc -l < "$HOME/calls") in 1) n=1 in='30 seconds';; *) n=2 in='1 hour';; esac
        sed "s/EXPIRES/$(date -u -d "$in" +%Y-%m-%dT%H:%M:%SZ)/" "$HOME/credential-$n""#,
    );
    let user =
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}";
    let config = config(&server.url(), user)
        .replace("{server: ", &format!("{{certificate-authority: '{}', server: ", ca.display()));
    let path = start.file("config", &config);
    let calls = start.home().join("calls");
    let child = start.env("KUBECONFIG", path).spawn();
    child.line("greeter runs");
    server.until_asked_by(clients[1].0.der());
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

fn an_exec_plugin_that_fails_is_told_by_its_complaint_alone() {
    let start = Start::new().arg("--disable-ha");
    plugin(&start, "echo hunter2; echo 'please log in first' >&2; exit 3");
    let user =
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never,
        args: [--secret=hunter2], env: [{name: SECRET, value: hunter2}]}}";
    let path = start.file("config", &config("http://127.0.0.1:1", user));
    let said = failed_with_one_line(start.env("KUBECONFIG", &path).end());
    for part in
        [&*path.display().to_string(), "the credential plugin", "exit status: 3", "please log in first"]
    {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("hunter2"), "{said}");
}

fn a_token_file_is_used_though_it_ends_with_a_line_end() {
    let server = server_for("from-file");
    let start = Start::new().arg("--disable-ha");
    start.file("token", "from-file\n");
    let path = start.file(".kube/config", &config(&server.url(), "{tokenFile: ../token}"));
    assert!(path.exists());
    start.spawn().line("greeter runs");
}

fn a_token_file_that_rotates_is_followed() {
    let server = Http::empty();
    let start = Start::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    let token = start.file("token", "first");
    start.file(".kube/config", &config(&server.url(), "{tokenFile: ../token}"));
    let child = start.spawn();
    child.line("greeter runs");
    assert!(server.heads()[0].contains(&"authorization: bearer first".to_owned()));
    fs::write(token, "second").unwrap();
    // Its informers go on asking for the ConfigMaps that there are none of.
    server.until_asked(1, |line| line == "authorization: bearer second");
}

fn the_proxy_of_the_environment_is_used_unless_excepted() {
    let proxy = Http::new(|_| (502, String::new()));
    let start = || {
        Start::new().args([
            "--disable-ha",
            "--startup-timeout=0s",
            "--server=https://api.nowhere.invalid:6443",
        ])
    };
    let with_a_user = proxy.url().replace("http://", "http://me:p%40ss@");
    let said = failed_with_one_line(start().env("HTTPS_PROXY", with_a_user).end());
    assert!(said.contains(&format!("through the proxy {}", proxy.address)), "{said}");
    let head = &proxy.heads()[0];
    assert!(head[0].starts_with("CONNECT api.nowhere.invalid:6443 "), "{head:?}");
    let basic = format!("proxy-authorization: basic {}", "bWU6cEBzcw==".to_lowercase());
    assert!(head.iter().any(|line| line.to_lowercase() == basic), "{head:?}");
    let asked = proxy.heads().len();
    let direct = start().env("HTTPS_PROXY", proxy.url()).env("NO_PROXY", ".invalid");
    let said = failed_with_one_line(direct.end());
    assert!(said.contains("failed to lookup address information"), "{said}");
    assert_eq!(proxy.heads().len(), asked);
}

fn the_proxy_is_that_for_the_address_that_the_server_flag_names() {
    let proxy = Http::new(|_| (502, String::new()));
    let start = |server: &str, flag: &str| {
        let start = Start::new().args(["--disable-ha", "--startup-timeout=0s", "--server", flag]);
        let path = start.file("config", &config(server, "{}"));
        failed_with_one_line(start.env("KUBECONFIG", path).env("HTTPS_PROXY", proxy.url()).end())
    };
    let (_nobody, here) = server::nobody();
    let (here, elsewhere) = (format!("https://{here}"), "https://api.nowhere.invalid:6443");
    let said = start(elsewhere, &here);
    assert!(said.contains("Connection refused") && !said.contains("through the proxy"), "{said}");
    assert_eq!(proxy.heads().len(), 0);
    let said = start(&here, elsewhere);
    assert!(said.contains(&format!("through the proxy {}", proxy.address)), "{said}");
    assert!(proxy.heads()[0][0].starts_with("CONNECT api.nowhere.invalid:6443 "), "{:?}", proxy.heads());
}

fn a_socks_proxy_leads_to_the_server() {
    let start = Start::new().args(["--disable-ha", "--server=http://api.nowhere.invalid:8080"]);
    start.env("HTTP_PROXY", format!("socks5://{}", server::socks5(None))).spawn().line("greeter runs");
}

fn a_socks_proxy_with_a_password_leads_to_the_server() {
    let start = Start::new().args(["--disable-ha", "--server=http://api.nowhere.invalid:8080"]);
    let proxy = format!("socks5://me:p%40ss@{}", server::socks5(Some(("me", "p@ss"))));
    start.env("HTTP_PROXY", proxy).spawn().line("greeter runs");
}

fn a_proxy_of_no_use_is_named_without_its_password() {
    for scheme in ["socks5h", "socks4"] {
        let start = Start::new().args(["--disable-ha", "--server=https://api.nowhere.invalid:6443"]);
        let proxy = format!("{scheme}://user:hunter2@proxy.example.com:1080");
        let said = failed_at_once_with_one_line(start.env("HTTPS_PROXY", proxy).end());
        assert!(said.contains(&format!("unsupported proxy {scheme}://proxy.example.com:1080")), "{said}");
        assert!(said.contains("HTTPS_PROXY") && !said.contains("hunter2"), "{said}");
    }
}

fn requests_say_who_makes_them() {
    let server = Http::empty();
    let child = Start::new().args(["--disable-ha", "--server", &server.url()]).spawn();
    child.line("greeter runs");
    let agent = format!("user-agent: faulty/1.2.3 reknit/{}", env!("CARGO_PKG_VERSION"));
    assert!(server.heads()[0].contains(&agent), "{:?}", server.heads());
}
