//! The program waitdeployment, and its objects.

#[path = "../../waitdeployment/main.rs"]
#[expect(dead_code, unreachable_pub, reason = "it is a program: its main runs in a process of its own")]
pub(crate) mod program;

use std::net::SocketAddr;

use k8s_openapi::api::apps::v1::DeploymentCondition;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};

use self::program::Waitdeployment;

pub(crate) fn waiting(name: &str, probe: Value) -> Waitdeployment {
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

pub(crate) fn probed(object: &Waitdeployment) -> Option<DeploymentCondition> {
    let conditions = object.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == "ProbeSucceeded").cloned()
}

/// Status, reason and message of the condition.
pub(crate) fn said(object: &Waitdeployment) -> (String, String, String) {
    let found = probed(object).unwrap_or_default();
    (found.status, found.reason.unwrap_or_default(), found.message.unwrap_or_default())
}

/// An address at which nobody listens, and nobody else can while the socket is held.
pub(crate) fn nobody(address: &str) -> (TcpSocket, SocketAddr) {
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
