//! A webhook on 127.0.0.1 with a certificate for tests.
#![allow(dead_code, reason = "each test crate that shares this uses a part of it")]

use std::{net::SocketAddr, sync::Arc};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use reknit_webhook::{Identity, Webhook};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

/// A served webhook.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    /// The authority that clients have to trust, in PEM.
    pub(crate) ca: String,
    pub(crate) registry: prometheus::Registry,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) served: JoinHandle<()>,
}

impl Served {
    /// Stops the webhook.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    /// The sum of a metric over the label values that contain this text.
    pub(crate) fn counted(&self, name: &str, label: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().filter(|family| family.name() == name);
        let metrics = family.flat_map(|family| family.get_metric());
        let labelled = metrics.filter(|metric| metric.get_label().iter().any(|l| l.value().contains(label)));
        labelled.map(|metric| metric.get_counter().get_value()).sum()
    }
}

/// An authority, and a certificate that it issued for 127.0.0.1 with its key, in PEM.
pub(crate) fn certificate() -> (String, String, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    (ca.pem(), leaf.pem(), key.serialize_pem())
}

pub(crate) async fn serve(webhook: Webhook) -> Served {
    let (ca, certificate, key) = certificate();
    let identity = Identity::default();
    identity.show(certificate.as_bytes(), key.as_bytes()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let registry = prometheus::Registry::new();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async {
        let _ = stopped.await;
    };
    let served = tokio::spawn(webhook.serve(listener, &identity, &registry, stopped).unwrap());
    Served { address, ca, registry, stop: Some(stop), served }
}

/// A client that trusts only these authorities and speaks only this version of TLS.
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
