//! The program ingress, and its objects.

#[path = "../../ingress/main.rs"]
#[allow(dead_code, unreachable_pub, reason = "a program, of which tests use only parts")]
pub(crate) mod program;

use std::net::IpAddr;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::json;

use self::program::{Route, RoutePath, RouteSpec};

/// The annotation that selects the program which serves a Route.
pub(crate) const CLASS: &str = "demo.reknit.dev/ingress-class";

/// The Route of a host, whose only path leads to the port 80 of a Service.
pub(crate) fn route(name: &str, host: &str, service: &str) -> Route {
    let path = RoutePath { prefix: "/".into(), service: service.into(), port: 80 };
    let mut route = Route::new(name, RouteSpec { host: host.into(), paths: vec![path] });
    route.metadata.annotations = Some([(CLASS.into(), "reknit".into())].into());
    route
}

/// A Service with the port 80, which its slices call `http`.
pub(crate) fn service(namespace: &str, name: &str) -> Service {
    let spec = json!({"ports": [{"name": "http", "port": 80}]});
    serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec})).unwrap()
}

/// The EndpointSlice of a Service with ready pods of these addresses, which listen on the port 8080.
pub(crate) fn slice(namespace: &str, service: &str, addresses: &[IpAddr]) -> EndpointSlice {
    let labels = json!({"kubernetes.io/service-name": service});
    serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": format!("{service}-1"), "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": addresses.iter().map(|ip| json!({"addresses": [ip]})).collect::<Vec<_>>(),
    }))
    .unwrap()
}
