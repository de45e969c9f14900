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

/// A call is held open for as long as its space takes, so there may be many on one connection.
const CALLS: u32 = 10_000;
/// More than any request has that could become a space: so much each call may have the process keep.
const LARGEST: usize = 16 * 1024;
/// How soon a client is noticed that went without a word.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Serves until the process is to end and the calls under way have ended.
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

/// Those who watch the health are told, and then let go: they would keep the server from ending.
async fn ending(shutdown: Shutdown, mut reporter: HealthReporter) {
    shutdown.wait().await;
    reporter.set_not_serving::<CloudIdeServiceServer<Spaces>>().await;
    reporter.set_service_status("", ServingStatus::NotServing).await;
    reporter.clear_service_status("").await;
}
