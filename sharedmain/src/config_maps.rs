//! The ConfigMaps that a process reads about itself, from its system namespace.
use std::{collections::BTreeMap, fmt::Display};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use reknit_reconciler::leader::LeaderElectionConfig;

use crate::{
    config_logging::LoggingConfig, config_observability::ObservabilityConfig, environment::Environment,
    failure::Failure, startup::Startup,
};

/// What they say. A map that does not exist says nothing: the defaults hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigMaps {
    pub(crate) logging: LoggingConfig,
    pub(crate) observability: ObservabilityConfig,
    pub(crate) election: LeaderElectionConfig,
}

impl ConfigMaps {
    /// Reads all of them. Without a system namespace there are none.
    pub(crate) async fn read(
        startup: &Startup<'_>,
        client: &Client,
        environment: &Environment,
    ) -> Result<Self, Failure> {
        let Some(namespace) = environment.system_namespace.as_deref() else { return Ok(Self::default()) };
        let maps = Reader { startup, api: Api::namespaced(client.clone(), namespace), namespace };
        Ok(Self {
            logging: maps.read(&environment.config_logging, LoggingConfig::parse).await?,
            observability: maps.read(&environment.config_observability, ObservabilityConfig::parse).await?,
            election: maps.read(&environment.config_leader_election, LeaderElectionConfig::from_data).await?,
        })
    }
}

struct Reader<'a> {
    startup: &'a Startup<'a>,
    api: Api<ConfigMap>,
    namespace: &'a str,
}

impl Reader<'_> {
    async fn read<T: Default, E: Display>(
        &self,
        name: &str,
        parse: impl Fn(&BTreeMap<String, String>) -> Result<T, E>,
    ) -> Result<T, Failure> {
        let map = match self.startup.persist(|| self.api.get(name)).await {
            Ok(map) => map,
            Err(trouble) if trouble.is_not_found() => return Ok(T::default()),
            Err(trouble) => return Err(self.startup.trouble(&trouble)),
        };
        parse(&map.data.unwrap_or_default())
            .map_err(|e| Failure::new(format!("ConfigMap {}/{name}: {e}", self.namespace)))
    }
}
