//! Authentication of the API server by its client certificate.

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use reknit_injection::internal::LogLimit;
use reknit_reconciler::{Error, Result, ResultExt};
use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::certificates::identity::Identity;

/// The age at which the file of the authority is read again.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Which client certificates the webhook accepts: those that this authority issued, for one of these names.
#[derive(Clone, Debug)]
pub(crate) struct ClientAuthority {
    /// Certificates in PEM.
    pub(crate) file: PathBuf,
    /// The accepted common names. If there are none, every name is accepted.
    pub(crate) names: Vec<String>,
}

/// What the webhook knows about the client of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client {
    /// True if the client may read the answers to reviews.
    pub(crate) is_accepted: bool,
}

/// The TLS configuration of the moment: the file of the authority may change.
pub(super) struct Acceptors {
    identity: Identity,
    authority: Option<ClientAuthority>,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    pem: Vec<u8>,
    read: Instant,
    log_limit: LogLimit<String>,
}

impl ClientAuthority {
    fn read(&self) -> Result<Vec<u8>> {
        std::fs::read(&self.file).context(format_args!("cannot read {}", self.file.display()))
    }

    /// A client without a certificate may connect: the kubelet has none for its probes.
    fn verifier(&self, pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>> {
        let (roots, provider) = (self.roots(pem)?, Arc::new(ring::default_provider()));
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        Ok(builder.allow_unauthenticated().build()?)
    }

    /// Returns the certificates in PEM. One that cannot be used is skipped, with a warning, unless there is no other.
    fn roots(&self, pem: &[u8]) -> Result<RootCertStore> {
        let file = self.file.display();
        let mut problem = format!("{file} contains no PEM block of type CERTIFICATE");
        let mut roots = RootCertStore::empty();
        for (number, certificate) in (1..).zip(CertificateDer::pem_slice_iter(pem)) {
            let added = certificate.map_err(Error::from).and_then(|certificate| Ok(roots.add(certificate)?));
            if let Err(error) = added {
                problem = format!(
                    "certificate {number} of {file} cannot be used ({error}): issue another one, or remove it"
                );
                tracing::warn!("{problem}");
            }
        }
        if roots.is_empty() { Err(problem.into()) } else { Ok(roots) }
    }

    /// Returns true if this certificate, which the authority has issued, has an accepted name.
    fn accepts(&self, certificate: &CertificateDer<'_>) -> bool {
        let has_name = |(_, certificate): (_, x509_parser::certificate::X509Certificate<'_>)| {
            let mut names = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
            names.any(|name| self.names.iter().any(|accepted| accepted == name))
        };
        self.names.is_empty() || x509_parser::parse_x509_certificate(certificate).is_ok_and(has_name)
    }
}

impl Acceptors {
    /// # Errors
    ///
    /// Fails if the file of the authority cannot be read.
    pub(super) fn new(identity: &Identity, authority: Option<ClientAuthority>) -> Result<Self> {
        let pem = authority.as_ref().map(ClientAuthority::read).transpose()?.unwrap_or_default();
        let acceptor = acceptor(identity, authority.as_ref(), &pem)?;
        let current = Current { acceptor, pem, read: Instant::now(), log_limit: LogLimit::default() };
        Ok(Self { identity: identity.clone(), authority, current: Mutex::new(current) })
    }

    /// Returns the acceptor for the next handshake. If the file cannot be read, the last authority stays in use.
    pub(super) fn current(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        if let Some(authority) = self.authority.as_ref().filter(|_| current.read.elapsed() >= MAX_AGE) {
            current.read = Instant::now();
            if let Err(error) = self.reread(authority, &mut current)
                && current.log_limit.allows(&error.in_full())
            {
                let error = error.in_full();
                tracing::warn!(error, "cannot read the authority of clients; the last one stays in use");
            }
        }
        current.acceptor.clone()
    }

    fn reread(&self, authority: &ClientAuthority, current: &mut Current) -> Result<()> {
        let pem = authority.read()?;
        if pem != current.pem {
            (current.acceptor, current.pem) = (acceptor(&self.identity, Some(authority), &pem)?, pem);
        }
        Ok(())
    }

    /// Returns what is known of a client with these certificates, which TLS has verified.
    pub(super) fn client(&self, certificates: Option<&[CertificateDer<'_>]>) -> Client {
        let is_accepted = |authority: &ClientAuthority| {
            certificates.and_then(<[_]>::first).is_some_and(|certificate| authority.accepts(certificate))
        };
        Client { is_accepted: self.authority.as_ref().is_none_or(is_accepted) }
    }
}

fn acceptor(identity: &Identity, authority: Option<&ClientAuthority>, pem: &[u8]) -> Result<TlsAcceptor> {
    let verifier =
        authority.map_or_else(|| Ok(WebPkiClientVerifier::no_client_auth()), |a| a.verifier(pem))?;
    Ok(TlsAcceptor::from(Arc::new(identity.config(verifier)?)))
}

#[cfg(test)]
mod tests {
    use rcgen::generate_simple_self_signed;

    use super::*;

    #[test]
    fn an_authority_that_cannot_be_used_does_not_keep_others_from_being_used() {
        let authority = ClientAuthority { file: "/ca.pem".into(), names: Vec::new() };
        let usable = generate_simple_self_signed(Vec::new()).unwrap().cert.pem();
        let unusable = "-----BEGIN CERTIFICATE-----\neA==\n-----END CERTIFICATE-----\n";
        let roots = |pem: &str| authority.roots(pem.as_bytes()).map(|roots| roots.len());
        assert_eq!(roots(&format!("{unusable}{usable}")).unwrap(), 1);
        let error = roots(unusable).unwrap_err().in_full();
        assert!(error.starts_with("certificate 1 of /ca.pem cannot be used ("), "{error}");
        assert_eq!(roots("").unwrap_err().in_full(), "/ca.pem contains no PEM block of type CERTIFICATE");
    }
}
