//! Certificate authorities, and the certificates that they issue for a webhook.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use time::OffsetDateTime;
use x509_parser::{
    prelude::{FromDer, GeneralName, Validity, X509Certificate},
    time::ASN1Time,
};

use super::identity::certified_key;

/// The organisation in the certificates of Knative's webhooks.
const ORGANISATION: &str = "knative.dev";
/// The time by which the clock of an API server may be behind.
const SKEW: Duration = Duration::from_secs(60 * 60);

/// The error of a certificate that cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("failed to create a certificate: {0}")]
pub(crate) struct Error(#[from] rcgen::Error);

/// A certificate and its key in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Leaves the key out, which must not appear in logs.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Pair {
    /// Creates a self-signed authority.
    pub(crate) fn authority(now: Timestamp, validity: Duration) -> Result<Self, Error> {
        // A client that trusts several authorities finds the issuer by its name.
        let mut params = params(&[], &format!("webhook CA of {now}"), now, validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        Ok(Self { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
    }

    /// Issues a certificate for a server with these names.
    pub(crate) fn issue(&self, names: &[String], now: Timestamp, validity: Duration) -> Result<Self, Error> {
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        let mut params = params(names, names.first().map_or("webhook", String::as_str), now, validity)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok(Self { certificate: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem() })
    }

    /// Returns true if the key is that of the certificate.
    pub(crate) fn is_consistent(&self) -> bool {
        certified_key(self.certificate.as_bytes(), self.key.as_bytes()).is_ok()
    }

    /// Returns true if a client that trusts these authorities accepts the certificate of a server at that time.
    pub(crate) fn is_accepted(&self, trusted: &str, now: Timestamp) -> bool {
        let verify = || {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(chain(trusted)?);
            let provider = Arc::new(default_provider());
            let verifier =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()?;
            let name = ServerName::try_from(read(&self.certificate)?.names.into_iter().next()?).ok()?;
            let (chain, second) = (chain(&self.certificate)?, u64::try_from(now.as_second()).ok()?);
            let (server, between) = chain.split_first()?;
            let now = UnixTime::since_unix_epoch(Duration::from_secs(second));
            verifier.verify_server_cert(server, between, &name, &[], now).ok()
        };
        verify().is_some()
    }
}

fn chain(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().ok()
}

fn params(
    names: &[String],
    common_name: &str,
    now: Timestamp,
    validity: Duration,
) -> Result<CertificateParams, rcgen::Error> {
    let now = OffsetDateTime::from_unix_timestamp(now.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let mut params = CertificateParams::new(names)?;
    (params.not_before, params.not_after) = (now - SKEW, now + validity);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, ORGANISATION);
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

/// The validity and the names of a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    pub(crate) names: Vec<String>,
}

/// Reads the first certificate of a PEM text, if there is one.
pub(crate) fn read(pem: &str) -> Option<Contents> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let time = |time: ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    let Validity { not_before, not_after } = certificate.validity();
    let alternatives = certificate.subject_alternative_name().ok().flatten();
    let names = alternatives.iter().flat_map(|names| &names.value.general_names).filter_map(name);
    Some(Contents { from: time(*not_before)?, until: time(*not_after)?, names: names.collect() })
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match *name {
        GeneralName::DNSName(name) => Some(name.to_owned()),
        GeneralName::IPAddress(bytes) => {
            let short = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = short.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_validity_and_names_of_a_certificate_are_read() {
        let (now, week) = (Timestamp::from_second(1_800_000_000).unwrap(), Duration::from_secs(7 * 86_400));
        let authority = Pair::authority(now, week).unwrap();
        let names = ["webhook.ns.svc".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let issued = authority.issue(&names, now, week).unwrap();
        let expected = Contents { from: now - SKEW, until: now + week, names: names.into() };
        assert_eq!(read(&issued.certificate).unwrap(), expected);
        assert_eq!(read("nonsense"), None);
    }

    #[test]
    fn debug_output_leaves_out_the_private_key() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let pair = Pair::authority(now, Duration::from_secs(86_400)).unwrap();
        assert!(pair.key.contains("PRIVATE KEY"));
        let said = format!("{pair:?}");
        assert!(said.contains("BEGIN CERTIFICATE") && !said.contains("PRIVATE KEY"), "{said}");
    }
}
