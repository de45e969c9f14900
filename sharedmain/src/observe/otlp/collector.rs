//! The client of an OpenTelemetry collector.
use std::{error::Error as StdError, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header, uri::PathAndQuery};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use opentelemetry_proto::tonic::collector::{
    metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse},
    trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
};
use parking_lot::Mutex;
use prost::Message;
use reknit_injection::internal::{LogLimit, variable};
use tonic::{Code, body::Body, metadata::MetadataMap};
use tonic_prost::ProstCodec;

use crate::{
    client::{
        certificate::{WaysOut, explain},
        error::chain,
    },
    config::endpoint::{Endpoint, Protocol},
    process::failure::Failure,
};

/// The timeout of one export, equal to the default of OpenTelemetry's own exporters.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The limit of a response body.
const MAX_BODY: usize = 1 << 20;
const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// A client of a collector, which opens connections on demand.
pub(super) struct Collector {
    endpoint: Endpoint,
    client: Client<HttpsConnector<HttpConnector>, Body>,
    headers: HeaderMap,
    signal: &'static str,
    failures: Mutex<LogLimit>,
}

/// A failed export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(super) struct ExportError {
    why: String,
    /// True if a retry may succeed.
    pub(super) is_transient: bool,
}

/// An export request of OTLP.
pub(super) trait Export: Message + Clone + 'static {
    type Response: Message + Default + 'static;
    /// The path of the gRPC method.
    const METHOD: &str;
    /// Returns the number of rejected items and the reason, if the response has them.
    fn rejected(response: &Self::Response) -> Option<(i64, &str)>;
}

impl Export for ExportMetricsServiceRequest {
    type Response = ExportMetricsServiceResponse;
    const METHOD: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
    fn rejected(response: &Self::Response) -> Option<(i64, &str)> {
        response.partial_success.as_ref().map(|part| (part.rejected_data_points, &*part.error_message))
    }
}

impl Export for ExportTraceServiceRequest {
    type Response = ExportTraceServiceResponse;
    const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    fn rejected(response: &Self::Response) -> Option<(i64, &str)> {
        response.partial_success.as_ref().map(|part| (part.rejected_spans, &*part.error_message))
    }
}

impl Collector {
    /// Creates a client for a signal, metrics or traces.
    pub(super) fn new(signal: &'static str, endpoint: Endpoint) -> Result<Self, Failure> {
        let failed = |why: String| Failure::new(format!("failed to export {signal} to {endpoint}: {why}"));
        let headers = parse_headers(&variable(HEADERS_VARIABLE).unwrap_or_default()).ok_or_else(|| {
            Failure::new(format!(
                "{HEADERS_VARIABLE} in the environment is not a list such as name=value,other=value"
            ))
        })?;
        if !headers.is_empty() && endpoint.uri.scheme() == Some(&http::uri::Scheme::HTTP) {
            tracing::warn!(
                "the headers of {HEADERS_VARIABLE} are sent to {endpoint} without TLS: if they contain a credential, use \
                 an https endpoint"
            );
        }
        let client = build_client(&endpoint).map_err(|e| failed(e.to_string()))?;
        Ok(Self { endpoint, client, headers, signal, failures: Mutex::default() })
    }

    /// Sends a request once. Logs a failure, at most once a minute, and the first success after it.
    pub(super) async fn export<R: Export>(&self, request: R) -> Result<(), ExportError> {
        let response = async {
            match self.endpoint.protocol {
                Protocol::Grpc => self.export_grpc(request).await,
                Protocol::HttpProtobuf => self.export_http(&request).await,
            }
        };
        let timed_out = || ExportError::transient(format!("no response within {TIMEOUT:?}"));
        let response = tokio::time::timeout(TIMEOUT, response).await.unwrap_or_else(|_| Err(timed_out()));
        let result = response.and_then(|response| check_rejected::<R>(&response));
        let Self { endpoint, signal, failures, .. } = self;
        match &result {
            Ok(()) if failures.lock().reset() => tracing::info!("exporting {signal} to {endpoint} again"),
            Err(error) if failures.lock().allows(&()) => tracing::warn!(
                "failed to export {signal} to {endpoint}: {error}; further failures are logged once a minute"
            ),
            _ => {}
        }
        result
    }

    async fn export_grpc<R: Export>(&self, request: R) -> Result<R::Response, ExportError> {
        let mut grpc = tonic::client::Grpc::with_origin(self.client.clone(), self.endpoint.uri.clone());
        grpc.ready().await.map_err(|e| ExportError::connection_failed(&e))?;
        let mut request = tonic::Request::new(request);
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        let codec = ProstCodec::<R, R::Response>::default();
        let method = PathAndQuery::from_static(R::METHOD);
        let response = grpc.unary(request, method, codec).await;
        response.map(tonic::Response::into_inner).map_err(|status| ExportError::grpc(&status))
    }

    async fn export_http<R: Export>(&self, request: &R) -> Result<R::Response, ExportError> {
        let mut post = Request::new(Body::new(Full::new(Bytes::from(request.encode_to_vec()))));
        *post.method_mut() = Method::POST;
        *post.uri_mut() = self.endpoint.uri.clone();
        *post.headers_mut() = self.headers.clone();
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        post.headers_mut().insert(header::CONTENT_TYPE, protobuf);
        let response = self.client.request(post).await.map_err(|e| ExportError::connection_failed(&e))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
        let body = body.map_err(|e| ExportError::connection_failed(&*e))?.to_bytes();
        if !status.is_success() {
            return Err(ExportError::http(status));
        }
        R::Response::decode(body).map_err(|e| ExportError::permanent(format!("malformed response: {e}")))
    }
}

