//! Refuses ConfigMaps that the process could not read.

use std::{collections::BTreeMap, error::Error, fmt, sync::Arc};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::admission::{AdmissionRequest, AdmissionResponse};
use reknit_apis::{EXAMPLE_CHECKSUM_ANNOTATION, example_checksum};
use reknit_injection::FromConfigMap;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    admission::raw::Raw,
    admission::review::{About, Asked, refuse},
};

const EXAMPLE: &str = "_example";

type Data = BTreeMap<String, String>;
type Parse = Arc<dyn Fn(&Data) -> Result<(), String> + Send + Sync>;

/// The ConfigMaps that are checked, by name, each with all that read it.
#[derive(Clone, Default)]
pub(crate) struct ConfigMaps {
    parsers: BTreeMap<String, Vec<Parse>>,
    /// Where they are; anywhere, if it is not known.
    namespace: Option<String>,
}

impl ConfigMaps {
    pub(crate) fn add<T: FromConfigMap>(&mut self) {
        self.add_parser(T::NAME, |data| T::from_config_map(data).map(drop).map_err(text));
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

    /// What the API server is to ask about.
    pub(crate) fn rules() -> Value {
        Value::Array(vec![About::of::<ConfigMap>().rule(&["CREATE", "UPDATE"], &["configmaps".into()])])
    }

    /// Whether it is asked about this part of such an object, or about the whole.
    pub(crate) fn asks(&self, about: &About, part: Option<&str>) -> bool {
        part.is_none() && !self.is_empty() && *about == About::of::<ConfigMap>()
    }

    pub(crate) fn answer(&self, asked: AdmissionRequest<Raw>) -> AdmissionResponse {
        let response = AdmissionResponse::from(&asked);
        match self.check(asked) {
            Ok(()) => response,
            Err(why) => refuse(response, format!("validation failed: {why}")),
        }
    }

    fn check(&self, asked: AdmissionRequest<Raw>) -> Result<(), String> {
        let asked = Asked::new(asked).filter(|asked| !asked.lets_go());
        let Some(Asked { request, object: Some(object), .. }) = asked else { return Ok(()) };
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

/// In Knative's words.
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

fn text(error: Box<dyn Error + Send + Sync>) -> String {
    error.to_string()
}

impl fmt::Debug for ConfigMaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.parsers.keys()).finish()
    }
}
