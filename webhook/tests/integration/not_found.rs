//! An admission webhook of another author that denies deletions with a 404, as a validator does that returns the error of a
//! lookup of its own.

use std::{convert::Infallible, sync::Arc, time::Duration};

use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration,
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Owned};
use reknit_testing::{ControlPlane, eventually};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};
use tokio_rustls::TlsAcceptor;

use crate::local_server::issue_certificate;

/// A webhook at this URL, which is served until this value is dropped.
struct DenyingServer {
    url: String,
    /// The CA certificate that clients have to trust, in PEM.
    ca: String,
    task: AbortHandle,
}

impl Drop for DenyingServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves a webhook that denies every request, since it does not find another object of the Kind.
async fn serve() -> DenyingServer {
    let (ca, certificate, key) = issue_certificate();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let builder = ServerConfig::builder_with_provider(ring::default_provider().into());
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let accepting = async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::spawn(answer(acceptor.clone(), tcp));
        }
    };
    DenyingServer { url, ca, task: tokio::spawn(accepting).abort_handle() }
}

/// Answers the requests of a connection.
async fn answer(acceptor: TlsAcceptor, tcp: TcpStream) {
    let Ok(stream) = acceptor.accept(tcp).await else { return };
    let service = service_fn(async |request: http::Request<Incoming>| {
        let body = axum::body::to_bytes(axum::body::Body::new(request), usize::MAX).await.unwrap();
        let review: Value = serde_json::from_slice(&body).unwrap();
        let plural = &review["request"]["resource"]["resource"];
        let status = json!({
            "code": 404, "reason": "NotFound", "message": "another object is not found",
            "details": {"kind": plural, "name": "another"},
        });
        let answer = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], "allowed": false, "status": status}});
        Ok::<_, Infallible>(http::Response::new(answer.to_string()))
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_whose_deletion_a_webhook_denies_with_404_does_not_count_as_gone() {
    let plane = ControlPlane::shared().await.unwrap();
    let (client, namespace) = (plane.client().unwrap(), plane.namespace("not-found").await.unwrap());
    let owners: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let owner = serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap();
    let owner = owners.create(&PostParams::default(), &owner).await.unwrap();
    let cx = Context::preloaded("test", client.clone(), vec![]);
    let secrets: Owned<Secret> = Controller::of::<ConfigMap>(&cx).owns();
    let child = serde_json::from_value(json!({"metadata": {"generateName": "child-"}})).unwrap();
    let child = secrets.create(&owner, child).await.unwrap();

    let server = serve().await;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": "not-found.tests.dev"},
        "webhooks": [{
            "name": "not-found.tests.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": server.url, "caBundle": ByteString(server.ca.clone().into_bytes())},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["*"], "resources": ["secrets"]}],
        }],
    }))
    .unwrap();
    configurations.create(&PostParams::default(), &configuration).await.unwrap();
    let stored: Api<Secret> = Api::namespaced(client, &namespace);
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    eventually("the API server to call the webhook", Duration::from_secs(30), async || {
        stored.delete(&child.name_any(), &dry_run).await.is_err()
    })
    .await;

    let error = secrets.delete(&child).await.unwrap_err();
    let denied = "admission webhook \"not-found.tests.dev\" denied the request: another object is not found";
    assert!(
        matches!(&error, kube::Error::Api(status) if status.code == 404 && status.message == denied),
        "{error:?}"
    );
    assert!(stored.get_opt(&child.name_any()).await.unwrap().is_some());
    configurations.delete(&configuration.name_any(), &DeleteParams::default()).await.unwrap();
}
