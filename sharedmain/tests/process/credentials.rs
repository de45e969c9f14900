//! Tests of credentials and proxies.
use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use reknit_testing::ControlPlane;
use time::OffsetDateTime;

use crate::{
    child::{TestCommand, failed_at_once_with_one_line, failed_with_one_line, parse_line},
    scenarios::LABEL,
    server::{self, HttpServer, TlsServer},
    trials,
};

trials![
    credentials_are_not_sent_without_tls,
    a_server_whose_certificate_is_not_verified_is_warned_of,
    the_token_of_an_exec_plugin_is_used,
    an_exec_plugin_is_run_again_before_its_token_expires_but_not_for_each_request,
    an_exec_plugin_is_run_again_after_its_token_was_refused,
    a_client_certificate_of_an_exec_plugin_is_replaced_before_it_expires,
    a_rotated_client_certificate_and_authority_are_read_again,
    an_object_is_reconciled_after_the_first_client_certificate_has_expired,
    a_token_of_an_oidc_provider_is_refreshed,
    the_error_of_an_unsupported_auth_provider_says_what_to_use,
    a_server_that_presents_the_certificate_of_an_authority_is_refused_with_a_way_out,
    the_error_of_a_failed_exec_plugin_shows_its_standard_error_and_no_secret,
    a_token_file_may_end_with_a_newline,
    a_rotated_token_file_is_read_again,
    a_token_file_that_is_lost_is_reported_and_the_last_token_stays_in_use,
    a_process_without_its_token_file_does_not_start,
    the_error_of_a_client_certificate_of_a_plugin_names_the_plugin,
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

/// The kubeconfig of a server with TLS, whose certificate it contains.
pub(crate) fn secure_kubeconfig(server: &TlsServer, user: &str) -> String {
    let ca = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &server.ca);
    kubeconfig(&server.url(), user)
        .replace("{server: ", &format!("{{certificate-authority-data: {ca}, server: "))
}

/// The user of a kubeconfig whose credentials the plugin of [`write_plugin`] prints.
pub(crate) const PLUGIN_USER: &str =
    "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}}";

