//! The certificate that a webhook shows, which can be another at any time.

use std::{error::Error, sync::Arc};

use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
    version::TLS13,
};

/// The certificate that is shown in handshakes from now on. Clones are one.
///
/// While there is none, handshakes fail.
///
/// ```no_run
/// # fn of(certificate: &[u8], key: &[u8]) -> Result<(), reknit_webhook::BadCertificate> {
/// use reknit_webhook::Identity;
///
/// let identity = Identity::default();
/// identity.show(certificate, key)?; // PEM
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Identity(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

/// A certificate or key that cannot be shown.
#[derive(Debug, thiserror::Error)]
#[error("the certificate cannot be served: {0}")]
pub struct BadCertificate(String);

impl Identity {
    /// Shows this one in handshakes from now on: a PEM chain, the server's own first, and its PEM key. Connections go on.
    ///
    /// # Errors
    ///
    /// When either cannot be read, or they do not belong together. What was shown before stays.
    pub fn show(&self, certificate: &[u8], key: &[u8]) -> Result<(), BadCertificate> {
        let certified = certified_key(certificate, key).map_err(|error| BadCertificate(error.to_string()))?;
        *self.0.write() = Some(Arc::new(certified));
        Ok(())
    }

    /// TLS 1.3 alone, and HTTP/1.1 alone, as Knative's webhooks.
    pub(crate) fn config(&self) -> Result<ServerConfig, rustls::Error> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let resolver = Arc::new(Shown(self.clone()));
        let mut config =
            builder.with_protocol_versions(&[&TLS13])?.with_no_client_auth().with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[derive(Debug)]
struct Shown(Identity);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.0.read().clone()
    }
}

/// Reads a PEM chain and its PEM key, and fails if they do not belong together.
pub(super) fn certified_key(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, Box<dyn Error>> {
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?;
    Ok(CertifiedKey::from_der(chain, PrivateKeyDer::from_pem_slice(key)?, &ring::default_provider())?)
}
