//! Conversion of objects between versions by way of the hub, the version that can represent all others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use kube::{CustomResourceExt, core::Status};
use reknit_apis::{ConversionError, Convertible, Kind};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, SeqAccess, Visitor},
};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::partial;
use crate::admission::{
    decoding::{Decoded, Definition, Definitions, decode},
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
    definition: Arc<Definition>,
    to_hub: Convert,
    from_hub: Convert,
    /// True if the type of the version can decode an object, and always for the hub, whose objects are stored.
    is_readable: Arc<dyn Fn(&Value) -> bool + Send + Sync>,
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
    #[serde(borrow, deserialize_with = "objects")]
    objects: Vec<&'a RawValue>,
}

/// The bytes of the smallest object, `{"apiVersion":"v1","kind":"A"}`.
const MIN_OBJECT: usize = 30;

/// Decodes a list of objects. An item that cannot be an object is refused at once: for each there is a pointer, which
/// would take many times the memory of a text such as `[0,0,0]`.
fn objects<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<&'a RawValue>, D::Error> {
    struct Objects;
    impl<'de> Visitor<'de> for Objects {
        type Value = Vec<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of objects")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
            let mut objects = Vec::new();
            while let Some(item) = items.next_element::<&RawValue>()? {
                if item.get().len() < MIN_OBJECT {
                    return Err(de::Error::custom(format_args!("item {} is not an object", objects.len())));
                }
                objects.push(item);
            }
            Ok(objects)
        }
    }
    deserializer.deserialize_seq(Objects)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConversionResponse {
    uid: String,
    result: Status,
    converted_objects: Vec<Box<RawValue>>,
}

impl Conversions {
    pub(crate) fn add<K>(&mut self, definitions: &mut Definitions)
    where
        K: Convertible<Hub: CustomResourceExt> + CustomResourceExt,
    {
        let crd_name = format!("{}.{}", K::plural(&()), K::group(&()));
        let to_text = |error: ConversionError| error.to_string();
        let hub = VersionConversion {
            crd_name: crd_name.clone(),
            definition: definitions.definition::<K::Hub>(),
            to_hub: Arc::new(Ok),
            from_hub: Arc::new(|value| encode_with_defaults(decode::<K::Hub>(&value, &Value::Null)?)),
            is_readable: Arc::new(|_| true),
        };
        let version = VersionConversion {
            crd_name,
            definition: definitions.definition::<K>(),
            to_hub: Arc::new(move |value| {
                Ok(Decoded::new(decode::<K>(&value, &Value::Null)?.into_hub().map_err(to_text)?)?.encoded)
            }),
            from_hub: Arc::new(move |value| {
                encode_with_defaults(K::from_hub(decode(&value, &Value::Null)?).map_err(to_text)?)
            }),
            is_readable: Arc::new(|value| decode::<K>(value, &Value::Null).is_ok()),
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
        let object: Value = serde_json::from_str(text).map_err(|error| {
            let ObjectName { kind, metadata } = serde_json::from_str(text).unwrap_or_default();
            format!("could not decode {kind} {:?}: {error}", metadata.name)
        })?;
        let converted = self.convert(object, version)?;
        to_raw_value(&converted).map_err(|error| error.to_string())
    }

    /// Converts an object, which may lack any field: for server-side apply, the API server converts what is left of an
    /// object after it has removed the fields of a manager.
    fn convert(&self, mut object: Value, version: &str) -> Result<Value, String> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let from = GroupVersionKind::new(object["apiVersion"].as_str().unwrap_or_default(), kind);
        let to = GroupVersionKind::new(version, kind);
        if from == to {
            return Ok(object);
        }
        let conversion = |kind| self.0.get(kind).ok_or_else(|| format!("no conversion support for {kind}"));
        let (from, to_version) = (conversion(&from)?, conversion(&to)?);
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        let metadata = object["metadata"].clone();
        let mut converted = convert_through_hub(object, from, to_version).map_err(|reason| {
            let name = metadata["name"].as_str().unwrap_or_default();
            format!("conversion failed to version {} for kind {} of {name:?}: {reason}", to.version, to.kind)
        })?;
        converted["apiVersion"] = json!(version);
        converted["kind"] = json!(to.kind);
        restore_metadata(&mut converted, metadata);
        Ok(converted)
    }
}

fn convert_through_hub(
    object: Value,
    from: &VersionConversion,
    to: &VersionConversion,
) -> Result<Value, String> {
    let convert = |object| (from.to_hub)(object).and_then(|hub| (to.from_hub)(hub));
    let schema = from.definition.schema();
    let missing = partial::missing_fields(&object, schema);
    if !missing.is_empty() && partial::is_only_metadata(&object) {
        return Ok(object);
    }
    let reason = match convert(object.clone()) {
        Ok(converted) => return Ok(converted),
        Err(reason) => reason,
    };
    // An object with a value of a wrong type comes from a client. It is let through, so that the schema or the webhook of
    // the version to which it is converted refuses it with the field. A failed conversion would be an internal error.
    if !partial::is_readable(&object, schema, &*from.is_readable) {
        return Ok(object);
    }
    if missing.is_empty() {
        return Err(reason);
    }
    partial::convert(&object, schema, convert).ok_or_else(|| {
        format!(
            "{reason}. The object lacks {}, as objects do that the API server converts for server-side apply, and the \
             conversion refuses every value for it: let `into_hub` and `from_hub` accept any value, or make the field \
             optional",
            missing.join(", ")
        )
    })
}

/// The Kind and the name of an object whose other fields cannot be decoded.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectName {
    kind: String,
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
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
