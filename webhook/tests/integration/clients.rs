//! Client certificates: the API server presents one, and other clients get no answers.

use std::{fs, time::Duration};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{Api, api::PostParams};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use reknit_testing::{ControlPlane, eventually};
use reknit_webhook::{Webhook, internal::require_client_certificate};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    lamp::Lamp,
    local_server::{LocalServer, serve},
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A certificate and its key, in PEM.
type Pem = (String, String);

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str) -> Pem {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

/// Posts a review of a lamp as the API server would, with this certificate. `None` if the connection fails.
async fn post(server: &LocalServer, client: Option<&Pem>, head: &str) -> Option<(u16, String)> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server.ca.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into());
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = match client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            builder
                .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
                .unwrap()
        }
    };
    let tcp = TcpStream::connect(server.address).await.unwrap();
    let connector = TlsConnector::from(std::sync::Arc::new(config));
    let mut stream = connector.connect(server.address.ip().into(), tcp).await.unwrap();
    let lamp = json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "metadata": {}, "spec": {"room": "hall"}});
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u1", "kind": {"group": "tests.reknit.dev", "version": "v1", "kind": "Lamp"},
        "resource": {"group": "tests.reknit.dev", "version": "v1", "resource": "lamps"}, "operation": "CREATE",
        "userInfo": {"username": "system:admin"}, "object": lamp, "oldObject": null,
    }})
    .to_string();
    let length = body.len();
    let head = format!(
        "POST {head}\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    let _ = stream.write_all((head + &body).as_bytes()).await;
    let _ = stream.flush().await;
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response).await;
    let code = response.split(' ').nth(1)?.parse().ok()?;
    Some((code, response.split_once("\r\n\r\n")?.1.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_review_is_not_answered_if_the_api_server_has_a_client_certificate() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let ca_file = folder.path().join("ca.pem");
    fs::write(&ca_file, authority.0.pem()).unwrap();
    let api_server = authority.issue("kube-apiserver");
    let plane = plane_with_client_certificate(folder.path(), &api_server).await;
    let webhook = Webhook::new("demo.reknit.dev").defaulting::<Lamp>();
    let webhook = require_client_certificate(webhook, ca_file, vec!["kube-apiserver".into()]);
    let server = serve(webhook).await;

    plane.install::<Lamp>().await.unwrap();
    let (client, namespace) = (plane.client().unwrap(), plane.namespace("clients").await.unwrap());
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configuration: MutatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": "clients.demo.reknit.dev"},
        "webhooks": [{
            "name": "clients.demo.reknit.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {
                "url": server.url("/defaulting"),
                "caBundle": k8s_openapi::ByteString(server.ca.clone().into_bytes()),
            },
            "rules": [{"operations": ["CREATE"], "apiGroups": ["tests.reknit.dev"], "apiVersions": ["*"], "resources": ["lamps"]}],
        }],
    }))
    .unwrap();
    configurations.create(&PostParams::default(), &configuration).await.unwrap();
    let lamps: Api<Lamp> = Api::namespaced(client, &namespace);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let lamp: Lamp = serde_json::from_value(json!({
        "apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "metadata": {"name": "hall"}, "spec": {"room": "hall"},
    }))
    .unwrap();
    eventually("the defaults of the webhook, which the API server may read", TIMEOUT, async || {
        let created = lamps.create(&dry_run, &lamp).await.map_err(|error| error.to_string())?;
        (created.spec.watts == Some(40)).then_some(()).ok_or("no defaults".to_owned())
    })
    .await;

    let other = authority.issue("system:node:a");
    for client in [None, Some(&other)] {
        let (code, body) = post(&server, client, "/defaulting HTTP/1.1").await.unwrap();
        assert_eq!((code, &*body), (401, "a client certificate that this webhook accepts is required\n"));
    }
    let of_another_authority = Authority::new().issue("kube-apiserver");
    assert_eq!(post(&server, Some(&of_another_authority), "/defaulting HTTP/1.1").await, None);
    let (code, body) = post(&server, Some(&api_server), "/defaulting HTTP/1.1").await.unwrap();
    assert!(code == 200 && body.contains("patch"), "{code} {body}");
    let probe = "/health HTTP/1.1\r\nuser-agent: kube-probe/1.36";
    assert_eq!(post(&server, None, probe).await, Some((200, String::new())));
}

/// Starts an API server that presents this certificate to webhooks.
async fn plane_with_client_certificate(folder: &std::path::Path, (certificate, key): &Pem) -> ControlPlane {
    let data = |pem: &str| k8s_openapi::ByteString(pem.as_bytes().to_vec());
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "users": [{
        "name": "*", "user": {"client-certificate-data": data(certificate), "client-key-data": data(key)},
    }]});
    let kubeconfig_file = folder.join("webhooks.kubeconfig");
    fs::write(&kubeconfig_file, kubeconfig.to_string()).unwrap();
    let plugin = |name: &str| {
        json!({"name": name, "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": kubeconfig_file,
        }})
    };
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
        "plugins": [plugin("MutatingAdmissionWebhook"), plugin("ValidatingAdmissionWebhook")],
    });
    let configuration_file = folder.join("admission.yaml");
    fs::write(&configuration_file, configuration.to_string()).unwrap();
    let argument = format!("--admission-control-config-file={}", configuration_file.display());
    ControlPlane::builder().arg(argument).start().await.unwrap()
}
