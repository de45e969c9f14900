//! A webhook on 127.0.0.1 with a certificate for tests.
#![allow(dead_code, reason = "each test crate that shares this uses a part of it")]

use std::{net::SocketAddr, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reknit_webhook::{
    Webhook,
    internal::{self, Identity},
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

/// A webhook that is served until this value is stopped or dropped.
pub(crate) struct LocalServer {
    pub(crate) address: SocketAddr,
    /// The CA certificate that clients have to trust, in PEM.
    pub(crate) ca: String,
    pub(crate) registry: prometheus::Registry,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) task: JoinHandle<()>,
}

impl LocalServer {
    /// Stops the webhook.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// Returns the sum of a counter over its series that have a label value with this text, or over all if it is empty.
    pub(crate) fn counter(&self, name: &str, label: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().filter(|family| family.name() == name);
        let metrics = family.flat_map(|family| family.get_metric());
        let labelled = metrics.filter(|metric| {
            label.is_empty() || metric.get_label().iter().any(|pair| pair.value().contains(label))
        });
        labelled.map(|metric| metric.get_counter().get_value()).sum()
    }
}

/// Issues a certificate for 127.0.0.1. Returns the CA certificate, the issued certificate and its key, in PEM.
pub(crate) fn issue_certificate() -> (String, String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    (ca.pem(), leaf.pem(), key.serialize_pem())
}

/// Serves the webhook on a free port of 127.0.0.1.
pub(crate) async fn serve(webhook: Webhook) -> LocalServer {
    let (ca, certificate, key) = issue_certificate();
    let identity = Identity::default();
    identity.replace(certificate.as_bytes(), key.as_bytes()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let registry = prometheus::Registry::new();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async {
        let _ = stopped.await;
    };
    let task = tokio::spawn(internal::serve(webhook, listener, &identity, &registry, stopped).unwrap());
    LocalServer { address, ca, registry, stop: Some(stop), task }
}

/// Returns a client that trusts only these CA certificates and speaks only this version of TLS.
pub(crate) fn tls_client(
    ca: &str,
    version: &'static rustls::SupportedProtocolVersion,
) -> tokio_rustls::TlsConnector {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut roots = rustls::RootCertStore::empty();
    for trusted in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(trusted.unwrap()).unwrap();
    }
    let builder =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(&[version]).unwrap();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth()).into()
}
