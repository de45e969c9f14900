//! The certificates of a configuration, and why rustls refuses one.
//!
//! rustls refuses certificates that Go's clients accept, and its own texts name neither the certificate nor a way out.
use std::{fmt, fs, path::PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use kube::{Config, client::ConfigExt};
use rustls::{
    AlertDescription, CertificateError, Error, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::{ParsedCertificate, WebPkiClientVerifier},
    sign::CertifiedKey,
};
use secrecy::ExposeSecret;

const ALGORITHMS: &str = "RSA of 2048 to 8192 bits, ECDSA P-256 or P-384, or Ed25519";

/// PEM in a kubeconfig, as such or as the path of a file that may be replaced at any time.
#[derive(Clone, Debug)]
pub(crate) enum Pem {
    Data { field: &'static str, bytes: Vec<u8> },
    File { field: &'static str, path: PathBuf },
}

impl Pem {
    /// Takes a field of the kubeconfig. As in client-go, its data take precedence over its path.
    pub(crate) fn take(
        field: &'static str,
        data: Option<String>,
        path: Option<String>,
    ) -> Result<Option<Self>, String> {
        let decode = |data: String| {
            STANDARD.decode(data).map_err(|e| format!("{field}-data is not valid base64: {e}"))
        };
        match (data.map(decode).transpose()?, path) {
            (Some(bytes), _) => Ok(Some(Self::Data { field, bytes })),
            (None, path) => Ok(path.map(|path| Self::File { field, path: path.into() })),
        }
    }

    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    pub(crate) fn read(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::Data { bytes, .. } => Ok(bytes.clone()),
            Self::File { path, .. } => fs::read(path).map_err(|e| format!("{self}: {e}")),
        }
    }
}

impl fmt::Display for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data { field, .. } => write!(f, "{field}-data"),
            Self::File { field, path } => write!(f, "{field} {}", path.display()),
        }
    }
}

/// Returns the certificates of authorities. As in Go, one that cannot be used is skipped, with a warning, unless there
/// is no other.
pub(crate) fn authorities(source: &Pem, pem: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let (mut usable, mut problem) = (Vec::new(), "it contains no PEM block of type CERTIFICATE".to_owned());
    for (number, certificate) in (1..).zip(CertificateDer::pem_slice_iter(pem)) {
        let certificate = certificate.map_err(|e| e.to_string()).and_then(|certificate| {
            RootCertStore::empty().add(certificate.clone()).map_err(|e| e.to_string())?;
            Ok(certificate.to_vec())
        });
        match certificate {
            Ok(certificate) => usable.push(certificate),
            Err(why) => {
                problem = format!("its certificate {number} cannot be used: {why}");
                tracing::warn!("{source}: {problem}");
            }
        }
    }
    if usable.is_empty() { Err(format!("{source}: {problem}")) } else { Ok(usable) }
}

/// Checks that rustls accepts the certificates and keys of a configuration. An error names the source of the certificate
/// or the key.
pub(crate) fn check(config: &Config, certificate: Option<&str>, key: Option<&str>) -> Result<(), String> {
    let Err(error) = config.rustls_client_config() else { return Ok(()) };
    Err(match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let problem = check_pair(config, certificate, key).err();
            problem.unwrap_or_else(|| format!("{certificate} with {key}: {error}"))
        }
        (Some(certificate), None) => format!("{certificate}: there is no client-key"),
        (None, Some(key)) => format!("{key}: there is no client-certificate"),
        (None, None) => error.to_string(),
    })
}

