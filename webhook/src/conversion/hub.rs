//! Conversion of objects between versions by way of the hub, the version that can represent all others.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use kube::{CustomResourceExt, core::Status};
use reknit_apis::{ConversionError, Convertible, Kind};
use reknit_injection::internal::panic_message;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, SeqAccess, Visitor},
};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use super::{partial, unknown_fields};
use crate::{
    admission::{
        decoding::{Decoded, Definition, Definitions, decode},
        group_version_kind::GroupVersionKind,
    },
    decoded_size::{DECODED_PER_BYTE, DecodedSize},
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
    is_hub: bool,
    /// True if the type of the version can decode an object.
    decodes: Arc<dyn Fn(&Value) -> bool + Send + Sync>,
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

/// The reason of the status with which a failed conversion is answered.
const FAILED_REASON: &str = "ConversionFailed";

/// The number of failed objects after which a conversion stops. Its message names all of them.
const MAX_FAILURES: usize = 20;

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
            is_hub: true,
            decodes: Arc::new(|value| decode::<K::Hub>(value, &Value::Null).is_ok()),
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
            is_hub: false,
            decodes: Arc::new(|value| decode::<K>(value, &Value::Null).is_ok()),
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
        let (mut converted_objects, mut failures) = (Vec::new(), Vec::new());
        for object in request.objects {
            match self.convert_text(object, version, max_bytes) {
                Ok(converted) => converted_objects.push(converted),
                Err(reason) => failures.push(reason),
            }
            if failures.len() == MAX_FAILURES {
                failures.push("and perhaps others".into());
                break;
            }
        }
        let result = match failures.is_empty() {
            true => Status::success(),
            false => {
                converted_objects.clear();
                Status::failure(&failures.join("; "), FAILED_REASON)
            }
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
        // Twice that of a review: a list that has an object fails with it, so an object that etcd stores has to be less.
        if DecodedSize::of(text).bytes() > max_bytes.saturating_mul(2 * DECODED_PER_BYTE) {
            return Err("an object has too many fields and items".into());
        }
        let object: Value = serde_json::from_str(text).map_err(|error| {
            let ObjectName { kind, metadata } = serde_json::from_str(text).unwrap_or_default();
            format!("could not decode {kind} {:?}: {error}", full_name(&metadata.namespace, &metadata.name))
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
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let name = full_name(text("namespace"), text("name"));
        let convert = AssertUnwindSafe(|| convert_through_hub(&object, from, to_version));
        let converted = catch_unwind(convert).unwrap_or_else(|panic| {
            let message = panic_message(&*panic);
            resume_unwind(Box::new(format!("{message}, in the conversion of {} {name:?}", to.kind)))
        });
        let mut converted = converted.map_err(|reason| {
            format!("conversion failed to version {} for kind {} of {name:?}: {reason}", to.version, to.kind)
        })?;
        converted["apiVersion"] = json!(version);
        converted["kind"] = json!(to.kind);
        restore_metadata(&mut converted, metadata);
        let (schema, converted_schema) = (from.definition.schema(), to_version.definition.schema());
        unknown_fields::keep(object, schema, &mut converted, converted_schema);
        Ok(converted)
    }
}

fn convert_through_hub(
    object: &Value,
    from: &VersionConversion,
    to: &VersionConversion,
) -> Result<Value, String> {
    let convert = |object| (from.to_hub)(object).and_then(|hub| (to.from_hub)(hub));
    let schema = from.definition.schema();
    let missing = partial::missing_fields(object, schema);
    if !missing.is_empty() && partial::is_only_metadata(object) {
        return Ok(object.clone());
    }
    let reason = match convert(object.clone()) {
        Ok(converted) => return Ok(converted),
        Err(reason) => reason,
    };
    if !from.can_read(object) {
        if let Some(rest) = without_status(object, from).filter(|rest| from.can_read(rest)) {
            return convert_through_hub(&rest, from, to);
        }
        // An object with a value of a wrong type comes from a client, unless it is stored in the hub version. It is let
        // through, so that the schema or the webhook of the version to which it is converted refuses it with the field.
        // A failed conversion would be an internal error.
        if !from.is_hub {
            return Ok(object.clone());
        }
    }
    if missing.is_empty() {
        return Err(reason);
    }
    partial::convert(object, schema, convert).ok_or_else(|| {
        format!(
            "{reason}. The object lacks {}, as objects do that the API server converts for server-side apply, and the \
             conversion refuses every value for it: let the type of the field, `into_hub` and `from_hub` accept any \
             value, or make the field optional",
            missing.join(", ")
        )
    })
}

/// Returns the object without its status, if the status is a subresource. A status that cannot be decoded, such as that
/// of a newer release, counts as absent, as it does for controllers: the API server converts the objects of a list
/// together, so that an error would hide all others.
fn without_status(object: &Value, version: &VersionConversion) -> Option<Value> {
    let mut rest = object.clone();
    let fields = rest.as_object_mut().filter(|_| version.definition.has_status_subresource)?;
    fields.remove("status")?;
    Some(rest)
}

impl VersionConversion {
    /// Returns true if the type of the version can decode an object, at least with values for the fields that it lacks.
    fn can_read(&self, object: &Value) -> bool {
        partial::is_readable(object, self.definition.schema(), &*self.decodes)
    }
}

/// The Kind and the name of an object whose other fields cannot be decoded.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ObjectName {
    kind: String,
    pub(super) metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The name of an object with its namespace, if it has one.
pub(super) fn full_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}") }
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
