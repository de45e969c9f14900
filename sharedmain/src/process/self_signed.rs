//! HTTPS with a certificate of its own, which no client can verify: it keeps tokens from being read on the way.
use std::sync::Arc;

use reknit_server::Handshake;
use rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// TLS with a certificate that the process has issued to itself at its start.
#[derive(Clone)]
pub(crate) struct SelfSigned(TlsAcceptor);

impl SelfSigned {
    pub(crate) fn new() -> Result<Self, String> {
        Ok(Self::issue()?.0)
    }

    /// Also returns the certificate.
    fn issue() -> Result<(Self, CertificateDer<'static>), String> {
        let issued =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(|e| e.to_string())?;
        let certificate = CertificateDer::from(issued.cert);
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder.with_no_client_auth().with_single_cert(vec![certificate.clone()], key)
            })
            .map_err(|e| e.to_string())?;
        Ok((Self(TlsAcceptor::from(Arc::new(config))), certificate))
    }
}

impl Handshake for SelfSigned {
    type Stream = TlsStream<TcpStream>;
    type Peer = ();

    async fn accept(&self, stream: TcpStream) -> Option<(Self::Stream, ())> {
        let accepted = self.0.accept(stream).await;
        let log = |error: &std::io::Error| tracing::debug!(%error, "a TLS handshake failed");
        Some((accepted.inspect_err(log).ok()?, ()))
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, routing::get};
    use reknit_server::{Limits, Server};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };
    use tokio_rustls::TlsConnector;

    use super::*;

    #[tokio::test]
    async fn a_client_that_trusts_the_certificate_is_answered_over_https() {
        let (tls, certificate) = SelfSigned::issue().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/metrics", get(async || "values"));
        let server = Server::new("tests", tls, router, Limits::default());
        tokio::spawn(server.run(listener, std::future::pending()));
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tcp = TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let mut client = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
        let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        // The server may close the connection without an alert.
        let _ = client.read_to_end(&mut response).await;
        let response = String::from_utf8(response).unwrap();
        assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("values"), "{response}");
    }
}
