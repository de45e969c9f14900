//! The gRPC server, which streams the routes to gateways.

use std::{future::ready, pin::Pin};

use futures::{Stream, StreamExt};
use reknit::{
    injection::Shutdown,
    prelude::*,
    sharedmain::{ListenAddress, Task},
};
use reknit_server::{Limits, Plain, Server};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status, async_trait, service::Routes};

use super::{
    pb,
    pb::gateway_server::{Gateway, GatewayServer},
    state::State,
};

/// The limit of streams to one gateway. It needs one.
const MAX_STREAMS_OF_CONNECTION: u32 = 10;

/// Serves the routes on every replica. The process is ready once they are complete.
pub(crate) fn server(cx: &Context) -> Result<Task> {
    let (state, shutdown) = (cx.get::<State>(), cx.shutdown());
    let listening = cx.provided::<GrpcFlag>()?.grpc_address.listen(cx, "gRPC");
    let service = GatewayServer::new(RouteStreams { state: state.clone(), shutdown: shutdown.clone() });
    let router = Routes::new(service).into_axum_router();
    let server = Server::new("gRPC", Plain, router, Limits::default()).http2(MAX_STREAMS_OF_CONNECTION);
    let task = Task::new("grpc", async move {
        server.run(listening.await?, shutdown.wait()).await;
        Ok(())
    });
    Ok(task
        .readiness(move || state.is_filled().then_some(()).ok_or("the routes are not complete yet".into())))
}

struct RouteStreams {
    state: State,
    shutdown: Shutdown,
}

#[async_trait]
impl Gateway for RouteStreams {
    type WatchRoutesStream = Pin<Box<dyn Stream<Item = Result<pb::Snapshot, Status>> + Send>>;

    /// Streams the newest routes. A gateway that is slow skips those in between.
    async fn watch_routes(
        &self,
        _: Request<pb::WatchRequest>,
    ) -> Result<Response<Self::WatchRoutesStream>, Status> {
        let routes = WatchStream::new(self.state.subscribe());
        let snapshots = routes.filter_map(|routes| {
            ready(routes.map(|routes| Ok(pb::Snapshot { routes: routes.into_values().collect() })))
        });
        let shutdown = self.shutdown.clone();
        Ok(Response::new(Box::pin(snapshots.take_until(Box::pin(async move { shutdown.wait().await })))))
    }
}

/// The address on which the server listens.
#[derive(Clone, clap::Args)]
pub(crate) struct GrpcFlag {
    /// The address of the gRPC server, which authenticates no client
    #[arg(long, value_name = "[IP]:PORT", default_value = ":6388")]
    pub(crate) grpc_address: ListenAddress,
}
