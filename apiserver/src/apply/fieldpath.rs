//! Paths to the fields of an object and to the items of its lists.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::is_among;
use crate::schema::{self, Schema};

/// The path from the root of an object to a field or to an item of a list.
pub(crate) type Path = Vec<PathElement>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathElement {
    Field(String),
    /// An item of a list, identified by its keys (`name="web"`) or by its value.
    Item(String),
}

/// Formats a path as `.spec.template.spec.containers[name="web"].image`.
pub(crate) fn format_path(path: &Path) -> String {
    let format_element = |element: &PathElement| match element {
        PathElement::Field(name) => format!(".{name}"),
        PathElement::Item(key) => format!("[{key}]"),
    };
    path.iter().map(format_element).collect()
}

/// The merge strategy of a list (`x-kubernetes-list-type`).
enum ListType {
    /// The list is replaced as a whole.
    Atomic,
    /// The list holds each value once.
    Set,
    /// The items are identified by these fields.
    Map(Vec<MapKey>),
}

/// A field that identifies the items of a list.
struct MapKey {
    name: String,
    default: Option<Value>,
}

/// The lists of built-in Kinds whose items are identified by their names.
const LISTS_BY_NAME: &str = "containers initContainers ephemeralContainers env volumes secrets webhooks";

/// The merge strategies of a Kind's lists and objects, which server-side apply needs.
#[derive(Clone, Debug)]
pub(crate) enum Strategies {
    /// The strategies of the built-in Kinds.
    BuiltIn,
    /// The strategies in the schema of a custom resource.
    Declared(Schema),
    /// The strategies of a custom resource without a known schema. Its lists are atomic, except for those in its
    /// metadata.
    Unknown,
}

impl Strategies {
    fn list_type(&self, path: &[PathElement]) -> ListType {
        let Some(PathElement::Field(name)) = path.last() else { return ListType::Atomic };
        if let [PathElement::Field(root), _] = path
            && root == "metadata"
        {
            match name.as_str() {
                "finalizers" => return ListType::Set,
                "ownerReferences" => return map_of(["uid"]),
                _ => {}
            }
        }
        match self {
            Self::BuiltIn => built_in_list_type(path, name),
            Self::Declared(schema) => schema_at(schema, path).map_or(ListType::Atomic, declared_list_type),
            Self::Unknown => ListType::Atomic,
        }
    }

    /// Returns true if the object at the path is replaced as a whole (`x-kubernetes-map-type: atomic`).
    fn is_atomic_object(&self, path: &[PathElement]) -> bool {
        let Self::Declared(schema) = self else { return false };
        schema_at(schema, path).is_some_and(|schema| schema["x-kubernetes-map-type"] == "atomic")
    }

    /// The path element that identifies this item of a list.
    fn item_element(list_type: &ListType, item: &Value) -> PathElement {
        let key = |key: &MapKey| {
            let value = item.get(&key.name).or(key.default.as_ref());
            format!("{}={}", key.name, value.unwrap_or(&Value::Null))
        };
        match list_type {
            ListType::Map(keys) => PathElement::Item(keys.iter().map(key).collect::<Vec<_>>().join(",")),
            _ => PathElement::Item(item.to_string()),
        }
    }

    /// The paths and values of all leaves. The paths of all list items are included, with the value `true`.
    pub(crate) fn leaves(&self, value: &Value) -> BTreeMap<Path, Value> {
        let mut leaves = BTreeMap::new();
        self.collect(value, &mut Vec::new(), &mut leaves);
        leaves
    }

    fn collect(&self, value: &Value, path: &mut Path, leaves: &mut BTreeMap<Path, Value>) {
        match value {
            Value::Object(fields) if !fields.is_empty() && !self.is_atomic_object(path) => {
                for (name, value) in fields {
                    path.push(PathElement::Field(name.clone()));
                    self.collect(value, path, leaves);
                    path.pop();
                }
            }
            Value::Array(items) => {
                let list_type = self.list_type(path);
                if matches!(list_type, ListType::Atomic) {
                    leaves.insert(path.clone(), value.clone());
                    return;
                }
                for item in items {
                    path.push(Self::item_element(&list_type, item));
                    leaves.insert(path.clone(), json!(true));
                    if matches!(list_type, ListType::Map(_)) {
                        self.collect(item, path, leaves);
                    }
                    path.pop();
                }
            }
            _ if !path.is_empty() => {
                leaves.insert(path.clone(), value.clone());
            }
            _ => {}
        }
    }

