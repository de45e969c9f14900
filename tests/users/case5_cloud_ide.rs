//! No Kind of its own: watches Pods labelled kind=cloud-ide in one namespace, and serves beside.
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
    pods: Informer<Pod>,
}
impl Spaces {
    fn new(cx: &Context) -> Result<Self> {
        let Flags { namespace } = cx.provided()?;
        Ok(Self {
            client: cx.client(),
            pods: cx.informer(select().label("kind", "cloud-ide").namespace(&namespace)),
        })
    }
    /// Called by the gRPC method, and dropped when the client hangs up.
    async fn create_and_wait(&self, pod: &Pod) -> Result<String> {
        let made =
            Api::<Pod>::namespaced(self.client.clone(), "ide").create(&PostParams::default(), pod).await?;
        let uid = made.metadata.uid.clone();
        self.pods
            .until(&Key::of(&made), |now| match now {
                None => Some(Err("the space was deleted".into())), // the create above is in the store already
                Some(p) if p.metadata.uid != uid => Some(Err("the space was replaced".into())),
                Some(p) => match p.status.as_ref()?.phase.as_deref()? {
                    "Running" => Some(Ok(p.status.as_ref()?.pod_ip.clone()?)),
                    "Failed" => Some(Err("the space failed".into())),
                    _ => None,
                },
            })
            .await
    }
}

fn grpc(cx: &Context) -> Result<Task> {
    let (spaces, shutdown) = (Spaces::new(cx)?, cx.shutdown().wait());
    Ok(Task::new("grpc", async move {
        // tonic: Server::builder().add_service(CloudIdeServer::new(spaces)).serve_with_shutdown(addr, shutdown).await?
        drop(spaces);
        shutdown.await;
        Ok(())
    }))
}
/// A reconciler of keys, with a queue, and without a status or a finalizer.
struct Report {
    pods: Informer<Pod>,
}
impl ReconcileKey for Report {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        self.pods.get(key).ok_or("gone").permanent()?;
        Ok(Outcome::done())
    }
}
fn report(cx: &Context) -> Result<Controller> {
    let mut build = Controller::named("report", cx);
    let Spaces { pods, .. } = Spaces::new(cx)?;
    build.watch(&pods).keys(|pod| [Key::of(pod)]);
    Ok(build.reconciler(Report { pods }))
}

fn main() -> ExitCode {
    sharedmain::Main::new("cloud-ide").flags::<Flags>().controller(report).task(grpc).run()
}

fn pod(phase: Option<&str>, uid: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("p".into());
    pod.metadata.namespace = Some("ide".into());
    pod.metadata.uid = Some(uid.into());
    pod.metadata.labels = Some([("kind".into(), "cloud-ide".into())].into());
    pod.status = phase.map(|p| k8s_openapi::api::core::v1::PodStatus {
        phase: Some(p.into()),
        pod_ip: Some("10.0.0.1".into()),
        ..Default::default()
    });
    pod
}
fn spaces(client: Client) -> (Context, Spaces) {
    let cx = Context::preloaded("test", client, vec![]);
    cx.provide(Flags { namespace: "ide".into() });
    let spaces = Spaces::new(&cx).unwrap();
    (cx, spaces)
}
fn echo() -> Client {
    let echo = tower::service_fn(|r: http::Request<kube::client::Body>| async {
        Ok::<_, std::io::Error>(http::Response::new(r.into_body()))
    });
    Client::new(echo, "ide")
}
#[tokio::test]
async fn a_waiter_sees_its_own_create_at_once_and_then_each_change() {
    let (_cx, spaces) = spaces(echo());
    let waiter = tokio::spawn({
        let spaces = spaces.clone();
        async move { spaces.create_and_wait(&pod(None, "1")).await }
    });
    while spaces.pods.list().next().is_none() {
        tokio::task::yield_now().await; // nothing watches here: only the answer to the create can have filled the store
    }
    spaces.pods.insert(pod(Some("Pending"), "1"));
    spaces.pods.insert(pod(Some("Running"), "1"));
    assert_eq!(waiter.await.unwrap().unwrap(), "10.0.0.1");
}
#[tokio::test]
async fn a_deletion_and_a_replacement_end_the_wait() {
    for replaced in [false, true] {
        let (_cx, spaces) = spaces(echo());
        let waiter = tokio::spawn({
            let spaces = spaces.clone();
            async move { spaces.create_and_wait(&pod(None, "1")).await }
        });
        while spaces.pods.list().next().is_none() {
            tokio::task::yield_now().await;
        }
        spaces.pods.remove(&Key::new("ide", "p"));
        if replaced {
            spaces.pods.insert(pod(Some("Running"), "2")); // the waiter never ran in between: only the uid tells
        }
        let said = waiter.await.unwrap().unwrap_err().to_string();
        assert_eq!(said, if replaced { "the space was replaced" } else { "the space was deleted" });
    }
}
