//! Development environments, called spaces: Pods that clients create, wait for and delete over gRPC. There is no custom
//! resource.

mod calls;
mod deadline;
mod pod;
mod server;
mod service;
mod spaces;

use std::process::ExitCode;

use k8s_openapi::api::core::v1::Pod;
use reknit::{
    injection::Selection,
    prelude::*,
    reconciler::ObserveDeletion,
    sharedmain::{self, ListenAddress, Task},
};
use spaces::Spaces;

/// The code that tonic generates from cloud_ide.proto.
#[allow(missing_docs, unreachable_pub, reason = "generated")]
pub mod pb {
    tonic::include_proto!("pb");
    /// The descriptors, for reflection.
    pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("cloud_ide_descriptor");
}

#[derive(Clone, clap::Args)]
struct Flags {
    /// The namespace of all spaces
    #[arg(long, value_name = "NAME", default_value = "cloud-ide", value_parser = sharedmain::namespace)]
    namespace: String,

    /// The address of the gRPC server, which authenticates no client
    #[arg(long, value_name = "[IP]:PORT", default_value = ":6387")]
    grpc_address: ListenAddress,
}

impl Flags {
    fn selection(&self) -> Selection {
        select().namespace(&self.namespace).label("kind", "cloud-ide")
    }
}

/// Logs the phase of each space.
fn controller(cx: &Context) -> Result<Controller> {
    let build = Controller::selected::<Pod>(cx, cx.provided::<Flags>()?.selection());
    Ok(build.name("cloud-ide").reconciler(Log).observing_deletion_as_leader().build())
}

struct Log;

impl ReconcileKind for Log {
    type Kind = Pod;

    async fn reconcile_kind(&self, space: &Pod, _: &mut ()) -> Result<Outcome> {
        tracing::info!(phase = pod::phase(space), "space");
        Ok(Outcome::done())
    }
}

impl ObserveDeletion for Log {
    async fn observe_deletion(&self, _: &Key) -> Result<Outcome> {
        tracing::info!("space deleted");
        Ok(Outcome::done())
    }
}

/// Serves the spaces over gRPC.
fn grpc(cx: &Context) -> Result<Task> {
    let flags = cx.provided::<Flags>()?;
    let spaces = Spaces::new(cx, &flags.namespace, flags.selection());
    let (listening, shutdown) = (flags.grpc_address.listen(cx, "gRPC"), cx.shutdown());
    Ok(Task::new("grpc", async move {
        tokio::select! {
            biased;
            () = spaces.synced() => server::serve(spaces, listening.await?, shutdown).await,
            () = shutdown.wait() => Ok(()),
        }
    }))
}

/// The program: its controllers and flags.
pub(crate) fn program() -> Main {
    Main::new("cloud-ide").flags::<Flags>().controller(controller).task(grpc).plannable()
}

fn main() -> ExitCode {
    program().run()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reknit::simulation::{pods_get_ready, simulation};
    use tokio::time::{sleep, timeout};

    use super::*;

    fn request() -> pb::PodInfo {
        let (name, namespace, image) = ("space".into(), "cloud-ide".into(), "ide:1".into());
        pb::PodInfo { name, namespace, image, port: 8080, resource_limit: None }
    }

    /// The controller, and a client without a connection: it gives up its first call, and asks until its space runs.
    fn controller_and_client(cx: &Context) -> Result<Controller> {
        let flags = cx.provided::<Flags>()?;
        let spaces = Spaces::new(cx, &flags.namespace, flags.selection());
        tokio::spawn(async move {
            spaces.synced().await;
            let mut patience = Duration::from_millis(500);
            while !matches!(timeout(patience, spaces.create_and_wait(request())).await, Ok(Ok(_))) {
                sleep(Duration::from_secs(1)).await;
                patience = Duration::from_secs(20);
            }
        });
        controller(cx)
    }

    #[test]
    fn a_space_runs_in_the_end_through_faults() {
        let grpc_address = ":6387".parse().unwrap();
        simulation([controller_and_client])
            .provide(Flags { namespace: "cloud-ide".into(), grpc_address })
            .cluster(pods_get_ready(Duration::from_secs(3)))
            .at(Duration::from_secs(30), |cluster| cluster.delete::<Pod>("cloud-ide/other"))
            .finally("the space runs", |cluster| {
                cluster.get::<Pod>("cloud-ide/space").is_some_and(|space| pod::phase(&space) == "Running")
            })
            .seeds(0..30)
            .each_write()
            .run();
    }
}
