//! The program under test, its client, and the Pods of its spaces. A space is the environment of one user: a Pod of the
//! same name.

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
    wait::{TIMEOUT, wait_until_settled},
};

/// Not tonic's transport, which ends a call at its deadline itself: the response of the server would not be seen.
type Client = CloudIdeServiceClient<Http<HttpConnector, tonic::body::Body>>;
/// The task of a call that creates a space.
type CreateCall = JoinHandle<Result<Response<PodSpaceInfo>, Status>>;

/// A control plane without nodes, so that only the tests change the status of pods.
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
    /// Starts the program in a new namespace of the shared control plane.
    pub(super) async fn start() -> Self {
        let plane = PLANE.get_or_try_init(ControlPlane::start).await.expect("a control plane");
        let namespace = plane.namespace("ide").await.expect("a namespace");
        Self::start_in(plane, &namespace).await
    }

    pub(super) async fn start_in(plane: &ControlPlane, namespace: &str) -> Self {
        let command = process::example("cloud-ide", plane.kubeconfig())
            .without_leader_election()
            .in_namespace(namespace);
        let program = command.args(["--grpc-address", ":0"]).spawn();
        Self::new(program, plane, namespace).await
    }

    pub(super) async fn new(program: Process, plane: &ControlPlane, namespace: &str) -> Self {
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

    /// Calls the service to create a space. Aborting the task cancels the call.
    pub(super) fn create(&self, request: impl tonic::IntoRequest<PodInfo>) -> CreateCall {
        // A client of its own, so that cancelling the call closes its connection.
        let (mut client, request) = (client(&self.address), request.into_request());
        tokio::spawn(async move { client.create_space_and_wait_for_running(request).await })
    }

    /// Creates a space, and waits until the call waits for the pod. Returns the call and the pod.
    pub(super) async fn create_and_wait_for_pod(&self, name: &str) -> (CreateCall, Pod) {
        let waiting_before = self.waiting_calls(name);
        let call = self.create(self.request(name));
        eventually(format!("a call that waits for {name}"), TIMEOUT, async || {
            self.waiting_calls(name) > waiting_before
        })
        .await;
        let pod = self.pods.get(name).await.expect("the pod");
        assert!(!call.is_finished(), "the call must wait");
        (call, pod)
    }

    /// The number of calls that have started to wait for this space.
    fn waiting_calls(&self, name: &str) -> usize {
        let lines = self.program.lines();
        lines
            .iter()
            .filter(|line| line["message"] == "waiting for the space to run" && line["space"] == name)
            .count()
    }

    pub(super) async fn set_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.pods.patch_status(name, &PatchParams::default(), &patch).await.expect("its status is patched");
    }

    /// Sets the status that a kubelet would set once the pod runs.
    pub(super) async fn set_running(&self, name: &str) {
        self.set_status(name, json!({"phase": "Running", "podIP": "10.1.2.3"})).await;
    }

    pub(super) async fn merge_patch(&self, name: &str, patch: Value) {
        self.pods.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is patched");
    }

    pub(super) async fn delete(&self, name: &str) {
        self.pods.delete(name, &DeleteParams::default()).await.expect("it is deleted");
    }

    /// Creates the pod of a space directly, without a call of the gRPC service.
    pub(super) async fn create_space_pod(&self, name: &str) -> Pod {
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

    pub(super) async fn wait_until_gone(&self, name: &str) {
        eventually(format!("{name} is gone"), TIMEOUT, async || self.uid(name).await.is_none()).await;
    }

    /// Asserts that this pod exists and is not deleted soon.
    pub(super) async fn assert_kept(&self, pod: &Pod) {
        let uid = wait_until_settled(Duration::from_millis(700), "the pod", async || {
            self.uid(&pod.name_any()).await
        })
        .await;
        assert_eq!(uid, pod.uid(), "{}", self.program.last_lines());
    }

    /// The names of all pods in the namespace.
    pub(super) async fn pod_names(&self) -> Vec<String> {
        let listed = self.pods.list(&ListParams::default()).await.expect("a list");
        listed.iter().map(ResourceExt::name_any).collect()
    }
}

pub(super) fn client(address: &str) -> Client {
    let http = Http::builder(TokioExecutor::new()).http2_only(true).build_http();
    let origin = format!("http://{address}").parse().expect("a URL");
    CloudIdeServiceClient::with_origin(http, origin)
}

/// Returns the result of the call. Panics if it does not end within [`TIMEOUT`].
pub(super) async fn result(call: CreateCall) -> Result<PodSpaceInfo, Status> {
    let result =
        tokio::time::timeout(TIMEOUT, call).await.expect("the call ends").expect("it does not panic");
    result.map(Response::into_inner)
}

/// Returns the code and the message of a call that fails.
pub(super) async fn error(call: CreateCall) -> (Code, String) {
    let status = result(call).await.expect_err("an error");
    (status.code(), status.message().to_owned())
}

/// Cancels a call that is in progress.
pub(super) async fn cancel(call: CreateCall) {
    call.abort();
    assert!(call.await.is_err_and(|error| error.is_cancelled()), "the call had ended before");
}
