//! A Kind with the features that are hard to decode: a flattened part, an untagged enum, maps and arbitrary JSON.

use std::{collections::BTreeMap, error::Error};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use reknit_apis::{ConversionError, Convertible, Defaultable, FieldError, Level, Request, Validatable, kind};
use reknit_injection::FromConfigMap;
use reknit_webhook::{Validator, Webhook};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "fuzz.reknit.dev", version = "v1", kind = "Torch", namespaced, status = "TorchStatus")]
#[serde(rename_all = "camelCase")]
pub(crate) struct TorchSpec {
    room: String,
    watts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bulbs: Vec<Bulb>,
    #[serde(flatten)]
    power: Power,
    #[serde(default)]
    shade: Option<Shade>,
    #[serde(default)]
    tags: BTreeMap<String, Bulb>,
    #[serde(default)]
    any: Value,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, JsonSchema)]
pub(crate) struct Bulb {
    lumens: f64,
    port: Option<IntOrString>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, JsonSchema)]
pub(crate) struct Power {
    #[serde(default)]
    volts: u64,
}

#[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Shade {
    Paper { sheets: i64 },
    Glass { colour: String },
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, JsonSchema)]
pub(crate) struct TorchStatus {
    lit: bool,
}

kind!(Torch { defaults: |torch| _ = torch.spec.watts.get_or_insert(40) });

impl Defaultable for Torch {
    fn set_request_defaults(&mut self, old: Option<&Self>, request: &Request) {
        let previous_owner = old.and_then(|old| old.spec.owner.clone());
        self.spec
            .owner
            .get_or_insert_with(|| previous_owner.unwrap_or_else(|| request.username().to_owned()));
    }
}

impl Validatable for Torch {
    const SUBRESOURCES: &'static [&'static str] = &["status"];

    fn validate(&self, _: &Request) -> FieldError {
        let room = match &*self.spec.room {
            "" => FieldError::missing(["room"]),
            "hall" => FieldError::none(),
            other => FieldError::invalid_value(other, "room").at(Level::Warning),
        };
        let keys = self.spec.tags.keys().map(|key| FieldError::invalid_key_name(key, "tags"));
        keys.fold(room, FieldError::also).via_field("spec")
    }
}

pub(crate) mod older {
    use super::{Deserialize, JsonSchema, Serialize};

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "fuzz.reknit.dev", version = "v1alpha1", kind = "Torch", namespaced)]
    pub(crate) struct TorchSpec {
        pub(crate) kilowatts: f64,
    }

    impl reknit_apis::Kind for Torch {
        type Status = ();
    }
}

impl Convertible for older::Torch {
    type Hub = Torch;

    fn into_hub(self) -> Result<Torch, ConversionError> {
        let watts = Some((self.spec.kilowatts * 1000.0) as u32);
        let spec = TorchSpec {
            room: "hall".into(),
            watts,
            owner: None,
            bulbs: Vec::new(),
            power: Power::default(),
            shade: None,
            tags: BTreeMap::new(),
            any: Value::Null,
        };
        Ok(Torch { metadata: self.metadata, spec, status: None })
    }

    fn from_hub(hub: Torch) -> Result<Self, ConversionError> {
        let watts = hub.spec.watts.ok_or("the watts are unknown")?;
        Ok(Self { metadata: hub.metadata, spec: older::TorchSpec { kilowatts: f64::from(watts) / 1000.0 } })
    }
}

#[derive(Default)]
struct Features;

impl FromConfigMap for Features {
    const NAME: &'static str = "config-features";

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        data.get("fast").map(|text| text.parse::<bool>()).transpose()?;
        Ok(Self)
    }
}

struct Powered;

impl Validator for Powered {
    type Kind = Torch;

    async fn validate(
        &self,
        torch: &Torch,
        _: Option<&Torch>,
        _: &Request,
    ) -> reknit_reconciler::Result<FieldError> {
        Ok(match torch.spec.power.volts {
            0 => FieldError::generic("without power", ["spec.power.volts"]),
            _ => FieldError::none(),
        })
    }
}

pub(crate) fn webhook() -> Webhook {
    Webhook::new("fuzz.reknit.dev")
        .defaulting_by_request::<Torch>()
        .validation::<Torch>()
        .validator(Powered)
        .config_validation::<Features>()
        .conversion::<older::Torch>()
        .mutator(crate::bindings::mutator())
}
