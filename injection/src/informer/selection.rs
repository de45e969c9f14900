//! The selection of the objects that an informer caches.

use std::{collections::BTreeMap, fmt};

use kube::core::{Expression, Selector, SelectorExt};
use serde_json::Value;

use crate::object::{Object, ObjectState};

/// A selection of the objects of a Kind by namespaces, labels and fields.
///
/// Equal selections share one informer. The order of namespaces, labels and fields does not matter.
///
/// ```
/// use kube::core::Expression;
/// use reknit_injection::select;
///
/// let ide = select().namespace("ide").label("kind", "cloud-ide");
/// assert_eq!(ide.to_string(), "namespace=ide labels=kind=cloud-ide");
///
/// let teams = select().namespaces(["team-b", "team-a"]);
/// assert_eq!(teams.to_string(), "namespace=team-a,team-b");
///
/// let on_node = select().field("spec.nodeName", "node-1");
/// let tiers = select().labels([Expression::In("tier".into(), ["a".into(), "b".into()].into())]);
/// # let _ = (on_node, tiers);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Sorted and without duplicates. Empty if all namespaces are selected.
    namespaces: Vec<String>,
    labels: Selector,
    fields: BTreeMap<String, String>,
    keeps_managed_fields: bool,
    /// Restricts the selection further. Evaluated by this process, since the API server has no such selector.
    carriers: Option<Box<Carriers>>,
}

/// The objects that carry one of these finalizers although they are outside another selection.
#[derive(Clone, Debug)]
struct Carriers {
    finalizers: Vec<String>,
    outside: Selection,
}

/// Selects all objects of a Kind, in all namespaces. The methods of [`Selection`] narrow it.
pub fn select() -> Selection {
    Selection::default()
}

impl Selection {
    /// Selects one namespace, so that the process needs only a Role in that namespace. An empty name, such as the value
    /// of an absent flag, selects all namespaces.
    pub fn namespace(self, namespace: &str) -> Self {
        self.namespaces([namespace])
    }

    /// Selects several namespaces, so that the process needs only a Role in each of them. No name, or an empty name
    /// among the names, selects all namespaces.
    ///
    /// The informer lists and watches each namespace on its own, since the API server has no selector for several
    /// namespaces. Each namespace costs a list and a connection. The informer is synced once all namespaces are listed.
    pub fn namespaces<N: Into<String>>(mut self, namespaces: impl IntoIterator<Item = N>) -> Self {
        self.namespaces = namespaces.into_iter().map(Into::into).collect();
        self.namespaces.sort();
        self.namespaces.dedup();
        if self.namespaces.first().is_some_and(String::is_empty) {
            self.namespaces.clear();
        }
        self
    }

    /// Selects objects with this label.
    pub fn label(self, key: &str, value: &str) -> Self {
        self.labels([Expression::Equal(key.into(), value.into())])
    }

    /// Selects objects whose labels match all of these expressions, such as `Expression::In(…)`. A kube `Selector`,
    /// into which a `LabelSelector` can be converted, is accepted too.
    pub fn labels(mut self, expressions: impl IntoIterator<Item = Expression>) -> Self {
        self.labels.extend(expressions);
        self
    }

    /// Selects objects whose field has this value: `metadata.name`, or a field that the API server supports in field
    /// selectors of this Kind (`spec.nodeName` of Pods).
    ///
    /// Only the API server can evaluate fields other than `metadata.name` and `metadata.namespace`. If such a field is
    /// selected, own writes are in the cache only once the watch has reported them.
    pub fn field(mut self, path: &str, value: &str) -> Self {
        self.fields.insert(path.into(), value.into());
        self
    }

    /// Keeps `metadata.managedFields`, which is dropped by default, since it is often half of an object.
    pub fn keeping_managed_fields(mut self) -> Self {
        self.keeps_managed_fields = true;
        self
    }

