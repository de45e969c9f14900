//! The program waitdeployment, and its objects.

#[path = "../../waitdeployment/main.rs"]
#[expect(dead_code, unreachable_pub, reason = "a program, of which tests use only parts")]
pub(crate) mod program;

use std::net::SocketAddr;

use k8s_openapi::api::apps::v1::DeploymentCondition;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};

use self::program::Waitdeployment;

/// A Waitdeployment of two replicas with this `waitProbe`.
pub(crate) fn waitdeployment(name: &str, probe: Value) -> Waitdeployment {
    let object = json!({
        "metadata": {"name": name},
        "waitProbe": probe,
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "a", "image": "a", "resources": {"limits": {"cpu": "1000m"}}}]},
            },
        },
    });
    serde_json::from_value(object).unwrap()
}

/// The condition `ProbeSucceeded`.
pub(crate) fn probe_condition(object: &Waitdeployment) -> Option<DeploymentCondition> {
    let conditions = object.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "ProbeSucceeded").cloned()
}

/// The status, reason and message of the condition `ProbeSucceeded`.
pub(crate) fn probe_report(object: &Waitdeployment) -> (String, String, String) {
    let condition = probe_condition(object).unwrap_or_default();
    (condition.status, condition.reason.unwrap_or_default(), condition.message.unwrap_or_default())
}

/// A bound socket that does not listen, so its address refuses connections, and that address.
pub(crate) fn refusing_socket(address: &str) -> (TcpSocket, SocketAddr) {
    let address: SocketAddr = address.parse().unwrap();
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

pub(crate) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}
