//! The validity period of a kubeconfig's client certificate. The API server rejects an expired certificate with only
//! "Unauthorized".

use k8s_openapi::ByteString;
use kube::config::AuthInfo;
use rustls::{
    CertificateError, Error, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::WebPkiClientVerifier,
};

/// Returns a message if the client certificate is expired or not yet valid. Returns `None` if the certificate is valid,
/// if it cannot be read or parsed, or if there is none.
pub(crate) fn validity_error(auth: &AuthInfo) -> Option<String> {
    let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => serde_json::from_value::<ByteString>(data.as_str().into()).ok()?.0,
        (None, Some(path)) => std::fs::read(path).ok()?,
        (None, None) => return None,
    };
    let certificate = CertificateDer::from_pem_slice(&pem).ok()?;
    match verify(&certificate)?.err()? {
        Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            Some(format!("the client certificate expired on {}", date(not_after)))
        }
        Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) => {
            Some(format!("the client certificate is not valid before {}", date(not_before)))
        }
        _ => None,
    }
}

/// Verifies a certificate whose issuer is unknown. rustls checks its validity period first.
fn verify(certificate: &CertificateDer<'_>) -> Option<Result<(), Error>> {
    // A verifier needs a root, and any will do.
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone().into_owned()).ok()?;
    let provider = ring::default_provider().into();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build().ok()?;
    Some(verifier.verify_client_cert(certificate, &[], UnixTime::now()).map(drop))
}

fn date(time: UnixTime) -> String {
    let second = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(second).map_or_else(|_| second.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    /// Returns a client certificate that is valid from January 1 of `from_year` to January 1 of `to_year`.
    fn auth(from_year: i32, to_year: i32) -> AuthInfo {
        let mut params = CertificateParams::new(vec!["user".into()]).unwrap();
        (params.not_before, params.not_after) =
            (date_time_ymd(from_year, 1, 1), date_time_ymd(to_year, 1, 1));
        let pem = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
        let data = serde_json::to_value(ByteString(pem.into_bytes())).unwrap();
        AuthInfo { client_certificate_data: Some(data.as_str().unwrap().to_owned()), ..AuthInfo::default() }
    }

    #[test]
    fn the_error_of_an_expired_certificate_has_its_date() {
        let text = validity_error(&auth(2019, 2020)).unwrap();
        assert_eq!(text, "the client certificate expired on 2020-01-01T00:00:00Z");
    }

    #[test]
    fn a_certificate_of_the_future_is_an_error_and_a_valid_one_is_not() {
        assert!(validity_error(&auth(2900, 3000)).unwrap().contains("not valid before 2900-01-01"));
        assert_eq!(validity_error(&auth(2020, 3000)), None);
        assert_eq!(validity_error(&AuthInfo::default()), None);
    }
}