    /// Returns true if the API server may report objects that are not selected.
    pub(crate) fn is_evaluated_here(&self) -> bool {
        self.carriers.is_some()
    }

    pub(crate) fn keeps_managed_fields(&self) -> bool {
        self.keeps_managed_fields
    }

    /// Returns the names of the selected namespaces, sorted. Empty if all namespaces are selected.
    pub fn selected_namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// Returns the name of the one selected object, if the selection is by `metadata.name`.
    pub(crate) fn selected_name(&self) -> Option<&str> {
        self.fields.get("metadata.name").map(String::as_str)
    }

    /// Returns true if objects of this namespace are selected.
    pub fn selects_namespace(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.position(namespace).is_some()
    }

    /// Returns the selection of all objects in the same namespaces.
    ///
    /// ```
    /// use reknit_injection::select;
    ///
    /// let pods = select().namespaces(["a", "b"]).label("app", "web");
    /// assert_eq!(pods.same_namespaces(), select().namespaces(["a", "b"]));
    /// ```
    #[must_use]
    pub fn same_namespaces(&self) -> Self {
        Self { namespaces: self.namespaces.clone(), ..Self::default() }
    }

    /// The selections that the API server can evaluate in one request each: one per namespace, in the order of
    /// [`part_of`](Self::part_of), or the whole selection if it selects all namespaces.
    pub(crate) fn parts(&self) -> Vec<Self> {
        if self.namespaces.is_empty() {
            return vec![self.clone()];
        }
        self.namespaces.iter().map(|namespace| self.clone().namespace(namespace)).collect()
    }

    /// The index of the [part](Self::parts) that selects this namespace; `None` if no part does. If there is a single
    /// part, its index is returned for every namespace.
    pub(crate) fn part_of(&self, namespace: Option<&str>) -> Option<usize> {
        match self.namespaces.len() {
            0 | 1 => Some(0),
            _ => self.position(namespace?),
        }
    }

    fn position(&self, namespace: &str) -> Option<usize> {
        self.namespaces.binary_search_by(|selected| selected.as_str().cmp(namespace)).ok()
    }

    /// The namespace of a [part](Self::parts); `None` if the part selects all namespaces.
    pub(crate) fn namespace_of_part(&self) -> Option<&str> {
        self.namespaces.first().map(String::as_str)
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
        let fields: Vec<_> = self.fields.iter().map(|(path, value)| field_term(path, value)).collect();
        (!fields.is_empty()).then(|| fields.join(","))
    }

    /// Returns true if the object is selected; `None` if only the API server can evaluate the selected fields.
    pub(crate) fn admits(&self, object: &Object) -> Option<bool> {
        let ObjectState { namespace, name, .. } = object.state();
        let is_in_namespace = match namespace {
            Some(namespace) => self.selects_namespace(namespace),
            None => self.namespaces.is_empty(),
        };
        if !is_in_namespace || !(self.labels.selects_all() || self.labels.matches(&object.labels())) {
            return Some(false);
        }
        if self.carriers.as_ref().is_some_and(|carriers| !carriers.admit(object)) {
            return Some(false);
        }
        self.match_fields(|path| match path {
            "metadata.name" => Some(name.to_owned()),
            "metadata.namespace" => Some(namespace.unwrap_or_default().to_owned()),
            _ => None,
        })
    }

    /// Returns true if the JSON of an object has the selected fields. An absent field counts as empty.
    pub(crate) fn admits_fields(&self, object: &Value) -> bool {
        let text_at = |path: &str| {
            let value = object.pointer(&format!("/{}", path.replace('.', "/")));
            value.map_or(String::new(), |value| {
                value.as_str().map_or_else(|| value.to_string(), str::to_owned)
            })
        };
        self.match_fields(|path| Some(text_at(path))).unwrap_or_default()
    }

