//! References from one object to others, and their validation.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_core::Resource;
use serde::{Deserialize, Serialize};

use crate::{
    FieldError,
    names::{c_identifier, dns_label, dns_subdomain, label_selector, qualified_name},
};

/// A reference to one object of any Kind.
///
/// ```
/// use reknit_apis::KReference;
///
/// let sink = KReference {
///     api_version: "serving.knative.dev/v1".into(),
///     kind: "Service".into(),
///     namespace: Some("default".into()),
///     name: "web".into(),
///     ..KReference::default()
/// };
/// assert_eq!(serde_json::to_value(&sink).unwrap()["apiVersion"], "serving.knative.dev/v1");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "A reference to one object of any Kind.")]
pub struct KReference {
    /// The group and version, such as `v1` or `apps/v1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The Kind, such as `Service`.
    pub kind: String,
    /// The namespace. If absent, the namespace of the object that contains the reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The name of the address, if the object publishes several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

impl KReference {
    /// Returns a reference to this object, with its namespace. If the object has no name, the name in the reference is
    /// empty.
    ///
    /// ```
    /// use k8s_openapi::api::apps::v1::Deployment;
    /// use reknit_apis::KReference;
    ///
    /// let mut deployment = Deployment::default();
    /// deployment.metadata.name = Some("web".into());
    /// deployment.metadata.namespace = Some("default".into());
    /// let reference = KReference::of(&deployment);
    /// assert_eq!((reference.api_version.as_str(), reference.to_string()), ("apps/v1", "Deployment default/web".into()));
    /// ```
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            namespace: object.meta().namespace.clone(),
            name: object.meta().name.clone().unwrap_or_default(),
            address: None,
        }
    }

    /// Validates that the reference names an object.
    pub fn validate(&self) -> FieldError {
        check_required(&self.name, "name")
            .also(check_required(&self.api_version, "apiVersion"))
            .also(check_required(&self.kind, "kind"))
    }

    /// Validates that the reference names an object, and that a namespace in it equals `parent_namespace`, the
    /// namespace of the object that contains the reference. Without this check, users could make the controller act in
    /// namespaces to which they have no access.
    ///
    /// A reference without a namespace passes this check. If `parent_namespace` is empty, because the containing object
    /// is cluster-scoped, every namespace passes.
    ///
    /// ```
    /// use reknit_apis::KReference;
    ///
    /// let sink = KReference {
    ///     api_version: "v1".into(),
    ///     kind: "Service".into(),
    ///     namespace: Some("theirs".into()),
    ///     name: "web".into(),
    ///     ..KReference::default()
    /// };
    /// assert!(sink.validate_within("theirs").is_empty());
    /// let error = sink.validate_within("mine").via_field("spec.sink");
    /// assert_eq!(
    ///     error.to_string(),
    ///     "mismatched namespaces: spec.sink.namespace\nparent namespace: \"mine\" does not match ref: \"theirs\"",
    /// );
    /// ```
    pub fn validate_within(&self, parent_namespace: &str) -> FieldError {
        self.validate().also(self.validate_namespace(parent_namespace))
    }

    /// Validates only the namespace, as [`validate_within`](Self::validate_within) does.
    pub fn validate_namespace(&self, parent_namespace: &str) -> FieldError {
        validate_namespace(self.namespace.as_deref().unwrap_or_default(), parent_namespace)
    }
}

fn validate_namespace(namespace: &str, parent_namespace: &str) -> FieldError {
    if namespace.is_empty() || parent_namespace.is_empty() || namespace == parent_namespace {
        return FieldError::none();
    }
    let details = format!("parent namespace: {parent_namespace:?} does not match ref: {namespace:?}");
    FieldError::generic("mismatched namespaces", ["namespace"]).details(details)
}

