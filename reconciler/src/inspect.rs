//! The view of a controller's keys for the console of the process: what a key reads and owns, and the state of its object.

use std::sync::Arc;

use kube::{ResourceExt, core::Resource};
use reknit_apis::{Key, Kind, to_json};
use serde::Serialize;
use serde_json::Value;

/// The maximum number of objects of one relation that are listed for a key.
const MAX_RELATED: usize = 200;
/// The maximum number of conditions of an object.
const MAX_CONDITIONS: usize = 50;
/// The maximum length of a field of a condition in bytes.
const MAX_TEXT: usize = 1000;

/// An object that a key reads or owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Related {
    /// `tracked` or `owned`.
    pub relation: &'static str,
    /// The resource, such as `services` or `deployments.apps`.
    pub resource: String,
    /// The key of the object, or the namespace and the labels of the objects.
    pub target: String,
    /// False if the key has read an object that does not exist. `None` for objects by labels.
    pub exists: Option<bool>,
}

/// The state of a key's object, without its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObjectState {
    /// The resourceVersion in the cache.
    pub resource_version: Option<String>,
    /// The generation in the cache.
    pub generation: Option<i64>,
    /// True if the annotation that pauses the object is set.
    pub paused: bool,
    /// The conditions, each with its `type`, `status`, `reason`, `message` and `lastTransitionTime`.
    pub conditions: Vec<Value>,
}

type FindRelated = Box<dyn Fn(&Key) -> Vec<Related> + Send + Sync>;
type FindObject = Box<dyn Fn(&Key) -> Option<ObjectState> + Send + Sync>;

/// The functions that describe keys. They are added while the controller is built.
#[derive(Default)]
pub(crate) struct Inspect {
    related: Vec<FindRelated>,
    object: Option<FindObject>,
}

impl Inspect {
    pub(crate) fn add_related(&mut self, find: impl Fn(&Key) -> Vec<Related> + Send + Sync + 'static) {
        self.related.push(Box::new(find));
    }

    pub(crate) fn set_object(&mut self, find: impl Fn(&Key) -> Option<ObjectState> + Send + Sync + 'static) {
        self.object = Some(Box::new(find));
    }

    pub(crate) fn related(&self, key: &Key) -> Vec<Related> {
        self.related.iter().flat_map(|find| find(key).into_iter().take(MAX_RELATED)).collect()
    }

    pub(crate) fn object(&self, key: &Key) -> Option<ObjectState> {
        self.object.as_ref()?(key)
    }
}

impl Related {
    /// Describes the children of one Kind.
    pub(crate) fn children<T: Resource>(resource: &str, children: impl Iterator<Item = Arc<T>>) -> Vec<Self> {
        let child = |child: Arc<T>| Self {
            relation: "owned",
            resource: resource.into(),
            target: Key::of(&*child).to_string(),
            exists: Some(true),
        };
        children.map(child).collect()
    }
}

impl ObjectState {
    pub(crate) fn of<K: Kind>(object: &K, paused_by: Option<&str>) -> Self {
        let json = to_json(object).unwrap_or_default();
        let conditions = json.pointer("/status/conditions").and_then(Value::as_array);
        Self {
            resource_version: object.resource_version(),
            generation: object.meta().generation,
            paused: paused_by.is_some_and(|annotation| object.annotations().contains_key(annotation)),
            conditions: conditions.into_iter().flatten().take(MAX_CONDITIONS).map(shown).collect(),
        }
    }
}

/// The well-known fields of a condition, cut to a bounded length.
fn shown(condition: &Value) -> Value {
    let fields = ["type", "status", "reason", "message", "lastTransitionTime"].into_iter();
    let text = |name| condition[name].as_str().map(|text| &text[..text.floor_char_boundary(MAX_TEXT)]);
    fields.filter_map(|name| Some((name.to_owned(), Value::from(text(name)?)))).collect()
}
