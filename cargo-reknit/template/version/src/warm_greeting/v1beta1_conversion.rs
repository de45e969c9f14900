//! Conversion of WarmGreeting objects between v1beta1 and the hub, v1alpha1.

use reknit::apis::{ConversionError, Convertible};
use serde::{Serialize, de::DeserializeOwned};

use super::{WarmGreeting as Hub, v1beta1::WarmGreeting};

impl Convertible for WarmGreeting {
    type Hub = Hub;

    fn into_hub(self) -> Result<Hub, ConversionError> {
        with_same_fields(&self)
    }

    fn from_hub(hub: Hub) -> Result<Self, ConversionError> {
        with_same_fields(&hub)
    }
}

/// Converts between versions that have the same fields. Replace it once they differ: it would drop a field that only
/// one of the versions has.
fn with_same_fields<K: DeserializeOwned>(object: &impl Serialize) -> Result<K, ConversionError> {
    Ok(serde_json::from_value(serde_json::to_value(object)?)?)
}
