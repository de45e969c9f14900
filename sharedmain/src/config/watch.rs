//! The ConfigMaps that a process goes on following while it runs.
use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_injection::{Change, Context, Feed, select};
use reknit_reconciler::leader::{self, LeaderElectionConfig};

use crate::{
    cli::environment::Environment, config::logging::LoggingConfig,
    config::observability::ObservabilityConfig, observe::logging::Logging, observe::profiling::Profiling,
};

type Data = BTreeMap<String, String>;

/// What config-observability says: profiling at any time, all else at the start.
#[derive(Clone, Default)]
pub(crate) struct Observed {
    pub(crate) profiling: Profiling,
    started: Arc<OnceLock<ObservabilityConfig>>,
}

impl Observed {
    /// What the process starts with.
    pub(crate) fn start(&self, config: &ObservabilityConfig) {
        self.profiling.set(config.profiling);
        // There is one start.
        let _ = self.started.set(config.clone());
    }

    fn change(&self, config: &ObservabilityConfig) {
        self.profiling.set(config.profiling);
        if self.started.get().is_some_and(|started| !started.exports_as(config)) {
            tracing::warn!("config-observability: where metrics and traces go changes with the next start");
        }
    }
}

/// What config-leader-election says: all of it at the start.
#[derive(Clone, Default)]
pub(crate) struct Elected {
    started: Arc<OnceLock<LeaderElectionConfig>>,
}

impl Elected {
    /// What the process starts with.
    pub(crate) fn start(&self, config: &LeaderElectionConfig) {
        // There is one start.
        let _ = self.started.set(config.clone());
    }

    fn read(&self, data: &Data) -> Result<(), leader::ConfigError> {
        let config = LeaderElectionConfig::from_data(data)?;
        config.check_times()?;
        if self.started.get().is_some_and(|started| *started != config) {
            tracing::warn!(
                "config-leader-election: how leaders are elected changes with the next start; scale to 0 first where \
                 buckets or names of leases differ, or the processes of before and after lead the same keys"
            );
        }
        Ok(())
    }
}

/// From now on, and while what is returned is held, the level of the log is what config-logging says, and profiling is
/// on or off as config-observability says. What waits for the next start is told, that of config-leader-election where
/// there are elections. A bad value is logged, and what was said before kept. Without a system namespace there are no
/// maps.
pub(crate) fn follow(
    cx: &Context,
    environment: &Environment,
    logging: &Logging,
    observed: &Observed,
    elected: Option<&Elected>,
) -> Vec<Arc<dyn Feed>> {
    let Some(namespace) = environment.system_namespace.as_deref() else { return vec![] };
    let (logging, component) = (logging.clone(), cx.component().to_owned());
    let on_logging = move |data: &Data| {
        LoggingConfig::parse(data).map(|config| logging.set_level(config.level_of(&component)))
    };
    let observed = observed.clone();
    let on_observability =
        move |data: &Data| ObservabilityConfig::parse(data).map(|config| observed.change(&config));
    let mut feeds = vec![
        on_change(cx, namespace, &environment.config_logging, on_logging),
        on_change(cx, namespace, &environment.config_observability, on_observability),
    ];
    if let Some(elected) = elected.cloned() {
        let on_election = move |data: &Data| elected.read(data);
        feeds.push(on_change(cx, namespace, &environment.config_leader_election, on_election));
    }
    feeds
}

/// Calls `read` with what the map says now; a map that is gone says nothing.
fn on_change<E: Display>(
    cx: &Context,
    namespace: &str,
    name: &str,
    read: impl Fn(&Data) -> Result<(), E> + Send + Sync + 'static,
) -> Arc<dyn Feed> {
    let informer = cx.informer::<ConfigMap>(select().namespace(namespace).field("metadata.name", name));
    let name = format!("{namespace}/{name}");
    informer.on(move |change| {
        let result = match change {
            Change::Added(map) | Change::Updated { new: map, .. } => {
                read(map.data.as_ref().unwrap_or(&Data::new()))
            }
            Change::Deleted { .. } => read(&Data::new()),
        };
        if let Err(error) = result {
            tracing::error!("ConfigMap {name}: {error}; what it said before is kept");
        }
    });
    informer.feed()
}
