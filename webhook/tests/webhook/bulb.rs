//! A Kind with two versions.
#![allow(dead_code, reason = "each test crate that shares this uses a part of it")]

use reknit_apis::{ConversionError, Convertible, kind};

/// The annotation that keeps the field `socket` in the older version.
const SOCKET: &str = "bulbs.tests.reknit.dev/socket";

/// The version that is the hub.
pub(crate) mod v1 {
    use super::*;

    #[derive(
        kube::CustomResource,
        serde::Serialize,
        serde::Deserialize,
        Clone,
        Debug,
        PartialEq,
        schemars::JsonSchema,
    )]
    #[kube(group = "tests.reknit.dev", version = "v1", kind = "Bulb", namespaced, derive = "PartialEq")]
    pub(crate) struct BulbSpec {
        pub(crate) milliwatts: u64,
        /// A field that the older version does not have.
        #[serde(default)]
        // without `skip_serializing_if`: conversion leaves an unset field out all the same
        pub(crate) socket: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub(crate) colour: Option<String>,
    }

    kind!(Bulb { defaults: |bulb| _ = bulb.spec.colour.get_or_insert_with(|| "warm".into()) });
}

pub(crate) mod v1alpha1 {
    use super::*;

    #[derive(
        kube::CustomResource,
        serde::Serialize,
        serde::Deserialize,
        Clone,
        Debug,
        PartialEq,
        schemars::JsonSchema,
    )]
    #[kube(group = "tests.reknit.dev", version = "v1alpha1", kind = "Bulb", namespaced, derive = "PartialEq")]
    pub(crate) struct BulbSpec {
        pub(crate) watts: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub(crate) colour: Option<String>,
    }

    kind!(Bulb {});
}

impl Convertible for v1alpha1::Bulb {
    type Hub = v1::Bulb;

    fn into_hub(mut self) -> Result<v1::Bulb, ConversionError> {
        let socket = self.metadata.annotations.as_mut().and_then(|annotations| annotations.remove(SOCKET));
        if self.spec.watts < 0.0 {
            return Err(format!("{} W is less than nothing", self.spec.watts).into());
        }
        let milliwatts = (self.spec.watts * 1000.0) as u64;
        let spec = v1::BulbSpec { milliwatts, socket, colour: self.spec.colour };
        Ok(v1::Bulb { metadata: self.metadata, spec })
    }

    fn from_hub(mut hub: v1::Bulb) -> Result<Self, ConversionError> {
        if let Some(socket) = hub.spec.socket {
            hub.metadata.annotations.get_or_insert_default().insert(SOCKET.into(), socket);
        }
        let spec = v1alpha1::BulbSpec { watts: hub.spec.milliwatts as f64 / 1000.0, colour: hub.spec.colour };
        Ok(Self { metadata: hub.metadata, spec })
    }
}
