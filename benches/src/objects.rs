//! Services and AddressableServices of a realistic size.

use reknit::apis::service_host_name;
use serde_json::{Value, json};

/// A Service with the fields that the API server defaults. It is headless, because the API server has too few cluster
/// IPs for so many Services.
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

/// An AddressableService that names the Service of the same name.
pub fn addressable_service(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "samples.knative.dev/v1alpha1",
        "kind": "AddressableService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"serviceName": name},
    })
}

/// The merge patch that makes an [`addressable_service`] Ready.
pub fn ready_status(namespace: &str, name: &str) -> Value {
    json!({
        "status": {
            "observedGeneration": 1,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "address": {"url": format!("http://{}", service_host_name(name, namespace))},
        },
    })
}