    /// Removes the value at the path, and then the objects and lists around it that became empty.
    pub(crate) fn remove(&self, value: &mut Value, path: &Path) {
        self.remove_below(value, path, 0);
    }

    /// Removes the value at the path, whose first `depth` elements lead to `value`.
    fn remove_below(&self, value: &mut Value, path: &Path, depth: usize) {
        let is_last = depth + 1 == path.len();
        match (&path[depth], value) {
            (PathElement::Field(name), Value::Object(fields)) => {
                let Some(child) = fields.get_mut(name) else { return };
                if !is_last {
                    self.remove_below(child, path, depth + 1);
                }
                if is_last || *child == json!({}) || *child == json!([]) {
                    fields.remove(name);
                }
            }
            (element, Value::Array(items)) => {
                let list_type = self.list_type(&path[..depth]);
                match items.iter().position(|item| Self::item_element(&list_type, item) == *element) {
                    Some(index) if is_last => drop(items.remove(index)),
                    Some(index) => self.remove_below(&mut items[index], path, depth + 1),
                    None => {}
                }
            }
            _ => {}
        }
    }

    /// Merges an applied configuration into the live object.
    pub(crate) fn merge(&self, live: &mut Value, applied: &Value) {
        self.merge_at(&mut Vec::new(), live, applied);
    }

    fn merge_at(&self, path: &mut Path, live: &mut Value, applied: &Value) {
        match (live, applied, self.list_type(path)) {
            (Value::Object(live), Value::Object(applied), _) if !self.is_atomic_object(path) => {
                for (name, value) in applied {
                    path.push(PathElement::Field(name.clone()));
                    self.merge_at(path, live.entry(name).or_insert(Value::Null), value);
                    path.pop();
                }
            }
            (Value::Array(live), Value::Array(applied), list_type @ (ListType::Set | ListType::Map(_))) => {
                for item in applied {
                    let element = Self::item_element(&list_type, item);
                    let is_same = |other: &&mut Value| Self::item_element(&list_type, other) == element;
                    let Some(live_item) = live.iter_mut().find(is_same) else {
                        live.push(item.clone());
                        continue;
                    };
                    path.push(element);
                    self.merge_at(path, live_item, item);
                    path.pop();
                }
            }
            (live, applied, _) => *live = applied.clone(),
        }
    }
}

/// The schema at a path. `None` if there is no schema, as below preserved unknown fields.
fn schema_at<'a>(schema: &'a Schema, path: &[PathElement]) -> Option<&'a Value> {
    path.iter().try_fold(schema.root(), |schema, element| match element {
        PathElement::Field(name) => schema::of_field(schema, name),
        PathElement::Item(_) => schema.get("items"),
    })
}

fn declared_list_type(schema: &Value) -> ListType {
    match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => ListType::Set,
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
            let key = |name: &str| MapKey {
                name: name.into(),
                default: schema["items"]["properties"][name].get("default").cloned(),
            };
            ListType::Map(keys.filter_map(Value::as_str).map(key).collect())
        }
        _ => ListType::Atomic,
    }
}

fn built_in_list_type(path: &[PathElement], name: &str) -> ListType {
    let is_in_list_item = matches!(path.iter().rev().nth(1), Some(PathElement::Item(_)));
    match name {
        name if is_among(name, LISTS_BY_NAME) => map_of(["name"]),
        "imagePullSecrets" if path.len() > 1 => map_of(["name"]),
        "ports" if is_in_list_item => map_of(["containerPort", "protocol"]),
        "ports" => map_of(["port", "protocol"]),
        "volumeMounts" => map_of(["mountPath"]),
        "volumeDevices" => map_of(["devicePath"]),
        "hostAliases" => map_of(["ip"]),
        "conditions" => map_of(["type"]),
        _ => ListType::Atomic,
    }
}

/// A list of a built-in Kind whose items are identified by these fields.
fn map_of<const N: usize>(names: [&str; N]) -> ListType {
    let key = |name: &str| MapKey { name: name.into(), default: (name == "protocol").then(|| json!("TCP")) };
    ListType::Map(names.into_iter().map(key).collect())
}
