//! Validation of ConfigMaps by the code that reads them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_apis::{EXAMPLE_CHECKSUM_ANNOTATION, example_checksum};
use serde::Deserialize;
use serde_json::Value;

use super::{
    change::Change, denial::deny, group_version_kind::GroupVersionKind, outcome::ReviewOutcome,
    review::Review,
};

/// The key of the example, which documents the other keys.
const EXAMPLE_KEY: &str = "_example";

/// The ConfigMaps that are validated.
#[derive(Clone, Default)]
pub(crate) struct ConfigMapValidation {
    /// The parsers of each ConfigMap, by its name.
    parsers: BTreeMap<String, Vec<ParseConfigMap>>,
    /// The namespace of the ConfigMaps. If it is not known, ConfigMaps of all namespaces are checked.
    pub(crate) system_namespace: Option<String>,
}

/// Parses the data of a ConfigMap.
type ParseConfigMap = Arc<dyn Fn(&BTreeMap<String, String>) -> Result<(), String> + Send + Sync>;

impl ConfigMapValidation {
    /// Refuses ConfigMaps of this name whose data the function cannot parse. The function does not get `_example`.
    pub(crate) fn add(
        &mut self,
        name: &str,
        parse: impl Fn(&BTreeMap<String, String>) -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.parsers.entry(name.into()).or_default().push(Arc::new(parse));
    }

    /// The names of the validated ConfigMaps.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.parsers.keys()
    }

    /// The rules of the webhook configuration.
    pub(crate) fn rules(&self) -> Value {
        let rule =
            || GroupVersionKind::of::<ConfigMap>().rule(&["CREATE", "UPDATE"], vec!["configmaps".into()]);
        (!self.parsers.is_empty()).then(rule).into_iter().collect()
    }

    /// Answers a review of a ConfigMap. Other objects are allowed.
    pub(crate) fn review(&self, review: Review) -> ReviewOutcome {
        let is_config_map = review.kind == GroupVersionKind::of::<ConfigMap>();
        match review.change.filter(|_| is_config_map).map_or(Ok(()), |change| self.check(change)) {
            Ok(()) => review.response.into(),
            Err(reason) => deny(review.response, format!("validation failed: {reason}")).into(),
        }
    }

    fn check(&self, change: Change) -> Result<(), String> {
        let Change { request, object: Some(object), .. } = change else { return Ok(()) };
        if self.system_namespace.is_some() && self.system_namespace != request.namespace {
            return Ok(());
        }
        let config_map = ConfigMap::deserialize(&object)
            .map_err(|error| format!("cannot decode the ConfigMap: {error}"))?;
        let Some(parsers) = config_map.metadata.name.as_ref().and_then(|name| self.parsers.get(name)) else {
            return Ok(());
        };
        check_example(&config_map)?;
        let mut data = config_map.data.unwrap_or_default();
        data.remove(EXAMPLE_KEY);
        parsers.iter().try_for_each(|parse| parse(&data))
    }
}

/// Refuses a change of the example with Knative's message.
fn check_example(config_map: &ConfigMap) -> Result<(), String> {
    let example = config_map.data.as_ref().and_then(|data| data.get(EXAMPLE_KEY));
    let annotations = config_map.metadata.annotations.as_ref();
    let checksum = annotations.and_then(|annotations| annotations.get(EXAMPLE_CHECKSUM_ANNOTATION));
    match (example, checksum) {
        (Some(example), Some(checksum)) if example_checksum(example) != *checksum => Err(format!(
            "the update modifies a key in {EXAMPLE_KEY:?} which is probably not what you want. Instead, copy the respective \
             setting to the top-level of the ConfigMap, directly below \"data\""
        )),
        _ => Ok(()),
    }
}