/// Checks a client certificate and its key one after the other. rustls reports every problem as one of the key.
fn check_pair(config: &Config, certificate: &str, key: &str) -> Result<(), String> {
    let auth = &config.auth_info;
    let decode = |data: Option<&str>| STANDARD.decode(data.unwrap_or_default()).unwrap_or_default();
    let key_pem = decode(auth.client_key_data.as_ref().map(|data| data.expose_secret()));
    let leaf = CertificateDer::from_pem_slice(&decode(auth.client_certificate_data.as_deref()))
        .map_err(|e| format!("{certificate}: it contains no PEM block of type CERTIFICATE ({e})"))?;
    ParsedCertificate::try_from(&leaf).map_err(|e| format!("{certificate}: {}", unusable(&e)))?;
    let unusable_key = |e: &dyn fmt::Display| {
        format!(
            "{key}: it contains no usable private key ({e}): it has to be {ALGORITHMS}, in a PEM block of PKCS#8, PKCS#1 \
             or SEC 1 without a password"
        )
    };
    let private_key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|e| unusable_key(&e))?;
    let signer = ring::sign::any_supported_type(&private_key).map_err(|e| unusable_key(&e))?;
    CertifiedKey::new(vec![leaf], signer).keys_match().map_err(|_| {
        format!("{certificate} and {key} do not belong together: set the two that were issued together")
    })
}

/// Returns why rustls refuses a client certificate, and the way out.
fn unusable(error: &Error) -> String {
    match error.to_string() {
        text if text.contains("UnsupportedCertVersion") => {
            "the certificate is of X.509 version 1, which clients in Go accept, but rustls does not: issue a certificate of \
             version 3 to the user (openssl x509 -req needs -extfile to write one)"
                .into()
        }
        text => format!(
            "the certificate breaks the rules of X.509 ({text}): issue another one to the user. Clients in Go may accept \
             this one, but rustls does not"
        ),
    }
}

/// The advice for a server whose certificate has another authority or name than the configured one.
pub(crate) struct WaysOut {
    unknown_issuer: &'static str,
    other_name: &'static str,
}

impl WaysOut {
    /// Those for the API server of a kubeconfig.
    pub(crate) const KUBECONFIG: Self = Self {
        unknown_issuer: "set certificate-authority of the cluster to the authority that issued the certificate of the server",
        other_name: "use a name or an address that the certificate of the server has as a subject alternative name, or set \
                     tls-server-name of the cluster to one",
    };
    /// Those for a server that is checked by the authorities of the system.
    #[cfg(feature = "otlp")]
    pub(crate) const SYSTEM: Self = Self {
        unknown_issuer: "add the authority that issued the certificate of the server to the certificates of the system, or set \
                         SSL_CERT_FILE to a file with it",
        other_name: "use a name or an address that the certificate of the server has as a subject alternative name",
    };
}

/// Returns the text of a failed handshake, with what to do.
pub(crate) fn explain(error: &Error, ways_out: &WaysOut) -> String {
    let way_out = match error {
        Error::InvalidCertificate(problem) => of_certificate(problem, ways_out),
        Error::AlertReceived(AlertDescription::HandshakeFailure | AlertDescription::ProtocolVersion)
        | Error::PeerIncompatible(_) => {
            "the server has to offer TLS 1.2 or 1.3 with ECDHE and AES-GCM or ChaCha20".into()
        }
        Error::AlertReceived(_) => "the server refused this client, or its certificate".into(),
        _ => return error.to_string(),
    };
    format!("{error}; {way_out}")
}

/// Returns why the certificate that a server presented is refused, and the way out.
fn of_certificate(problem: &CertificateError, ways_out: &WaysOut) -> String {
    use CertificateError as E;
    let stricter = |why: &str| {
        format!(
            "{why}: issue another certificate to the server. Clients in Go may accept this one, but rustls does not"
        )
    };
    match problem {
        E::Expired | E::ExpiredContext { .. } | E::NotValidYet | E::NotValidYetContext { .. } => {
            "renew the certificate of the server and those of its authorities, or correct the clock of this machine"
                .into()
        }
        E::UnknownIssuer => ways_out.unknown_issuer.into(),
        E::NotValidForName | E::NotValidForNameContext { .. } => ways_out.other_name.into(),
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "the certificate of the server needs the extended key usage serverAuth".into()
        }
        E::BadEncoding => stricter(
            "the certificate of the server, or of an authority, breaks the rules of X.509, for example by a negative \
             serial number",
        ),
        E::Other(other) => match other.to_string() {
            text if text.contains("CaUsedAsEndEntity") => {
                stricter("the server presents the certificate of an authority (CA:TRUE) as its own")
            }
            text if text.contains("UnsupportedCertVersion") => {
                stricter("the certificate of the server is of X.509 version 1, not 3")
            }
            text => stricter(&format!("the certificate of the server, or of an authority, is refused ({text})")),
        },
        other => stricter(&format!(
            "the certificate of the server, or of an authority, is refused ({other:?}); it has to be signed by {ALGORITHMS}"
        )),
    }
}

