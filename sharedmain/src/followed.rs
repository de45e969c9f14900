//! The ConfigMaps that a process goes on following while it runs.
use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_injection::{Change, Context, Feed, select};

use crate::{
    config_error::ConfigError, config_logging::LoggingConfig, config_observability::ObservabilityConfig,
    environment::Environment, logging::Logging,
};

type Data = BTreeMap<String, String>;

/// From now on, and while what is returned is held, the level of the log is what config-logging says. A bad value is
/// logged, and the level before kept. So it is for config-observability, whose good values count from the next start
/// on. Without a system namespace there are no maps.
pub(crate) fn follow(cx: &Context, environment: &Environment, logging: &Logging) -> Vec<Arc<dyn Feed>> {
    let Some(namespace) = environment.system_namespace.as_deref() else { return vec![] };
    let (logging, component) = (logging.clone(), cx.component().to_owned());
    let on_logging = move |data: &Data| {
        logging.set_level(LoggingConfig::parse(data)?.level_of(&component));
        Ok(())
    };
    let on_observability = |data: &Data| ObservabilityConfig::parse(data).map(drop);
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
