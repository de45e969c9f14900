//! The HTTP transport to the API server: hyper-util's client, configured by a kube [`Config`].
//!
//! It differs from kube's own client as follows. Small writes are sent at once: kube leaves Nagle's algorithm on
//! (kube-rs/kube#2056), which delays the first request on a new connection by 40 ms. TCP keepalive detects an API
//! server that is gone while a watch only listens. The service is cloned for each request instead of queueing requests
//! for one task. A proxy's user and password are percent-decoded, and are also sent to a SOCKS5 proxy. Token files are
//! read again every ten seconds. Exec plugins run again before their tokens or client certificates expire. Requests do
//! not ask for compressed responses. The wait that a refusal asks for is in its `Status`.
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{FutureExt, TryFutureExt};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
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
use jiff::Timestamp;
use kube::{
    Config,
    client::{Body, ConfigExt, DynBody},
};
use reknit_injection::internal::{HttpResponse, Transport, with_retry_after_in_status};
use tokio::sync::Mutex;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
use tracing::{Instrument, Span, field::Empty};

use super::{
    error::without_credentials,
    exec_plugin::{EXPIRY_MARGIN, ExecPlugin},
    proxy,
    token_file::TokenFile,
};

const KEEPALIVE: Duration = Duration::from_secs(30);
/// An API server closes connections that were idle for 90 seconds. The transport closes them earlier, so that no
/// request is sent on a connection that is being closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// Creates a transport with the credentials of the configuration, or with the token of the file if there is one.
///
/// # Errors
///
/// Fails if the exec plugin fails, or if certificates or headers of the configuration are malformed.
pub(super) fn transport(config: &Config, token: Option<TokenFile>) -> kube::Result<Transport> {
    match ExecPlugin::from_config(config) {
        Some(plugin) => with_plugin(plugin, config.clone()),
        None => through_proxy(config, token),
    }
}

/// A transport with credentials of an exec plugin, which may expire.
struct Expiring {
    transport: Transport,
    expires: Option<Timestamp>,
}

impl Expiring {
    /// Runs the plugin, and creates a transport with its credentials. New requests do not use connections with previous
    /// credentials.
    fn log_in(plugin: &ExecPlugin, config: &Config) -> kube::Result<Self> {
        let (config, expires) = plugin.log_in(config).map_err(|e| kube::Error::Service(e.into()))?;
        Ok(Self { transport: through_proxy(&config, None)?, expires })
    }

    fn is_expiring(&self) -> bool {
        self.expires.is_some_and(|expires| Timestamp::now() + EXPIRY_MARGIN >= expires)
    }
}

/// Creates a transport that runs the plugin again before its credentials expire, and after the API server rejected
/// them, as client-go does.
fn with_plugin(plugin: ExecPlugin, config: Config) -> kube::Result<Transport> {
    let default_namespace = config.default_namespace.clone();
    let current = Arc::new(Mutex::new(Expiring::log_in(&plugin, &config)?));
    let plugin_and_config = Arc::new((plugin, config));
    let service = service_fn(move |request: Request<Body>| {
        let (current, plugin_and_config) = (current.clone(), plugin_and_config.clone());
        async move {
            let transport = {
                let mut current = current.lock().await;
                if current.is_expiring() {
                    let log_in = move || {
                        let (plugin, config) = &*plugin_and_config;
                        Expiring::log_in(plugin, config)
                    };
                    *current = tokio::task::spawn_blocking(log_in).await??;
                }
                current.transport.clone()
            };
            let answer = transport.send(request).await?;
            if answer.status() == StatusCode::UNAUTHORIZED {
                // The next request runs the plugin.
                current.lock().await.expires = Some(Timestamp::MIN);
            }
            Ok::<_, BoxError>(answer)
        }
    });
    Ok(Transport::new(service, &default_namespace))
}

/// Creates a transport that connects through the proxy of the configuration, if it has one.
fn through_proxy(config: &Config, token: Option<TokenFile>) -> kube::Result<Transport> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(3));
    let Some(proxy) = config.proxy_url.clone() else { return over_connector(tcp, config, token) };
    match proxy.scheme_str() {
        Some("socks5" | "socks5h") => {
            let credentials = proxy::credentials(&proxy);
            let socks = SocksV5::new(proxy, tcp);
            match credentials {
                Some((user, password)) => over_connector(socks.with_auth(user, password), config, token),
                None => over_connector(socks, config, token),
            }
        }
        Some("https") => {
            let tls = config.rustls_https_connector_with_connector(tcp)?;
            over_connector(tunnel(proxy, tls), config, token)
        }
        _ => over_connector(tunnel(proxy, tcp), config, token),
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
fn over_connector<C>(connector: C, config: &Config, token: Option<TokenFile>) -> kube::Result<Transport>
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
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .build::<_, Body>(connector);
    let traced = service_fn(move |request: Request<Body>| {
        let span = new_span(&request);
        // In `record`, Span::current() would be the parent span if no layer records this span.
        let request_span = span.clone();
        client.request(request).inspect(move |answer| record(&request_span, answer)).instrument(span)
    });
    let token = token.map(Arc::new);
    let authorize = move |request| match &token {
        Some(token) => token.authorize(request),
        None => request,
    };
    let service = ServiceBuilder::new()
        .map_err(without_credentials)
        .map_response(|answer: Response<_>| -> HttpResponse {
            answer.map(|body: hyper::body::Incoming| Box::new(body.map_err(BoxError::from)) as Box<DynBody>)
        })
        .map_request(authorize)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
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