/// A reference to one object of any Kind, or to several objects in a namespace by their labels.
///
/// ```
/// use reknit_apis::Reference;
///
/// let reference = Reference { api_version: "v1".into(), kind: "Service".into(), ..Reference::default() };
/// let error = reference.check_trackable().unwrap_err();
/// assert_eq!(error.to_string(), "invalid Reference:\nmust provide either Name or Selector");
///
/// let reference = Reference { name: Some("web".into()), namespace: Some("default".into()), ..reference };
/// assert!(reference.check_trackable().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(
    description = "A reference to one object of any Kind, or to several objects in a namespace by their labels."
)]
pub struct Reference {
    /// The group and version, such as `v1` or `apps/v1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// The Kind, such as `Service`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The namespace. Cluster-scoped objects have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name. Either this or the selector is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The label selector of the objects. Either this or the name is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// The error of [`Reference::check_trackable`]. It lists every invalid field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid Reference:\n{}", .0.join("\n"))]
pub struct InvalidReference(Vec<String>);

impl From<KReference> for Reference {
    /// Converts without the address. A tracker watches the object, whichever of its addresses is used.
    fn from(KReference { api_version, kind, namespace, name, address: _ }: KReference) -> Self {
        Self { api_version, kind, namespace, name: Some(name), selector: None }
    }
}

impl fmt::Display for KReference {
    /// The Kind, the namespace and the name: `Service default/web`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        write_namespaced(f, self.namespace.as_deref(), &self.name)
    }
}

impl fmt::Display for Reference {
    /// The Kind, the namespace and the name or the selector in kubectl's syntax: `Deployment default/web`, `Deployment
    /// default/app=web,tier in (a,b)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.kind)?;
        match &self.selector {
            Some(selector) => write_namespaced(f, self.namespace.as_deref(), &selector_text(selector)),
            None => write_namespaced(f, self.namespace.as_deref(), self.name()),
        }
    }
}

fn write_namespaced(f: &mut fmt::Formatter<'_>, namespace: Option<&str>, name: &str) -> fmt::Result {
    match namespace {
        Some(namespace) if !namespace.is_empty() => write!(f, "{namespace}/{name}"),
        _ => f.write_str(name),
    }
}

