//! An object as the API server wrote it, scanned but not decoded.

use std::{borrow::Cow, sync::Arc};

use kube::discovery::ApiResource;
use reknit_apis::Key;
use serde::Serialize;

use super::{Malformed, Object, ObjectState, Parts, Scanner, explain};
use crate::informer::cached::Cached;

/// The fields of an object as they are written, and the few that an informer must know even if the rest cannot be
/// decoded.
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
    /// Scans a text that holds one object. Fails if not even the metadata can be read.
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

    /// Returns true if the object names this Kind and version as its own.
    pub(crate) fn is_of(&self, kind: &ApiResource) -> bool {
        self.api_version.as_deref() == Some(&kind.api_version) && self.kind.as_deref() == Some(&kind.kind)
    }

    /// Returns true if the object in an answer no longer exists; `deletion` says whether it answers a deletion.
    ///
    /// The answer to a deletion holds the object as it was if nothing holds it back. The answer to an update that
    /// removes the last finalizer holds an object that has just been deleted. A namespace, whose finalizers are in its
    /// spec, has no grace period.
    pub(crate) fn is_gone(&self, deletion: bool) -> bool {
        match self.metadata.deletion {
            Deletion { has_timestamp: false, .. } => deletion,
            Deletion { has_finalizers, grace_period, .. } => !has_finalizers && grace_period == Some(0),
        }
    }

    /// Encodes the object as it is cached, or says why it cannot be.
    pub(crate) fn encode<K: Cached>(
        &self,
        kind: &ApiResource,
        managed_fields: bool,
    ) -> Result<Object, String> {
        let encoded = self.try_encode::<K>(managed_fields).map_err(|error| explain(&error, kind))?;
        encoded.ok_or_else(|| "it is too large".into())
    }

    fn try_encode<K: Cached>(&self, managed_fields: bool) -> serde_json::Result<Option<Object>> {
        let managed_fields = self.metadata.managed_fields.filter(|_| managed_fields);
        let mut metadata = write(&self.metadata.rest)?;
        if let Some(fields) = managed_fields {
            append(&mut metadata, "managedFields", fields)?;
        }
        let rest = if K::metadata_api() { Vec::new() } else { write(&self.rest)? };
        let Deletion { has_timestamp, grace_period, .. } = self.metadata.deletion;
        let is_terminating = has_timestamp && grace_period > Some(0);
        Ok(Object::new(&Parts { state: self.state(), is_terminating, metadata: &metadata, rest: &rest }))
    }
}

/// Writes fields as the inside of a JSON object.
fn write(fields: &Fields<'_>) -> serde_json::Result<Vec<u8>> {
    let length = fields.iter().map(|(key, value)| key.len() + value.len() + 4).sum();
    let mut text = Vec::with_capacity(length);
    for (key, value) in fields {
        append(&mut text, key, value)?;
    }
    Ok(text)
}

fn append(text: &mut Vec<u8>, key: &str, value: &str) -> serde_json::Result<()> {
    if !text.is_empty() {
        text.push(b',');
    }
    serde_json::to_writer(&mut *text, key)?;
    text.push(b':');
    text.extend_from_slice(value.as_bytes());
    Ok(())
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
                    metadata.deletion.read(&name, value);
                    metadata.rest.push((name, value));
                }
            }
            Ok(())
        })?;
        Ok(metadata)
    }
}

impl Deletion {
    /// Reads a field of the metadata. Decoding shows whether its value is of the right form.
    fn read(&mut self, field: &str, value: &str) {
        match field {
            "deletionTimestamp" => self.has_timestamp = value != "null",
            "deletionGracePeriodSeconds" => self.grace_period = value.parse().ok(),
            "finalizers" => self.has_finalizers = !matches!(value, "null" | "[]"),
            _ => {}
        }
    }
}

