//! A Kind with two versions and a status.
#![allow(dead_code, reason = "each test crate that shares this uses a part of it")]

use reknit_apis::{Condition, ConversionError, Convertible, kind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub(crate) struct LanternStatus {
    pub(crate) phase: Phase,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<Condition>,
}

/// The phases that this release knows.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub(crate) enum Phase {
    #[default]
    Lit,
}

/// The version that is the hub.
pub(crate) mod v1 {
    use super::*;

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(
        group = "tests.reknit.dev",
        version = "v1",
        kind = "Lantern",
        namespaced,
        status = "LanternStatus"
    )]
    pub(crate) struct LanternSpec {
        pub(crate) milliwatts: u64,
    }

    kind!(Lantern { status: LanternStatus });
}

pub(crate) mod v1alpha1 {
    use super::*;

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(
        group = "tests.reknit.dev",
        version = "v1alpha1",
        kind = "Lantern",
        namespaced,
        status = "LanternStatus"
    )]
    pub(crate) struct LanternSpec {
        pub(crate) watts: u64,
    }

    kind!(Lantern { status: LanternStatus });
}

impl Convertible for v1alpha1::Lantern {
    type Hub = v1::Lantern;

    fn into_hub(self) -> Result<v1::Lantern, ConversionError> {
        assert_ne!(self.spec.watts, 13, "an unlucky number");
        let milliwatts = self.spec.watts.checked_mul(1_000).ok_or("too bright")?;
        Ok(v1::Lantern { metadata: self.metadata, spec: v1::LanternSpec { milliwatts }, status: self.status })
    }

    fn from_hub(mut hub: v1::Lantern) -> Result<Self, ConversionError> {
        for condition in hub.status.iter_mut().flat_map(|status| &mut status.conditions) {
            condition.message = Some("in an older version".into());
        }
        let spec = v1alpha1::LanternSpec { watts: hub.spec.milliwatts / 1_000 };
        Ok(Self { metadata: hub.metadata, spec, status: hub.status })
    }
}
