//! A Kind with two versions whose required fields accept few values.
#![allow(dead_code, reason = "each test crate that shares this uses a part of it")]

use std::net::IpAddr;

use reknit_apis::{ConversionError, Convertible, kind, structural};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum Power {
    Battery { hours: u32 },
    Mains { volts: u32 },
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub(crate) enum Light {
    Off,
    On,
    Blinking { hertz: u32 },
}

/// The fields that both versions have.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub(crate) struct Site {
    address: IpAddr,
    power: Power,
    light: Light,
    release: Release,
}

/// The version of its program, as semver writes it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub(crate) struct Release(String);

impl TryFrom<String> for Release {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let numbers = text.split('.').filter(|number| number.parse::<u32>().is_ok()).count();
        if numbers == 3 { Ok(Self(text)) } else { Err(format!("{text:?} is no version")) }
    }
}

impl From<Release> for String {
    fn from(release: Release) -> Self {
        release.0
    }
}

/// The version that is the hub.
pub(crate) mod v1alpha1 {
    use super::*;

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
    #[kube(
        group = "tests.reknit.dev",
        version = "v1alpha1",
        kind = "Beacon",
        namespaced,
        derive = "PartialEq"
    )]
    #[kube(status = "BeaconStatus")]
    #[schemars(transform = structural)]
    pub(crate) struct BeaconSpec {
        pub(crate) watts: u32,
        pub(crate) site: Site,
    }

    kind!(Beacon { status: BeaconStatus });
}

pub(crate) mod v1 {
    use super::*;

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
    #[kube(group = "tests.reknit.dev", version = "v1", kind = "Beacon", namespaced, derive = "PartialEq")]
    #[kube(status = "BeaconStatus")]
    #[schemars(transform = structural)]
    pub(crate) struct BeaconSpec {
        pub(crate) milliwatts: u32,
        pub(crate) site: Site,
    }

    kind!(Beacon { status: BeaconStatus });
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub(crate) struct BeaconStatus {
    #[serde(default)]
    pub(crate) phase: Option<String>,
}

impl Convertible for v1::Beacon {
    type Hub = v1alpha1::Beacon;

    fn into_hub(self) -> Result<v1alpha1::Beacon, ConversionError> {
        let spec = v1alpha1::BeaconSpec { watts: self.spec.milliwatts / 1000, site: self.spec.site };
        Ok(v1alpha1::Beacon { metadata: self.metadata, spec, status: self.status })
    }

    fn from_hub(hub: v1alpha1::Beacon) -> Result<Self, ConversionError> {
        let spec = v1::BeaconSpec { milliwatts: hub.spec.watts.saturating_mul(1000), site: hub.spec.site };
        Ok(Self { metadata: hub.metadata, spec, status: hub.status })
    }
}
