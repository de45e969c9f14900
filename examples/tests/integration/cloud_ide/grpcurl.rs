//! Through grpcurl, which knows nothing of the service but what reflection tells it.

use std::{path::PathBuf, process::Stdio, sync::LazyLock};

use reknit::testing::ControlPlane;
use serde_json::{Value, json};
use tokio::process::Command;
use tonic_reflection::pb::v1alpha::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::ide::Ide;

/// Built by a script of its own the first time; where it cannot be, the script's last line says why.
static GRPCURL: LazyLock<PathBuf> = LazyLock::new(|| {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../hack/setup-grpcurl.sh");
    let output = std::process::Command::new(script).output().expect("the script runs");
    let (said, problems) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}", problems.lines().last().unwrap_or_default());
    PathBuf::from(said.lines().last().expect("a path"))
});

/// Runs grpcurl with these arguments before the address and those behind it: what it printed, or why it failed.
async fn grpcurl(ide: &Ide, before: &[&str], behind: &[&str]) -> Result<String, String> {
    let program = tokio::task::spawn_blocking(|| GRPCURL.clone()).await.expect("grpcurl");
    let mut command = Command::new(program);
    command.arg("-plaintext").args(before).arg(&ide.address).args(behind);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("grpcurl runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

async fn call(ide: &Ide, method: &str, data: &Value) -> Result<Value, String> {
    let answer = grpcurl(ide, &["-max-time", "60", "-d", &data.to_string()], &[method]).await?;
    Ok(serde_json::from_str(&answer).expect("JSON"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_not_ours_finds_the_service_and_works_with_it() {
    let plane = ControlPlane::start().await.expect("a control plane");
    plane.nodes(1).await.expect("a node");
    let namespace = plane.namespace("ide").await.expect("a namespace");
    let ide = Ide::within(&plane, &namespace).await;

    let services = grpcurl(&ide, &[], &["list"]).await.expect("reflection");
    for service in ["pb.CloudIdeService", "grpc.health.v1.Health"] {
        assert!(services.lines().any(|line| line == service), "{services}");
    }
    let described = grpcurl(&ide, &[], &["describe", "pb.PodInfo"]).await.expect("reflection");
    for field in [
        "string name = 1",
        "string namespace = 2",
        "string image = 3",
        "uint32 port = 4",
        ".pb.ResourceLimit resourceLimit = 5",
    ] {
        assert!(described.contains(field), "{described}");
    }
    for service in ["", "pb.CloudIdeService"] {
        let health = call(&ide, "grpc.health.v1.Health/Check", &json!({"service": service})).await;
        assert_eq!(health, Ok(json!({"status": "SERVING"})));
    }

    let limit = json!({"cpu": "250m", "memory": "64Mi"});
    let request =
        json!({"name": "a", "namespace": namespace, "image": "nginx", "port": 80, "resourceLimit": limit});
    let place =
        call(&ide, "pb.CloudIdeService/createSpaceAndWaitForRunning", &request).await.expect("it runs");
    assert_eq!((&place["nodeName"], &place["port"]), (&json!("node-1"), &json!(80)), "{place}");
    let query = json!({"name": "a", "namespace": namespace});
    assert_eq!(call(&ide, "pb.CloudIdeService/getPodSpaceInfo", &query).await, Ok(place));
    let status = call(&ide, "pb.CloudIdeService/getPodSpaceStatus", &query).await;
    assert_eq!(status, Ok(json!({"status": 1, "message": "Running"})));
    call(&ide, "pb.CloudIdeService/deleteSpace", &query).await.expect("it is deleted");
    ide.gone("a").await;
    ide.program.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_not_ours_is_told_each_ending_by_its_code() {
    let ide = Ide::start().await;
    let create = "pb.CloudIdeService/createSpaceAndWaitForRunning";
    let request = |name: &str, image: &str| json!({"name": name, "namespace": ide.namespace, "image": image, "port": 80});
    let code = |answer: Result<Value, String>| {
        let problem = answer.expect_err("it was refused");
        let code = problem.lines().find_map(|line| line.trim().strip_prefix("Code: ").map(str::to_owned));
        code.unwrap_or(problem)
    };
    assert_eq!(code(call(&ide, create, &request("No", "nginx")).await), "InvalidArgument");
    let (_call, _) = ide.waiting("taken").await;
    assert_eq!(code(call(&ide, create, &request("taken", "nginx")).await), "AlreadyExists");
    let absent = json!({"name": "absent", "namespace": ide.namespace});
    assert_eq!(code(call(&ide, "pb.CloudIdeService/deleteSpace", &absent).await), "NotFound");

    let slow = request("slow", "nginx").to_string();
    let slow = grpcurl(&ide, &["-max-time", "1", "-d", &slow], &[create]).await;
    assert_eq!(code(slow.map(Value::from)), "DeadlineExceeded");
    ide.gone("slow").await;

    for (name, ending) in [("failed", "FailedPrecondition"), ("deleted", "Aborted")] {
        let wanted = request(name, "nginx");
        let (answer, ()) = tokio::join!(call(&ide, create, &wanted), async {
            reknit::testing::eventually("the pod", crate::support::wait::SOON, async || {
                ide.pods.get(name).await
            })
            .await;
            match name {
                "failed" => ide.set_status(name, json!({"phase": "Failed"})).await,
                _ => ide.remove(name).await,
            }
        });
        assert_eq!(code(answer), ending);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_know_only_the_older_reflection_find_the_service_too() {
    let ide = Ide::start().await;
    let http = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .http2_only(true)
        .build_http::<tonic::body::Body>();
    let origin = format!("http://{}", ide.address).parse().expect("a URL");
    let mut client = ServerReflectionClient::with_origin(http, origin);
    let list = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let answers = client.server_reflection_info(tokio_stream::once(request)).await.expect("it answers");
    let answer = answers.into_inner().message().await.expect("an answer").expect("one");
    let Some(MessageResponse::ListServicesResponse(services)) = answer.message_response else {
        panic!("{answer:?}");
    };
    assert!(services.service.iter().any(|service| service.name == "pb.CloudIdeService"), "{services:?}");
}
