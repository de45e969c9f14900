//! One object as it is held: a head that is read in place, and the rest of its JSON.
//!
//! Decoded, an object takes about four times the memory of its text. What all objects of an informer have in common
//! (apiVersion and kind) is not held at all; what the rules of the store ask for is found without decoding.

use std::{collections::BTreeMap, panic};

use kube::discovery::ApiResource;
use serde::{
    Deserialize,
    de::{DeserializeOwned, Error},
};

use crate::{place::Place, store::State, version::Version};

/// An object's bytes. They begin with the length of the whole, that of the rest of the metadata, and those of four
/// texts: namespace, name, uid and resourceVersion. The texts follow, then the rest of the metadata and the rest of the
/// object, both as the inside of a JSON object.
#[derive(Clone, Debug)]
pub(crate) struct Record(Box<[u8]>);

/// A record where it is held.
#[derive(Clone, Copy)]
pub(crate) struct Packed<'a>(&'a [u8]);

/// A whole object as JSON.
pub(crate) struct Json(Vec<u8>);

/// What a record is made of.
pub(crate) struct Parts<'a> {
    pub(crate) state: State<'a>,
    /// It is being deleted, and was given time for that.
    pub(crate) lingers: bool,
    pub(crate) metadata: &'a [u8],
    pub(crate) rest: &'a [u8],
}

/// Six lengths and the flags.
const HEAD: usize = 17;

const NAMESPACED: u8 = 1;
const HAS_UID: u8 = 2;
const LINGERS: u8 = 4;
const DECODES: u8 = 8;

impl Record {
    /// None where a part is longer than anything that the API server lets through.
    pub(crate) fn of(parts: &Parts<'_>) -> Option<Self> {
        let Parts { state, lingers, metadata, rest } = parts;
        let texts = [state.namespace, Some(state.name), state.uid, Some(state.resource_version)]
            .map(Option::unwrap_or_default);
        let length = HEAD + texts.map(str::len).iter().sum::<usize>() + metadata.len() + rest.len();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(u32::try_from(length).ok()?.to_le_bytes());
        bytes.extend(u32::try_from(metadata.len()).ok()?.to_le_bytes());
        for text in texts {
            bytes.extend(u16::try_from(text.len()).ok()?.to_le_bytes());
        }
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let namespaced = flag(state.namespace.is_some(), NAMESPACED);
        bytes.push(namespaced | flag(state.uid.is_some(), HAS_UID) | flag(*lingers, LINGERS));
        texts.iter().for_each(|text| bytes.extend_from_slice(text.as_bytes()));
        bytes.extend_from_slice(metadata);
        bytes.extend_from_slice(rest);
        Some(Self(bytes.into()))
    }

    /// Takes note that it can be decoded.
    pub(crate) fn decodes(&mut self) {
        self.0[HEAD - 1] |= DECODES;
    }

    pub(crate) fn packed(&self) -> Packed<'_> {
        Packed(&self.0)
    }
}

impl<'a> Packed<'a> {
    /// Of the bytes of a record.
    pub(crate) fn at(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn to_record(self) -> Record {
        Record(self.0.into())
    }

    pub(crate) fn state(self) -> State<'a> {
        let lengths = self.texts().0.map(<[u8]>::len);
        // Looked at once, and not each by itself.
        let mut rest = text(&self.0[HEAD..HEAD + lengths.iter().sum::<usize>()]);
        let [namespace, name, uid, resource_version] = lengths.map(|length| {
            let text;
            (text, rest) = rest.split_at_checked(length).unwrap_or_default();
            text
        });
        State {
            namespace: self.has(NAMESPACED).then_some(namespace),
            name,
            uid: self.has(HAS_UID).then_some(uid),
            resource_version,
        }
    }

