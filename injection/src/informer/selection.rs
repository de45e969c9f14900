//! The selection of the objects that an informer caches.

use std::{collections::BTreeMap, fmt};

use kube::core::{Expression, Selector, SelectorExt};
use serde_json::Value;

use crate::object::{Object, ObjectState};

/// A selection of the objects of a Kind by namespace, labels and fields.
///
/// Equal selections share one informer. The order of labels and fields does not matter.
///
/// ```
/// use kube::core::Expression;
/// use reknit_injection::select;
///
/// let ide = select().namespace("ide").label("kind", "cloud-ide");
/// assert_eq!(ide.to_string(), "namespace=ide labels=kind=cloud-ide");
///
/// let on_node = select().field("spec.nodeName", "node-1");
/// let tiers = select().labels([Expression::In("tier".into(), ["a".into(), "b".into()].into())]);
/// # let _ = (on_node, tiers);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Selection {
    namespace: Option<String>,
    labels: Selector,
    fields: BTreeMap<String, String>,
    managed_fields: bool,
}

/// Selects all objects of a Kind, in all namespaces. The methods of [`Selection`] narrow it.
pub fn select() -> Selection {
    Selection::default()
}

impl Selection {
    /// Selects one namespace. An empty name, such as that of an absent flag, selects all. A Role in the namespace is
    /// then enough.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned()).filter(|name| !name.is_empty());
        self
    }

    /// Selects objects with this label.
    pub fn label(self, key: &str, value: &str) -> Self {
        self.labels([Expression::Equal(key.into(), value.into())])
    }

    /// Selects objects whose labels match all of these expressions of kube, such as `Expression::In(…)`, or a
    /// `LabelSelector` that is converted to a `Selector`.
    pub fn labels(mut self, which: impl IntoIterator<Item = Expression>) -> Self {
        self.labels.extend(which);
        self
    }

    /// Selects objects whose field has this value: `metadata.name`, or a field that the API server supports in field
    /// selectors of this Kind (`spec.nodeName` of Pods).
    ///
    /// Only the server can evaluate most fields. With one of those, own writes are in the cache only once the watch has
    /// reported them.
    pub fn field(mut self, path: &str, value: &str) -> Self {
        self.fields.insert(path.into(), value.into());
        self
    }

    /// Keeps `metadata.managedFields`, which is dropped by default, since it is often half of an object.
    pub fn keeping_managed_fields(mut self) -> Self {
        self.managed_fields = true;
        self
    }

    pub(crate) fn keeps_managed_fields(&self) -> bool {
        self.managed_fields
    }

    /// Returns the namespace, if one is selected.
    pub fn in_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The label selector of requests. It is sorted, so equal selections have equal text.
    pub(crate) fn label_selector(&self) -> Option<String> {
        let mut labels: Vec<_> = self.labels.clone().into_iter().map(|e| e.to_string()).collect();
        labels.sort();
        labels.dedup();
        (!labels.is_empty()).then(|| labels.join(","))
    }

    /// The field selector of requests, escaped.
    pub(crate) fn field_selector(&self) -> Option<String> {
        let escape = |value: &str| value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
        let fields: Vec<_> =
            self.fields.iter().map(|(path, value)| format!("{path}={}", escape(value))).collect();
        (!fields.is_empty()).then(|| fields.join(","))
    }

    /// Returns true if the object is selected; `None` if only the server can tell.
    pub(crate) fn admits(&self, object: &Object) -> Option<bool> {
        let ObjectState { namespace, name, .. } = object.state();
        let here = self.namespace.is_none() || self.namespace.as_deref() == namespace;
        if !here || !(self.labels.selects_all() || self.labels.matches(&object.labels())) {
            return Some(false);
        }
        self.judge_fields(|path| match path {
            "metadata.name" => Some(name.to_owned()),
            "metadata.namespace" => Some(namespace.unwrap_or_default().to_owned()),
            _ => None,
        })
    }

    /// Returns true if an object is selected, given as JSON, in which every field can be read. An absent field is empty.
    pub(crate) fn admits_json(&self, object: &Value) -> bool {
        let text = |path: &str| {
            let found = object.pointer(&format!("/{}", path.replace('.', "/")));
            found.map_or(String::new(), |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
        };
        self.judge_fields(|path| Some(text(path))).unwrap_or_default()
    }

    fn judge_fields(&self, field: impl Fn(&str) -> Option<String>) -> Option<bool> {
        let mut known = Some(true);
        for (path, wanted) in &self.fields {
            match field(path) {
                Some(value) if value != *wanted => return Some(false),
                Some(_) => {}
                None => known = None,
            }
        }
        known
    }
}

