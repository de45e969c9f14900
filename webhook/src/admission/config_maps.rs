//! Validation of ConfigMaps by the code that reads them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_apis::{EXAMPLE_CHECKSUM_ANNOTATION, example_checksum};
use reknit_injection::FromConfigMap;
use serde::Deserialize;
use serde_json::Value;

use super::{
    denial::deny,
    review::{Change, GroupVersionKind, Review, ReviewOutcome},
};
use crate::webhook::Webhook;

/// The key of the example, which documents the other keys.
const EXAMPLE_KEY: &str = "_example";

/// Parses the data of a ConfigMap.
pub(crate) type ParseConfigMap = Arc<dyn Fn(&BTreeMap<String, String>) -> Result<(), String> + Send + Sync>;

impl Webhook {
    /// Refuses changes of a ConfigMap in the system namespace if the type cannot parse the new data, or if the
    /// `_example`, in which Knative's ConfigMaps document their settings, does not match its checksum. If several types
    /// are declared for one ConfigMap, each has to parse it. The finalizers of a terminating ConfigMap can always be
    /// removed.
    ///
    /// ```
    /// use std::{collections::BTreeMap, error::Error};
    ///
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use reknit_injection::FromConfigMap;
    /// use reknit_webhook::{TestRequest, Webhook};
    /// use serde_json::json;
    ///
    /// #[derive(Default)]
    /// struct Features {
    ///     fast: bool,
    /// }
    ///
    /// impl FromConfigMap for Features {
    ///     const NAME: &'static str = "config-features";
    ///
    ///     fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
    ///         let fast = data.get("fast").map(|text| text.parse()).transpose();
    ///         Ok(Self { fast: fast.map_err(|e| format!("fast: {e}"))?.unwrap_or_default() })
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let webhook = Webhook::new("demo.reknit.dev").config_validation::<Features>();
    /// let map = json!({
    ///     "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config-features"}, "data": {"fast": "very"},
    /// });
    /// let refused = webhook.admit(TestRequest::create(map)).await.unwrap_err();
    /// assert!(refused.to_string().starts_with("validation failed: fast: "));
    /// # }
    /// ```
    pub fn config_validation<T: FromConfigMap>(self) -> Self {
        self.config_parser(T::NAME, |data| {
            T::from_config_map(data).map(drop).map_err(|error| error.to_string())
        })
    }

    /// Refuses changes of a ConfigMap as [`config_validation`](Self::config_validation) does, with a function in place
    /// of a type. The function does not get `_example`.
    pub fn config_parser(
        mut self,
        name: &str,
        parse: impl Fn(&BTreeMap<String, String>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.config_maps.entry(name.into()).or_default().push(Arc::new(parse));
        self
    }

    pub(crate) fn config_map_rules() -> Value {
        let rule = GroupVersionKind::of::<ConfigMap>().rule(&["CREATE", "UPDATE"], vec!["configmaps".into()]);
        Value::Array(vec![rule])
    }

    pub(crate) fn validate_config_map(&self, review: Review) -> ReviewOutcome {
        let is_config_map = review.kind == GroupVersionKind::of::<ConfigMap>();
        match review.change.filter(|_| is_config_map).map_or(Ok(()), |change| self.check_config_map(change)) {
            Ok(()) => review.response.into(),
            Err(reason) => deny(review.response, format!("validation failed: {reason}")).into(),
        }
    }

    fn check_config_map(&self, change: Change) -> Result<(), String> {
        let Change { request, object: Some(object), .. } = change else { return Ok(()) };
        if self.system_namespace.is_some() && self.system_namespace != request.namespace {
            return Ok(());
        }
        let config_map = ConfigMap::deserialize(&object)
            .map_err(|error| format!("cannot decode the ConfigMap: {error}"))?;
        let Some(parsers) = config_map.metadata.name.as_ref().and_then(|name| self.config_maps.get(name))
        else {
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
