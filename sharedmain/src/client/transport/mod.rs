//! The way to the API server: what kube makes of a [`Config`], but for what follows. (And that it asks for no compressed
//! answers, as kube does without its feature `gzip`.)
//!
//! What is written is sent at once. kube leaves Nagle's algorithm on (kube-rs/kube#2056), which holds back the first
//! request on each new connection for the 40 ms that the other end takes to acknowledge the end of the TLS handshake: each
//! write of a controller that was idle for longer than connections are kept. The service is cloned for a request, where
//! kube's is one that all requests share. A request is one span, without a layer around its body. And a connection is
//! driven by whoever waits for what it brings, where kube's has a task of its own: no request is handed over to another
//! task, and no answer back. What a busy watch tells within ten milliseconds is taken in together.
mod arriving;
mod connection;
mod idle;
mod paced;
mod pool;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::FutureExt;
use http::{HeaderValue, Request, Uri};
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::connect::{
        Connection, HttpConnector,
        proxy::{SocksV5, Tunnel},
    },
    rt::TokioIo,
};
use kube::{
    Config,
    client::{Body, ConfigExt},
};
use percent_encoding::percent_decode_str;
use reknit_injection::{Answer, Transport};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tracing::{Instrument, Span, field::Empty};

use self::{paced::Paced, pool::Pool};
use crate::{client::error::without_credentials, client::token_file::TokenFile};

const KEEPALIVE: Duration = Duration::from_secs(30);

/// The way to the API server of this configuration, with the token of the file if there is one. Its proxy is one that
/// there is a way through.
pub(crate) fn transport(config: &Config, token: Option<TokenFile>) -> kube::Result<Transport> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    // As Go's: what ends without a word is noticed, also by who only listens.
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(3));
    let tcp = tcp.map_response(|stream: TokioIo<_>| TokioIo::new(Paced::new(stream.into_inner())));
    let Some(proxy) = config.proxy_url.clone() else { return over(tcp, config, token) };
    match proxy.scheme_str() {
        Some("socks5") => over(SocksV5::new(proxy, tcp), config, token),
        Some("https") => {
            let tls = config.rustls_https_connector_with_connector(tcp)?;
            over(tunnel(proxy, tls), config, token)
        }
        _ => over(tunnel(proxy, tcp), config, token),
    }
}

fn tunnel<C>(proxy: Uri, connector: C) -> Tunnel<C> {
    let header = basic(&proxy).and_then(|basic| HeaderValue::try_from(basic).ok());
    let tunnel = Tunnel::new(proxy, connector);
    match header {
        Some(header) => tunnel.with_auth(header),
        None => tunnel,
    }
}

/// The user and password that stand in its address, where what has a meaning of its own is percent-encoded.
fn basic(proxy: &Uri) -> Option<String> {
    let (both, _) = proxy.authority()?.as_str().rsplit_once('@')?;
    let (user, password) = both.split_once(':').unwrap_or((both, ""));
    let [user, password] = [user, password].map(|text| percent_decode_str(text).collect::<Vec<_>>());
    Some(format!("Basic {}", STANDARD.encode([&user[..], b":", &password].concat())))
}

fn over<C>(connector: C, config: &Config, token: Option<TokenFile>) -> kube::Result<Transport>
where
    C: Service<Uri, Response: Connection + Read + Write + Send + Unpin, Future: Send, Error: Into<BoxError>>
        + Clone
        + Send
        + Sync
        + 'static,
{
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let pool = Arc::new(Pool::new(connector, &config.cluster_url).map_err(kube::Error::Service)?);
    let requests = service_fn(move |request: Request<Body>| {
        let span = span(&request);
        // Not the current one: where nobody wants this span, that is the one around it.
        let of_request = span.clone();
        // Not awaited in an async block, which would have room for it twice.
        pool.clone().send(request).inspect(move |answer| told(&of_request, answer)).instrument(span)
    });
    let token = token.map(Arc::new);
    let authorize = move |request| match &token {
        Some(token) => token.authorize(request),
        None => request,
    };
    let service = ServiceBuilder::new()
        .map_err(without_credentials)
        .map_request(authorize)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .service(requests);
    Ok(Transport::new(service, &config.default_namespace))
}

/// With the name and the fields of kube's, which are those of OpenTelemetry.
fn span(request: &Request<Body>) -> Span {
    tracing::debug_span!(
        "HTTP",
        http.method = %request.method(),
        http.url = %request.uri(),
        http.status_code = Empty,
        otel.name = request.extensions().get::<&'static str>().unwrap_or(&"HTTP"),
        otel.kind = "client",
        otel.status_code = Empty,
    )
}

fn told(span: &Span, answer: &Result<Answer, BoxError>) {
    let status = answer.as_ref().ok().map(http::Response::status);
    if let Some(status) = status {
        span.record("http.status_code", status.as_u16());
    }
    if status.is_none_or(|status| status.is_client_error() || status.is_server_error()) {
        span.record("otel.status_code", "ERROR");
    }
}
