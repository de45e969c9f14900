//! A fake OpenTelemetry collector, which records requests.
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, extract::State, http::HeaderMap, routing::post};
use opentelemetry_proto::tonic::{
    collector::{
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{KeyValue, any_value},
    metrics::v1::{Metric, metric::Data, number_data_point},
    trace::v1::Span,
};
use prost::Message;
use tokio::{net::TcpSocket, runtime::Runtime};
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

use crate::server;

/// A collector that speaks either gRPC or HTTP.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    received: Received,
    runtime: Option<Runtime>,
}

#[derive(Clone, Default)]
struct Received(Arc<Mutex<Requests>>);

#[derive(Default)]
struct Requests {
    metrics: Vec<ExportMetricsServiceRequest>,
    traces: Vec<ExportTraceServiceRequest>,
    /// The values of the header [`TENANT`].
    tenants: Vec<String>,
}

/// The header that tests set in `OTEL_EXPORTER_OTLP_HEADERS`.
pub(crate) const TENANT: &str = "x-tenant";

impl Collector {
    /// Listens on a free port. The protocol `grpc` selects gRPC, every other one HTTP.
    pub(crate) fn new(protocol: &str) -> Self {
        Self::listening_on(server::closed_port().0, protocol)
    }

    pub(crate) fn listening_on(socket: TcpSocket, protocol: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (address, received) = (socket.local_addr().unwrap(), Received::default());
        let listener = {
            let _entered = runtime.enter();
            socket.listen(64).unwrap()
        };
        let (is_grpc, seen) = (protocol == "grpc", received.clone());
        runtime.spawn(async move {
            if is_grpc {
                let server = tonic::transport::Server::builder()
                    .add_service(MetricsServiceServer::new(seen.clone()))
                    .add_service(TraceServiceServer::new(seen));
                server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
            } else {
                let routes =
                    Router::new().route("/v1/metrics", post(metrics)).route("/v1/traces", post(traces));
                axum::serve(listener, routes.with_state(seen)).await.unwrap();
            }
        });
        Self { address, received, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let requests = self.received.0.lock().unwrap();
        let scopes = requests.traces.iter().flat_map(|r| &r.resource_spans).flat_map(|r| &r.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// The metrics of the latest request.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let requests = self.received.0.lock().unwrap();
        let latest = requests.metrics.last().into_iter().flat_map(|r| &r.resource_metrics);
        latest.flat_map(|r| &r.scope_metrics).flat_map(|scope| scope.metrics.clone()).collect()
    }

    /// The resource attributes in the latest request with metrics.
    pub(crate) fn resource(&self) -> BTreeMap<String, String> {
        let requests = self.received.0.lock().unwrap();
        let latest = requests.metrics.last().and_then(|request| request.resource_metrics[0].resource.clone());
        latest.map(|resource| attributes(&resource.attributes)).unwrap_or_default()
    }

    pub(crate) fn tenants(&self) -> Vec<String> {
        self.received.0.lock().unwrap().tenants.clone()
    }
}

/// Closes all connections.
impl Drop for Collector {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

pub(crate) fn attributes(list: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &KeyValue| match value.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        other => format!("{other:?}"),
    };
    list.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}

/// Returns the value of a counter or a gauge, or the count of a histogram, of the series with this label.
pub(crate) fn value(metrics: &[Metric], name: &str, label: (&str, &str)) -> Option<f64> {
    let has_label = |list: &[KeyValue]| attributes(list).get(label.0).is_some_and(|value| value == label.1);
    let metric = metrics.iter().find(|metric| metric.name == name)?;
    let points = match metric.data.as_ref()? {
        Data::Sum(sum) => &sum.data_points,
        Data::Gauge(gauge) => &gauge.data_points,
        Data::Histogram(histogram) => {
            return histogram.data_points.iter().find(|p| has_label(&p.attributes)).map(|p| p.count as f64);
        }
        other => panic!("{other:?}"),
    };
    match points.iter().find(|point| has_label(&point.attributes))?.value? {
        number_data_point::Value::AsDouble(value) => Some(value),
        number_data_point::Value::AsInt(value) => Some(value as f64),
    }
}

impl Received {
    fn record_tenant(&self, value: Option<&str>) {
        self.0.lock().unwrap().tenants.extend(value.map(str::to_owned));
    }
}

#[tonic::async_trait]
impl MetricsService for Received {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.record_tenant(request.metadata().get(TENANT).map(|value| value.to_str().unwrap()));
        self.0.lock().unwrap().metrics.push(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.record_tenant(request.metadata().get(TENANT).map(|value| value.to_str().unwrap()));
        self.0.lock().unwrap().traces.push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn check_headers(received: &Received, headers: &HeaderMap) {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    received.record_tenant(headers.get(TENANT).map(|value| value.to_str().unwrap()));
}

async fn metrics(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> Vec<u8> {
    check_headers(&received, &headers);
    received.0.lock().unwrap().metrics.push(ExportMetricsServiceRequest::decode(body).unwrap());
    ExportMetricsServiceResponse::default().encode_to_vec()
}

async fn traces(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> Vec<u8> {
    check_headers(&received, &headers);
    received.0.lock().unwrap().traces.push(ExportTraceServiceRequest::decode(body).unwrap());
    ExportTraceServiceResponse::default().encode_to_vec()
}