fn build_client(endpoint: &Endpoint) -> std::io::Result<Client<HttpsConnector<HttpConnector>, Body>> {
    let provider = rustls::crypto::ring::default_provider();
    let tls = HttpsConnectorBuilder::new();
    let tls = if endpoint.uri.scheme_str() == Some("https") {
        tls.with_provider_and_native_roots(provider)?.https_only()
    } else {
        let config = rustls::ClientConfig::builder_with_provider(provider.into());
        let config = config.with_safe_default_protocol_versions().map_err(std::io::Error::other)?;
        // The connector requires a TLS configuration even for plain HTTP. Without roots it trusts no server.
        let no_roots = rustls::RootCertStore::empty();
        tls.with_tls_config(config.with_root_certificates(no_roots).with_no_client_auth()).https_or_http()
    };
    let is_grpc = endpoint.protocol == Protocol::Grpc;
    let connector = if is_grpc { tls.enable_http2().build() } else { tls.enable_http1().build() };
    let mut client = Client::builder(TokioExecutor::new());
    client.http2_only(is_grpc).timer(TokioTimer::new()).pool_timer(TokioTimer::new());
    client.http2_keep_alive_interval(Duration::from_secs(30)); // detects connections that died silently
    Ok(client.build(connector))
}

/// Parses `name=value,other=value`, where values may be percent-encoded.
fn parse_headers(list: &str) -> Option<HeaderMap> {
    let pairs = list.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=')?;
            let value = percent_encoding::percent_decode_str(value.trim()).collect::<Vec<_>>();
            let mut value = HeaderValue::from_bytes(&value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name.trim()).ok()?, value))
        })
        .collect()
}

/// Returns an error if the collector rejected a part of the request.
fn check_rejected<R: Export>(response: &R::Response) -> Result<(), ExportError> {
    match R::rejected(response).filter(|(count, _)| *count > 0) {
        Some((count, why)) => Err(ExportError::permanent(format!("{count} items were rejected: {why}"))),
        None => Ok(()),
    }
}

impl ExportError {
    fn transient(why: String) -> Self {
        Self { why, is_transient: true }
    }

    fn permanent(why: String) -> Self {
        Self { why, is_transient: false }
    }

    fn connection_failed(error: &(dyn StdError + 'static)) -> Self {
        Self::transient(root_cause(error))
    }

    fn http(status: StatusCode) -> Self {
        let is_transient = matches!(status.as_u16(), 429 | 502 | 503 | 504);
        Self { why: format!("status {status}"), is_transient }
    }

    /// Converts a gRPC status. Two codes are transient here that are not always transient in the specification of OTLP:
    /// `Unknown`, because tonic also uses it for connection errors that it does not recognize, and `ResourceExhausted`,
    /// which in OTLP is transient only if the status has RetryInfo, which is not read here.
    fn grpc(status: &tonic::Status) -> Self {
        use Code::*;
        let is_transient = matches!(
            status.code(),
            Cancelled
                | DeadlineExceeded
                | ResourceExhausted
                | Aborted
                | OutOfRange
                | Unavailable
                | DataLoss
                | Unknown
        );
        let why = match status.source() {
            Some(source) => root_cause(source),
            None => format!("status {}: {}", status.code(), status.message()),
        };
        Self { why, is_transient }
    }
}

/// Returns the text of the last source, or what to do if TLS has refused the collector.
fn root_cause(error: &(dyn StdError + 'static)) -> String {
    if let Some(refusal) = chain(error).find_map(|link| link.downcast_ref::<rustls::Error>()) {
        return explain(refusal, &WaysOut::SYSTEM);
    }
    chain(error).last().map_or_else(String::new, ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_a_list_of_percent_encoded_pairs() {
        let parsed = parse_headers("authorization=Bearer%20a%2Cb, x-scope = lamps ,").unwrap();
        assert_eq!(parsed["authorization"], "Bearer a,b");
        assert_eq!(parsed["x-scope"], "lamps");
        assert_eq!(parse_headers("").unwrap().len(), 0);
        for malformed in ["authorization", "a b=c", "a=%0a"] {
            assert_eq!(parse_headers(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn a_certificate_of_the_collector_that_is_refused_has_a_way_out() {
        let refusal = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let error = ExportError::connection_failed(&std::io::Error::other(std::io::Error::other(refusal)));
        assert!(error.why.starts_with("invalid peer certificate: UnknownIssuer; "), "{error}");
        assert!(error.why.contains("SSL_CERT_FILE"), "{error}");
    }

    #[test]
    fn overload_is_transient_and_rejected_requests_are_permanent() {
        for (code, is_transient) in [(429, true), (503, true), (400, false), (401, false), (404, false)] {
            let status = StatusCode::from_u16(code).unwrap();
            assert_eq!(ExportError::http(status).is_transient, is_transient, "{code}");
        }
        assert!(ExportError::grpc(&tonic::Status::unavailable("down")).is_transient);
        assert!(!ExportError::grpc(&tonic::Status::unauthenticated("who?")).is_transient);
    }
}
