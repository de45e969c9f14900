//! The gRPC server: the spaces, health and reflection.

use std::time::Duration;

use reknit::{injection::Shutdown, prelude::*};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic_health::{ServingStatus, server::HealthReporter};
use tonic_reflection::server::Builder;
use tower::layer::layer_fn;

use super::{
    deadline::Deadline,
    pb::{DESCRIPTORS, cloud_ide_service_server::CloudIdeServiceServer},
    spaces::Spaces,
};

/// The limit of calls on one connection. A call stays open until its space runs, so many can be open at once.
const MAX_CALLS: u32 = 10_000;
/// The size limit of a request, and so of the memory that it uses. Every valid request is smaller.
const MAX_REQUEST_BYTES: usize = 16 * 1024;
/// The interval of keepalive pings, which detect clients that have disconnected.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// Serves until shutdown, and until the calls in progress have ended.
pub(crate) async fn serve(spaces: Spaces, listener: TcpListener, shutdown: Shutdown) -> Result<()> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<CloudIdeServiceServer<Spaces>>().await;
    let reflection = || {
        let builder = Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let server = Server::builder()
        .max_concurrent_streams(MAX_CALLS)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .layer(layer_fn(Deadline::new))
        .add_service(CloudIdeServiceServer::new(spaces.clone()).max_decoding_message_size(MAX_REQUEST_BYTES))
        .add_service(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    server
        .serve_with_incoming_shutdown(TcpListenerStream::new(listener), report_shutdown(shutdown, reporter))
        .await?;
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