/// Encodes a typed object, and decodes it again as a reader will see it.
pub(crate) fn encode<K: Cached + Serialize>(
    object: &K,
    kind: &ApiResource,
) -> Result<(Object, Arc<K>), String> {
    let text = serde_json::to_string(object).map_err(|error| explain(&error, kind))?;
    let raw = RawObject::scan_text(&text).map_err(|error| error.to_string())?;
    let encoded = raw.encode::<K>(kind, true)?;
    let decoded = encoded.decode(kind)?;
    Ok((encoded, Arc::new(decoded)))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::{Resource, api::DynamicObject};

    use super::*;

    const MAP: &str = r#"{"metadata":{"name":"m","namespace":"n","uid":"u","resourceVersion":"5",
        "managedFields":[{"manager":"a]}\"","fieldsV1":{"f:data":{}}}],"labels":{"a":"b"}},"data":{"k":"v"}}"#;

    fn kind<K: Resource<DynamicType = ()>>() -> ApiResource {
        ApiResource::erase::<K>(&())
    }

    fn decode<K: Cached<DynamicType = ()>>(raw: &RawObject<'_>, managed_fields: bool) -> Result<K, String> {
        raw.encode::<K>(&kind::<K>(), managed_fields)?.decode(&kind::<K>())
    }

    #[test]
    fn managed_fields_are_dropped_and_nothing_else() {
        let raw = RawObject::scan_text(MAP).unwrap();
        let object: ConfigMap = decode(&raw, false).unwrap();
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(object.metadata.labels.as_ref().unwrap()["a"], "b");
        assert_eq!(object.data.as_ref().unwrap()["k"], "v");
        let bytes = raw.encode::<ConfigMap>(&kind::<ConfigMap>(), false).unwrap().len();
        assert!(bytes < MAP.len() - 40, "{bytes} bytes are held of {}", MAP.len());
    }

    #[test]
    fn managed_fields_are_kept_on_request() {
        let raw = RawObject::scan_text(MAP).unwrap();
        let kept: ConfigMap = decode(&raw, true).unwrap();
        assert_eq!(kept.metadata.managed_fields.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn an_undecodable_object_still_has_a_key_and_a_version() {
        let raw = RawObject::scan_text(
            r#"{"metadata":{"name":"m","namespace":"n","resourceVersion":"5"},"data":3}"#,
        )
        .unwrap();
        assert!(decode::<ConfigMap>(&raw, false).is_err());
        assert_eq!((raw.key(), raw.resource_version()), (Key::new("n", "m"), "5"));
    }

    #[test]
    fn the_error_for_a_secret_quotes_no_value() {
        let raw =
            RawObject::scan_text(r#"{"metadata":{"name":"m"},"data":{"password":{"hunter2":1}},"type":17}"#)
                .unwrap();
        let error = decode::<Secret>(&raw, false).unwrap_err();
        let quoting = RawObject::scan_text(r#"{"metadata":{"name":"m"},"data":"hunter2"}"#).unwrap();
        let quoted = decode::<Secret>(&quoting, false).unwrap_err();
        assert!(!error.contains("hunter2") && !quoted.contains("hunter2"), "{error} {quoted}");
        assert_eq!(error, "data.password: a value of the wrong form");
        let map = decode::<ConfigMap>(&quoting, false).unwrap_err();
        assert!(map.contains("hunter2"), "elsewhere the value helps: {map}");
    }

    #[test]
    fn a_dynamic_object_is_decoded_with_its_api_version_and_kind() {
        let kind = kind::<ConfigMap>();
        let cached = RawObject::scan_text(MAP).unwrap().encode::<DynamicObject>(&kind, false).unwrap();
        let object: DynamicObject = cached.decode(&kind).unwrap();
        assert_eq!(object.types.unwrap().kind, "ConfigMap");
    }

    #[test]
    fn an_answer_shows_without_decoding_whether_its_object_is_gone() {
        let gone = |metadata: &str, deletion| {
            let text = format!(r#"{{"metadata":{{"name":"m"{metadata}}}}}"#);
            RawObject::scan_text(&text).unwrap().is_gone(deletion)
        };
        let deleted = r#","deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":0"#;
        assert!(gone("", true) && !gone("", false), "nothing holds it back");
        assert!(gone(deleted, false) && gone(&format!(r#"{deleted},"finalizers":[]"#), false));
        assert!(
            !gone(&format!(r#"{deleted},"finalizers":["example.com/a"]"#), true),
            "a finalizer holds it back"
        );
        assert!(!gone(&deleted.replace(":0", ":30"), true), "it is given time");
    }
}
