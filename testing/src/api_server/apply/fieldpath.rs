//! Paths to the fields of an object and to the elements of its lists.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::is_among;

/// The steps from the root of the object to a field.
pub(super) type Path = Vec<Step>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Field(String),
    /// An element of a list, identified by its keys (`name="web"`) or by its value.
    Element(String),
}

/// Formats a path as `.spec.template.spec.containers[name="web"].image`.
pub(super) fn shown(path: &Path) -> String {
    let step = |step: &Step| match step {
        Step::Field(name) => format!(".{name}"),
        Step::Element(name) => format!("[{name}]"),
    };
    path.iter().map(step).collect()
}

/// The merge strategy of a list.
enum List {
    /// The list is replaced as a whole.
    Atomic,
    /// The list holds each value once.
    Set,
    /// The elements are identified by the values of these fields.
    Map(&'static [&'static str]),
}

/// The lists of built-in Kinds whose elements are identified by their names.
const NAMED: &str = "containers initContainers ephemeralContainers env volumes secrets webhooks";

/// The merge strategies of a Kind's lists. Lists of a custom resource are atomic, except for those in its metadata.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) built_in: bool,
}

impl Shape {
    /// The merge strategies of Kubernetes' own types (`x-kubernetes-list-type`).
    fn list(self, path: &[Step]) -> List {
        let Some(Step::Field(name)) = path.last() else { return List::Atomic };
        let within = matches!(path.iter().rev().nth(1), Some(Step::Element(_)));
        let of_metadata = matches!(path, [Step::Field(root), _] if root == "metadata");
        match name.as_str() {
            "finalizers" if of_metadata => List::Set,
            "ownerReferences" if of_metadata => List::Map(&["uid"]),
            _ if !self.built_in => List::Atomic,
            name if is_among(name, NAMED) => List::Map(&["name"]),
            "imagePullSecrets" if path.len() > 1 => List::Map(&["name"]),
            "ports" if within => List::Map(&["containerPort", "protocol"]),
            "ports" => List::Map(&["port", "protocol"]),
            "volumeMounts" => List::Map(&["mountPath"]),
            "volumeDevices" => List::Map(&["devicePath"]),
            "hostAliases" => List::Map(&["ip"]),
            "conditions" => List::Map(&["type"]),
            _ => List::Atomic,
        }
    }

    fn step(list: &List, element: &Value) -> Step {
        let of_field = |field: &&str| match (&element[*field], *field) {
            (Value::Null, "protocol") => "protocol=\"TCP\"".to_owned(),
            (value, field) => format!("{field}={value}"),
        };
        match list {
            List::Map(fields) => Step::Element(fields.iter().map(of_field).collect::<Vec<_>>().join(",")),
            _ => Step::Element(element.to_string()),
        }
    }

    /// The paths and values of all leaves, and the paths of all elements of lists, whose value is `true`.
    pub(super) fn leaves(self, value: &Value) -> BTreeMap<Path, Value> {
        let mut leaves = BTreeMap::new();
        self.collect(value, &mut Vec::new(), &mut leaves);
        leaves
    }

    fn collect(self, value: &Value, at: &mut Path, leaves: &mut BTreeMap<Path, Value>) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    at.push(Step::Field(name.clone()));
                    self.collect(value, at, leaves);
                    at.pop();
                }
            }
            Value::Array(all) => {
                let list = self.list(at);
                if matches!(list, List::Atomic) {
                    leaves.insert(at.clone(), value.clone());
                    return;
                }
                for element in all {
                    at.push(Self::step(&list, element));
                    leaves.insert(at.clone(), json!(true));
                    if matches!(list, List::Map(_)) {
                        self.collect(element, at, leaves);
                    }
                    at.pop();
                }
            }
            _ if !at.is_empty() => {
                leaves.insert(at.clone(), value.clone());
            }
            _ => {}
        }
    }

    /// Removes the value at the path, and then the objects and lists around it that became empty.
    pub(super) fn remove(self, value: &mut Value, path: &Path) {
        self.remove_at(value, path, 0);
    }

    fn remove_at(self, value: &mut Value, path: &Path, n: usize) {
        let is_last = n + 1 == path.len();
        match (&path[n], value) {
            (Step::Field(name), Value::Object(fields)) => {
                let Some(child) = fields.get_mut(name) else { return };
                if !is_last {
                    self.remove_at(child, path, n + 1);
                }
                if is_last || *child == json!({}) || *child == json!([]) {
                    fields.remove(name);
                }
            }
            (step, Value::Array(all)) => {
                let list = self.list(&path[..n]);
                match all.iter().position(|one| Self::step(&list, one) == *step) {
                    Some(at) if is_last => drop(all.remove(at)),
                    Some(at) => self.remove_at(&mut all[at], path, n + 1),
                    None => {}
                }
            }
            _ => {}
        }
    }

    /// Merges an applied configuration into the object.
    pub(super) fn merge(self, live: &mut Value, applied: &Value) {
        self.merge_at(live, applied, &mut Vec::new());
    }

    fn merge_at(self, live: &mut Value, applied: &Value, at: &mut Path) {
        match (live, applied, self.list(at)) {
            (Value::Object(live), Value::Object(applied), _) => {
                for (name, value) in applied {
                    at.push(Step::Field(name.clone()));
                    self.merge_at(live.entry(name).or_insert(Value::Null), value, at);
                    at.pop();
                }
            }
            (Value::Array(live), Value::Array(applied), list @ (List::Set | List::Map(_))) => {
                for element in applied {
                    let step = Self::step(&list, element);
                    let Some(one) = live.iter_mut().find(|one| Self::step(&list, one) == step) else {
                        live.push(element.clone());
                        continue;
                    };
                    at.push(step);
                    self.merge_at(one, element, at);
                    at.pop();
                }
            }
            (live, applied, _) => *live = applied.clone(),
        }
    }
}
