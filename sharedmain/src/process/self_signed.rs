//! HTTPS with a certificate of its own, which no client can verify: it keeps tokens from being read on the way.
use std::sync::Arc;

use reknit_server::Handshake;
use rustls::{
    ServerConfig,
    crypto::ring::default_provider,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// TLS with a certificate that the process has issued to itself at its start.
#[derive(Clone)]
pub(crate) struct SelfSigned(TlsAcceptor);

impl SelfSigned {
    pub(crate) fn new() -> Result<Self, String> {
        let issued =
            rcgen::generate_simple_self_signed(["localhost".to_owned()]).map_err(|e| e.to_string())?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![issued.cert.into()], key))
            .map_err(|e| e.to_string())?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
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
