//! The cached form of an object: a small binary head and compact JSON, in one `Arc`.
//!
//! A decoded object takes about four times the memory of its JSON. The head holds the fields that the cache compares,
//! so they are read without decoding. `apiVersion` and `kind`, which all objects of an informer share, are left out and
//! added again when the object is decoded.

mod decode;
mod parts;
mod raw;
mod resource_version;
mod response_state;
mod scan;
mod state;

use std::{collections::BTreeMap, sync::Arc};

use kube::discovery::ApiResource;
use serde::{
    Deserialize,
    de::{DeserializeOwned, Error},
};
use serde_json::Value;

use self::decode::decode;
pub use self::parts::Parts;
pub(crate) use self::{
    decode::explain,
    raw::{RawObject, encode},
    resource_version::{ResourceVersion, raise},
    response_state::ResponseState,
    scan::{Malformed, Result as ScanResult, Scanner},
    state::ObjectState,
};
use crate::{redaction::Redaction, shallow::decode_object};

/// A cached object. A clone shares the bytes.
///
/// The text begins with the length of the rest of the metadata (four bytes), the lengths of namespace, name, uid and
/// resourceVersion (two bytes each) and the flags. The four texts follow, then the rest of the metadata and the rest of
/// the object, both as the fields of a JSON object without its braces. A byte of a length holds seven bits, so the whole is
/// a `str`, and its parts need no validation when they are read.
#[derive(Clone, Debug)]
pub(crate) struct Object(Arc<str>);

/// The fields from which an [`Object`] is made.
pub(crate) struct ObjectParts<'a> {
    pub(crate) state: ObjectState<'a>,
    /// True if the object is being deleted and has a grace period.
    pub(crate) is_terminating: bool,
    /// The rest of the metadata, and the rest of the object: JSON fields without the braces.
    pub(crate) metadata: &'a [u8],
    pub(crate) rest: &'a [u8],
}

/// The number of bytes of the head before the texts: five lengths and the flags.
const HEAD_LENGTH: usize = 13;
/// The number of bytes of the first length, that of the rest of the metadata.
const FIRST_LENGTH: usize = 4;

/// The bits of the flags.
const NAMESPACED: u8 = 1;
const HAS_UID: u8 = 2;
const TERMINATING: u8 = 4;

impl Object {
    /// Encodes the parts. `None` if a part is too long for its length field in the head. The API server accepts no part
    /// that long.
    pub(crate) fn new(parts: &ObjectParts<'_>) -> Option<Self> {
        let ObjectParts { state, is_terminating, metadata, rest } = parts;
        let texts = [state.namespace, Some(state.name), state.uid, Some(state.resource_version)]
            .map(Option::unwrap_or_default);
        let length = HEAD_LENGTH + texts.map(str::len).iter().sum::<usize>() + metadata.len() + rest.len();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(length_bytes::<FIRST_LENGTH>(metadata.len())?);
        for text in texts {
            bytes.extend(length_bytes::<2>(text.len())?);
        }
        let flag_if = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag_if(state.namespace.is_some(), NAMESPACED)
            | flag_if(state.uid.is_some(), HAS_UID)
            | flag_if(*is_terminating, TERMINATING);
        bytes.push(flags);
        texts.iter().for_each(|text| bytes.extend_from_slice(text.as_bytes()));
        bytes.extend_from_slice(metadata);
        bytes.extend_from_slice(rest);
        Some(Self(String::from_utf8(bytes).ok()?.into()))
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn state(&self) -> ObjectState<'_> {
        let [namespace, name, uid, resource_version] = self.texts();
        ObjectState {
            namespace: self.has_flag(NAMESPACED).then_some(namespace),
            name,
            uid: self.has_flag(HAS_UID).then_some(uid),
            resource_version,
        }
    }

    pub(crate) fn name(&self) -> &str {
        let [start, end, ..] = self.ends();
        &self.0[start..end]
    }

