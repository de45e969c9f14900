//! Requests that the server rejects, and calls that return at once.

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use reknit::testing::eventually;
use serde_json::json;
use tonic::Code;

use super::{
    ide::{Ide, refused},
    program::pb::{PodInfo, PodStatus, QueryOption, ResourceLimit},
};
use crate::support::wait::SOON;

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_become_a_pod_is_an_invalid_argument_and_nothing_is_created() {
    let ide = Ide::start().await;
    let limited = |cpu: &str, memory: &str, storage: &str| PodInfo {
        resource_limit: Some(ResourceLimit {
            cpu: cpu.into(),
            memory: memory.into(),
            storage: storage.into(),
        }),
        ..ide.request("good")
    };
    let mut bad =
        vec![limited("lots", "", ""), limited("", "-1Gi", ""), limited("", "", "1GiB"), limited(" ", "", "")];
    for name in ["", "No", "a/b", "a/status", "..", "a.", "?", &"a".repeat(254)] {
        bad.push(ide.request(name));
    }
    bad.extend([0, 65_536, u32::MAX].map(|port| PodInfo { port, ..ide.request("good") }));
    bad.extend(["", " nginx"].map(|image| PodInfo { image: image.into(), ..ide.request("good") }));
    bad.extend(
        ["", "default"].map(|namespace| PodInfo { namespace: namespace.into(), ..ide.request("good") }),
    );
    println!("{} bad requests", bad.len());
    for request in bad {
        let said = format!("{request:?}");
        let (code, message) = refused(ide.create(request)).await;
        println!("{message}");
        assert_eq!(code, Code::InvalidArgument, "{said}: {message}");
        assert!(!message.is_empty(), "{said}");
    }
    assert_eq!(ide.names().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_can_name_no_space_is_an_invalid_argument() {
    let mut ide = Ide::start().await;
    let elsewhere = QueryOption { name: "a".into(), namespace: "default".into() };
    for query in [ide.query(""), ide.query("a/status"), ide.query("No"), elsewhere] {
        let answers = [
            ide.client.delete_space(query.clone()).await.map(drop),
            ide.client.get_pod_space_status(query.clone()).await.map(drop),
            ide.client.get_pod_space_info(query.clone()).await.map(drop),
        ];
        for answer in answers {
            assert_eq!(answer.expect_err("it was refused").code(), Code::InvalidArgument, "{query:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_is_what_is_created() {
    let ide = Ide::start().await;
    let limit = ResourceLimit { cpu: "500m".into(), memory: "1Gi".into(), storage: "2Gi".into() };
    let call = ide.create(PodInfo { resource_limit: Some(limit), ..ide.request("full") });
    let pod = eventually("the pod", SOON, async || ide.pods.get("full").await).await;
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
async fn a_space_is_told_of_and_deleted_and_what_is_none_is_not_found() {
    let mut ide = Ide::start().await;
    let (_call, _) = ide.waiting("a").await;
    let status = ide.client.get_pod_space_status(ide.query("a")).await.expect("its status").into_inner();
    assert_eq!(status, PodStatus { status: 1, message: "Pending".into() });
    ide.run("a").await;
    eventually("it runs", SOON, async || {
        let mut client = ide.client.clone();
        client.get_pod_space_status(ide.query("a")).await.expect("its status").into_inner().message
            == "Running"
    })
    .await;
    let info = ide.client.get_pod_space_info(ide.query("a")).await.expect("where it is").into_inner();
    assert_eq!((&*info.ip, info.port), ("10.1.2.3", 8443));

    let answer = ide.client.delete_space(ide.query("a")).await.expect("it is deleted").into_inner();
    assert_eq!(answer.status, 1, "{answer:?}");
    ide.gone("a").await;
    foreign(&ide, "foreign").await;
    for name in ["a", "never", "foreign"] {
        let answers = [
            ide.client.get_pod_space_status(ide.query(name)).await.map(drop),
            ide.client.get_pod_space_info(ide.query(name)).await.map(drop),
            ide.client.delete_space(ide.query(name)).await.map(drop),
        ];
        for answer in answers {
            assert_eq!(answer.expect_err("there is none").code(), Code::NotFound, "{name}");
        }
    }
    assert_eq!(ide.names().await, ["foreign"]);
}

/// A pod of the namespace that is no space.
async fn foreign(ide: &Ide, name: &str) -> Pod {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "nginx"}]},
    });
    let pod = serde_json::from_value(pod).expect("a pod");
    ide.pods.create(&PostParams::default(), &pod).await.expect("it is created")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_a_different_pod_has_is_taken_and_that_pod_stays() {
    let ide = Ide::start().await;
    let (_call, space) = ide.waiting("a").await;
    let other = PodInfo { image: "other".into(), ..ide.request("a") };
    assert_eq!(refused(ide.create(other)).await.0, Code::AlreadyExists);
    ide.stays(&space).await;
    let pod = foreign(&ide, "b").await;
    assert_eq!(refused(ide.create(ide.request("b"))).await.0, Code::AlreadyExists);
    ide.stays(&pod).await;
}

impl Ide {
    /// Requests the status of a space that does not exist, and returns the status code.
    async fn asked(&self, name: &str) -> Code {
        let answer = self.client.clone().get_pod_space_status(self.query(name)).await;
        answer.expect_err("there is none").code()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_larger_than_any_request_is_refused_and_the_server_goes_on() {
    let ide = Ide::start().await;
    assert_eq!(ide.asked(&"a".repeat(16 * 1024)).await, Code::OutOfRange);
    assert_eq!(ide.asked(&"a".repeat(15 * 1024)).await, Code::InvalidArgument, "it was read");
    let large = PodInfo { image: "a".repeat(16 * 1024), ..ide.request("a") };
    assert_eq!(refused(ide.create(large)).await.0, Code::OutOfRange);
    assert_eq!(ide.asked("a").await, Code::NotFound);
}
