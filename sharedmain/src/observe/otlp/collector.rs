//! An OpenTelemetry collector that requests are sent to.
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
use prost::Message;
use tonic::{Code, body::Body, metadata::MetadataMap};
use tonic_prost::ProstCodec;

use super::{
    endpoint::{Endpoint, Protocol},
    failure_log::Trouble,
};
use crate::{client::error::chain, process::failure::Failure};

/// As OpenTelemetry's own exporters wait.
const ANSWER: Duration = Duration::from_secs(10);
/// No answer of a collector is as long.
const LONGEST: usize = 1 << 20;
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Connections are made when they are needed, and again when they break.
pub(crate) struct Collector {
    endpoint: Endpoint,
    client: Client<HttpsConnector<HttpConnector>, Body>,
    headers: HeaderMap,
    trouble: Trouble,
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(crate) struct Refused {
    why: String,
    /// Whether it may be taken a little later.
    pub(crate) may_pass: bool,
}

/// A request of OTLP, and what is answered to it.
pub(crate) trait Export: Message + Clone + 'static {
    type Answer: Message + Default + 'static;
    /// The method of gRPC.
    const METHOD: &str;
    /// How many of its parts the collector did not want, and why.
    fn rejected(answer: &Self::Answer) -> Option<(i64, &str)>;
}

impl Export for ExportMetricsServiceRequest {
    type Answer = ExportMetricsServiceResponse;
    const METHOD: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
    fn rejected(answer: &Self::Answer) -> Option<(i64, &str)> {
        answer.partial_success.as_ref().map(|part| (part.rejected_data_points, &*part.error_message))
    }
}

impl Export for ExportTraceServiceRequest {
    type Answer = ExportTraceServiceResponse;
    const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    fn rejected(answer: &Self::Answer) -> Option<(i64, &str)> {
        answer.partial_success.as_ref().map(|part| (part.rejected_spans, &*part.error_message))
    }
}

impl Collector {
    /// `what` is sent there, in the words of the log.
    pub(crate) fn new(what: &'static str, endpoint: Endpoint) -> Result<Self, Failure> {
        let failed = |why: String| Failure::new(format!("{what} cannot be sent to {endpoint}: {why}"));
        let given = std::env::var(HEADERS).unwrap_or_default();
        let headers = headers(&given).ok_or_else(|| {
            Failure::new(format!("{HEADERS} in the environment is not a list such as name=value,other=value"))
        })?;
        let client = client(&endpoint).map_err(|e| failed(e.to_string()))?;
        let trouble = Trouble::new(what, endpoint.to_string());
        Ok(Self { endpoint, client, headers, trouble })
    }

    /// Sends it once; says how it went as often as is useful.
    pub(crate) async fn export<R: Export>(&self, request: R) -> Result<(), Refused> {
        let sent = async {
            match self.endpoint.protocol {
                Protocol::Grpc => self.call(request).await,
                Protocol::HttpProtobuf => self.post(&request).await,
            }
        };
        let late = || Refused { why: format!("it did not answer within {ANSWER:?}"), may_pass: true };
        let answer = tokio::time::timeout(ANSWER, sent).await.unwrap_or_else(|_| Err(late()));
        let taken = answer.and_then(|answer| wanted::<R>(&answer));
        match &taken {
            Ok(()) => self.trouble.over(),
            Err(refused) => self.trouble.tell(refused),
        }
        taken
    }

    async fn call<R: Export>(&self, request: R) -> Result<R::Answer, Refused> {
        let mut grpc = tonic::client::Grpc::with_origin(self.client.clone(), self.endpoint.uri.clone());
        grpc.ready().await.map_err(|e| Refused::unreachable(&e))?;
        let mut request = tonic::Request::new(request);
        *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
        let codec = ProstCodec::<R, R::Answer>::default();
        let method = PathAndQuery::from_static(R::METHOD);
        let answer = grpc.unary(request, method, codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| Refused::by_status(&status))
    }

