//! The HTTP transport to the API server: hyper-util's client, configured by a kube [`Config`].
//!
//! It differs from kube's own client as follows. Small writes are sent at once: kube leaves Nagle's algorithm on
//! (kube-rs/kube#2056), which delays the first request on a new connection by 40 ms. TCP keepalive detects an API
//! server that is gone while a watch only listens. The service is cloned for each request instead of queueing requests
//! for one task. A proxy's user and password are percent-decoded, and are also sent to a SOCKS5 proxy. Token files are
//! read again every ten seconds. [`Credentials`] that change are used at once. Requests
//! allow no compressed responses, and a web page is no response. The wait that a refusal asks for is in its `Status`. A pass
//! that has lost its leadership begins no request.
pub(super) mod origin;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{FutureExt, TryFutureExt};
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::rt::{Read, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{
            Connection, HttpConnector,
            proxy::{SocksV5, Tunnel},
        },
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ConfigExt, DynBody};
use parking_lot::Mutex;
use reknit_injection::internal::{
    HttpResponse, TermBody, Transport, with_retry_after_in_status, within_term,
};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tracing::{Instrument, Span, field::Empty};

use self::origin::Origin;
use super::{
    credentials::{Credentials, Login},
    error::explained,
    metrics::RequestMetrics,
    proxy,
};

const KEEPALIVE: Duration = Duration::from_secs(30);
/// An API server closes connections that were idle for 90 seconds. The transport closes them earlier, so that no
/// request is sent on a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// The time to connect to the addresses of a host, which share it, as in Go. One that does not answer must leave time for the
/// others in the time limit of a request, also in those of the electors.
const ADDRESSES_TIMEOUT: Duration = Duration::from_secs(8);

/// The maximum number of headers of a response. The API server sends a warning for each field that it does not store, so
/// that a write with many of them would fail after it was stored.
const MAX_HEADERS: usize = 1000;

/// Creates a transport that uses the credentials of the moment. After they have changed, requests do not use
/// connections with previous ones.
///
/// # Errors
///
/// Fails if headers or the proxy of the configuration are malformed.
pub(super) fn transport(
    credentials: &Arc<Credentials>,
    metrics: &Arc<RequestMetrics>,
) -> kube::Result<Transport> {
    let login = credentials.last();
    let default_namespace = login.config.default_namespace.clone();
    let current = Arc::new(Mutex::new((through_proxy(&login, credentials)?, login)));
    let (credentials, metrics) = (credentials.clone(), metrics.clone());
    let service = service_fn(move |mut request: Request<Body>| {
        let (current, credentials, metrics) = (current.clone(), credentials.clone(), metrics.clone());
        let origin = Origin::of(&mut request);
        async move {
            let measured = metrics.measure(&request);
            let login = credentials.current().await?;
            let transport = {
                let mut current = current.lock();
                if !Arc::ptr_eq(&current.1, &login) {
                    *current = (through_proxy(&login, &credentials)?, login.clone());
                }
                current.0.clone()
            };
            let answer = transport.send(request).await?;
            measured.answered(answer.status());
            credentials.record(&login, answer.status());
            origin.check(&answer)?;
            Ok::<_, BoxError>(answer)
        }
    });
    Ok(Transport::new(service, &default_namespace))
}

/// Creates a transport that connects through the proxy of the configuration, if it has one.
fn through_proxy(login: &Login, credentials: &Arc<Credentials>) -> kube::Result<Transport> {
    let config = &login.config;
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(ADDRESSES_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(3));
    let Some(proxy) = config.proxy_url.clone() else { return over_connector(tcp, login, credentials) };
    match proxy.scheme_str() {
        Some("socks5" | "socks5h") => {
            let user = proxy::credentials(&proxy);
            let socks = SocksV5::new(proxy, tcp);
            match user {
                Some((user, password)) => over_connector(socks.with_auth(user, password), login, credentials),
                None => over_connector(socks, login, credentials),
            }
        }
        Some("https") => {
            let tls = config.rustls_https_connector_with_connector(tcp)?;
            over_connector(tunnel(proxy, tls), login, credentials)
        }
        _ => over_connector(tunnel(proxy, tcp), login, credentials),
    }
}

fn tunnel<C>(proxy: Uri, connector: C) -> Tunnel<C> {
    let basic = |(user, password)| format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
    let header =
        proxy::credentials(&proxy).and_then(|credentials| HeaderValue::try_from(basic(credentials)).ok());
    let tunnel = Tunnel::new(proxy, connector);
    match header {
        Some(header) => tunnel.with_auth(header),
        None => tunnel,
    }
}

/// Creates a transport that opens connections with this connector.
fn over_connector<C>(
    connector: C,
    Login { config, auth }: &Login,
    credentials: &Arc<Credentials>,
) -> kube::Result<Transport>
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
    let client = Client::builder(TokioExecutor::new())
        .http1_max_headers(MAX_HEADERS)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .build::<_, TermBody>(connector);
    let traced = service_fn(move |request: Request<Body>| {
        let span = new_span(&request);
        // In `record`, Span::current() would be the parent span if no layer records this span.
        let request_span = span.clone();
        let answer = within_term(client.request(request.map(TermBody::new)));
        answer.inspect(move |answer| record(&request_span, answer)).instrument(span)
    });
    let (credentials, of_errors) = (credentials.clone(), credentials.clone());
    let service = ServiceBuilder::new()
        .map_err(move |error| explained(error, || of_errors.validity_error()))
        .map_response(|answer: Response<_>| -> HttpResponse {
            answer.map(|body: hyper::body::Incoming| Box::new(body.map_err(BoxError::from)) as Box<DynBody>)
        })
        .map_request(move |request| credentials.authorize(request))
        .layer(config.base_uri_layer())
        .option_layer(auth.as_deref())
        .layer(config.extra_headers_layer()?)
        .service(traced);
    let service = service.and_then(|answer| with_retry_after_in_status(answer).map_err(BoxError::from));
    Ok(Transport::new(service, &config.default_namespace))
}

/// Creates the span of a request, with the name and the fields of kube's spans. OpenTelemetry defines the fields.
fn new_span(request: &Request<Body>) -> Span {
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

/// Records the status of the response on the span of the request. A request without a response counts as an error.
fn record<B, E>(span: &Span, answer: &Result<Response<B>, E>) {
    let status = answer.as_ref().ok().map(Response::status);
    if let Some(status) = status {
        span.record("http.status_code", status.as_u16());
    }
    if status.is_none_or(|status| status.is_client_error() || status.is_server_error()) {
        span.record("otel.status_code", "ERROR");
    }
}