    /// Whether it is in this very state.
    pub(crate) fn is(self, state: &State<'_>) -> bool {
        let [_, _, uid, version] = self.texts().0;
        let uid = self.has(HAS_UID).then_some(uid);
        !version.is_empty()
            && version == state.resource_version.as_bytes()
            && uid == state.uid.map(str::as_bytes)
    }

    pub(crate) fn version(self) -> Option<Version<'a>> {
        Version::parse(text(self.texts().0[3]))
    }

    /// Whether it is being deleted, and was given time for that.
    pub(crate) fn lingers(self) -> bool {
        self.has(LINGERS)
    }

    /// Whether it was decoded when it came in, and so can be again.
    pub(crate) fn is_decodable(self) -> bool {
        self.has(DECODES)
    }

    fn has(self, flag: u8) -> bool {
        self.0[HEAD - 1] & flag != 0
    }

    /// The labels, without decoding the rest.
    pub(crate) fn labels(self) -> BTreeMap<String, String> {
        #[derive(Default, Deserialize)]
        struct Labelled {
            #[serde(default)]
            labels: Option<BTreeMap<String, String>>,
        }
        let (metadata, _) = self.json();
        let metadata: Labelled = serde_json::from_slice(&[b"{", metadata, b"}"].concat()).unwrap_or_default();
        metadata.labels.unwrap_or_default()
    }

    /// The typed object, or why it cannot be decoded.
    pub(crate) fn decode<K: DeserializeOwned>(self, kind: &ApiResource) -> Result<K, String> {
        self.text(kind)?.decode(kind)
    }

    /// The whole object as JSON.
    pub(crate) fn text(self, kind: &ApiResource) -> Result<Json, String> {
        self.written(kind).map_err(|error| explain(&error, kind))
    }

    fn written(self, kind: &ApiResource) -> serde_json::Result<Json> {
        let (State { namespace, name, uid, resource_version }, (metadata, rest)) =
            (self.state(), self.json());
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
        for (inside, end) in [(metadata, b"}"), (rest, b"}")] {
            if !inside.is_empty() {
                text.push(b',');
                text.extend_from_slice(inside);
            }
            text.extend_from_slice(end);
        }
        Ok(Json(text))
    }

    /// The object's own name.
    pub(crate) fn name(self) -> &'a [u8] {
        self.texts().0[1]
    }

    /// The four texts of the head, and what follows them.
    fn texts(self) -> ([&'a [u8]; 4], &'a [u8]) {
        let mut rest = &self.0[HEAD..];
        let texts = [8, 10, 12, 14].map(|at| {
            let text;
            (text, rest) = rest.split_at(usize::from(u16::from_le_bytes([self.0[at], self.0[at + 1]])));
            text
        });
        (texts, rest)
    }

    /// The rest of the metadata, and the rest of the object.
    fn json(self) -> (&'a [u8], &'a [u8]) {
        let length = u32::from_le_bytes([self.0[4], self.0[5], self.0[6], self.0[7]]);
        self.texts().1.split_at(length as usize)
    }
}

/// One of the head, which was one before.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

impl Json {
    /// The typed object. The error says why not, without a value of the object where that could be secret.
    pub(crate) fn decode<K: DeserializeOwned>(&self, kind: &ApiResource) -> Result<K, String> {
        let decoded = panic::catch_unwind(|| self.parse()).map_err(|_| "its decoding panicked")?;
        decoded.map_err(|error| self.misfit(&error, kind))
    }

    fn parse<K: DeserializeOwned>(&self) -> serde_json::Result<K> {
        // All of it at once: serde_json would look at each string of a slice by itself.
        serde_json::from_str(std::str::from_utf8(&self.0).map_err(serde_json::Error::custom)?)
    }

