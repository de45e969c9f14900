//! The ConfigMaps of the system namespace, read at the start of the process.
use std::{collections::BTreeMap, fmt::Display};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client};
use reknit_injection::internal::text_data;
use reknit_leadership::LeaderElectionConfig;

use super::{logging::LoggingConfig, observability::ObservabilityConfig};
use crate::process::{failure::Failure, startup::Startup};

/// The names of the ConfigMaps.
#[derive(Debug, Clone)]
pub(crate) struct ConfigMapNames {
    pub(crate) logging: String,
    pub(crate) observability: String,
    pub(crate) leader_election: String,
}

impl Default for ConfigMapNames {
    fn default() -> Self {
        Self {
            logging: "config-logging".into(),
            observability: "config-observability".into(),
            leader_election: "config-leader-election".into(),
        }
    }
}

/// The contents of the ConfigMaps, with the defaults for each ConfigMap that does not exist.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigMaps {
    pub(crate) logging: LoggingConfig,
    pub(crate) observability: ObservabilityConfig,
    pub(crate) leader_election: LeaderElectionConfig,
}

impl ConfigMaps {
    /// Reads the ConfigMaps, `config-leader-election` only if the process elects leaders. If none exists, checks that the namespace exists: its name may be misspelt.
    pub(crate) async fn read(
        startup: &Startup<'_>,
        client: &Client,
        namespace: &str,
        names: &ConfigMapNames,
        has_leader_election: bool,
    ) -> Result<Self, Failure> {
        let api = &Api::namespaced(client.clone(), namespace);
        let logging = read(startup, api, namespace, &names.logging, LoggingConfig::parse).await?;
        let observability =
            read(startup, api, namespace, &names.observability, ObservabilityConfig::parse).await?;
        let leader_election = match has_leader_election {
            true => {
                read(startup, api, namespace, &names.leader_election, LeaderElectionConfig::from_data).await?
            }
            false => None,
        };
        if logging.is_none() && observability.is_none() && leader_election.is_none() {
            check_namespace(startup, client, namespace).await?;
        }
        Ok(Self {
            logging: logging.unwrap_or_default(),
            observability: observability.unwrap_or_default(),
            leader_election: leader_election.unwrap_or_default(),
        })
    }
}

/// Checks that the namespace exists. Errors other than 404 are ignored: the process may not be allowed to read
/// namespaces.
async fn check_namespace(startup: &Startup<'_>, client: &Client, namespace: &str) -> Result<(), Failure> {
    let api: Api<Namespace> = Api::all(client.clone());
    match startup.retry(|| api.get_metadata_opt(namespace)).await {
        Ok(None) => Err(Failure::new(format!(
            "namespaces {namespace:?} not found: SYSTEM_NAMESPACE must name the namespace of this process, of its leases \
             and its ConfigMaps"
        ))),
        _ => Ok(()),
    }
}

/// Reads and parses a ConfigMap. Returns `None` if it does not exist.
async fn read<T, E: Display>(
    startup: &Startup<'_>,
    api: &Api<ConfigMap>,
    namespace: &str,
    name: &str,
    parse: impl Fn(&BTreeMap<String, String>) -> Result<T, E>,
) -> Result<Option<T>, Failure> {
    let map = startup.retry(|| api.get_opt(name)).await.map_err(|error| startup.failure(&error))?;
    let Some(map) = map else {
        tracing::info!(config_map = name, namespace, "the ConfigMap does not exist: the defaults are used");
        return Ok(None);
    };
    let parsed = parse(&text_data(&map)).map(Some);
    parsed.map_err(|e| Failure::new(format!("ConfigMap {namespace}/{name}: {e}")))
}
