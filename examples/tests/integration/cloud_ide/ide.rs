//! The program under test, its client, and the Pods behind its spaces.

use std::time::Duration;

use hyper_util::{
    client::legacy::{Client as Http, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit::testing::{ControlPlane, eventually};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, task::JoinHandle};
use tonic::{Code, Response, Status};

use super::program::pb::{
    PodInfo, PodSpaceInfo, QueryOption, cloud_ide_service_client::CloudIdeServiceClient,
};
use crate::support::{
    process::{self, Process},
    wait::{SOON, settled},
};

/// Not tonic's own transport: that ends a call at its deadline by itself, and what the server says would not be heard.
type Client = CloudIdeServiceClient<Http<HttpConnector, tonic::body::Body>>;
type Created = JoinHandle<Result<Response<PodSpaceInfo>, Status>>;

/// Without nodes: a pod does what the test says.
static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();

/// The program in a namespace of its own.
pub(super) struct Ide {
    pub(super) namespace: String,
    pub(super) program: Process,
    pub(super) address: String,
    pub(super) client: Client,
    pub(super) pods: Api<Pod>,
}

impl Ide {
    pub(super) async fn start() -> Self {
        let plane = PLANE.get_or_try_init(ControlPlane::start).await.expect("a control plane");
        let namespace = plane.namespace("ide").await.expect("a namespace");
        Self::within(plane, &namespace).await
    }

    pub(super) async fn within(plane: &ControlPlane, namespace: &str) -> Self {
        let built = process::example("cloud-ide", plane.kubeconfig()).alone().within(namespace);
        let program = built.args(&["--grpc-address", ":0"]).spawn();
        Self::of(program, plane, namespace).await
    }

    pub(super) async fn of(program: Process, plane: &ControlPlane, namespace: &str) -> Self {
        let address = program.address("gRPC").await;
        let pods = Api::namespaced(plane.client().expect("a client"), namespace);
        Self { namespace: namespace.into(), client: client(&address), program, address, pods }
    }

    /// A request to create a space of this name.
    pub(super) fn request(&self, name: &str) -> PodInfo {
        PodInfo {
            name: name.into(),
            namespace: self.namespace.clone(),
            image: "nginx:latest".into(),
            port: 8443,
            resource_limit: None,
        }
    }

    pub(super) fn query(&self, name: &str) -> QueryOption {
        QueryOption { name: name.into(), namespace: self.namespace.clone() }
    }

    /// Asks for a space; aborting the task hangs up.
    pub(super) fn create(&self, request: impl tonic::IntoRequest<PodInfo>) -> Created {
        // A client that hangs up with its last call closes the connection too.
        let (mut client, request) = (client(&self.address), request.into_request());
        tokio::spawn(async move { client.create_space_and_wait_for_running(request).await })
    }

    /// Asks for `n`, and waits until that call waits for its pod.
    pub(super) async fn waiting(&self, name: &str) -> (Created, Pod) {
        let already = self.waits(name);
        let call = self.create(self.request(name));
        eventually(format!("{name} is waited for"), SOON, async || self.waits(name) > already).await;
        let pod = self.pods.get(name).await.expect("the pod");
        assert!(!call.is_finished(), "it does not wait");
        (call, pod)
    }

    /// The number of calls that have started to wait for this space.
    fn waits(&self, name: &str) -> usize {
        let lines = self.program.lines();
        lines
            .iter()
            .filter(|line| line["message"] == "waiting for it to run" && line["space"] == name)
            .count()
    }

    pub(super) async fn set_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.pods.patch_status(name, &PatchParams::default(), &patch).await.expect("its status is patched");
    }

    pub(super) async fn run(&self, name: &str) {
        self.set_status(name, json!({"phase": "Running", "podIP": "10.1.2.3"})).await;
    }

    pub(super) async fn patch(&self, name: &str, patch: Value) {
        self.pods.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is patched");
    }

    pub(super) async fn remove(&self, name: &str) {
        self.pods.delete(name, &DeleteParams::default()).await.expect("it is deleted");
    }

    /// A pod that is a space, and that no client asked for.
    pub(super) async fn space_by_hand(&self, name: &str) -> Pod {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"kind": "cloud-ide"}},
            "spec": {"containers": [{"name": "c", "image": "nginx"}]},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        self.pods.create(&PostParams::default(), &pod).await.expect("it is created")
    }

    pub(super) async fn uid(&self, name: &str) -> Option<String> {
        self.pods.get_opt(name).await.expect("an answer").and_then(|pod| pod.uid())
    }

    pub(super) async fn gone(&self, name: &str) {
        eventually(format!("{name} is gone"), SOON, async || self.uid(name).await.is_none()).await;
    }

    /// The same pod is there, and stays.
    pub(super) async fn stays(&self, pod: &Pod) {
        let found =
            settled(Duration::from_millis(700), "the pod", async || self.uid(&pod.name_any()).await).await;
        assert_eq!(found, pod.uid(), "{}", self.program.tail());
    }

    pub(super) async fn names(&self) -> Vec<String> {
        let listed = self.pods.list(&ListParams::default()).await.expect("a list");
        listed.iter().map(ResourceExt::name_any).collect()
    }
}

pub(super) fn client(address: &str) -> Client {
    let http = Http::builder(TokioExecutor::new()).http2_only(true).build_http();
    let origin = format!("http://{address}").parse().expect("a URL");
    CloudIdeServiceClient::with_origin(http, origin)
}

/// Returns the result of the call. Panics if it does not end within [`SOON`].
pub(super) async fn ended(call: Created) -> Result<PodSpaceInfo, Status> {
    let ended = tokio::time::timeout(SOON, call).await.expect("the call goes on").expect("it does not panic");
    ended.map(Response::into_inner)
}

/// The code and the message with which a call ended.
pub(super) async fn refused(call: Created) -> (Code, String) {
    let status = ended(call).await.expect_err("it was refused");
    (status.code(), status.message().to_owned())
}

/// Hangs up.
pub(super) async fn hang_up(call: Created) {
    call.abort();
    assert!(call.await.is_err_and(|error| error.is_cancelled()), "it had ended before");
}