    /// With the place in the object: nobody else has this text, to look a column up. The names of a Secret's entries are
    /// told, and nothing within them.
    fn misfit(&self, error: &serde_json::Error, kind: &ApiResource) -> String {
        // The API server writes one line, in which a column is an offset.
        let read = self.0.get(..error.column()).filter(|_| error.line() == 1).map(text).unwrap_or_default();
        let (place, said) = (Place::at_the_end_of(read), explain(error, kind));
        let place = if is_secret(kind) { place.within(2) } else { place }.to_string();
        let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said);
        if place.is_empty() { said.to_owned() } else { format!("{place}: {said}") }
    }
}

/// serde quotes what it could not read, but not of a Secret.
pub(crate) fn explain(error: &serde_json::Error, kind: &ApiResource) -> String {
    if is_secret(kind) { "a value of the wrong form".into() } else { error.to_string() }
}

fn is_secret(kind: &ApiResource) -> bool {
    kind.kind == "Secret"
}

/// Copies of many records, one after the other.
pub(crate) struct Records {
    bytes: Vec<u8>,
    at: usize,
}

impl<'a> FromIterator<Packed<'a>> for Records {
    fn from_iter<I: IntoIterator<Item = Packed<'a>>>(records: I) -> Self {
        let mut bytes = Vec::new();
        records.into_iter().for_each(|record| bytes.extend_from_slice(record.bytes()));
        Self { bytes, at: 0 }
    }
}

impl Records {
    /// What `look` makes of the next one.
    pub(crate) fn next<T>(&mut self, look: impl FnOnce(Packed<'_>) -> T) -> Option<T> {
        let rest = &self.bytes[self.at..];
        let length = u32::from_le_bytes(*rest.first_chunk()?) as usize;
        self.at += length;
        Some(look(Packed(&rest[..length])))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;
    use crate::raw::Raw;

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

    fn record(object: &Value) -> Record {
        let text = object.to_string();
        let kind = ApiResource::erase::<Pod>(&());
        Raw::read(&text).unwrap().pack::<Pod>(&kind, false).unwrap()
    }

    #[test]
    fn what_comes_out_is_what_went_in() {
        let (object, kind) = (pod(), ApiResource::erase::<Pod>(&()));
        assert_eq!(record(&object).packed().decode::<Value>(&kind).unwrap(), object);
        let bare = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        assert_eq!(record(&bare).packed().decode::<Value>(&kind).unwrap(), bare);
    }

    #[test]
    fn the_head_and_the_labels_are_read_without_decoding() {
        let record = record(&pod());
        let State { namespace, name, uid, resource_version } = record.packed().state();
        assert_eq!((namespace, name, uid, resource_version), (Some("n"), "p", Some("u"), "7"));
        assert_eq!(record.packed().labels()["app"], "a \"quoted\" \\ one");
        assert!(!record.packed().lingers());
    }

    #[test]
    fn what_cannot_be_decoded_is_told_with_its_place_in_the_object() {
        let why = |pointer: &str, wrong: Value| {
            let (mut object, kind) = (pod(), ApiResource::erase::<Pod>(&()));
            *object.pointer_mut(pointer).unwrap() = wrong;
            record(&object).packed().decode::<Pod>(&kind).unwrap_err()
        };
        let said = why("/spec/containers/0/args", json!(3));
        assert_eq!(said, "spec.containers[0].args: invalid type: integer `3`, expected a sequence");
        let said = why("/metadata/labels/app", json!({}));
        assert!(said.starts_with("metadata.labels.app: invalid type: map, expected a string"), "{said}");
        let said = why("/spec", json!([]));
        assert!(said.starts_with("spec: invalid type: sequence"), "{said}");
    }

    #[test]
    fn a_record_is_smaller_than_its_text() {
        let (object, record) = (pod(), record(&pod()));
        assert!(record.packed().bytes().len() + 60 < object.to_string().len());
    }

    #[test]
    fn an_object_that_is_given_time_to_end_lingers() {
        let mut object = pod();
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        for (grace, lingers) in [(30, true), (0, false)] {
            object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            assert_eq!(record(&object).packed().lingers(), lingers);
        }
    }
}
