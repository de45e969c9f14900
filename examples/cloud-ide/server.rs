//! The gRPC server: the spaces, health and reflection.

use axum::middleware::from_fn_with_state;
use reknit::{injection::Shutdown, prelude::*};
use reknit_server::{Limits, Plain, Server};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};
use tonic_reflection::server::Builder;
use tower::layer::layer_fn;

use super::{
    calls::{self, Calls},
    deadline::Deadline,
    pb::{DESCRIPTORS, cloud_ide_service_server::CloudIdeServiceServer},
    spaces::Spaces,
};

/// The limit of calls on one connection. A call stays open until its space runs, so many can be open at once.
const MAX_CALLS_OF_CONNECTION: u32 = 1_000;
/// The size limit of the head of a call, as in gRPC's implementation for Java.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// The size limit of a request, and so of the memory that it uses. Every valid request is smaller.
const MAX_REQUEST_BYTES: usize = 16 * 1024;

/// Serves until shutdown, and until the calls in progress have ended.
pub(crate) async fn serve(spaces: Spaces, listener: TcpListener, shutdown: Shutdown) -> Result<()> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<CloudIdeServiceServer<Spaces>>().await;
    let reflection = || {
        let builder = Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let service = CloudIdeServiceServer::new(spaces.clone()).max_decoding_message_size(MAX_REQUEST_BYTES);
    let services = Routes::new(service)
        .add_service(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    let router = services
        .into_axum_router()
        .layer(from_fn_with_state(Calls::default(), calls::limit))
        .layer(layer_fn(Deadline::new));
    let limits = Limits { head: MAX_HEAD_BYTES, ..Limits::default() };
    let server = Server::new("gRPC", Plain, router, limits).http2(MAX_CALLS_OF_CONNECTION);
    server.run(listener, report_shutdown(shutdown, reporter)).await;
    spaces.drained().await;
    Ok(())
}

/// Waits for the shutdown, reports it to watchers of the health service, and ends their streams. An open stream would
/// keep the server running.
async fn report_shutdown(shutdown: Shutdown, mut reporter: HealthReporter) {
    shutdown.wait().await;
    reporter.set_not_serving::<CloudIdeServiceServer<Spaces>>().await;
    reporter.set_service_status("", ServingStatus::NotServing).await;
    reporter.clear_service_status("").await;
}
