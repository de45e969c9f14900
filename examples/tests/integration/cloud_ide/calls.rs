//! Invalid requests, and calls that do not wait.

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use reknit::testing::eventually;
use serde_json::json;
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};
use tonic::Code;

use super::{
    ide::{Ide, error},
    program::pb::{PodInfo, PodStatus, QueryOption, ResourceLimit},
};
use crate::support::wait::TIMEOUT;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_valid_pod_is_an_invalid_argument_and_creates_nothing() {
    let ide = Ide::start().await;
    let with_limits = |cpu: &str, memory: &str, storage: &str| PodInfo {
        resource_limit: Some(ResourceLimit {
            cpu: cpu.into(),
            memory: memory.into(),
            storage: storage.into(),
        }),
        ..ide.request("good")
    };
    let mut requests = vec![
        with_limits("lots", "", ""),
        with_limits("", "-1Gi", ""),
        with_limits("", "", "1GiB"),
        with_limits(" ", "", ""),
    ];
    for name in ["", "No", "a/b", "a/status", "..", "a.", "?", &"a".repeat(254)] {
        requests.push(ide.request(name));
    }
    requests.extend([0, 65_536, u32::MAX].map(|port| PodInfo { port, ..ide.request("good") }));
    requests.extend(["", " nginx"].map(|image| PodInfo { image: image.into(), ..ide.request("good") }));
    requests.extend(
        ["", "default"].map(|namespace| PodInfo { namespace: namespace.into(), ..ide.request("good") }),
    );
    println!("{} invalid requests", requests.len());
    for request in requests {
        let description = format!("{request:?}");
        let (code, message) = error(ide.create(request)).await;
        println!("{message}");
        assert_eq!(code, Code::InvalidArgument, "{description}: {message}");
        assert!(!message.is_empty(), "{description}");
    }
    assert_eq!(ide.pod_names().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_with_an_invalid_name_or_namespace_is_an_invalid_argument() {
    let mut ide = Ide::start().await;
    let other_namespace = QueryOption { name: "a".into(), namespace: "default".into() };
    for query in [ide.query(""), ide.query("a/status"), ide.query("No"), other_namespace] {
        let results = [
            ide.client.delete_space(query.clone()).await.map(drop),
            ide.client.get_pod_space_status(query.clone()).await.map(drop),
            ide.client.get_pod_space_info(query.clone()).await.map(drop),
        ];
        for result in results {
            assert_eq!(result.expect_err("an error").code(), Code::InvalidArgument, "{query:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_has_the_values_of_the_request() {
    let ide = Ide::start().await;
    let limit = ResourceLimit { cpu: "500m".into(), memory: "1Gi".into(), storage: "2Gi".into() };
    let call = ide.create(PodInfo { resource_limit: Some(limit), ..ide.request("full") });
    let pod = eventually("the pod", TIMEOUT, async || ide.pods.get("full").await).await;
    assert_eq!(pod.metadata.labels.as_ref().and_then(|labels| labels.get("kind")), Some(&"cloud-ide".into()));
    let spec = serde_json::to_value(pod.spec).expect("JSON");
    let container = &spec["containers"][0];
    assert_eq!(container["image"], "nginx:latest");
    assert_eq!(container["ports"][0]["containerPort"], 8443);
    let limits = json!({"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "2Gi"});
    assert_eq!(container["resources"]["limits"], limits);
    call.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_can_be_queried_and_deleted_and_other_names_are_not_found() {
    let mut ide = Ide::start().await;
    let (_call, _) = ide.create_and_wait_for_pod("a").await;
    let status = ide.client.get_pod_space_status(ide.query("a")).await.expect("its status").into_inner();
    assert_eq!(status, PodStatus { status: 1, message: "Pending".into() });
    ide.set_running("a").await;
    eventually("the status Running", TIMEOUT, async || {
        let mut client = ide.client.clone();
        client.get_pod_space_status(ide.query("a")).await.expect("its status").into_inner().message
            == "Running"
    })
    .await;
    let info = ide.client.get_pod_space_info(ide.query("a")).await.expect("its address").into_inner();
    assert_eq!((&*info.ip, info.port), ("10.1.2.3", 8443));

    let response = ide.client.delete_space(ide.query("a")).await.expect("it is deleted").into_inner();
    assert_eq!(response.status, 1, "{response:?}");
    ide.wait_until_gone("a").await;
    create_foreign_pod(&ide, "foreign").await;
    for name in ["a", "never", "foreign"] {
        let results = [
            ide.client.get_pod_space_status(ide.query(name)).await.map(drop),
            ide.client.get_pod_space_info(ide.query(name)).await.map(drop),
            ide.client.delete_space(ide.query(name)).await.map(drop),
        ];
        for result in results {
            assert_eq!(result.expect_err("an error").code(), Code::NotFound, "{name}");
        }
    }
    assert_eq!(ide.pod_names().await, ["foreign"]);
}

/// Creates a pod in the namespace that is not a space.
async fn create_foreign_pod(ide: &Ide, name: &str) -> Pod {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "nginx"}]},
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    ide.pods.create(&PostParams::default(), &pod).await.expect("it is created")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_a_different_pod_already_exists_and_that_pod_is_kept() {
    let ide = Ide::start().await;
    let (_call, space) = ide.create_and_wait_for_pod("a").await;
    let other = PodInfo { image: "other".into(), ..ide.request("a") };
    assert_eq!(error(ide.create(other)).await.0, Code::AlreadyExists);
    ide.assert_kept(&space).await;
    let pod = create_foreign_pod(&ide, "b").await;
    assert_eq!(error(ide.create(ide.request("b"))).await.0, Code::AlreadyExists);
    ide.assert_kept(&pod).await;
}

impl Ide {
    /// Requests the status of a space that does not exist, and returns the error code.
    async fn query_error(&self, name: &str) -> Code {
        let result = self.client.clone().get_pod_space_status(self.query(name)).await;
        result.expect_err("an error").code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_too_large_message_is_out_of_range_and_the_server_continues() {
    let ide = Ide::start().await;
    assert_eq!(ide.query_error(&"a".repeat(16 * 1024)).await, Code::OutOfRange);
    assert_eq!(
        ide.query_error(&"a".repeat(15 * 1024)).await,
        Code::InvalidArgument,
        "the message was decoded"
    );
    let large = PodInfo { image: "a".repeat(16 * 1024), ..ide.request("a") };
    assert_eq!(error(ide.create(large)).await.0, Code::OutOfRange);
    assert_eq!(ide.query_error("a").await, Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_say_nothing_are_disconnected_when_others_come() {
    let ide = Ide::start().await;
    let mut silent = Vec::new();
    for _ in 0..150 {
        silent.push(TcpStream::connect(&ide.address).await.expect("a connection"));
    }
    assert_eq!(ide.query_error("a").await, Code::NotFound);
    let mut settings = Vec::new();
    timeout(TIMEOUT, silent[0].read_to_end(&mut settings)).await.expect("the oldest is closed").ok();
}
