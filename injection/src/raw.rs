//! One object as the API server wrote it, before anybody asks whether it can be decoded.

use std::{borrow::Cow, sync::Arc};

use kube::discovery::ApiResource;
use reknit_apis::Key;
use serde::Serialize;

use crate::{
    extensions::Newest,
    informer::Cached,
    record::{Parts, Record, explain},
    scan::{Malformed, Scanner},
    store::State,
};

/// An object's fields, and of them the few that an informer must know even where the rest cannot be decoded.
#[derive(Default)]
pub(crate) struct Raw<'a> {
    api_version: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    metadata: Meta<'a>,
    rest: Fields<'a>,
}

#[derive(Default)]
struct Meta<'a> {
    name: Cow<'a, str>,
    namespace: Option<Cow<'a, str>>,
    uid: Option<Cow<'a, str>>,
    resource_version: Option<Cow<'a, str>>,
    managed_fields: Option<&'a str>,
    /// What is looked at of the rest.
    ending: Ending,
    rest: Fields<'a>,
}

/// How far an object is on its way to be gone.
#[derive(Default)]
struct Ending {
    /// Has a deletionTimestamp.
    begun: bool,
    grace_period: Option<i64>,
    /// Finalizers hold it back.
    held_back: bool,
}

/// Fields as they were written, in their order.
type Fields<'a> = Vec<(Cow<'a, str>, &'a str)>;

impl<'a> Raw<'a> {
    /// `Err` where not even the metadata can be read.
    pub(crate) fn read(text: &'a str) -> Result<Self, Malformed> {
        Scanner::over(text, Self::scan)
    }

    /// The object that comes next.
    pub(crate) fn scan(scanner: &mut Scanner<'a>) -> Result<Self, Malformed> {
        let mut object = Self::default();
        scanner.object(|name, scanner| {
            match &*name {
                "apiVersion" => object.api_version = scanner.string_or_null()?,
                "kind" => object.kind = scanner.string_or_null()?,
                "metadata" => object.metadata = Meta::scan(scanner)?,
                _ => object.rest.push((name, scanner.value()?)),
            }
            Ok(())
        })?;
        Ok(object)
    }

    pub(crate) fn key(&self) -> Key {
        self.state().key()
    }

    pub(crate) fn state(&self) -> State<'_> {
        let Meta { name, namespace, uid, .. } = &self.metadata;
        let resource_version = self.version();
        State { namespace: namespace.as_deref(), name, uid: uid.as_deref(), resource_version }
    }

    pub(crate) fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }

    /// Whether it says that it is an object of this Kind and version.
    pub(crate) fn is_of(&self, kind: &ApiResource) -> bool {
        self.api_version.as_deref() == Some(&kind.api_version) && self.kind.as_deref() == Some(&kind.kind)
    }

    /// Whether an object in an answer is no longer there. A deletion answers with the object as it was where nothing
    /// holds it back; an update that takes away the last finalizer answers with an object that has just been deleted.
    /// (A namespace, whose finalizers are in its spec, has no grace period.)
    pub(crate) fn is_gone(&self, deleting: bool) -> bool {
        match self.metadata.ending {
            Ending { begun: false, .. } => deleting,
            Ending { held_back, grace_period, .. } => !held_back && grace_period == Some(0),
        }
    }

    pub(crate) fn status(&self) -> Option<&'a str> {
        self.rest.iter().find(|(field, _)| field == "status").map(|(_, value)| *value)
    }

    /// What the next write to it has to know; none where its finalizers are no list of texts.
    pub(crate) fn newest(&self) -> Option<Newest> {
        let finalizers = self.metadata.rest.iter().find(|(field, _)| field == "finalizers");
        let finalizers = finalizers.map_or(Ok(None), |(_, value)| serde_json::from_str(value)).ok()?;
        Some(Newest {
            resource_version: self.metadata.resource_version.as_deref().map(Into::into),
            finalizers,
        })
    }

    /// What will be held of it, or why it cannot be held.
    pub(crate) fn pack<K: Cached>(&self, kind: &ApiResource, managed_fields: bool) -> Result<Record, String> {
        let packed = self.packed::<K>(managed_fields).map_err(|error| explain(&error, kind))?;
        packed.ok_or_else(|| "it is too large".into())
    }

    fn packed<K: Cached>(&self, managed_fields: bool) -> serde_json::Result<Option<Record>> {
        let managed_fields = self.metadata.managed_fields.filter(|_| managed_fields);
        let mut metadata = write(&self.metadata.rest)?;
        if let Some(fields) = managed_fields {
            append(&mut metadata, "managedFields", fields)?;
        }
        let rest = if K::metadata_api() { Vec::new() } else { write(&self.rest)? };
        let Ending { begun, grace_period, .. } = self.metadata.ending;
        let lingers = begun && grace_period > Some(0);
        Ok(Record::of(&Parts { state: self.state(), lingers, metadata: &metadata, rest: &rest }))
    }
}

