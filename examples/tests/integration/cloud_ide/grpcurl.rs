//! Tests with grpcurl, which learns the service only through server reflection.

use std::{path::PathBuf, process::Stdio, sync::LazyLock};

use reknit::testing::{ControlPlane, eventually};
use serde_json::{Value, json};
use tokio::process::Command;
use tonic_reflection::pb::v1alpha::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::ide::Ide;
use crate::support::wait::TIMEOUT;

/// The path of grpcurl. A script builds it the first time. If that fails, the last line of its output is the reason.
static GRPCURL: LazyLock<PathBuf> = LazyLock::new(|| {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../hack/setup-grpcurl.sh");
    let output = std::process::Command::new(script).output().expect("the script runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", stderr.lines().last().unwrap_or_default());
    PathBuf::from(stdout.lines().last().expect("a path"))
});

/// Runs grpcurl with these flags, the address of the IDE and these arguments. Returns its output, or its error.
async fn grpcurl(ide: &Ide, flags: &[&str], args: &[&str]) -> Result<String, String> {
    let path = tokio::task::spawn_blocking(|| GRPCURL.clone()).await.expect("grpcurl");
    let mut command = Command::new(path);
    command.arg("-plaintext").args(flags).arg(&ide.address).args(args);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("grpcurl runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

async fn call(ide: &Ide, method: &str, data: &Value) -> Result<Value, String> {
    let output = grpcurl(ide, &["-max-time", "60", "-d", &data.to_string()], &[method]).await?;
    Ok(serde_json::from_str(&output).expect("JSON"))
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcurl_finds_and_uses_the_service() {
    let plane = ControlPlane::start().await.expect("a control plane");
    plane.nodes(1).await.expect("a node");
    let namespace = plane.namespace("ide").await.expect("a namespace");
    let ide = Ide::start_in(&plane, &namespace).await;

    let services = grpcurl(&ide, &[], &["list"]).await.expect("reflection");
    for service in ["pb.CloudIdeService", "grpc.health.v1.Health"] {
        assert!(services.lines().any(|line| line == service), "{services}");
    }
    let description = grpcurl(&ide, &[], &["describe", "pb.PodInfo"]).await.expect("reflection");
    for field in [
        "string name = 1",
        "string namespace = 2",
        "string image = 3",
        "uint32 port = 4",
        ".pb.ResourceLimit resourceLimit = 5",
    ] {
        assert!(description.contains(field), "{description}");
    }
    for service in ["", "pb.CloudIdeService"] {
        let health = call(&ide, "grpc.health.v1.Health/Check", &json!({"service": service})).await;
        assert_eq!(health, Ok(json!({"status": "SERVING"})));
    }

    let limit = json!({"cpu": "250m", "memory": "64Mi"});
    let request =
        json!({"name": "a", "namespace": namespace, "image": "nginx", "port": 80, "resourceLimit": limit});
    let info =
        call(&ide, "pb.CloudIdeService/createSpaceAndWaitForRunning", &request).await.expect("it runs");
    assert_eq!((&info["nodeName"], &info["port"]), (&json!("node-1"), &json!(80)), "{info}");
    let query = json!({"name": "a", "namespace": namespace});
    assert_eq!(call(&ide, "pb.CloudIdeService/getPodSpaceInfo", &query).await, Ok(info));
    let status = call(&ide, "pb.CloudIdeService/getPodSpaceStatus", &query).await;
    assert_eq!(status, Ok(json!({"status": 1, "message": "Running"})));
    call(&ide, "pb.CloudIdeService/deleteSpace", &query).await.expect("it is deleted");
    ide.wait_until_gone("a").await;
    ide.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcurl_gets_the_status_code_of_each_failure() {
    let ide = Ide::start().await;
    let create = "pb.CloudIdeService/createSpaceAndWaitForRunning";
    let request = |name: &str, image: &str| json!({"name": name, "namespace": ide.namespace, "image": image, "port": 80});
    let code = |result: Result<Value, String>| {
        let error = result.expect_err("an error");
        let code = error.lines().find_map(|line| line.trim().strip_prefix("Code: ").map(str::to_owned));
        code.unwrap_or(error)
    };
    assert_eq!(code(call(&ide, create, &request("No", "nginx")).await), "InvalidArgument");
    let (_call, _) = ide.create_and_wait_for_pod("taken").await;
    assert_eq!(code(call(&ide, create, &request("taken", "nginx")).await), "AlreadyExists");
    let absent = json!({"name": "absent", "namespace": ide.namespace});
    assert_eq!(code(call(&ide, "pb.CloudIdeService/deleteSpace", &absent).await), "NotFound");

    let slow = request("slow", "nginx").to_string();
    let slow = grpcurl(&ide, &["-max-time", "1", "-d", &slow], &[create]).await;
    assert_eq!(code(slow.map(Value::from)), "DeadlineExceeded");
    ide.wait_until_gone("slow").await;

    for (name, expected) in [("failed", "FailedPrecondition"), ("deleted", "Aborted")] {
        let request = request(name, "nginx");
        let (result, ()) = tokio::join!(call(&ide, create, &request), async {
            eventually("the pod", TIMEOUT, async || ide.pods.get(name).await).await;
            match name {
                "failed" => ide.set_status(name, json!({"phase": "Failed"})).await,
                _ => ide.delete(name).await,
            }
        });
        assert_eq!(code(result), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_v1alpha_lists_the_service_too() {
    let ide = Ide::start().await;
    let http = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .http2_only(true)
        .build_http::<tonic::body::Body>();
    let origin = format!("http://{}", ide.address).parse().expect("a URL");
    let mut client = ServerReflectionClient::with_origin(http, origin);
    let list = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let responses = client.server_reflection_info(tokio_stream::once(request)).await.expect("a stream");
    let response = responses.into_inner().message().await.expect("a message").expect("a response");
    let Some(MessageResponse::ListServicesResponse(services)) = response.message_response else {
        panic!("{response:?}");
    };
    assert!(services.service.iter().any(|service| service.name == "pb.CloudIdeService"), "{services:?}");
}
