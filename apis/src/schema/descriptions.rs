//! Removal of descriptions from schemas.

use schemars::{Schema, transform::transform_subschemas};

/// Drops the descriptions below a field, as a transform of schemars. The field keeps its own description.
///
/// Set it on fields whose types are Kubernetes' own. `kubectl apply` stores the definition in an annotation of at most
/// 256 KiB, and the descriptions of a `PodTemplateSpec` alone are larger than that. (`kubectl apply --server-side` has
/// no such limit.)
///
/// ```
/// use k8s_openapi::api::core::v1::PodTemplateSpec;
/// use kube::{CustomResource, CustomResourceExt};
/// use reknit_apis::drop_descriptions;
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Pool", namespaced)]
/// struct PoolSpec {
///     /// The template of the pods.
///     #[schemars(transform = drop_descriptions)]
///     template: PodTemplateSpec,
/// }
///
/// let definition = serde_json::to_string(&Pool::crd()).unwrap();
/// assert!(definition.contains("The template of the pods."));
/// assert!(definition.len() < 256 * 1024);
/// ```
pub fn drop_descriptions(schema: &mut Schema) {
    let mut drop_description = |inner: &mut Schema| {
        inner.remove("description");
        drop_descriptions(inner);
    };
    transform_subschemas(&mut drop_description, schema);
}
