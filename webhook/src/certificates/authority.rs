//! Certificate authorities, and the certificates that they issue for a webhook.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use reknit_reconciler::Result;
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};
use time::OffsetDateTime;
use x509_parser::{
    prelude::{FromDer, GeneralName, Validity, X509Certificate},
    time::ASN1Time,
};

/// The organisation in the certificates of Knative's webhooks.
const ORGANISATION: &str = "knative.dev";
/// The time before its creation from which a certificate is valid, so that an API server whose clock is slow accepts
/// it.
const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);

/// A certificate and its key in PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CertificateAndKey {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// Omits the key, which must not appear in logs.
impl fmt::Debug for CertificateAndKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateAndKey").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl CertificateAndKey {
    /// Creates a self-signed authority.
    pub(crate) fn self_signed_authority(now: Timestamp, validity: Duration) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        // Each authority has a name of its own, since a client that trusts several authorities finds the issuer by
        // name. Two may be created at the same time.
        let id: String =
            key.public_key_raw().iter().rev().take(4).map(|byte| format!("{byte:02x}")).collect();
        let mut params = certificate_params(&[], &format!("webhook CA {id} of {now}"), now, validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
    }

    /// Issues a certificate for a server with these names.
    pub(crate) fn issue(
        &self,
        names: &[String],
        now: Timestamp,
        validity: Duration,
    ) -> Result<Self, rcgen::Error> {
        let issuer = self.issuer()?;
        let mut params =
            certificate_params(names, names.first().map_or("webhook", String::as_str), now, validity)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok(Self { certificate: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem() })
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, rcgen::Error> {
        Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)
    }

    /// Returns true if certificates can be issued with this certificate and this key.
    pub(crate) fn can_issue(&self) -> bool {
        self.issuer().is_ok()
    }

    /// Returns true if the key belongs to the certificate.
    pub(crate) fn is_consistent(&self) -> bool {
        read_certified_key(self.certificate.as_bytes(), self.key.as_bytes()).is_ok()
    }

    /// Returns true if a client that trusts these authorities (PEM) accepts the certificate at this time, when it
    /// connects to the first of the certificate's names.
    pub(crate) fn is_accepted(&self, trusted: &str, now: Timestamp) -> bool {
        let verify = || {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(parse_certificates(trusted)?);
            let provider = Arc::new(default_provider());
            let verifier =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()?;
            let name = read_certificate(&self.certificate)?.names.into_iter().next()?;
            let name = ServerName::try_from(name).ok()?;
            let chain = parse_certificates(&self.certificate)?;
            let (end_entity, intermediates) = chain.split_first()?;
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().ok()?));
            verifier.verify_server_cert(end_entity, intermediates, &name, &[], now).ok()
        };
        verify().is_some()
    }
}

fn parse_certificates(pem: &str) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().ok()
}

fn certificate_params(
    names: &[String],
    common_name: &str,
    now: Timestamp,
    validity: Duration,
) -> Result<CertificateParams, rcgen::Error> {
    let now = OffsetDateTime::from_unix_timestamp(now.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let mut params = CertificateParams::new(names)?;
    (params.not_before, params.not_after) = (now - CLOCK_SKEW, now + validity);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, ORGANISATION);
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

/// The validity and the names of a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CertificateInfo {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
    pub(crate) names: Vec<String>,
}

/// Reads the first certificate of a PEM text. `None` if there is none or it is invalid.
pub(crate) fn read_certificate(pem: &str) -> Option<CertificateInfo> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let timestamp = |time: ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    let Validity { not_before, not_after } = certificate.validity();
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.iter().flat_map(|extension| &extension.value.general_names);
    Some(CertificateInfo {
        not_before: timestamp(*not_before)?,
        not_after: timestamp(*not_after)?,
        names: names.filter_map(format_name).collect(),
    })
}

/// Reads a PEM chain and its PEM key. Fails if they do not belong together.
pub(super) fn read_certified_key(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey> {
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>()?;
    Ok(CertifiedKey::from_der(chain, PrivateKeyDer::from_pem_slice(key)?, &default_provider())?)
}

/// Returns true for a name that a certificate can be issued for: an IP address, or a DNS name, which may be a wildcard.
pub(crate) fn is_server_name(name: &str) -> bool {
    ServerName::try_from(name.strip_prefix("*.").unwrap_or(name)).is_ok()
}

/// Formats a DNS name or an IP address. Returns `None` for other names.
fn format_name(name: &GeneralName<'_>) -> Option<String> {
    match *name {
        GeneralName::DNSName(name) => Some(name.to_owned()),
        GeneralName::IPAddress(bytes) => {
            let ipv4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            let address = ipv4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
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
        let authority = CertificateAndKey::self_signed_authority(now, week).unwrap();
        let names = ["webhook.ns.svc".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let issued = authority.issue(&names, now, week).unwrap();
        let expected =
            CertificateInfo { not_before: now - CLOCK_SKEW, not_after: now + week, names: names.into() };
        assert_eq!(read_certificate(&issued.certificate).unwrap(), expected);
        assert_eq!(read_certificate("nonsense"), None);
    }

    #[test]
    fn two_authorities_of_the_same_time_have_different_names() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let subject = || {
            let authority = CertificateAndKey::self_signed_authority(now, Duration::from_secs(60)).unwrap();
            let der = CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap();
            X509Certificate::from_der(&der).unwrap().1.subject().to_string()
        };
        assert_ne!(subject(), subject());
    }

    #[test]
    fn debug_output_leaves_out_the_private_key() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let authority = CertificateAndKey::self_signed_authority(now, Duration::from_secs(86_400)).unwrap();
        assert!(authority.key.contains("PRIVATE KEY"));
        let debug = format!("{authority:?}");
        assert!(debug.contains("BEGIN CERTIFICATE") && !debug.contains("PRIVATE KEY"), "{debug}");
    }
}
