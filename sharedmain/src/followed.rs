//! The ConfigMaps that a process goes on following while it runs.
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_injection::{Change, Context, Feed, select};

use crate::{
    config_error::ConfigError, config_logging::LoggingConfig, config_observability::ObservabilityConfig,
    environment::Environment, logging::Logging, profiling::Profiling,
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

/// From now on, and while what is returned is held, the level of the log is what config-logging says, and profiling is
/// on or off as config-observability says. A bad value is logged, and what was said before kept. Without a system
/// namespace there are no maps.
pub(crate) fn follow(
    cx: &Context,
    environment: &Environment,
    logging: &Logging,
    observed: &Observed,
) -> Vec<Arc<dyn Feed>> {
    let Some(namespace) = environment.system_namespace.as_deref() else { return vec![] };
    let (logging, component) = (logging.clone(), cx.component().to_owned());
    let on_logging = move |data: &Data| {
        logging.set_level(LoggingConfig::parse(data)?.level_of(&component));
        Ok(())
    };
    let observed = observed.clone();
    let on_observability = move |data: &Data| {
        observed.change(&ObservabilityConfig::parse(data)?);
        Ok(())
    };
    vec![
        on_change(cx, namespace, &environment.config_logging, on_logging),
        on_change(cx, namespace, &environment.config_observability, on_observability),
    ]
}

/// Calls `read` with what the map says now; a map that is gone says nothing.
fn on_change(
    cx: &Context,
    namespace: &str,
    name: &str,
    read: impl Fn(&Data) -> Result<(), ConfigError> + Send + Sync + 'static,
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
