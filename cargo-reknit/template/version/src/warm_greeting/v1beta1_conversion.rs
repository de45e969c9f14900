//! Conversion of WarmGreeting objects between v1beta1 and the hub, v9alpha1.

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

/// Converts between versions that have the same fields. Replace it once they differ. Until then it fails, because it
/// would lose a field that only one of the versions has.
fn with_same_fields<K>(object: &impl Serialize) -> Result<K, ConversionError>
where
    K: Serialize + DeserializeOwned,
{
    let old = serde_json::to_value(object)?;
    let converted = serde_json::from_value(old.clone())?;
    let new = serde_json::to_value(&converted)?;
    if old["spec"] != new["spec"] {
        return Err("the versions have different fields, but no conversion of their own".into());
    }
    Ok(converted)
}