/// The order in which labels were named makes no difference.
impl PartialEq for Selection {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// The selection in logs and probes. Empty if everything is selected.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |what: &str, said: Option<String>| said.map(|said| format!("{what}={said}"));
        let said = [
            part("namespace", self.namespace.clone()),
            part("labels", self.label_selector()),
            part("fields", self.field_selector()),
            self.managed_fields.then(|| "with managedFields".to_owned()),
        ];
        f.write_str(&said.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::discovery::ApiResource;
    use serde_json::json;

    use super::*;
    use crate::object::encode;

    /// The answer of the selection for an object `a` with this namespace and these labels.
    fn admits(which: &Selection, namespace: &str, labels: &[(&str, &str)]) -> Option<bool> {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".into());
        object.metadata.namespace = Some(namespace.into());
        object.metadata.labels = Some(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let (object, _) = encode(&object, &ApiResource::erase::<ConfigMap>(&())).unwrap();
        which.admits(&object)
    }

    #[test]
    fn the_order_of_labels_and_fields_does_not_matter() {
        let one = select().namespace("x").label("a", "1").label("b", "2").field("p", "1").field("o", "2");
        let two = select().field("o", "2").field("p", "1").label("b", "2").label("a", "1").namespace("x");
        assert_eq!((&one, one.to_string()), (&two, two.to_string()));
        assert_ne!(one, one.clone().keeping_managed_fields());
    }

    #[test]
    fn an_empty_namespace_selects_all_namespaces() {
        assert_eq!(select().namespace(""), select());
    }

    #[test]
    fn labels_and_namespace_are_evaluated_locally() {
        let ide = select().namespace("ide").label("kind", "cloud-ide");
        assert_eq!(admits(&ide, "ide", &[("kind", "cloud-ide")]), Some(true));
        assert_eq!(admits(&ide, "ide", &[]), Some(false));
        assert_eq!(admits(&ide, "other", &[("kind", "cloud-ide")]), Some(false));
    }

    #[test]
    fn fields_that_only_the_server_can_evaluate_are_left_to_it() {
        let on_node = select().namespace("x").field("spec.nodeName", "n");
        assert_eq!(admits(&on_node, "x", &[]), None);
        assert_eq!(admits(&on_node, "y", &[]), Some(false), "whatever the node is");
        assert_eq!(admits(&select().field("metadata.name", "a"), "x", &[]), Some(true));
        assert_eq!(admits(&select().field("metadata.name", "b"), "x", &[]), Some(false));
    }

    #[test]
    fn fields_of_a_preloaded_object_are_read_by_path() {
        let on_node = select().field("spec.nodeName", "n");
        assert!(on_node.admits_json(&json!({"spec": {"nodeName": "n"}})));
        assert!(!on_node.admits_json(&json!({"spec": {}})));
        assert!(
            select()
                .field("spec.unschedulable", "true")
                .admits_json(&json!({"spec": {"unschedulable": true}}))
        );
    }

    #[test]
    fn special_characters_of_a_field_value_are_escaped() {
        assert_eq!(select().field("a", r"x,y=z\").field_selector().unwrap(), r"a=x\,y\=z\\");
    }
}
