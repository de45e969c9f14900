//! One object as the API server wrote it, before anybody asks whether it can be decoded.

use std::{any::Any, borrow::Cow, panic};

use kube::{api::DynamicObject, core::TypeMeta, discovery::ApiResource};
use reknit_apis::Key;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{informer::Cached, store::State};

/// An object's text and the little of it that an informer must know even where the rest cannot be decoded.
pub(crate) struct Raw<'a> {
    text: &'a str,
    head: Head<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    #[serde(borrow, default)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    metadata: Meta<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    uid: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    resource_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    managed_fields: Option<&'a RawValue>,
}

/// An object as an informer holds it.
pub(crate) struct Decoded<K> {
    pub(crate) object: K,
    /// Of its text, without what was dropped.
    pub(crate) bytes: u32,
}

impl<'a> Raw<'a> {
    /// `Err` where not even the metadata can be read.
    pub(crate) fn read(text: &'a str) -> serde_json::Result<Self> {
        Ok(Self { text, head: serde_json::from_str(text)? })
    }

    pub(crate) fn key(&self) -> Key {
        self.state().key()
    }

    pub(crate) fn state(&self) -> State<'_> {
        let Meta { name, namespace, uid, .. } = &self.head.metadata;
        let resource_version = self.version();
        State { namespace: namespace.as_deref(), name, uid: uid.as_deref(), resource_version }
    }

    pub(crate) fn version(&self) -> &str {
        self.head.metadata.resource_version.as_deref().unwrap_or_default()
    }

    /// Whether it says that it is an object of this Kind and version.
    pub(crate) fn is_of(&self, kind: &ApiResource) -> bool {
        self.head.api_version.as_deref() == Some(&kind.api_version)
            && self.head.kind.as_deref() == Some(&kind.kind)
    }

    /// The typed object. The error says why not, without a value of the object where that could be secret.
    pub(crate) fn decode<K: Cached>(
        &self,
        kind: &ApiResource,
        managed_fields: bool,
    ) -> Result<Decoded<K>, String> {
        let text = if managed_fields { Cow::Borrowed(self.text) } else { self.without_managed_fields() };
        let decoded = panic::catch_unwind(|| serde_json::from_str::<K>(&text));
        let mut object = match decoded {
            Ok(Ok(object)) => object,
            Ok(Err(error)) => return Err(explain(&error, kind)),
            Err(_) => return Err("its decoding panicked".into()),
        };
        if !managed_fields {
            object.meta_mut().managed_fields = None;
        }
        fill_types(&mut object, kind);
        Ok(Decoded { object, bytes: u32::try_from(text.len()).unwrap_or(u32::MAX) })
    }

    /// Cut out of the text: decoding them only to drop them would cost more than all the rest.
    fn without_managed_fields(&self) -> Cow<'a, str> {
        let Some(fields) = self.head.metadata.managed_fields else { return Cow::Borrowed(self.text) };
        let start = fields.get().as_ptr().addr() - self.text.as_ptr().addr();
        let end = start + fields.get().len();
        match (self.text.get(..start), self.text.get(end..)) {
            (Some(before), Some(after)) => Cow::Owned([before, "[]", after].concat()),
            _ => Cow::Borrowed(self.text),
        }
    }
}

/// Items of a list of a built-in Kind do not say what they are; watch events do.
fn fill_types<K: 'static>(object: &mut K, kind: &ApiResource) {
    if let Some(dynamic) = (object as &mut dyn Any).downcast_mut::<DynamicObject>() {
        dynamic.types.get_or_insert_with(|| TypeMeta {
            api_version: kind.api_version.clone(),
            kind: kind.kind.clone(),
        });
    }
}

/// serde quotes what it could not read; of a Secret only the place is told.
fn explain(error: &serde_json::Error, kind: &ApiResource) -> String {
    match kind.kind.as_str() {
        "Secret" => format!("a value of the wrong form at column {}", error.column()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::Resource;

    use super::*;

    const MAP: &str = r#"{"metadata":{"name":"m","namespace":"n","uid":"u","resourceVersion":"5",
        "managedFields":[{"manager":"a]}\"","fieldsV1":{"f:data":{}}}],"labels":{"a":"b"}},"data":{"k":"v"}}"#;

    fn kind<K: Resource<DynamicType = ()>>() -> ApiResource {
        ApiResource::erase::<K>(&())
    }

    #[test]
    fn managed_fields_are_dropped_and_nothing_else() {
        let raw = Raw::read(MAP).unwrap();
        let Decoded { object, bytes } = raw.decode::<ConfigMap>(&kind::<ConfigMap>(), false).unwrap();
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(object.metadata.labels.unwrap()["a"], "b");
        assert_eq!(object.data.unwrap()["k"], "v");
        assert!((bytes as usize) < MAP.len() - 40, "{bytes} bytes are held of {}", MAP.len());
    }

    #[test]
    fn managed_fields_stay_where_asked_for() {
        let raw = Raw::read(MAP).unwrap();
        let kept = raw.decode::<ConfigMap>(&kind::<ConfigMap>(), true).unwrap();
        assert_eq!(kept.object.metadata.managed_fields.unwrap().len(), 1);
        assert_eq!(kept.bytes as usize, MAP.len());
    }

    #[test]
    fn an_undecodable_object_still_has_a_key_and_a_version() {
        let raw =
            Raw::read(r#"{"metadata":{"name":"m","namespace":"n","resourceVersion":"5"},"data":3}"#).unwrap();
        assert!(raw.decode::<ConfigMap>(&kind::<ConfigMap>(), false).is_err());
        assert_eq!((raw.key(), raw.version()), (Key::new("n", "m"), "5"));
    }

    #[test]
    fn what_cannot_be_read_of_a_secret_is_not_told() {
        let raw =
            Raw::read(r#"{"metadata":{"name":"m"},"data":{"password":{"hunter2":1}},"type":17}"#).unwrap();
        let error = raw.decode::<Secret>(&kind::<Secret>(), false).err().unwrap();
        let quoting = Raw::read(r#"{"metadata":{"name":"m"},"data":"hunter2"}"#).unwrap();
        let quoted = quoting.decode::<Secret>(&kind::<Secret>(), false).err().unwrap();
        assert!(!error.contains("hunter2") && !quoted.contains("hunter2"), "{error} {quoted}");
        let map = quoting.decode::<ConfigMap>(&kind::<ConfigMap>(), false).err().unwrap();
        assert!(map.contains("hunter2"), "elsewhere the value helps: {map}");
    }

    #[test]
    fn a_dynamic_object_says_what_it_is_wherever_it_came_from() {
        let object =
            Raw::read(MAP).unwrap().decode::<DynamicObject>(&kind::<ConfigMap>(), false).unwrap().object;
        assert_eq!(object.types.unwrap().kind, "ConfigMap");
    }
}