    async fn post<R: Export>(&self, request: &R) -> Result<R::Answer, Refused> {
        let mut post = Request::new(Body::new(Full::new(Bytes::from(request.encode_to_vec()))));
        *post.method_mut() = Method::POST;
        *post.uri_mut() = self.endpoint.uri.clone();
        *post.headers_mut() = self.headers.clone();
        let protobuf = HeaderValue::from_static("application/x-protobuf");
        post.headers_mut().insert(header::CONTENT_TYPE, protobuf);
        let answer = self.client.request(post).await.map_err(|e| Refused::unreachable(&e))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST).collect().await;
        let body = body.map_err(|e| Refused::unreachable(&*e))?.to_bytes();
        if !status.is_success() {
            return Err(Refused::by_code(status));
        }
        R::Answer::decode(body).map_err(|e| Refused::for_good(format!("its answer is malformed: {e}")))
    }
}

fn client(endpoint: &Endpoint) -> std::io::Result<Client<HttpsConnector<HttpConnector>, Body>> {
    let provider = rustls::crypto::ring::default_provider();
    let tls = HttpsConnectorBuilder::new();
    let tls = if endpoint.is_encrypted() {
        tls.with_provider_and_native_roots(provider)?.https_only()
    } else {
        let config = rustls::ClientConfig::builder_with_provider(provider.into());
        let config = config.with_safe_default_protocol_versions().map_err(std::io::Error::other)?;
        let none = rustls::RootCertStore::empty();
        tls.with_tls_config(config.with_root_certificates(none).with_no_client_auth()).https_or_http()
    };
    let grpc = endpoint.protocol == Protocol::Grpc;
    let connector = if grpc { tls.enable_http2().build() } else { tls.enable_http1().build() };
    let mut client = Client::builder(TokioExecutor::new());
    client.http2_only(grpc).timer(TokioTimer::new()).pool_timer(TokioTimer::new());
    client.http2_keep_alive_interval(Duration::from_secs(30)); // what ended without a word is connected anew
    Ok(client.build(connector))
}

/// `name=value,other=value`, where values may be percent-encoded.
fn headers(list: &str) -> Option<HeaderMap> {
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

fn wanted<R: Export>(answer: &R::Answer) -> Result<(), Refused> {
    match R::rejected(answer).filter(|(count, _)| *count > 0) {
        Some((count, why)) => Err(Refused::for_good(format!("it rejected {count} of them: {why}"))),
        None => Ok(()),
    }
}

impl Refused {
    fn for_good(why: String) -> Self {
        Self { why, may_pass: false }
    }

    fn unreachable(error: &(dyn StdError + 'static)) -> Self {
        Self { why: root(error), may_pass: true }
    }

    fn by_code(status: StatusCode) -> Self {
        let may_pass = matches!(status.as_u16(), 429 | 502 | 503 | 504);
        Self { why: format!("it answered {status}"), may_pass }
    }

    /// As OTLP's specification sorts them.
    fn by_status(status: &tonic::Status) -> Self {
        let may_pass = matches!(
            status.code(),
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::ResourceExhausted
                | Code::Aborted
                | Code::OutOfRange
                | Code::Unavailable
                | Code::DataLoss
                | Code::Unknown
        );
        let why = match status.source() {
            Some(source) => root(source),
            None => format!("it answered {}: {}", status.code(), status.message()),
        };
        Self { why, may_pass }
    }
}

/// What was behind it all.
fn root(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().map_or_else(String::new, ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_a_list_of_pairs_that_may_be_encoded() {
        let read = headers("authorization=Bearer%20a%2Cb, x-scope = lamps ,").unwrap();
        assert_eq!(read["authorization"], "Bearer a,b");
        assert_eq!(read["x-scope"], "lamps");
        assert_eq!(headers("").unwrap().len(), 0);
        for wrong in ["authorization", "a b=c", "a=%0a"] {
            assert_eq!(headers(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_a_collector_may_take_later_is_told_from_what_it_never_will() {
        for (code, may_pass) in [(429, true), (503, true), (400, false), (401, false), (404, false)] {
            let status = StatusCode::from_u16(code).unwrap();
            assert_eq!(Refused::by_code(status).may_pass, may_pass, "{code}");
        }
        assert!(Refused::by_status(&tonic::Status::unavailable("down")).may_pass);
        assert!(!Refused::by_status(&tonic::Status::unauthenticated("who?")).may_pass);
    }
}
