//! The certificate that a webhook serves, which can be replaced at any time.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use parking_lot::RwLock;
use reknit_apis::Key;
use reknit_injection::{Change, Context, Informer, select};
use reknit_reconciler::{Error, Result};
use rustls::{
    ServerConfig,
    crypto::ring,
    server::{ClientHello, ResolvesServerCert, danger::ClientCertVerifier},
    sign::CertifiedKey,
    version::TLS13,
};

use super::{
    authority::{read_certificate, read_certified_key},
    metrics::CertificateMetrics,
    secret::Certificates,
};

/// The certificate that is served in TLS handshakes. Clones share it.
///
/// Handshakes fail until a certificate is set.
#[derive(Clone, Debug, Default)]
pub struct Identity(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl Identity {
    /// Serves another certificate in later handshakes. Open connections are kept.
    ///
    /// `certificate` is a PEM chain that begins with the server's own certificate, and `key` is its private key in PEM.
    ///
    /// # Errors
    ///
    /// Fails if the certificate or the key cannot be read, or if they do not belong together. The previous certificate
    /// stays in use.
    pub fn replace(&self, certificate: &[u8], key: &[u8]) -> Result<()> {
        *self.0.write() = Some(Arc::new(read_certified_key(certificate, key)?));
        Ok(())
    }

    /// Serves the certificate of a Secret after each change, while the caller keeps the returned informer. A Secret without a
    /// certificate that can be served leaves the previous one in use.
    pub(crate) fn follow(&self, cx: &Context, secret: &Key) -> Informer<Secret> {
        let (informer, identity) = (secret_informer(cx, secret), self.clone());
        let metrics = CertificateMetrics::new(cx.metrics());
        informer.on(move |change| {
            let certificates = match change {
                Change::Added(secret) | Change::Updated { new: secret, .. } => Certificates::from_secret(secret),
                Change::Deleted { .. } => None,
            };
            // A new Secret is empty until the controller has written it.
            let read = match certificates {
                None if !identity.is_set() => return,
                None => Err(Error::from("it has none")),
                Some(Certificates { server, .. }) => {
                    let replaced = identity.replace(server.certificate.as_bytes(), server.key.as_bytes());
                    replaced.map(|()| read_certificate(&server.certificate).map(|read| read.not_after))
                }
            };
            match read {
                Ok(not_after) => {
                    metrics.record_read(not_after);
                    tracing::info!("serving the certificate of the webhook's Secret");
                }
                Err(error) => {
                    metrics.record_read(None);
                    tracing::error!(
                        %error,
                        "failed to serve the certificate of the webhook's Secret: keeping the previous one, until it expires"
                    );
                }
            }
        });
        informer
    }

    /// Returns true if a certificate is set.
    pub fn is_set(&self) -> bool {
        self.0.read().is_some()
    }

    /// Returns the configuration of a server with TLS 1.3 and HTTP/1.1 only, as in Knative's webhooks.
    pub(crate) fn config(&self, clients: Arc<dyn ClientCertVerifier>) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let resolver = Arc::new(Resolver(self.clone()));
        let mut config = builder
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Returns the informer of one Secret.
pub(super) fn secret_informer(cx: &Context, secret: &Key) -> Informer<Secret> {
    let namespace = secret.namespace.as_deref().unwrap_or_default();
    cx.informer(select().namespace(namespace).field("metadata.name", &secret.name))
}

#[derive(Debug)]
struct Resolver(Identity);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.0.read().clone()
    }
}