/// Returns a message if the client certificate is expired or not yet valid. Returns `None` if the certificate is valid,
/// if it cannot be read or parsed, or if there is none. The API server rejects an expired certificate with only
/// "Unauthorized".
pub(crate) fn validity_error(config: &Config) -> Option<String> {
    let pem = STANDARD.decode(config.auth_info.client_certificate_data.as_ref()?).ok()?;
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

    const VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIIBGjCBwQIUaYPY6E4XS09sNnZNXymdzJUa1FowCgYIKoZIzj0EAwIwDzENMAsG
A1UEAwwEdXNlcjAgFw0yNjExMjYwNzM3NDlaGA8yMTI2MTEwMjA3Mzc0OVowDzEN
MAsGA1UEAwwEdXNlcjBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABG9JmbwUKGa0
eqJPjsgyM1DosXf2KNIDTa7DjDE03D4+8N2EgChHNX8fIrydaOnZWUzHUzq6Qona
rD3K5v5G03owCgYIKoZIzj0EAwIDSAAwRQIhALi/ix/wyRdeGKjbMmpo4T2IbnSX
0Bg5HMYbp5fkQk8SAiBEwLP2dYYf8L3nYhkzjRs7n4U5r1ptnBxEhTqQjzjLKA==
-----END CERTIFICATE-----";
    const VERSION_1_KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgrttY8HBdDJZe13Hw
5Q/o+OWV/7mYccokC4UpRLydDlyhRANCAARvSZm8FChmtHqiT47IMjNQ6LF39ijS
A02uw4wxNNw+PvDdhIAoRzV/HyK8nWjp2VlMx1M6ukKJ2qw9yub+RtN6
-----END PRIVATE KEY-----";

    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384, date_time_ymd};
    use rustls::OtherError;

    fn self_signed(from_year: i32, to_year: i32) -> (String, KeyPair) {
        let mut params = CertificateParams::new(vec!["user".into()]).unwrap();
        (params.not_before, params.not_after) =
            (date_time_ymd(from_year, 1, 1), date_time_ymd(to_year, 1, 1));
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key)
    }

    /// Returns a configuration with a client certificate that is valid from January 1 of `from_year` to January 1 of
    /// `to_year`.
    fn config(from_year: i32, to_year: i32) -> Config {
        let mut config = Config::new("https://api.example.com".parse().unwrap());
        config.auth_info.client_certificate_data = Some(STANDARD.encode(self_signed(from_year, to_year).0));
        config
    }

    fn data(bytes: &[u8]) -> Pem {
        Pem::Data { field: "certificate-authority", bytes: bytes.into() }
    }

    #[test]
    fn the_error_of_an_expired_certificate_has_its_date() {
        let text = validity_error(&config(2019, 2020)).unwrap();
        assert_eq!(text, "the client certificate expired on 2020-01-01T00:00:00Z");
    }

    #[test]
    fn a_certificate_of_the_future_is_an_error_and_a_valid_one_is_not() {
        assert!(validity_error(&config(2900, 3000)).unwrap().contains("not valid before 2900-01-01"));
        assert_eq!(validity_error(&config(2020, 3000)), None);
        assert_eq!(validity_error(&Config::new("https://api.example.com".parse().unwrap())), None);
    }

    #[test]
    fn an_authority_that_cannot_be_used_is_skipped_unless_there_is_no_other() {
        let (good, unusable) =
            (self_signed(2019, 2020).0, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let bundle = format!("subject=CN = user\n{unusable}{good}Bag Attributes\n{good}");
        assert_eq!(authorities(&data(b""), bundle.as_bytes()).unwrap().len(), 2);
        let windows = format!("{good}junk\n{good}\n-----").replace('\n', "\r\n");
        assert_eq!(authorities(&data(b""), windows.as_bytes()).unwrap().len(), 2);
        let error = authorities(&data(b""), unusable.as_bytes()).unwrap_err();
        assert!(
            error.starts_with("certificate-authority-data: its certificate 1 cannot be used: "),
            "{error}"
        );
        let error = authorities(&data(b""), b"AAAA").unwrap_err();
        assert!(error.ends_with("it contains no PEM block of type CERTIFICATE"), "{error}");
    }

    /// Returns the error of a client certificate and its key.
    fn error_of_pair(certificate: &str, key: &str) -> String {
        let _ = ring::default_provider().install_default();
        let mut config = Config::new("https://api.example.com".parse().unwrap());
        config.auth_info.client_certificate_data = Some(STANDARD.encode(certificate));
        config.auth_info.client_key_data = Some(STANDARD.encode(key).into());
        check(&config, Some("client-certificate /cert.pem"), Some("client-key /key.pem")).unwrap_err()
    }

    #[test]
    fn a_key_of_another_certificate_is_an_error_that_names_both() {
        let other = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
        let error = error_of_pair(&self_signed(2020, 3000).0, &other.serialize_pem());
        let expected = "client-certificate /cert.pem and client-key /key.pem do not belong together: ";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn the_error_of_a_client_certificate_of_version_1_names_the_certificate_and_its_version() {
        let error = error_of_pair(VERSION_1, VERSION_1_KEY);
        let expected = "client-certificate /cert.pem: the certificate is of X.509 version 1, ";
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn the_error_of_a_file_that_is_no_certificate_or_no_key_names_the_file() {
        let (certificate, key) = self_signed(2020, 3000);
        for not_a_certificate in ["", "AAAA", &key.serialize_pem()] {
            let error = error_of_pair(not_a_certificate, &key.serialize_pem());
            assert!(error.starts_with("client-certificate /cert.pem: it contains no PEM block"), "{error}");
        }
        let locked = key.serialize_pem().replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        for not_a_key in ["", &certificate, &locked] {
            let error = error_of_pair(&certificate, not_a_key);
            assert!(error.starts_with("client-key /key.pem: it contains no usable private key"), "{error}");
        }
    }

    #[test]
    fn what_rustls_refuses_has_a_reason_and_a_way_out() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Refusal(&'static str);
        let other = |text| CertificateError::Other(OtherError(std::sync::Arc::new(Refusal(text))));
        for (problem, part) in [
            (CertificateError::Expired, "renew the certificate"),
            (CertificateError::UnknownIssuer, "certificate-authority"),
            (CertificateError::NotValidForName, "tls-server-name"),
            (CertificateError::InvalidPurpose, "serverAuth"),
            (CertificateError::BadEncoding, "negative serial number"),
            (CertificateError::BadSignature, "RSA of 2048 to 8192 bits"),
            (other("CaUsedAsEndEntity"), "(CA:TRUE) as its own: issue another certificate"),
            (other("UnsupportedCertVersion"), "X.509 version 1"),
            (other("MaximumSignatureChecksExceeded"), "Clients in Go may accept this one"),
        ] {
            let text = explain(&Error::InvalidCertificate(problem), &WaysOut::KUBECONFIG);
            assert!(text.starts_with("invalid peer certificate: ") && text.contains(part), "{text}");
        }
        let text = explain(&Error::AlertReceived(AlertDescription::HandshakeFailure), &WaysOut::KUBECONFIG);
        assert!(text.contains("TLS 1.2 or 1.3"), "{text}");
    }
}
