//! The validity of the client certificate of a kubeconfig. An API server that rejects it only answers "Unauthorized".
use k8s_openapi::ByteString;
use kube::config::AuthInfo;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Returns an error text if there is a client certificate and it is not valid now.
pub(crate) fn validity_error(auth: &AuthInfo) -> Option<String> {
    let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => serde_json::from_value::<ByteString>(data.as_str().into()).ok()?.0,
        (None, Some(path)) => std::fs::read(path).ok()?,
        (None, None) => return None,
    };
    let der = CertificateDer::from_pem_slice(&pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let (from, to) = (certificate.validity().not_before, certificate.validity().not_after);
    let now = jiff::Timestamp::now().as_second();
    if to.timestamp() < now {
        Some(format!("the client certificate expired on {}", date(to.timestamp())))
    } else if from.timestamp() > now {
        Some(format!("the client certificate is not valid before {}", date(from.timestamp())))
    } else {
        None
    }
}

fn date(second: i64) -> String {
    jiff::Timestamp::from_second(second).map_or_else(|_| second.to_string(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn auth(from: i32, to: i32) -> AuthInfo {
        let mut params = CertificateParams::new(vec!["user".into()]).unwrap();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
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
