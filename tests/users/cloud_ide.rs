//! A program without a Kind of its own: it watches spaces, which are Pods with the label kind=cloud-ide in one
//! namespace, and runs a gRPC server.
use reknit::testing::InformerExt;
use std::process::ExitCode;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
use reknit::{prelude::*, reconciler::ReconcileKey, sharedmain::Task};

#[derive(Clone, Default, clap::Args)]
struct Flags {
    /// The namespace of the spaces
    #[arg(long, default_value = "ide")]
    namespace: String,
}

#[derive(Clone)]
struct Spaces {
    client: Client,
    namespace: String,
    pods: Informer<Pod>,
}
impl Spaces {
    fn new(cx: &Context) -> Result<Self> {
        let Flags { namespace } = cx.provided()?;
        Ok(Self {
            client: cx.client(),
            pods: cx.informer(select().label("kind", "cloud-ide").namespace(&namespace)),
            namespace,
        })
    }
    /// Called by a gRPC method. The future is dropped when the client closes the connection.
    async fn create_and_wait(&self, pod: &Pod) -> Result<String> {
        let created = Api::<Pod>::namespaced(self.client.clone(), &self.namespace)
            .create(&PostParams::default(), pod)
            .await?;
        let uid = created.metadata.uid.clone();
        self.pods
            .until(&Key::of(&created), |pod| match pod {
                // The created pod was in the cache before `create` returned, so it has been deleted since.
                None => Some(Err("the space was deleted".into())),
                Some(pod) if pod.metadata.uid != uid => Some(Err("the space was replaced".into())),
                Some(pod) => match pod.status.as_ref()?.phase.as_deref()? {
                    "Running" => Some(Ok(pod.status.as_ref()?.pod_ip.clone()?)),
                    "Failed" => Some(Err("the space failed".into())),
                    _ => None,
                },
            })
            .await
    }
}

fn grpc_server(cx: &Context) -> Result<Task> {
    let (spaces, shutdown) = (Spaces::new(cx)?, cx.shutdown().wait());
    Ok(Task::new("grpc", async move {
        // tonic: Server::builder().add_service(CloudIdeServer::new(spaces)).serve_with_shutdown(addr, shutdown).await?
        drop(spaces);
        shutdown.await;
        Ok(())
    }))
}
/// A reconciler of keys, without a status and a finalizer. A real one would report how each space is used.
struct ReportReconciler {
    pods: Informer<Pod>,
}
impl ReconcileKey for ReportReconciler {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        match self.pods.get(key) {
            Some(_) => Ok(Outcome::done()),
            None => Ok(Outcome::skip()),
        }
    }
}
fn report_controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::named("report", cx);
    let Spaces { pods, .. } = Spaces::new(cx)?;
    build.watch(&pods).keys(|pod| [Key::of(pod)]);
    Ok(build.reconciler(ReportReconciler { pods }))
}

fn main() -> ExitCode {
    Main::new("cloud-ide").flags::<Flags>().controller(report_controller).task(grpc_server).run()
}

fn pod(phase: Option<&str>, uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("p".into());
    pod.metadata.namespace = Some("ide".into());
    pod.metadata.uid = Some(uid.into());
    pod.metadata.labels = Some([("kind".into(), "cloud-ide".into())].into());
    pod.status = phase.map(|phase| k8s_openapi::api::core::v1::PodStatus {
        phase: Some(phase.into()),
        pod_ip: Some("10.0.0.1".into()),
        ..Default::default()
    });
    pod
}
fn preloaded_spaces(client: Client) -> Spaces {
    let cx = Context::preloaded("test", client, vec![]);
    cx.provide(Flags { namespace: "ide".into() });
    Spaces::new(&cx).unwrap()
}
/// A client whose server responds with the body of the request.
fn echo_client() -> Client {
    let echo = tower::service_fn(|request: http::Request<kube::client::Body>| async {
        Ok::<_, std::io::Error>(http::Response::new(request.into_body()))
    });
    Client::new(echo, "ide")
}
#[tokio::test]
async fn until_sees_the_created_pod_at_once_and_then_each_change() {
    let spaces = preloaded_spaces(echo_client());
    let waiter = tokio::spawn({
        let spaces = spaces.clone();
        async move { spaces.create_and_wait(&pod(None, "1")).await }
    });
    while spaces.pods.list().next().is_none() {
        tokio::task::yield_now().await; // there is no watch: the pod comes from the response to the create
    }
    spaces.pods.insert(pod(Some("Pending"), "1"));
    spaces.pods.insert(pod(Some("Running"), "1"));
    assert_eq!(waiter.await.unwrap().unwrap(), "10.0.0.1");
}
#[tokio::test]
async fn until_ends_when_the_pod_is_deleted_or_replaced() {
    for replaced in [false, true] {
        let spaces = preloaded_spaces(echo_client());
        let waiter = tokio::spawn({
            let spaces = spaces.clone();
            async move { spaces.create_and_wait(&pod(None, "1")).await }
        });
        while spaces.pods.list().next().is_none() {
            tokio::task::yield_now().await;
        }
        spaces.pods.remove(&Key::new("ide", "p"));
        if replaced {
            // The waiting task has not run since the removal, so only the uid shows the replacement.
            spaces.pods.insert(pod(Some("Running"), "2"));
        }
        let message = waiter.await.unwrap().unwrap_err().to_string();
        assert_eq!(message, if replaced { "the space was replaced" } else { "the space was deleted" });
    }
}
