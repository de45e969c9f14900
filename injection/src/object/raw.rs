//! The JSON of an object from the API server, scanned but not decoded.

use std::{borrow::Cow, sync::Arc};

use kube::discovery::ApiResource;
use reknit_apis::Key;
use serde::Serialize;

use super::{Malformed, Object, ObjectParts, ObjectState, Scanner, explain};
use crate::informer::cached::Cached;

/// The fields of an object as they are written. The fields that identify an object and its state are parsed, so an
/// informer knows them even if the object cannot be decoded.
#[derive(Default)]
pub(crate) struct RawObject<'a> {
    api_version: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    metadata: Metadata<'a>,
    rest: Fields<'a>,
}

#[derive(Default)]
struct Metadata<'a> {
    name: Cow<'a, str>,
    namespace: Option<Cow<'a, str>>,
    uid: Option<Cow<'a, str>>,
    resource_version: Option<Cow<'a, str>>,
    managed_fields: Option<&'a str>,
    deletion: Deletion,
    rest: Fields<'a>,
}

/// The progress of an object's deletion.
#[derive(Default)]
struct Deletion {
    has_timestamp: bool,
    grace_period: Option<i64>,
    has_finalizers: bool,
}

/// Fields as they are written, in their order.
type Fields<'a> = Vec<(Cow<'a, str>, &'a str)>;

impl<'a> RawObject<'a> {
    /// Scans a text that contains one object. Fails if its metadata is malformed.
    pub(crate) fn scan_text(text: &'a str) -> Result<Self, Malformed> {
        Scanner::over(text, Self::scan)
    }

    /// Scans the next value as an object.
    pub(crate) fn scan(scanner: &mut Scanner<'a>) -> Result<Self, Malformed> {
        let mut object = Self::default();
        scanner.object(|name, scanner| {
            match &*name {
                "apiVersion" => object.api_version = scanner.string_or_null()?,
                "kind" => object.kind = scanner.string_or_null()?,
                "metadata" => object.metadata = Metadata::scan(scanner)?,
                _ => object.rest.push((name, scanner.value()?)),
            }
            Ok(())
        })?;
        Ok(object)
    }

    pub(crate) fn key(&self) -> Key {
        self.state().key()
    }

    pub(crate) fn state(&self) -> ObjectState<'_> {
        let Metadata { name, namespace, uid, .. } = &self.metadata;
        let resource_version = self.resource_version();
        ObjectState { namespace: namespace.as_deref(), name, uid: uid.as_deref(), resource_version }
    }

    pub(crate) fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }

    /// The fields other than `apiVersion`, `kind` and the metadata.
    pub(crate) fn rest(&self) -> &[(Cow<'a, str>, &'a str)] {
        &self.rest
    }

    /// The fields of the metadata other than name, namespace, uid, resourceVersion and `managedFields`.
    pub(crate) fn rest_of_metadata(&self) -> &[(Cow<'a, str>, &'a str)] {
        &self.metadata.rest
    }

    pub(crate) fn managed_fields(&self) -> Option<&'a str> {
        self.metadata.managed_fields
    }

    /// Returns true if the object has the `apiVersion` and the `kind` of this Kind.
    pub(crate) fn is_of(&self, kind: &ApiResource) -> bool {
        self.api_version.as_deref() == Some(&kind.api_version) && self.kind.as_deref() == Some(&kind.kind)
    }

    /// Returns true if the object in a response no longer exists. `is_deletion` is true if the request was a deletion.
    ///
    /// The response to a deletion contains the object without a deletionTimestamp if neither a finalizer nor a grace
    /// period delays the deletion. The response to an update that removes the last finalizer contains an object that
    /// has just been deleted. A terminating Namespace never counts as gone: it has no grace period, and its finalizers
    /// are in its spec.
    pub(crate) fn is_gone(&self, is_deletion: bool) -> bool {
        match self.metadata.deletion {
            Deletion { has_timestamp: false, .. } => is_deletion,
            Deletion { has_finalizers, grace_period, .. } => !has_finalizers && grace_period == Some(0),
        }
    }

    /// Encodes the object for the cache. The error is the reason why it cannot be encoded.
    pub(crate) fn encode<K: Cached>(
        &self,
        kind: &ApiResource,
        keep_managed_fields: bool,
    ) -> Result<Object, String> {
        let encoded = self.try_encode::<K>(keep_managed_fields).map_err(|error| explain(&error, kind))?;
        encoded.ok_or_else(|| "it is too large".into())
    }

    /// Returns true if the cached object is the [encoding](Self::encode) of this one, apart from the fields of its
    /// [state](Self::state). Copies nothing, unlike an encoding, and so returns false if the name of a field has an escape.
    pub(crate) fn is_encoded_as<K: Cached>(&self, cached: &Object, keep_managed_fields: bool) -> bool {
        let [metadata, rest] = cached.fields();
        let managed_fields = self.metadata.managed_fields.filter(|_| keep_managed_fields);
        let managed_fields = managed_fields.map(|value| (Cow::Borrowed("managedFields"), value));
        let rest_fields: &[_] = if K::metadata_api() { &[] } else { &self.rest };
        are_written_as(self.metadata.rest.iter().chain(&managed_fields), metadata)
            && are_written_as(rest_fields.iter(), rest)
    }

    fn try_encode<K: Cached>(&self, keep_managed_fields: bool) -> serde_json::Result<Option<Object>> {
        let managed_fields = self.metadata.managed_fields.filter(|_| keep_managed_fields);
        let mut metadata = write_fields(&self.metadata.rest)?;
        if let Some(fields) = managed_fields {
            append_field(&mut metadata, "managedFields", fields)?;
        }
        let rest = if K::metadata_api() { Vec::new() } else { write_fields(&self.rest)? };
        let Deletion { has_timestamp, grace_period, .. } = self.metadata.deletion;
        let is_terminating = has_timestamp && grace_period > Some(0);
        Ok(Object::new(&ObjectParts {
            state: self.state(),
            is_terminating,
            metadata: &metadata,
            rest: &rest,
        }))
    }
}

