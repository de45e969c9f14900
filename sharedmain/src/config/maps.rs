//! The ConfigMaps that a process reads about itself, from its system namespace.
use std::{collections::BTreeMap, fmt::Display};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client};
use reknit_reconciler::leader::LeaderElectionConfig;

use crate::{
    cli::environment::Environment, config::logging::LoggingConfig,
    config::observability::ObservabilityConfig, process::failure::Failure, process::startup::Startup,
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
        let logging = maps.read(&environment.config_logging, LoggingConfig::parse).await?;
        let observability = maps.read(&environment.config_observability, ObservabilityConfig::parse).await?;
        let election =
            maps.read(&environment.config_leader_election, LeaderElectionConfig::from_data).await?;
        if logging.is_none() && observability.is_none() && election.is_none() {
            check_namespace(startup, client, namespace).await?;
        }
        Ok(Self {
            logging: logging.unwrap_or_default(),
            observability: observability.unwrap_or_default(),
            election: election.unwrap_or_default(),
        })
    }
}

/// A namespace without a single map may be a name misspelt. Where it may not be read, nobody can tell.
async fn check_namespace(startup: &Startup<'_>, client: &Client, namespace: &str) -> Result<(), Failure> {
    let api: Api<Namespace> = Api::all(client.clone());
    match startup.persist(|| api.get_metadata(namespace)).await {
        Err(trouble) if trouble.is_not_found() => Err(Failure::new(format!(
            "the namespace {namespace:?} does not exist: SYSTEM_NAMESPACE names the one this process belongs to, with its \
             leases and ConfigMaps"
        ))),
        _ => Ok(()),
    }
}

struct Reader<'a> {
    startup: &'a Startup<'a>,
    api: Api<ConfigMap>,
    namespace: &'a str,
}

impl Reader<'_> {
    /// None where there is no such map.
    async fn read<T, E: Display>(
        &self,
        name: &str,
        parse: impl Fn(&BTreeMap<String, String>) -> Result<T, E>,
    ) -> Result<Option<T>, Failure> {
        let map = match self.startup.persist(|| self.api.get(name)).await {
            Ok(map) => map,
            Err(trouble) if trouble.is_not_found() => return Ok(None),
            Err(trouble) => return Err(self.startup.trouble(&trouble)),
        };
        parse(&map.data.unwrap_or_default())
            .map(Some)
            .map_err(|e| Failure::new(format!("ConfigMap {}/{name}: {e}", self.namespace)))
    }
}