    /// Compares each selected field with the value that `field` returns. `None` if a value is unknown and no known
    /// value differs.
    fn match_fields(&self, field: impl Fn(&str) -> Option<String>) -> Option<bool> {
        let mut result = Some(true);
        for (path, selected) in &self.fields {
            match field(path) {
                Some(value) if value != *selected => return Some(false),
                Some(_) => {}
                None => result = None,
            }
        }
        result
    }
}

/// Returns true if a change of an object can take it out of the selection: it has labels, or fields other than the name
/// and the namespace.
pub fn can_be_left(selection: &Selection) -> bool {
    let is_constant = |field: &String| ["metadata.name", "metadata.namespace"].contains(&field.as_str());
    !selection.labels.selects_all() || !selection.fields.keys().all(is_constant)
}

/// Describes the objects of a selection, whatever is kept of each. Empty if all are selected.
pub fn selected_objects(selection: &Selection) -> String {
    Selection { keeps_managed_fields: false, ..selection.clone() }.to_string()
}

/// Returns the selection of the objects outside this selection that carry one of these finalizers. `None` if no object
/// can leave this selection. An informer of the result lists and watches all objects in the same namespaces, and keeps
/// only the selected ones.
pub fn carriers_outside(selection: &Selection, finalizers: &[&str]) -> Option<Selection> {
    if !can_be_left(selection) {
        return None;
    }
    let finalizers = finalizers.iter().map(|&name| name.to_owned()).collect();
    let carriers = Carriers { finalizers, outside: selection.clone() };
    Some(Selection { carriers: Some(Box::new(carriers)), ..selection.same_namespaces() })
}

impl Carriers {
    /// Returns true if the object carries one of the finalizers and is not known to be in the other selection.
    fn admit(&self, object: &Object) -> bool {
        object.finalizers().iter().any(|name| self.finalizers.contains(name))
            && self.outside.admits(object) != Some(true)
    }
}

