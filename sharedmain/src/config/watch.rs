//! The ConfigMaps of the system namespace, watched while the process runs.
use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_injection::{
    Change, Context, InformerHandle,
    internal::{Recordings, text_data, warn_of_misspelt_keys, watch},
    select,
};
use reknit_leadership::LeaderElectionConfig;

use super::{
    logging::{self, LoggingConfig},
    maps::{ConfigMapNames, ConfigMaps},
    observability::{self, ObservabilityConfig},
};
use crate::{
    console::Switch,
    observe::{logging::Logging, profiling::Profiling},
};

type Data = BTreeMap<String, String>;

/// Applies changes of the log level, of profiling, of the console and of recorded passes at once, and logs a warning for
/// other changes, which take effect only at the next start. An invalid ConfigMap is logged, and the previous settings stay in effect.
#[derive(Clone)]
pub(crate) struct ConfigWatcher {
    component: String,
    logging: Logging,
    pub(crate) profiling: Profiling,
    pub(crate) console: Switch,
    /// `None` if a flag sets the folder of recorded passes.
    recordings: Option<Recordings>,
    /// The settings that the process started with.
    at_start: Arc<OnceLock<ConfigMaps>>,
}

impl ConfigWatcher {
    pub(crate) fn new(component: &str, logging: Logging, recordings: Option<Recordings>) -> Self {
        Self {
            component: component.to_owned(),
            logging,
            profiling: Profiling::default(),
            console: Arc::new(watch::Sender::new(false)),
            recordings,
            at_start: Arc::default(),
        }
    }

    /// Applies the settings that the process starts with, and stores them to compare changes with them.
    pub(crate) fn start(&self, maps: &ConfigMaps) {
        self.apply_logging(&maps.logging);
        self.apply_switches(&maps.observability);
        // Cannot fail: a process starts once.
        let _ = self.at_start.set(maps.clone());
    }

    /// Creates the informers of the ConfigMaps. Without `has_leader_election`, there is none for
    /// `config-leader-election`. Dropping a returned handle ends its informer.
    pub(crate) fn watch(
        &self,
        cx: &Context,
        namespace: &str,
        names: &ConfigMapNames,
        has_leader_election: bool,
    ) -> Vec<Arc<dyn InformerHandle>> {
        let mut informers = vec![
            self.on_change(cx, namespace, &names.logging, logging::KEYS, Self::logging_changed),
            self.on_change(
                cx,
                namespace,
                &names.observability,
                observability::KEYS,
                Self::observability_changed,
            ),
        ];
        if has_leader_election {
            let name = &names.leader_election;
            let keys = LeaderElectionConfig::KEYS;
            informers.push(self.on_change(cx, namespace, name, keys, Self::leader_election_changed));
        }
        informers
    }

    fn apply_logging(&self, config: &LoggingConfig) {
        self.logging.set_level(config.level_of(&self.component));
    }

    fn apply_switches(&self, config: &ObservabilityConfig) {
        self.profiling.set_enabled(config.profiling);
        self.console.send_replace(config.console);
        if let Some(recordings) = &self.recordings {
            recordings.set_folder(config.record_failures.as_deref());
        }
    }

    fn logging_changed(&self, data: &Data) -> Result<(), String> {
        self.apply_logging(&LoggingConfig::parse(data)?);
        Ok(())
    }

    fn observability_changed(&self, data: &Data) -> Result<(), String> {
        let config = ObservabilityConfig::parse(data)?;
        self.apply_switches(&config);
        if self.at_start.get().is_some_and(|maps| !maps.observability.has_same_exports(&config)) {
            tracing::warn!(
                "config-observability: the export of metrics and traces changes at the next start"
            );
        }
        Ok(())
    }

    fn leader_election_changed(&self, data: &Data) -> Result<(), reknit_leadership::ConfigError> {
        let config = LeaderElectionConfig::from_data(data)?;
        config.check_times()?;
        if self.at_start.get().is_some_and(|maps| maps.leader_election != config) {
            tracing::warn!(
                "config-leader-election: leader election changes at the next start; scale to 0 first if the number of \
                 buckets or the names of leases differ, or old and new processes lead the same keys"
            );
        }
        Ok(())
    }

    /// Calls `apply` with the data of the ConfigMap after each change, and warns of keys that are probably misspelt, since
    /// they resemble one of `keys`. The data of a deleted ConfigMap is empty.
    fn on_change<E: Display + 'static>(
        &self,
        cx: &Context,
        namespace: &str,
        name: &str,
        keys: &'static [&'static str],
        apply: fn(&Self, &Data) -> Result<(), E>,
    ) -> Arc<dyn InformerHandle> {
        let informer = cx.informer::<ConfigMap>(select().namespace(namespace).field("metadata.name", name));
        let (watcher, name) = (self.clone(), format!("{namespace}/{name}"));
        informer.on(move |change| {
            let data = match change {
                Change::Added(map) | Change::Updated { new: map, .. } => {
                    warn_of_misspelt_keys(map, keys);
                    text_data(map)
                }
                Change::Deleted { .. } => {
                    tracing::info!("ConfigMap {name} was deleted: the defaults are used");
                    Data::new()
                }
            };
            if let Err(error) = apply(&watcher, &data) {
                tracing::error!(
                    "ConfigMap {name}: {error}; the previous settings stay in effect, and a process that starts now ends with \
                     this error"
                );
            }
        });
        informer.handle()
    }
}
