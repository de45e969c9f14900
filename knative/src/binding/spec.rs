//! The spec of a binding, an object that injects into the pods of other objects, its subjects.

use reknit_apis::Reference;
use serde::{Deserialize, Serialize};

/// The part of a binding's spec that names its subjects: the objects into whose pods it injects, for example an
/// environment variable. Embed it with `#[serde(flatten)]`.
///
/// Its schema refuses an update that changes the API group or the Kind of the subject: the objects of the former Kind would
/// keep the injection.
///
/// ```
/// use reknit_knative::BindingSpec;
///
/// let spec = r#"{"subject": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "default", "name": "web"}}"#;
/// let spec: BindingSpec = serde_json::from_str(spec)?;
/// assert!(spec.subject.validate().is_empty());
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(description = "The objects to bind.")]
pub struct BindingSpec {
    /// The object to bind, or several by their labels.
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "!has(oldSelf.kind) || !has(oldSelf.apiVersion) || (has(self.kind) && has(self.apiVersion) && \
                 self.kind == oldSelf.kind && \
                 self.apiVersion.find('^[^/]*/') == oldSelf.apiVersion.find('^[^/]*/'))",
        "message": "the API group and the Kind of the subject cannot be changed: create another binding",
    }]))]
    pub subject: Reference,
}