/// A server that accepts only this token.
pub(crate) fn server_for(token: &'static str) -> TlsServer {
    TlsServer::answering(move |head, _| {
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

fn credentials_are_not_sent_without_tls() {
    let users =
        ["{token: hunter2}", "{tokenFile: ../token}", "{username: me, password: hunter2}", PLUGIN_USER];
    for user in users {
        let server = HttpServer::without_objects();
        let command = TestCommand::new().arg("--disable-ha");
        command.file("token", "hunter2");
        write_plugin(&command, "touch \"$HOME/called\"");
        let called = command.home().join("called");
        command.file(".kube/config", &kubeconfig("https://127.0.0.1:1", user));
        let child = command.args(["--server", &server.url()]).spawn();
        let warning = parse_line(&child.wait_for_line("the credentials are not sent"));
        assert_eq!(warning["severity"], "WARNING", "{warning}");
        child.wait_for_line("greeter runs");
        let heads = server.heads();
        assert!(!heads.iter().flatten().any(|line| line.starts_with("authorization:")), "{user}: {heads:#?}");
        assert!(!called.exists());
    }
}

fn a_server_whose_certificate_is_not_verified_is_warned_of() {
    let server = TlsServer::without_objects();
    let command = TestCommand::new().arg("--disable-ha");
    let config = kubeconfig(&server.url(), "{token: hunter2}");
    command.file(".kube/config", &config.replace("{server: ", "{insecure-skip-tls-verify: true, server: "));
    let child = command.spawn();
    let warning = child.wait_for_line("insecure-skip-tls-verify is set");
    assert!(warning.contains(&server.url()) && !warning.contains("hunter2"), "{warning}");
    child.wait_for_line("greeter runs");
}

fn the_token_of_an_exec_plugin_is_used() {
    let server = server_for("from-plugin");
    let command = TestCommand::new().arg("--disable-ha");
    let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-plugin"}}"#;
    write_plugin(&command, &format!("echo called >> \"$HOME/calls\"; echo '{credential}'"));
    let path = command.file("config", &secure_kubeconfig(&server, PLUGIN_USER));
    let calls = command.home().join("calls");
    let child = command.env("KUBECONFIG", path).spawn();
    child.wait_for_line("greeter runs");
    assert!(fs::read_to_string(calls).unwrap().starts_with("called\n"));
}

fn an_exec_plugin_is_run_again_before_its_token_expires_but_not_for_each_request() {
    let server = TlsServer::without_objects();
    let command = TestCommand::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    let script = r#"echo called >> "$HOME/calls"
        soon=$(date -u -d @$(($(date +%s) + 4)) +%Y-%m-%dT%H:%M:%SZ)
        echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{
            \"token\":\"call-$(wc -l < "$HOME/calls")\",\"expirationTimestamp\":\"$soon\"}}""#;
    write_plugin(&command, script);
    let path = command.file("config", &secure_kubeconfig(&server, PLUGIN_USER));
    let calls = command.home().join("calls");
    let child = command.env("KUBECONFIG", path).spawn();
    child.wait_for_line("greeter runs");
    // Informers keep requesting ConfigMaps that do not exist.
    server.http.wait_for_requests(3, |line| line == "authorization: bearer call-3");
    assert_eq!(fs::read_to_string(calls).unwrap().lines().count(), 3, "no more in a minute");
}

fn an_exec_plugin_is_run_again_after_its_token_was_refused() {
    let server = TlsServer::answering(|head, _| match &head[0] {
        path if path.contains(" /version ") => (200, server::VERSION.into()),
        _ => server::status(401, "Unauthorized", "Unauthorized"),
    });
    let command = TestCommand::with_scenario("maps").arg("--disable-ha").env("WATCHED", "system");
    let script = r#"echo called >> "$HOME/calls"
        echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{
            \"token\":\"call-$(wc -l < "$HOME/calls")\"}}""#;
    write_plugin(&command, script);
    let path = command.file("config", &secure_kubeconfig(&server, PLUGIN_USER));
    let _child = command.env("KUBECONFIG", path).spawn();
    server.http.wait_for_requests(1, |line| line == "authorization: bearer call-2");
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

fn a_rotated_client_certificate_and_authority_are_read_again() {
    let authority = Authority::new();
    let server = TlsServer::requiring_client_certificates(authority.certificate.der());
    let command = TestCommand::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    let [first, second] = [authority.client(), authority.client()];
    let write = |(certificate, key): &(Certificate, KeyPair)| {
        command.file("client.pem", &certificate.pem());
        command.file("client.key", &key.serialize_pem());
    };
    write(&first);
    command.file("ca.pem", &server.ca);
    let config = kubeconfig(&server.url(), "{client-certificate: client.pem, client-key: client.key}")
        .replace("{server: ", "{certificate-authority: ca.pem, server: ");
    let path = command.file("config", &config);
    let home = command.home().to_owned();
    let _child = command.env("KUBECONFIG", path).spawn();
    let presented = |client: &(Certificate, KeyPair)| format!("{:?}", &**client.0.der());
    // Informers keep requesting ConfigMaps that do not exist.
    server.http.wait_for_requests(2, |line| line == presented(&first));
    // A certificate without its key is not used, and a file with another authority besides is.
    fs::write(home.join("client.pem"), second.0.pem()).unwrap();
    fs::write(home.join("ca.pem"), format!("{}{}", authority.certificate.pem(), server.ca)).unwrap();
    fs::write(home.join("client.key"), second.1.serialize_pem()).unwrap();
    server.http.wait_for_requests(2, |line| line == presented(&second));
}

fn an_object_is_reconciled_after_the_first_client_certificate_has_expired() {
    let authority = Authority::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let command = TestCommand::with_scenario("maps").env("WATCHED", "default");
        let command = command.env("SYSTEM_NAMESPACE", "default");
        let ca = command.file("clients.pem", &authority.certificate.pem());
        let plane = ControlPlane::builder().arg(format!("--client-ca-file={}", ca.display()));
        let plane = plane.start().await.unwrap();
        let write = |expires: OffsetDateTime| {
            let (certificate, key) = authority.administrator(expires);
            fs::write(ca.with_file_name("client.pem"), certificate.pem()).unwrap();
            fs::write(ca.with_file_name("client.key"), key.serialize_pem()).unwrap();
        };
        let mut kubeconfig: serde_json::Value =
            serde_json::from_slice(&fs::read(plane.kubeconfig()).unwrap()).unwrap();
        kubeconfig["users"][0]["user"] =
            serde_json::json!({"client-certificate": "client.pem", "client-key": "client.key"});
        let path = command.file("config", &kubeconfig.to_string());
        let maps: Api<ConfigMap> = Api::namespaced(plane.client().unwrap(), "default");
        let create = async |name: &str, labels: serde_json::Value, data: serde_json::Value| {
            let map = serde_json::json!({"metadata": {"name": name, "labels": labels}, "data": data});
            maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
        };
        let times = serde_json::json!({"lease-duration": "6s", "renew-deadline": "4s", "retry-period": "1s"});
        create("config-leader-election", serde_json::json!({}), times).await;
        let first_expires = OffsetDateTime::now_utc() + Duration::from_secs(15);
        write(first_expires);
        let child = command.env("KUBECONFIG", path).spawn();
        child.wait_for_line("became leader");
        write(OffsetDateTime::now_utc() + Duration::from_secs(3600));
        // With the first certificate, the lease could not be renewed until then.
        let renew_deadline = first_expires + Duration::from_secs(4);
        tokio::time::sleep((renew_deadline - OffsetDateTime::now_utc()).try_into().unwrap()).await;
        create("late", serde_json::json!({LABEL: "yes"}), serde_json::json!({})).await;
        child.wait_for_line("reconcile of late ends");
    });
}

fn a_token_of_an_oidc_provider_is_refreshed() {
    let token = |name: &str, expires: u64| {
        let claims = base64::Engine::encode(
            &base64::engine::general_purpose::URL_SAFE_NO_PAD,
            format!(r#"{{"exp":{expires}}}"#),
        );
        format!("{name}.{claims}.x")
    };
    let fresh = token("fresh", 4_000_000_000);
    let answer = serde_json::json!({"id_token": fresh, "refresh_token": "next"}).to_string();
    let provider = TlsServer::answering(move |head, url| match &head[0] {
        path if path.contains("/.well-known/openid-configuration") => {
            (200, format!(r#"{{"token_endpoint": "{url}/token"}}"#))
        }
        path if path.contains("/token") => (200, answer.clone()),
        _ => server::not_found(),
    });
    let server = TlsServer::without_objects();
    let command = TestCommand::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    let ca = command.file("idp.pem", &provider.ca);
    let user = format!(
        "{{auth-provider: {{name: oidc, config: {{idp-issuer-url: '{}', client-id: me, refresh-token: r,
          id-token: {}}}}}}}",
        provider.url(),
        token("old", 1)
    );
    let path = command.file("config", &secure_kubeconfig(&server, &user));
    let child = command.env("KUBECONFIG", path).env("SSL_CERT_FILE", ca).spawn();
    child.wait_for_line("greeter runs");
    let bearer = format!("authorization: bearer {}", fresh.to_lowercase());
    server.http.wait_for_requests(2, |line| line == bearer);
    assert_eq!(provider.http.heads().len(), 2, "refreshed once for all clients");
}

fn the_error_of_an_unsupported_auth_provider_says_what_to_use() {
    let command = TestCommand::new().arg("--disable-ha");
    let user = "{auth-provider: {name: gcp, config: {access-token: hunter2}}}";
    let path = command.file("config", &kubeconfig("https://127.0.0.1:1", user));
    let message = failed_at_once_with_one_line(command.env("KUBECONFIG", path).run());
    for part in ["the auth-provider \"gcp\" is not supported", "gke-gcloud-auth-plugin"] {
        assert!(message.contains(part), "{message}");
    }
}

fn a_server_that_presents_the_certificate_of_an_authority_is_refused_with_a_way_out() {
    let server = TlsServer::presenting_an_authority();
    let command = TestCommand::new().arg("--disable-ha");
    command.file("ca.pem", &server.ca);
    let config =
        kubeconfig(&server.url(), "{}").replace("{server: ", "{certificate-authority: ca.pem, server: ");
    let path = command.file("config", &config);
    let message = failed_with_one_line(command.env("KUBECONFIG", path).run());
    for part in [&*server.url(), "CA:TRUE", "issue another certificate", "Clients in Go"] {
        assert!(message.contains(part), "{message}");
    }
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

    /// Returns the certificate of an administrator, valid until this time.
    fn administrator(&self, expires: OffsetDateTime) -> (Certificate, KeyPair) {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = expires;
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
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
    let path = command.file("config", &kubeconfig("https://127.0.0.1:1", user));
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
    let path = command.file(".kube/config", &secure_kubeconfig(&server, "{tokenFile: ../token}"));
    assert!(path.exists());
    command.spawn().wait_for_line("greeter runs");
}

fn a_rotated_token_file_is_read_again() {
    let server = TlsServer::without_objects();
    let command = TestCommand::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    let token = command.file("token", "first");
    command.file(".kube/config", &secure_kubeconfig(&server, "{tokenFile: ../token}"));
    let child = command.spawn();
    child.wait_for_line("greeter runs");
    assert!(server.http.heads()[0].contains(&"authorization: bearer first".to_owned()));
    fs::write(token, "second").unwrap();
    // Informers keep requesting ConfigMaps that do not exist.
    server.http.wait_for_requests(1, |line| line == "authorization: bearer second");
}

fn a_token_file_that_is_lost_is_reported_and_the_last_token_stays_in_use() {
    let server = TlsServer::without_objects();
    let command = TestCommand::new().arg("--disable-ha").env("SYSTEM_NAMESPACE", "system");
    let token = command.file("token", "first");
    command.file(".kube/config", &secure_kubeconfig(&server, "{tokenFile: ../token}"));
    let child = command.spawn();
    child.wait_for_line("greeter runs");
    fs::remove_file(&token).unwrap();
    let warning = child.wait_for_line("the last token stays in use");
    assert!(warning.contains("token cannot be read: No such file"), "{warning}");
    fs::write(&token, "").unwrap();
    child.wait_for_line("token is empty");
    let requests = server.http.heads().len();
    server.http.wait_for_requests(requests + 1, |line| line == "authorization: bearer first");
}

fn a_process_without_its_token_file_does_not_start() {
    for (text, expected) in [
        (None, "token cannot be read: No such file or directory (os error 2)"),
        (Some(""), "token is empty: write a token to it"),
    ] {
        let command = TestCommand::new().arg("--disable-ha");
        command.file(".kube/config", &kubeconfig("https://127.0.0.1:1", "{tokenFile: ../token}"));
        text.map(|text| command.file("token", text));
        let message = failed_at_once_with_one_line(command.run());
        assert!(message.ends_with(expected), "{message}");
    }
}

fn the_error_of_a_client_certificate_of_a_plugin_names_the_plugin() {
    let command = TestCommand::new().arg("--disable-ha");
    let credential = r#"{"status":{"clientCertificateData":"no PEM","clientKeyData":"no PEM"}}"#;
    write_plugin(&command, &format!("echo '{credential}'"));
    let path = command.file("config", &kubeconfig("https://127.0.0.1:1", PLUGIN_USER));
    let message = failed_at_once_with_one_line(command.env("KUBECONFIG", path).run());
    let expected = "the clientCertificateData of the credential plugin: it contains no PEM block";
    assert!(message.contains(expected), "{message}");
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
