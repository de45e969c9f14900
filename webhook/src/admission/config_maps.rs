//! Validation of ConfigMaps by the code that reads them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_apis::{EXAMPLE_CHECKSUM_ANNOTATION, example_checksum};
use reknit_injection::FromConfigMap;
use serde::Deserialize;
use serde_json::Value;

use super::{
    review::{Change, GroupVersionKind, Review, deny},
    validation::Validated,
};

const EXAMPLE: &str = "_example";

type Data = BTreeMap<String, String>;
type Parse = Arc<dyn Fn(&Data) -> Result<(), String> + Send + Sync>;

/// The parsers of each ConfigMap, by its name.
#[derive(Clone, Default)]
pub(crate) struct ConfigMaps {
    parsers: BTreeMap<String, Vec<Parse>>,
    /// The namespace of the ConfigMaps; any if it is not known.
    namespace: Option<String>,
}

impl ConfigMaps {
    pub(crate) fn add<T: FromConfigMap>(&mut self) {
        self.add_parser(T::NAME, |data| {
            T::from_config_map(data).map(drop).map_err(|error| error.to_string())
        });
    }

    pub(crate) fn add_parser(
        &mut self,
        name: &str,
        parse: impl Fn(&Data) -> Result<(), String> + Send + Sync + 'static,
    ) {
        self.parsers.entry(name.into()).or_default().push(Arc::new(parse));
    }

    pub(crate) fn within(&mut self, namespace: &str) {
        self.namespace = Some(namespace.into());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parsers.is_empty()
    }

    /// The rules of the webhook configuration.
    pub(crate) fn rules() -> Value {
        let maps = GroupVersionKind::of::<ConfigMap>();
        Value::Array(vec![maps.rule(&["CREATE", "UPDATE"], &["configmaps".into()])])
    }

    pub(crate) fn answer(&self, review: Review) -> Validated {
        let is_map = review.kind == GroupVersionKind::of::<ConfigMap>();
        match review.change.filter(|_| is_map).map_or(Ok(()), |change| self.check(change)) {
            Ok(()) => review.response.into(),
            Err(reason) => deny(review.response, format!("validation failed: {reason}")).into(),
        }
    }

    fn check(&self, change: Change) -> Result<(), String> {
        let Change { request, object: Some(object), .. } = change else { return Ok(()) };
        if self.namespace.is_some() && self.namespace != request.namespace {
            return Ok(());
        }
        let map = ConfigMap::deserialize(&object)
            .map_err(|error| format!("cannot decode the ConfigMap: {error}"))?;
        let Some(parsers) = map.metadata.name.as_ref().and_then(|name| self.parsers.get(name)) else {
            return Ok(());
        };
        check_example(&map)?;
        let mut data = map.data.unwrap_or_default();
        data.remove(EXAMPLE);
        parsers.iter().try_for_each(|parse| parse(&data))
    }
}

/// Refuses a change of the example with the message of Knative.
fn check_example(map: &ConfigMap) -> Result<(), String> {
    let example = map.data.as_ref().and_then(|data| data.get(EXAMPLE));
    let noted = map.metadata.annotations.as_ref().and_then(|all| all.get(EXAMPLE_CHECKSUM_ANNOTATION));
    match (example, noted) {
        (Some(example), Some(noted)) if example_checksum(example) != *noted => Err(format!(
            "the update modifies a key in {EXAMPLE:?} which is probably not what you want. Instead, copy the respective \
             setting to the top-level of the ConfigMap, directly below \"data\""
        )),
        _ => Ok(()),
    }
}