/// As the inside of a JSON object.
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

impl<'a> Meta<'a> {
    fn scan(scanner: &mut Scanner<'a>) -> Result<Self, Malformed> {
        let mut meta = Self::default();
        scanner.object(|name, scanner| {
            match &*name {
                "name" => meta.name = scanner.string()?,
                "namespace" => meta.namespace = scanner.string_or_null()?,
                "uid" => meta.uid = scanner.string_or_null()?,
                "resourceVersion" => meta.resource_version = scanner.string_or_null()?,
                "managedFields" => meta.managed_fields = Some(scanner.value()?),
                _ => {
                    let value = scanner.value()?;
                    meta.ending.note(&name, value);
                    meta.rest.push((name, value));
                }
            }
            Ok(())
        })?;
        Ok(meta)
    }
}

impl Ending {
    /// What a field of the metadata says of it; whether that is of the right form shows when the object is decoded.
    fn note(&mut self, field: &str, value: &str) {
        match field {
            "deletionTimestamp" => self.begun = value != "null",
            "deletionGracePeriodSeconds" => self.grace_period = value.parse().ok(),
            "finalizers" => self.held_back = !matches!(value, "null" | "[]"),
            _ => {}
        }
    }
}

/// What is held of an object that no API server has told of, and the object as it is read from that.
pub(crate) fn given<K: Cached + Serialize>(
    object: &K,
    kind: &ApiResource,
) -> Result<(Record, Arc<K>), String> {
    let text = serde_json::to_string(object).map_err(|error| explain(&error, kind))?;
    let raw = Raw::read(&text).map_err(|error| error.to_string())?;
    let mut record = raw.pack::<K>(kind, true)?;
    let object = record.packed().decode(kind)?;
    record.decodes();
    Ok((record, Arc::new(object)))
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

    fn decode<K: Cached<DynamicType = ()>>(raw: &Raw<'_>, managed_fields: bool) -> Result<K, String> {
        raw.pack::<K>(&kind::<K>(), managed_fields)?.packed().decode(&kind::<K>())
    }

    #[test]
    fn managed_fields_are_dropped_and_nothing_else() {
        let raw = Raw::read(MAP).unwrap();
        let object: ConfigMap = decode(&raw, false).unwrap();
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(object.metadata.labels.as_ref().unwrap()["a"], "b");
        assert_eq!(object.data.as_ref().unwrap()["k"], "v");
        let record = raw.pack::<ConfigMap>(&kind::<ConfigMap>(), false).unwrap();
        let bytes = record.packed().bytes().len();
        assert!(bytes < MAP.len() - 40, "{bytes} bytes are held of {}", MAP.len());
    }

    #[test]
    fn managed_fields_stay_where_asked_for() {
        let raw = Raw::read(MAP).unwrap();
        let kept: ConfigMap = decode(&raw, true).unwrap();
        assert_eq!(kept.metadata.managed_fields.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn an_undecodable_object_still_has_a_key_and_a_version() {
        let raw =
            Raw::read(r#"{"metadata":{"name":"m","namespace":"n","resourceVersion":"5"},"data":3}"#).unwrap();
        assert!(decode::<ConfigMap>(&raw, false).is_err());
        assert_eq!((raw.key(), raw.version()), (Key::new("n", "m"), "5"));
    }

    #[test]
    fn what_cannot_be_read_of_a_secret_is_not_told() {
        let raw =
            Raw::read(r#"{"metadata":{"name":"m"},"data":{"password":{"hunter2":1}},"type":17}"#).unwrap();
        let error = decode::<Secret>(&raw, false).unwrap_err();
        let quoting = Raw::read(r#"{"metadata":{"name":"m"},"data":"hunter2"}"#).unwrap();
        let quoted = decode::<Secret>(&quoting, false).unwrap_err();
        assert!(!error.contains("hunter2") && !quoted.contains("hunter2"), "{error} {quoted}");
        assert_eq!(error, "data.password: a value of the wrong form");
        let map = decode::<ConfigMap>(&quoting, false).unwrap_err();
        assert!(map.contains("hunter2"), "elsewhere the value helps: {map}");
    }

    #[test]
    fn a_dynamic_object_says_what_it_is_wherever_it_came_from() {
        let kind = kind::<ConfigMap>();
        let record = Raw::read(MAP).unwrap().pack::<DynamicObject>(&kind, false).unwrap();
        let object: DynamicObject = record.packed().decode(&kind).unwrap();
        assert_eq!(object.types.unwrap().kind, "ConfigMap");
    }

    #[test]
    fn whether_an_object_is_gone_is_known_without_decoding_it() {
        let gone = |metadata: &str, deleting| {
            let text = format!(r#"{{"metadata":{{"name":"m"{metadata}}}}}"#);
            Raw::read(&text).unwrap().is_gone(deleting)
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
