//! Resolves the Services of Routes and of the gateways to the addresses of their pods.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::core::{Expression, Selector};
use reknit::{injection::Change, prelude::*, reconciler::Builder};

use super::{
    pb,
    types::{IngressConfig, Route, RoutePath},
};

/// Reads what a Route depends on. Each read makes the Route follow changes of what is read.
#[derive(Clone)]
pub(crate) struct Resolver {
    services: Tracked<Service>,
    slices: Tracked<EndpointSlice>,
    config: Config<IngressConfig>,
}

impl Resolver {
    pub(crate) fn new(build: &mut Builder<Route>) -> Self {
        let slices = build.track_where(|change: &Change<EndpointSlice>| match change {
            Change::Updated { old, new } => (&old.endpoints, &old.ports) != (&new.endpoints, &new.ports),
            _ => true,
        });
        Self { services: build.track(), slices, config: build.config() }
    }

    /// Returns the route as gateways get it, and a message for each path without a Service. Such a path has no endpoints.
    pub(crate) fn resolve(&self, route: &Route) -> (pb::HostRoute, Vec<String>) {
        let mut problems = Vec::new();
        let paths = route.spec.paths.iter().map(|path| {
            let endpoints = self.endpoints_of(route, path).unwrap_or_else(|problem| {
                problems.push(problem);
                BTreeSet::new()
            });
            let endpoints = endpoints.iter().map(SocketAddr::to_string).collect();
            pb::Path { prefix: path.prefix.clone(), endpoints }
        });
        let resolved = pb::HostRoute {
            paths: paths.collect(),
            name: Key::of(route).to_string(),
            version: version(route),
            host: route.spec.host.clone(),
            timeout_millis: self.config.get().request_timeout.as_millis().try_into().unwrap_or(u64::MAX),
        };
        (resolved, problems)
    }

    fn endpoints_of(&self, route: &Route, path: &RoutePath) -> Result<BTreeSet<SocketAddr>, String> {
        let RoutePath { service, port, .. } = path;
        let found = self.services.get(route, service).ok_or(format!("there is no Service {service}"))?;
        let ports = found.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        let found = ports.into_iter().find(|found| found.port == *port);
        let found = found.ok_or_else(|| format!("the Service {service} has no port {port}"))?;
        let namespace = route.metadata.namespace.as_deref().unwrap_or_default();
        Ok(self.endpoints(route, namespace, service, |slice| {
            let name = |name: &Option<String>| name.clone().unwrap_or_default();
            let mut ports = slice.ports.iter().flatten();
            ports.find(|port| name(&port.name) == name(&found.name))?.port?.try_into().ok()
        }))
    }

    /// The addresses at which the gateways answer probes.
    pub(crate) fn gateways(&self, route: &Route) -> BTreeSet<SocketAddr> {
        let config = self.config.get();
        let namespace = config.gateway.namespace.as_deref().unwrap_or_default();
        self.endpoints(route, namespace, &config.gateway.name, |_| Some(config.probe_port))
    }

    /// The addresses of the ready pods of a Service, with the port that `port` finds in their slice.
    fn endpoints(
        &self,
        route: &Route,
        namespace: &str,
        service: &str,
        port: impl Fn(&EndpointSlice) -> Option<u16>,
    ) -> BTreeSet<SocketAddr> {
        let of_service = Expression::Equal("kubernetes.io/service-name".into(), service.into());
        let mut found = BTreeSet::new();
        for slice in self.slices.matching_in(route, namespace, &Selector::from(of_service)) {
            let Some(port) = port(&slice) else { continue };
            let addresses = slice.endpoints.iter().flatten().filter(|endpoint| is_ready(endpoint));
            let addresses = addresses.flat_map(|endpoint| &endpoint.addresses);
            let ips = addresses.filter_map(|address| address.parse::<IpAddr>().ok());
            found.extend(ips.map(|ip| SocketAddr::new(ip, port)));
        }
        found
    }
}

/// The version of a Route that gateways report.
pub(crate) fn version(route: &Route) -> String {
    let uid = route.metadata.uid.as_deref().unwrap_or_default();
    format!("{uid}/{}", route.metadata.generation.unwrap_or_default())
}

/// An unknown readiness counts as ready, as in kube-proxy.
fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
}