/// Compares the texts, in which namespaces, labels and fields are sorted.
impl PartialEq for Selection {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// The selection in logs and probes. Empty if everything is selected.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespaces = Some(self.namespaces.join(",")).filter(|names| !names.is_empty());
        let part = |name: &str, value: Option<String>| value.map(|value| format!("{name}={value}"));
        let parts = [
            part("namespace", namespaces),
            part("labels", self.label_selector()),
            part("fields", self.field_selector()),
            self.keeps_managed_fields.then(|| "with managedFields".to_owned()),
            self.carriers.as_ref().map(|carriers| {
                format!("finalizers={} outside ({})", carriers.finalizers.join(","), carriers.outside)
            }),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

/// A term of a field selector, with the characters escaped that have a meaning there. The name of a Role, for example, may
/// contain them.
pub fn field_term(path: &str, value: &str) -> String {
    let value = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
    format!("{path}={value}")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::discovery::ApiResource;
    use serde_json::json;

    use super::*;
    use crate::object::encode;

    /// The result of [`Selection::admits`] for a ConfigMap `a` with this namespace and these labels.
    fn admits(selection: &Selection, namespace: &str, labels: &[(&str, &str)]) -> Option<bool> {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".into());
        object.metadata.namespace = Some(namespace.into());
        object.metadata.labels = Some(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        let (object, _) = encode(&object, &ApiResource::erase::<ConfigMap>(&())).unwrap();
        selection.admits(&object)
    }

    #[test]
    fn the_order_of_labels_and_fields_does_not_matter() {
        let one = select().namespace("x").label("a", "1").label("b", "2").field("p", "1").field("o", "2");
        let two = select().field("o", "2").field("p", "1").label("b", "2").label("a", "1").namespace("x");
        assert_eq!((&one, one.to_string()), (&two, two.to_string()));
        assert_ne!(one, one.clone().keeping_managed_fields());
    }

    #[test]
    fn an_empty_name_or_no_name_selects_all_namespaces() {
        assert_eq!(select().namespace(""), select());
        assert_eq!(select().namespaces(["a", ""]), select());
        assert_eq!(select().namespaces([""; 0]), select());
    }

    #[test]
    fn several_namespaces_are_a_set_with_one_part_each() {
        let teams = select().namespaces(["b", "a", "b"]).label("x", "1");
        assert_eq!(teams, select().label("x", "1").namespaces(["a", "b"]));
        assert_eq!(teams.to_string(), "namespace=a,b labels=x=1");
        assert_eq!(teams.parts(), ["a", "b"].map(|name| select().namespace(name).label("x", "1")));
        assert_eq!(["a", "b", "c"].map(|name| teams.part_of(Some(name))), [Some(0), Some(1), None]);
        assert_eq!(select().parts(), [select()]);
        assert_eq!(admits(&teams, "b", &[("x", "1")]), Some(true));
        assert_eq!(admits(&teams, "c", &[("x", "1")]), Some(false));
    }

    #[test]
    fn labels_and_namespace_are_evaluated_locally() {
        let ide = select().namespace("ide").label("kind", "cloud-ide");
        assert_eq!(admits(&ide, "ide", &[("kind", "cloud-ide")]), Some(true));
        assert_eq!(admits(&ide, "ide", &[]), Some(false));
        assert_eq!(admits(&ide, "other", &[("kind", "cloud-ide")]), Some(false));
    }

    #[test]
    fn objects_outside_a_selection_are_selected_if_they_carry_the_finalizer() {
        let desks = select().namespace("x").label("kind", "desk");
        let outside = carriers_outside(&desks, &["example.com/a"]).unwrap();
        assert_eq!(
            outside.to_string(),
            "namespace=x finalizers=example.com/a outside (namespace=x labels=kind=desk)"
        );
        assert_eq!((outside.label_selector(), outside.parts()), (None, vec![outside.clone()]));
        let admits = |finalizer: &str, kind: &str| {
            let mut object = ConfigMap::default();
            object.metadata.namespace = Some("x".into());
            object.metadata.finalizers = Some(vec![finalizer.into()]);
            object.metadata.labels = Some([("kind".into(), kind.into())].into());
            let (object, _) = encode(&object, &ApiResource::erase::<ConfigMap>(&())).unwrap();
            outside.admits(&object)
        };
        assert_eq!(admits("example.com/a", "street"), Some(true));
        assert_eq!(admits("example.com/a", "desk"), Some(false));
        assert_eq!(admits("example.com/b", "street"), Some(false));
        for constant in [select(), select().namespaces(["x", "y"]), select().field("metadata.name", "a")] {
            assert!(carriers_outside(&constant, &["example.com/a"]).is_none(), "{constant}");
        }
        assert!(carriers_outside(&select().field("spec.nodeName", "n"), &["example.com/a"]).is_some());
    }

    #[test]
    fn fields_that_only_the_server_can_evaluate_have_no_local_result() {
        let on_node = select().namespace("x").field("spec.nodeName", "n");
        assert_eq!(admits(&on_node, "x", &[]), None);
        assert_eq!(admits(&on_node, "y", &[]), Some(false), "the namespace alone decides");
        assert_eq!(admits(&select().field("metadata.name", "a"), "x", &[]), Some(true));
        assert_eq!(admits(&select().field("metadata.name", "b"), "x", &[]), Some(false));
    }

    #[test]
    fn fields_of_a_preloaded_object_are_read_by_path() {
        let on_node = select().field("spec.nodeName", "n");
        assert!(on_node.admits_fields(&json!({"spec": {"nodeName": "n"}})));
        assert!(!on_node.admits_fields(&json!({"spec": {}})));
        assert!(
            select()
                .field("spec.unschedulable", "true")
                .admits_fields(&json!({"spec": {"unschedulable": true}}))
        );
    }

    #[test]
    fn special_characters_of_a_field_value_are_escaped() {
        assert_eq!(select().field("a", r"x,y=z\").field_selector().unwrap(), r"a=x\,y\=z\\");
    }
}
