//! An object as it came, nothing of it lost.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::Value;

/// JSON, in a form in which kube's reviews can hold it: a typed object would forget the fields that it does not know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raw {
    meta: ObjectMeta,
    pub(crate) value: Value,
}

impl Raw {
    pub(crate) fn new(value: Value) -> Result<Self, serde_json::Error> {
        let meta =
            value.get("metadata").map_or_else(|| Ok(ObjectMeta::default()), ObjectMeta::deserialize)?;
        Ok(Self { meta, value })
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Value::deserialize(deserializer)?).map_err(|e| D::Error::custom(format!("metadata: {e}")))
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

/// Reviews ask for a Resource and never for what it is.
impl Resource for Raw {
    type DynamicType = ();
    type Scope = kube::core::DynamicResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        "".into()
    }
    fn group(_: &()) -> Cow<'_, str> {
        "".into()
    }
    fn version(_: &()) -> Cow<'_, str> {
        "".into()
    }
    fn plural(_: &()) -> Cow<'_, str> {
        "".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}
