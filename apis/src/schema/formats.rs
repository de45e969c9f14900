//! Integer formats that Kubernetes knows.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

use crate::json::shortest;

/// Replaces an integer format that only schemars has, and drops `duration`, which has another meaning in Kubernetes.
/// The bounds are those of the Rust type.
///
/// The API server stores integers of at most 64 bits with a sign, so larger types get the format `int64` too.
pub(super) fn use_known_format(node: &mut JSONSchemaProps) {
    let (format, bounds) = match node.format.as_deref() {
        Some("int8") => ("int32", Some((i8::MIN.into(), i8::MAX.into()))),
        Some("int16") => ("int32", Some((i16::MIN.into(), i16::MAX.into()))),
        Some("uint8") => ("int32", Some((0.0, u8::MAX.into()))),
        Some("uint16") => ("int32", Some((0.0, u16::MAX.into()))),
        Some("uint32") => ("int64", Some((0.0, u32::MAX.into()))),
        Some("uint64" | "uint128" | "uint") => {
            node.minimum.get_or_insert(0.0);
            ("int64", None)
        }
        Some("int128" | "int") => ("int64", None),
        // Types of Rust with this format serialize to ISO 8601, and the API server accepts only Go's durations for it.
        Some("duration") => {
            node.format = None;
            return;
        }
        _ => return,
    };
    node.format = Some(format.into());
    if let Some((minimum, maximum)) = bounds {
        node.minimum.get_or_insert(minimum);
        node.maximum.get_or_insert(maximum);
    }
}

/// Writes each `f32` of the default of a schema with the fewest digits that distinguish it: schemars writes 0.1 as
/// 0.10000000149011612, which exceeds a maximum of 0.1.
pub(super) fn shorten_default(node: &mut JSONSchemaProps) {
    let Some(mut default) = node.default.take() else { return };
    shorten(&mut default.0, node);
    node.default = Some(default);
}

fn shorten(value: &mut Value, schema: &JSONSchemaProps) {
    match value {
        Value::Number(number) if schema.format.as_deref() == Some("float") && number.is_f64() => {
            if let Some(number) = number.as_f64() {
                *value = shortest(number as f32);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let of_map = match &schema.additional_properties {
                    Some(JSONSchemaPropsOrBool::Schema(values)) => Some(&**values),
                    _ => None,
                };
                let property = schema.properties.as_ref().and_then(|fields| fields.get(name)).or(of_map);
                property.into_iter().for_each(|schema| shorten(field, schema));
            }
        }
        Value::Array(items) => {
            if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
                items.iter_mut().for_each(|item| shorten(item, schema));
            }
        }
        _ => {}
    }
}
