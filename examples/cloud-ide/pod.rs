//! The Pod that runs a space, which is the environment of one user: built from a gRPC request, and read back as its
//! state.

use k8s_openapi::{
    api::core::v1::{Container, ContainerPort, Pod, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::api::ObjectMeta;
use reknit::apis::dns_subdomain;
use tonic::Status;

use super::pb::{PodInfo, PodSpaceInfo, ResourceLimit};

/// The annotation with the request of a space. An equal request returns the same space.
const REQUEST_ANNOTATION: &str = "cloud-ide.reknit.dev/request";

/// Builds the requested Pod. The API server validates its image and quantities.
pub(crate) fn build(request: &PodInfo) -> Result<Pod, Status> {
    check_name(&request.name)?;
    let port = u16::try_from(request.port).ok().filter(|port| *port > 0);
    let port =
        port.ok_or_else(|| Status::invalid_argument(format!("port {}: must be 1 to 65535", request.port)))?;
    let container = Container {
        name: "space".into(),
        image: Some(request.image.clone()),
        ports: Some(vec![ContainerPort { container_port: port.into(), ..ContainerPort::default() }]),
        resources: request.resource_limit.as_ref().map(resources),
        ..Container::default()
    };
    let metadata = ObjectMeta {
        name: Some(request.name.clone()),
        labels: Some([("kind".into(), "cloud-ide".into())].into()),
        annotations: Some([(REQUEST_ANNOTATION.into(), encode(request))].into()),
        ..ObjectMeta::default()
    };
    // Without a token, the user of a space has no access to the API server.
    let spec = PodSpec {
        containers: vec![container],
        automount_service_account_token: Some(false),
        ..PodSpec::default()
    };
    Ok(Pod { metadata, spec: Some(spec), ..Pod::default() })
}

/// Refuses a name that no Pod can have. It is checked here because the client puts it into the URL of its requests to
/// the API server.
pub(crate) fn check_name(name: &str) -> Result<(), Status> {
    let problems = dns_subdomain(name);
    if problems.is_empty() {
        return Ok(());
    }
    Err(Status::invalid_argument(format!("name {name:?}: {}", problems.join("; "))))
}

fn resources(limit: &ResourceLimit) -> ResourceRequirements {
    let ResourceLimit { cpu, memory, storage } = limit;
    let all = [("cpu", cpu), ("memory", memory), ("ephemeral-storage", storage)];
    let limits = all.into_iter().filter(|(_, quantity)| !quantity.is_empty());
    let limits = limits.map(|(name, quantity)| (name.to_owned(), Quantity(quantity.clone()))).collect();
    ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() }
}

/// Encodes the request for the annotation.
fn encode(request: &PodInfo) -> String {
    serde_json::json!(request).to_string()
}

/// Returns true if the Pod is a space that was created for an equal request.
pub(crate) fn is_created_by(pod: &Pod, request: &PodInfo) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    is_space(pod)
        && annotations.and_then(|annotations| annotations.get(REQUEST_ANNOTATION)) == Some(&encode(request))
}

pub(crate) fn is_space(pod: &Pod) -> bool {
    pod.metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.get("kind").is_some_and(|kind| kind == "cloud-ide"))
}

pub(crate) fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Returns true if the Pod has not started yet.
pub(crate) fn is_pending(pod: &Pod) -> bool {
    matches!(phase(pod), "" | "Pending")
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The reason and the message of the Pod's status.
pub(crate) fn reason(pod: &Pod) -> String {
    let parts = pod.status.iter().flat_map(|status| [&status.reason, &status.message]).flatten();
    let reason = parts.map(String::as_str).collect::<Vec<_>>().join(": ");
    if reason.is_empty() { "no reason given".into() } else { reason }
}

/// The node, IP address and port of the space. Values that it does not have yet are empty.
pub(crate) fn space_info(pod: &Pod) -> PodSpaceInfo {
    let spec = pod.spec.as_ref();
    let port = spec.and_then(|spec| spec.containers.first()?.ports.as_ref()?.first());
    PodSpaceInfo {
        node_name: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        ip: pod.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_default(),
        port: port.map_or(0, |port| port.container_port),
    }
}
