//! Services and AddressableServices of the size that real ones have.

use reknit::apis::service_host_name;
use serde_json::{Value, json};

/// A Service without an address of its own: addresses are taken from a range that is too small for many. What the API
/// server would fill in is there.
pub fn service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "clusterIP": "None",
            "clusterIPs": ["None"],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}],
            "selector": {"app": name},
            "sessionAffinity": "None",
            "type": "ClusterIP",
        },
        "status": {"loadBalancer": {}},
    })
}

/// An AddressableService that names the Service of its own name.
pub fn addressable_service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "samples.knative.dev/v1alpha1",
        "kind": "AddressableService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"serviceName": name},
    })
}

/// The merge patch that makes such an AddressableService Ready, as a controller sends it.
pub fn ready_status(namespace: &str, name: &str) -> Value {
    json!({
        "status": {
            "observedGeneration": 1,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "address": {"url": format!("http://{}", service_host_name(name, namespace))},
        },
    })
}