    pub(crate) fn version(&self) -> Option<ResourceVersion<'_>> {
        let [.., start, end] = self.ends();
        ResourceVersion::parse(&self.0[start..end])
    }

    /// Returns true if the uids and the resourceVersions are equal. False if the object has no resourceVersion.
    pub(crate) fn is_same_state(&self, state: &ObjectState<'_>) -> bool {
        let ObjectState { uid, resource_version, .. } = self.state();
        !resource_version.is_empty() && resource_version == state.resource_version && uid == state.uid
    }

    /// Returns true if the other object has the same text.
    pub(crate) fn is_identical(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Returns true if the object is being deleted and has a grace period.
    pub(crate) fn is_terminating(&self) -> bool {
        self.has_flag(TERMINATING)
    }

    /// The labels. Decodes only the metadata; labels that cannot be decoded count as absent.
    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        #[derive(Default, Deserialize)]
        struct Labelled {
            #[serde(default)]
            labels: Option<BTreeMap<String, String>>,
        }
        self.metadata::<Labelled>().labels.unwrap_or_default()
    }

    /// The finalizers. Decodes only the metadata; finalizers that cannot be decoded count as absent.
    pub(crate) fn finalizers(&self) -> Vec<String> {
        #[derive(Default, Deserialize)]
        struct Finalized {
            #[serde(default)]
            finalizers: Option<Vec<String>>,
        }
        self.metadata::<Finalized>().finalizers.unwrap_or_default()
    }

    /// Decodes a part of the metadata.
    fn metadata<T: DeserializeOwned + Default>(&self) -> T {
        let [metadata, _] = self.fields();
        serde_json::from_str(&["{", metadata, "}"].concat()).unwrap_or_default()
    }

    /// Decodes the object. The error names the path of the value and the cause, without values of a Secret.
    pub(crate) fn decode<K: DeserializeOwned>(&self, kind: &ApiResource) -> Result<K, String> {
        self.decode_redacted(kind, &Redaction::default())
    }

    /// Decodes the object. The error has no hidden value.
    pub(crate) fn decode_redacted<K: DeserializeOwned>(
        &self,
        kind: &ApiResource,
        redaction: &Redaction,
    ) -> Result<K, String> {
        let text = self.to_json(kind).map_err(|error| explain(&error, kind))?;
        decode(&text, kind, redaction)
    }

    /// The whole object as JSON, with `apiVersion` and `kind`.
    pub(crate) fn to_json(&self, kind: &ApiResource) -> serde_json::Result<String> {
        let (ObjectState { namespace, name, uid, resource_version }, [metadata, rest]) =
            (self.state(), self.fields());
        let mut text = Vec::with_capacity(self.0.len() + 160);
        let fields = [
            ("{\"apiVersion\":", Some(&*kind.api_version)),
            (",\"kind\":", Some(&kind.kind)),
            (",\"metadata\":{\"name\":", Some(name)),
            (",\"namespace\":", namespace),
            (",\"uid\":", uid),
            (",\"resourceVersion\":", Some(resource_version).filter(|version| !version.is_empty())),
        ];
        for (key, value) in fields {
            if let Some(value) = value {
                text.extend_from_slice(key.as_bytes());
                serde_json::to_writer(&mut text, value)?;
            }
        }
        for fields in [metadata, rest] {
            if !fields.is_empty() {
                text.push(b',');
                text.extend_from_slice(fields.as_bytes());
            }
            text.push(b'}');
        }
        // UTF-8 is checked once for the whole text: `serde_json::from_slice` would check each string.
        String::from_utf8(text).map_err(Error::custom)
    }

    pub(crate) fn to_value(&self, kind: &ApiResource) -> Option<Value> {
        decode_object(&self.to_json(kind).ok()?).ok()
    }

    fn has_flag(&self, flag: u8) -> bool {
        self.0.as_bytes()[HEAD_LENGTH - 1] & flag != 0
    }

    /// The four texts of the head.
    fn texts(&self) -> [&str; 4] {
        let ([namespace, name, uid, version], text) = (self.ends(), &*self.0);
        [&text[HEAD_LENGTH..namespace], &text[namespace..name], &text[name..uid], &text[uid..version]]
    }

    /// The positions at which the four texts of the head end.
    fn ends(&self) -> [usize; 4] {
        let head = self.0.as_bytes();
        let length = |at: usize| usize::from(head[at]) | usize::from(head[at + 1]) << 7;
        let namespace = HEAD_LENGTH + length(FIRST_LENGTH);
        let name = namespace + length(FIRST_LENGTH + 2);
        let uid = name + length(FIRST_LENGTH + 4);
        [namespace, name, uid, uid + length(FIRST_LENGTH + 6)]
    }

    /// The rest of the metadata, and the rest of the object.
    fn fields(&self) -> [&str; 2] {
        let [.., start] = self.ends();
        self.0[start..].split_at(length_in(&self.0.as_bytes()[..FIRST_LENGTH])).into()
    }
}

