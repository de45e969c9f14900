//! Conversion of objects between versions by way of the hub, the version that can represent all others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::core::Status;
use reknit_apis::{ConversionError, Convertible, Kind};
use serde::{Deserialize, Serialize};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};

use crate::admission::{
    decoding::{Decoded, decode},
    group_version_kind::GroupVersionKind,
};

type Convert = Arc<dyn Fn(Value) -> Result<Value, String> + Send + Sync>;

/// The conversions of the versions of Kinds.
#[derive(Clone, Default)]
pub(crate) struct Conversions(BTreeMap<GroupVersionKind, VersionConversion>);

/// The conversions of one version to the hub and from the hub. The conversion from the hub also sets the defaults of
/// the version.
#[derive(Clone)]
struct VersionConversion {
    /// The name of the CustomResourceDefinition.
    crd_name: String,
    to_hub: Convert,
    from_hub: Convert,
}

/// A ConversionReview with its objects as text. kube's type holds JSON values, which take up to fifty times the memory.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConversionReview<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow, skip_serializing)]
    request: Option<ConversionRequest<'a>>,
    #[serde(skip_deserializing)]
    response: Option<ConversionResponse>,
}

#[derive(Deserialize)]
struct ConversionRequest<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    #[serde(borrow)]
    objects: Vec<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConversionResponse {
    uid: String,
    result: Status,
    converted_objects: Vec<Box<RawValue>>,
}

impl Conversions {
    pub(crate) fn add<K: Convertible>(&mut self) {
        let crd_name = format!("{}.{}", K::plural(&()), K::group(&()));
        let to_text = |error: ConversionError| error.to_string();
        let hub = VersionConversion {
            crd_name: crd_name.clone(),
            to_hub: Arc::new(Ok),
            from_hub: Arc::new(|value| encode_with_defaults(decode::<K::Hub>(&value, &Value::Null)?)),
        };
        let version = VersionConversion {
            crd_name,
            to_hub: Arc::new(move |value| {
                Ok(Decoded::new(decode::<K>(&value, &Value::Null)?.into_hub().map_err(to_text)?)?.encoded)
            }),
            from_hub: Arc::new(move |value| {
                encode_with_defaults(K::from_hub(decode(&value, &Value::Null)?).map_err(to_text)?)
            }),
        };
        self.0.insert(GroupVersionKind::of::<K::Hub>(), hub);
        self.0.insert(GroupVersionKind::of::<K>(), version);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the CustomResourceDefinitions whose objects are converted.
    pub(crate) fn crd_names(&self) -> BTreeSet<&String> {
        self.0.values().map(|version| &version.crd_name).collect()
    }

    /// Converts the objects of a review one after another, each of at most `max_bytes`. Returns the review with the
    /// response, and whether all objects were converted.
    pub(crate) fn convert_all<'a>(
        &self,
        mut review: ConversionReview<'a>,
        max_bytes: usize,
    ) -> Result<(bool, ConversionReview<'a>), &'static str> {
        let request = review.request.take().ok_or("the review has no request")?;
        let version = &request.desired_api_version;
        let converted =
            request.objects.into_iter().map(|object| self.convert_text(object, version, max_bytes));
        let (result, converted_objects) = match converted.collect() {
            Ok(converted) => (Status::success(), converted),
            Err(reason) => (Status::failure(&reason, "ConversionFailed"), vec![]),
        };
        let is_success = result.is_success();
        review.response = Some(ConversionResponse { uid: request.uid, result, converted_objects });
        Ok((is_success, review))
    }

    fn convert_text(
        &self,
        object: &RawValue,
        version: &str,
        max_bytes: usize,
    ) -> Result<Box<RawValue>, String> {
        let text = object.get();
        if text.len() > max_bytes {
            return Err(format!("an object has {} bytes, more than {max_bytes}", text.len()));
        }
        let decode_failure = |error: serde_json::Error| format!("could not decode an object: {error}");
        let converted = self.convert(serde_json::from_str(text).map_err(decode_failure)?, version)?;
        to_raw_value(&converted).map_err(|error| error.to_string())
    }

    fn convert(&self, object: Value, version: &str) -> Result<Value, String> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let from = GroupVersionKind::new(object["apiVersion"].as_str().unwrap_or_default(), kind);
        let to = GroupVersionKind::new(version, kind);
        if from == to {
            return Ok(object);
        }
        let conversion = |kind| self.0.get(kind).ok_or_else(|| format!("no conversion support for {kind}"));
        let (from, metadata) = (conversion(&from)?, object["metadata"].clone());
        let from_hub = &conversion(&to)?.from_hub;
        let mut converted = (from.to_hub)(object).and_then(|hub| from_hub(hub)).map_err(|reason| {
            let name = metadata["name"].as_str().unwrap_or_default();
            format!("conversion failed to version {} for kind {} of {name:?}: {reason}", to.version, to.kind)
        })?;
        restore_metadata(&mut converted, metadata);
        Ok(converted)
    }
}

/// Restores the original metadata except for labels and annotations: the API server allows no other changes, and the
/// types may not know every field.
fn restore_metadata(converted: &mut Value, mut metadata: Value) {
    for changeable in ["labels", "annotations"] {
        match converted["metadata"].get_mut(changeable).map(Value::take) {
            Some(value) => metadata[changeable] = value,
            None => drop(metadata.as_object_mut().and_then(|fields| fields.remove(changeable))),
        }
    }
    converted["metadata"] = metadata;
}

/// Sets the defaults of the object, and encodes it.
fn encode_with_defaults<K: Kind>(mut object: K) -> Result<Value, String> {
    object.set_defaults();
    Ok(Decoded::new(object)?.encoded)
}
