//! Items for the other crates of reknit. They are not part of the public API, and may change in any release.

use kube::Client;

#[cfg(unix)]
pub use crate::{control_plane::aggregate_cluster_roles, watchdog::Watchdog};

/// Returns true if the API server serves MutatingAdmissionPolicies in v1, as it does since Kubernetes 1.36. Otherwise prints that
/// the calling test checks nothing.
///
/// # Panics
///
/// Panics if the API server does not answer.
#[expect(clippy::expect_used, reason = "it is called by tests")]
pub async fn serves_mutating_policies(client: &Client) -> bool {
    let resources = client.list_api_group_resources("admissionregistration.k8s.io/v1").await;
    let resources =
        resources.expect("cannot list the resources of admissionregistration.k8s.io/v1").resources;
    let is_served = resources.iter().any(|resource| resource.name == "mutatingadmissionpolicies");
    if !is_served {
        println!("skipped: this API server serves no MutatingAdmissionPolicies in v1");
    }
    is_served
}