/// Returns the fields of a JSON object without its braces.
fn write_fields(fields: &Fields<'_>) -> serde_json::Result<Vec<u8>> {
    let length = fields.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    let mut text = Vec::with_capacity(length);
    for (key, value) in fields {
        append_field(&mut text, key, value)?;
    }
    Ok(text)
}

fn append_field(text: &mut Vec<u8>, key: &str, value: &str) -> serde_json::Result<()> {
    if !text.is_empty() {
        text.push(b',');
    }
    serde_json::to_writer(&mut *text, key)?;
    text.push(b':');
    text.extend_from_slice(value.as_bytes());
    Ok(())
}

/// Returns true if the text consists of these fields, as [`write_fields`] writes them, and no name has an escape.
fn are_written_as<'a>(fields: impl Iterator<Item = &'a (Cow<'a, str>, &'a str)>, text: &str) -> bool {
    let mut left = Some(text);
    for (number, (key, value)) in fields.enumerate() {
        let field = if number == 0 { left } else { left.and_then(|left| left.strip_prefix(',')) };
        let Cow::Borrowed(key) = key else { return false };
        let at_colon =
            field.and_then(|field| field.strip_prefix('"')?.strip_prefix(key)?.strip_prefix("\":"));
        left = at_colon.and_then(|left| left.strip_prefix(value));
    }
    left == Some("")
}

impl<'a> Metadata<'a> {
    fn scan(scanner: &mut Scanner<'a>) -> Result<Self, Malformed> {
        let mut metadata = Self::default();
        scanner.object(|name, scanner| {
            match &*name {
                "name" => metadata.name = scanner.string()?,
                "namespace" => metadata.namespace = scanner.string_or_null()?,
                "uid" => metadata.uid = scanner.string_or_null()?,
                "resourceVersion" => metadata.resource_version = scanner.string_or_null()?,
                "managedFields" => metadata.managed_fields = Some(scanner.value()?),
                _ => {
                    let value = scanner.value()?;
                    metadata.deletion.read_field(&name, value);
                    metadata.rest.push((name, value));
                }
            }
            Ok(())
        })?;
        Ok(metadata)
    }
}

impl Deletion {
    /// Reads a field of the metadata. Ignores malformed values: decoding the object fails for them.
    fn read_field(&mut self, field: &str, value: &str) {
        match field {
            "deletionTimestamp" => self.has_timestamp = value != "null",
            "deletionGracePeriodSeconds" => self.grace_period = value.parse().ok(),
            "finalizers" => self.has_finalizers = !matches!(value, "null" | "[]"),
            _ => {}
        }
    }
}