/// The bytes of a length, the lowest seven bits first. `None` if it needs more bytes.
fn length_bytes<const N: usize>(length: usize) -> Option<[u8; N]> {
    let bytes = std::array::from_fn(|n| (length >> (7 * n)) as u8 & 0x7f);
    (length >> (7 * N) == 0).then_some(bytes)
}

/// The length of these bytes.
fn length_in(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |length, byte| length << 7 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7",
                "labels": {"app": "a \"quoted\" \\ one"}, "annotations": {"ä": "\u{1f980}\n"},
            },
            "spec": {"containers": [{"name": "c", "args": ["}", "{", ","]}]},
            "status": {"phase": "Running"},
        })
    }

    fn cached(object: &Value) -> Object {
        let text = object.to_string();
        let (kind, keep_managed_fields) = (ApiResource::erase::<Pod>(&()), false);
        RawObject::scan_text(&text).unwrap().encode::<Pod>(&kind, keep_managed_fields).unwrap()
    }

    #[test]
    fn an_encoded_object_decodes_to_the_same_object() {
        let (object, kind) = (pod(), ApiResource::erase::<Pod>(&()));
        assert_eq!(cached(&object).decode::<Value>(&kind).unwrap(), object);
        let bare = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        assert_eq!(cached(&bare).decode::<Value>(&kind).unwrap(), bare);
    }

    #[test]
    fn lengths_of_several_bytes_are_read_as_they_were_written() {
        let (kind, long) = (ApiResource::erase::<Pod>(&()), "x".repeat(300));
        let mut object = pod();
        (object["metadata"]["name"], object["metadata"]["labels"]["long"]) =
            (json!(long), json!("y".repeat(70_000)));
        let cached = cached(&object);
        assert_eq!((cached.name(), cached.state().uid), (&*long, Some("u")));
        assert_eq!(cached.decode::<Value>(&kind).unwrap(), object);
        assert_eq!([1 << 14, (1 << 14) - 1].map(length_bytes::<2>), [None, Some([0x7f; 2])]);
    }

    #[test]
    fn the_head_and_the_labels_are_read_without_decoding() {
        let object = cached(&pod());
        let ObjectState { namespace, name, uid, resource_version } = object.state();
        assert_eq!((namespace, name, uid, resource_version), (Some("n"), "p", Some("u"), "7"));
        assert_eq!(object.labels()["app"], "a \"quoted\" \\ one");
        assert!(!object.is_terminating());
    }

    #[test]
    fn a_decode_error_names_the_path_in_the_object() {
        let decode_error = |pointer: &str, wrong: Value| {
            let (mut object, kind) = (pod(), ApiResource::erase::<Pod>(&()));
            *object.pointer_mut(pointer).unwrap() = wrong;
            cached(&object).decode::<Pod>(&kind).unwrap_err()
        };
        let error = decode_error("/spec/containers/0/args", json!(3));
        assert_eq!(error, "spec.containers[0].args: invalid type: integer `3`, expected a sequence");
        let error = decode_error("/metadata/labels/app", json!({}));
        assert!(error.starts_with("metadata.labels.app: invalid type: map, expected a string"), "{error}");
        let error = decode_error("/spec", json!([]));
        assert!(error.starts_with("spec: invalid type: sequence"), "{error}");
    }

    #[test]
    fn a_cached_object_is_smaller_than_its_text() {
        assert!(cached(&pod()).len() + 60 < pod().to_string().len());
    }

    #[test]
    fn an_object_with_a_grace_period_is_terminating() {
        let mut object = pod();
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        for (grace, is_terminating) in [(30, true), (0, false)] {
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            assert_eq!(cached(&object).is_terminating(), is_terminating);
        }
    }
}
