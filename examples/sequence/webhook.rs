//! Admission of Sequences: the default channel template, from a ConfigMap, and the rules that the schema cannot
//! express.

use std::{collections::BTreeMap, error::Error};

use reknit::{apis::Defaultable, knative::DeliverySpec, prelude::*};
use serde::Deserialize;

use super::sequence::{ChannelTemplate, Sequence, SequenceStep};

/// The webhook of Sequences.
pub fn webhook(_: &Context) -> Result<Webhook> {
    let webhook = Webhook::new("flows.knative.dev").config::<ChannelDefaults>();
    Ok(webhook.defaulting_by_request::<Sequence>().validation::<Sequence>())
}

/// The default channel templates, from the ConfigMap `default-ch-webhook`.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ChannelDefaults {
    /// The template in all namespaces that `namespace_defaults` does not name.
    pub cluster_default: Option<ChannelTemplate>,
    /// The templates by namespace.
    pub namespace_defaults: BTreeMap<String, ChannelTemplate>,
}

impl FromConfigMap for ChannelDefaults {
    const NAME: &'static str = "default-ch-webhook";
    const KEYS: &'static [&'static str] = &["default-ch-config"];

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let yaml = data.get("default-ch-config").ok_or("the key default-ch-config is missing")?;
        Ok(serde_saphyr::from_str(yaml)?)
    }
}

impl ChannelDefaults {
    fn in_namespace(&self, namespace: &str) -> Option<ChannelTemplate> {
        self.namespace_defaults.get(namespace).or(self.cluster_default.as_ref()).cloned()
    }
}

impl Defaultable for Sequence {
    fn set_request_defaults(&mut self, _: Option<&Self>, request: &Request) {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let template = self.spec.channel_template.take();
        self.spec.channel_template =
            template.or_else(|| request.config::<ChannelDefaults>().in_namespace(namespace));
    }
}

/// The largest spec of a channel as JSON, in bytes: each step has a copy.
const MAX_CHANNEL_BYTES: usize = 16 * 1024;

impl Validatable for Sequence {
    fn validate(&self, _: &Request) -> FieldError {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        let mut errors = match &self.spec.steps[..] {
            [] => FieldError::missing(["steps"]),
            steps => validate_steps(steps, namespace),
        };
        errors = errors.also(match &self.spec.channel_template {
            None => FieldError::missing(["channelTemplate"]),
            Some(template) => template.validate().via_field("channelTemplate"),
        });
        let reply = self.spec.reply.as_ref().map(|reply| reply.validate_within(namespace));
        errors.also(reply.unwrap_or_default().via_field("reply")).via_field("spec")
    }
}

fn validate_steps(steps: &[SequenceStep], namespace: &str) -> FieldError {
    steps.iter().enumerate().fold(FieldError::none(), |errors, (index, step)| {
        let delivery = step.delivery.as_ref().map(DeliverySpec::validate).unwrap_or_default();
        let step = step.subscriber.validate_within(namespace).also(delivery.via_field("delivery"));
        errors.also(step.via_field_index("steps", index))
    })
}

impl ChannelTemplate {
    fn validate(&self) -> FieldError {
        let missing = |value: &str, field: &str| match value {
            "" => FieldError::missing([field]),
            _ => FieldError::none(),
        };
        let bytes = serde_json::to_string(&self.spec).map_or(0, |spec| spec.len());
        let spec = match bytes > MAX_CHANNEL_BYTES {
            true => FieldError::out_of_bounds(format!("{bytes} bytes"), 0, MAX_CHANNEL_BYTES, "spec"),
            false => FieldError::none(),
        };
        missing(&self.api_version, "apiVersion").also(missing(&self.kind, "kind")).also(spec)
    }
}