/// Encodes a typed object, and decodes it again, as a read from the cache does.
pub(crate) fn encode<K: Cached + Serialize>(
    object: &K,
    kind: &ApiResource,
) -> Result<(Object, Arc<K>), String> {
    let text = serde_json::to_string(object).map_err(|error| explain(&error, kind))?;
    let raw = RawObject::scan_text(&text).map_err(|error| error.to_string())?;
    let keep_managed_fields = true;
    let encoded = raw.encode::<K>(kind, keep_managed_fields)?;
    let decoded = encoded.decode(kind)?;
    Ok((encoded, Arc::new(decoded)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::{Resource, api::DynamicObject};

    use super::*;

    /// Values of `keep_managed_fields`.
    const KEEP: bool = true;
    const DROP: bool = false;

    const MAP: &str = r#"{"metadata":{"name":"m","namespace":"n","uid":"u","resourceVersion":"5",
        "managedFields":[{"manager":"a]}\"","fieldsV1":{"f:data":{}}}],"labels":{"a":"b"}},"data":{"k":"v"}}"#;

    fn kind<K: Resource<DynamicType = ()>>() -> ApiResource {
        ApiResource::erase::<K>(&())
    }

    fn decode<K: Cached<DynamicType = ()>>(
        raw: &RawObject<'_>,
        keep_managed_fields: bool,
    ) -> Result<K, String> {
        raw.encode::<K>(&kind::<K>(), keep_managed_fields)?.decode(&kind::<K>())
    }

    #[test]
    fn only_managed_fields_are_dropped() {
        let raw = RawObject::scan_text(MAP).unwrap();
        let object: ConfigMap = decode(&raw, DROP).unwrap();
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(object.metadata.labels.as_ref().unwrap()["a"], "b");
        assert_eq!(object.data.as_ref().unwrap()["k"], "v");
        let bytes = raw.encode::<ConfigMap>(&kind::<ConfigMap>(), DROP).unwrap().len();
        assert!(bytes < MAP.len() - 40, "{bytes} bytes are kept of {}", MAP.len());
    }

    #[test]
    fn managed_fields_are_kept_on_request() {
        let raw = RawObject::scan_text(MAP).unwrap();
        let kept: ConfigMap = decode(&raw, KEEP).unwrap();
        assert_eq!(kept.metadata.managed_fields.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn an_object_is_compared_with_its_encoding_as_it_is_written() {
        let encoded = |keep| {
            RawObject::scan_text(MAP).unwrap().encode::<ConfigMap>(&kind::<ConfigMap>(), keep).unwrap()
        };
        let is_encoded_as = |text: &str, cached: &Object, keep| {
            RawObject::scan_text(text).unwrap().is_encoded_as::<ConfigMap>(cached, keep)
        };
        for keep in [KEEP, DROP] {
            assert!(is_encoded_as(MAP, &encoded(keep), keep) && !is_encoded_as(MAP, &encoded(keep), !keep));
        }
        for (from, to) in
            [(":\"v\"", ":\"w\""), (":\"b\"", ":\"c\""), ("\"data\"", "\"binaryData\""), ("}}", "},\"x\":1}")]
        {
            assert!(!is_encoded_as(&MAP.replace(from, to), &encoded(DROP), DROP), "{to}");
        }
    }

    #[test]
    fn an_undecodable_object_still_has_a_key_and_a_version() {
        let raw = RawObject::scan_text(
            r#"{"metadata":{"name":"m","namespace":"n","resourceVersion":"5"},"data":3}"#,
        )
        .unwrap();
        assert!(decode::<ConfigMap>(&raw, DROP).is_err());
        assert_eq!((raw.key(), raw.resource_version()), (Key::new("n", "m"), "5"));
    }

    #[test]
    fn the_error_for_a_secret_quotes_no_value() {
        let raw =
            RawObject::scan_text(r#"{"metadata":{"name":"m"},"data":{"password":{"hunter2":1}},"type":17}"#)
                .unwrap();
        let error = decode::<Secret>(&raw, DROP).unwrap_err();
        let string_data = RawObject::scan_text(r#"{"metadata":{"name":"m"},"data":"hunter2"}"#).unwrap();
        let string_error = decode::<Secret>(&string_data, DROP).unwrap_err();
        assert!(!error.contains("hunter2") && !string_error.contains("hunter2"), "{error} {string_error}");
        assert_eq!(error, "data.password: a value of the wrong form");
        let config_map_error = decode::<ConfigMap>(&string_data, DROP).unwrap_err();
        assert!(config_map_error.contains("hunter2"), "errors for other Kinds quote it: {config_map_error}");
    }

    #[test]
    fn a_dynamic_object_is_decoded_with_its_api_version_and_kind() {
        let kind = kind::<ConfigMap>();
        let cached = RawObject::scan_text(MAP).unwrap().encode::<DynamicObject>(&kind, DROP).unwrap();
        let object: DynamicObject = cached.decode(&kind).unwrap();
        assert_eq!(object.types.unwrap().kind, "ConfigMap");
    }

    #[test]
    fn the_metadata_in_a_response_shows_whether_the_object_is_gone() {
        let is_gone = |metadata: &str, is_deletion| {
            let text = format!(r#"{{"metadata":{{"name":"m"{metadata}}}}}"#);
            RawObject::scan_text(&text).unwrap().is_gone(is_deletion)
        };
        let terminating = r#","deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":0"#;
        let (write, deletion) = (false, true);
        assert!(is_gone("", deletion) && !is_gone("", write), "nothing delays the deletion");
        assert!(is_gone(terminating, write) && is_gone(&format!(r#"{terminating},"finalizers":[]"#), write));
        assert!(
            !is_gone(&format!(r#"{terminating},"finalizers":["example.com/a"]"#), deletion),
            "a finalizer delays the deletion"
        );
        assert!(!is_gone(&terminating.replace(":0", ":30"), deletion), "it has a grace period");
    }
}