/// The selector in the syntax of `kubectl get --selector`.
fn selector_text(selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|expression| {
        let key = &expression.key;
        let values = expression.values.as_deref().unwrap_or_default().join(",");
        match &*expression.operator {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

impl Reference {
    /// Sets the namespace if the reference has none. `namespace` is the namespace of the object that contains the
    /// reference. Call it in [`Kind::set_defaults`](crate::Kind::set_defaults).
    pub fn set_defaults(&mut self, namespace: &str) {
        if self.namespace().is_empty() && !namespace.is_empty() {
            self.namespace = Some(namespace.into());
        }
    }

    /// Validates that the reference names or selects objects in `parent_namespace`, the namespace of the object that
    /// contains the reference. See [`KReference::validate_within`].
    ///
    /// ```
    /// use reknit_apis::Reference;
    ///
    /// let subject = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "theirs", "name": "web"}"#;
    /// let mut subject: Reference = serde_json::from_str(subject)?;
    /// assert!(subject.validate_within("theirs").is_empty());
    /// assert!(subject.validate_within("mine").to_string().starts_with("mismatched namespaces: namespace"));
    ///
    /// subject.namespace = None;
    /// subject.set_defaults("mine");
    /// assert!(subject.validate_within("mine").is_empty());
    /// # Ok::<_, serde_json::Error>(())
    /// ```
    pub fn validate_within(&self, parent_namespace: &str) -> FieldError {
        self.validate().also(validate_namespace(self.namespace(), parent_namespace))
    }

    /// Validates that the reference names or selects objects in a namespace.
    pub fn validate(&self) -> FieldError {
        let name_or_selector = match (&self.selector, self.name()) {
            (Some(_), "") => self.validate_selector(),
            (Some(_), _) => FieldError::multiple_one_of(["selector", "name"]),
            (None, "") => FieldError::missing_one_of(["selector", "name"]),
            (None, name) => check_format(name, dns_label, "name"),
        };
        self.validate_kind_and_namespace().also(name_or_selector)
    }

    /// Validates that the reference names one object in a namespace and has no selector.
    pub fn validate_object_reference(&self) -> FieldError {
        let selector = match self.selector {
            Some(_) => FieldError::disallowed(["selector"]),
            None => FieldError::none(),
        };
        self.validate_kind_and_namespace()
            .also(check_required_format(self.name(), dns_label, "name"))
            .also(selector)
    }

    /// Checks that a tracker can watch the objects, to enqueue the referring object when they change.
    ///
    /// # Errors
    ///
    /// Returns an error if a field is malformed, if both name and selector are set, or if neither is set.
    pub fn check_trackable(&self) -> Result<(), InvalidReference> {
        let mut errors = Vec::new();
        let mut add = |field: &str, messages: Vec<String>| {
            errors.extend(messages.into_iter().map(|message| format!("{field}: {message}")));
        };
        add("APIVersion", qualified_name(&self.api_version));
        add("Kind", c_identifier(&self.kind));
        if !self.namespace().is_empty() {
            add("Namespace", dns_label(self.namespace()));
        }
        match (&self.selector, self.name()) {
            (Some(_), name) if !name.is_empty() => {
                errors.push("cannot provide both Name and Selector".into())
            }
            (Some(selector), _) => add("Selector", label_selector(selector).into_iter().collect()),
            (None, "") => errors.push("must provide either Name or Selector".into()),
            (None, name) => add("Name", dns_subdomain(name)),
        }
        errors.sort();
        if errors.is_empty() { Ok(()) } else { Err(InvalidReference(errors)) }
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn validate_kind_and_namespace(&self) -> FieldError {
        check_required_format(&self.api_version, qualified_name, "apiVersion")
            .also(check_required_format(&self.kind, c_identifier, "kind"))
            .also(check_required_format(self.namespace(), dns_label, "namespace"))
    }

    fn validate_selector(&self) -> FieldError {
        let message = self.selector.as_ref().and_then(label_selector);
        message.map_or_else(FieldError::none, |message| FieldError::invalid_value(message, "selector"))
    }
}

fn check_required(value: &str, path: &str) -> FieldError {
    if value.is_empty() { FieldError::missing([path]) } else { FieldError::none() }
}

fn check_format(value: &str, rule: fn(&str) -> Vec<String>, path: &str) -> FieldError {
    match &rule(value)[..] {
        [] => FieldError::none(),
        messages => FieldError::invalid_value(messages.join(", "), path),
    }
}

fn check_required_format(value: &str, rule: fn(&str) -> Vec<String>, path: &str) -> FieldError {
    if value.is_empty() { check_required(value, path) } else { check_format(value, rule, path) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn validation_error(namespace: Option<&str>, parent: &str) -> String {
        let reference = KReference { namespace: namespace.map(Into::into), ..KReference::default() };
        reference.validate_within(parent).to_string()
    }

    #[test]
    fn a_reference_to_another_namespace_is_reported_together_with_other_faults() {
        let missing = "missing field(s): apiVersion, kind, name";
        let mismatched =
            "mismatched namespaces: namespace\nparent namespace: \"mine\" does not match ref: \"theirs\"";
        assert_eq!(validation_error(Some("theirs"), "mine"), format!("{mismatched}\n{missing}"));
    }

    #[test]
    fn references_are_shown_by_kind_namespace_and_name_or_selector() {
        let text = |json| serde_json::from_value::<Reference>(json).unwrap().to_string();
        let named = json!({"kind": "Deployment", "namespace": "default", "name": "web"});
        assert_eq!(text(named), "Deployment default/web");
        assert_eq!(text(json!({"kind": "Namespace", "name": "default"})), "Namespace default");
        let expressions = json!([
            {"key": "tier", "operator": "In", "values": ["a", "b"]}, {"key": "old", "operator": "DoesNotExist"},
        ]);
        let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": expressions});
        assert_eq!(
            text(json!({"kind": "Deployment", "namespace": "default", "selector": selector})),
            "Deployment default/app=web,tier in (a,b),!old"
        );
    }

    #[test]
    fn an_equal_or_missing_namespace_is_not_a_mismatch() {
        for (namespace, parent) in
            [(Some("mine"), "mine"), (None, "mine"), (Some(""), "mine"), (Some("theirs"), "")]
        {
            assert!(
                !validation_error(namespace, parent).contains("mismatched"),
                "{namespace:?} in {parent:?}"
            );
        }
    }
}
