//! The certificate that a webhook serves, which can be replaced at any time.

use std::sync::Arc;

use parking_lot::RwLock;
use reknit_reconciler::Result;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert, danger::ClientCertVerifier},
    sign::CertifiedKey,
    version::TLS13,
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

#[derive(Debug)]
struct Resolver(Identity);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.0.read().clone()
    }
}

/// Reads a PEM chain and its PEM key. Fails if they do not belong together.
pub(super) fn read_certified_key(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey> {
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?;
    Ok(CertifiedKey::from_der(chain, PrivateKeyDer::from_pem_slice(key)?, &ring::default_provider())?)
}
