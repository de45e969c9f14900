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

/// The limit of calls on one connection. A call stays open until its space runs, so there may be many.
const CALLS: u32 = 10_000;
/// The size limit of a request, above that of any valid one. Each call may hold this much memory.
const LARGEST: usize = 16 * 1024;
/// The interval of keepalive pings, which detect clients that are gone.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Serves until shutdown, and until the calls in progress have ended.
pub(crate) async fn serve(spaces: Spaces, listener: TcpListener, shutdown: Shutdown) -> Result<()> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<CloudIdeServiceServer<Spaces>>().await;
    let reflection = || {
        let described = Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        described.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let server = Server::builder()
        .max_concurrent_streams(CALLS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .layer(layer_fn(Deadline::new))
        .add_service(CloudIdeServiceServer::new(spaces.clone()).max_decoding_message_size(LARGEST))
        .add_service(health)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), ending(shutdown, reporter)).await?;
    spaces.settled().await;
    Ok(())
}

/// Reports the shutdown to watchers of the health service, and ends their streams, which would keep the server open.
async fn ending(shutdown: Shutdown, mut reporter: HealthReporter) {
    shutdown.wait().await;
    reporter.set_not_serving::<CloudIdeServiceServer<Spaces>>().await;
    reporter.set_service_status("", ServingStatus::NotServing).await;
    reporter.clear_service_status("").await;
}
