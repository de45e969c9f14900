//! Integer formats that Kubernetes knows.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;

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
