//! The Kind Route, and the ConfigMap of the program.

use std::{collections::BTreeMap, error::Error, time::Duration};

use kube::CustomResource;
use reknit::{apis::parse_duration, prelude::*};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The condition that is True once the Services of all paths exist.
pub(crate) const BACKENDS: &str = "BackendsResolved";
/// The condition that is True once all gateways have served this generation.
pub(crate) const GATEWAYS: &str = "GatewaysReady";

/// A host, and the Services to which its paths lead.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "demo.reknit.dev",
    version = "v1",
    kind = "Route",
    doc = "A host, and the Services to which its paths lead.",
    namespaced,
    status = "DuckStatus",
    printcolumn = r#"{"name": "Host", "type": "string", "jsonPath": ".spec.host"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#
)]
pub struct RouteSpec {
    /// The host name of the requests.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// The paths. Of those that a request's path starts with, the longest applies.
    #[schemars(length(min = 1, max = 100))]
    pub paths: Vec<RoutePath>,
}

/// A prefix of paths, and the Service that serves them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct RoutePath {
    /// The prefix of a request's path.
    #[schemars(regex(pattern = "^/"))]
    pub prefix: String,
    /// The name of a Service in the namespace of the Route.
    pub service: String,
    /// A port of the Service.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

kind!(Route { status: DuckStatus, conditions: knative([BACKENDS, GATEWAYS]) });

/// The ConfigMap `config-ingress`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct IngressConfig {
    /// The Service of the gateways.
    pub(crate) gateway: Key,
    /// The port of the gateways' pods that answers probes.
    pub(crate) probe_port: u16,
    /// The time limit of a request, for the gateways.
    pub(crate) request_timeout: Duration,
}

impl Default for IngressConfig {
    fn default() -> Self {
        let gateway = Key::new("ingress", "gateway");
        Self { gateway, probe_port: 8081, request_timeout: Duration::from_secs(15) }
    }
}

impl FromConfigMap for IngressConfig {
    const NAME: &'static str = "config-ingress";
    const KEYS: &'static [&'static str] = &["gateway", "probe-port", "request-timeout"];

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut config = Self::default();
        if let Some(text) = data.get("gateway") {
            config.gateway = text.parse().map_err(|error| format!("gateway: {error}"))?;
        }
        if config.gateway.namespace.is_none() {
            return Err("gateway: must be namespace/name".into());
        }
        if let Some(text) = data.get("probe-port") {
            config.probe_port = text.parse().map_err(|error| format!("probe-port: {error}"))?;
        }
        if let Some(text) = data.get("request-timeout") {
            config.request_timeout =
                parse_duration(text).map_err(|error| format!("request-timeout: {error}"))?;
        }
        Ok(config)
    }
}
