//! The CustomResourceDefinition, built from the schemas of the Deployment types.

use k8s_openapi::{
    api::apps::v1::{DeploymentSpec, DeploymentStatus},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{CustomResourceExt, api::ApiResource, core::schema};
use reknit::apis::drop_descriptions;
use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use serde_json::{Value, json};

use super::{WaitProbe, Waitdeployment};

impl CustomResourceExt for Waitdeployment {
    #[allow(clippy::expect_used, reason = "a test checks that the literal below is a definition")]
    fn crd() -> CustomResourceDefinition {
        serde_json::from_value(definition()).expect("a definition")
    }

    fn crd_name() -> &'static str {
        "waitdeployments.demo.reknit.dev"
    }

    fn api_resource() -> ApiResource {
        ApiResource::erase::<Self>(&())
    }

    fn shortnames() -> &'static [&'static str] {
        &[]
    }
}

fn definition() -> Value {
    json!({
        "metadata": {"name": Waitdeployment::crd_name()},
        "spec": {
            "group": "demo.reknit.dev",
            "names": {"kind": "Waitdeployment", "plural": "waitdeployments", "singular": "waitdeployment"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Address", "type": "string", "jsonPath": ".waitProbe.address"},
                    {"name": "Probe", "type": "string",
                     "jsonPath": ".status.conditions[?(@.type=='ProbeSucceeded')].reason"},
                    {"name": "Available", "type": "integer", "jsonPath": ".status.availableReplicas"},
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "A Deployment that waits until something answers at an address.",
                    "required": ["spec", "waitProbe"],
                    "properties": {
                        "spec": schema_without_descriptions::<DeploymentSpec>(),
                        "status": schema_without_descriptions::<DeploymentStatus>(),
                        "waitProbe": structural_schema::<WaitProbe>(),
                    },
                }},
            }],
        },
    })
}

/// The schema of a Kubernetes type without descriptions. With them the definition would be too large for `kubectl
/// apply`.
fn schema_without_descriptions<T: JsonSchema>() -> Schema {
    let mut schema = structural_schema::<T>();
    // This keeps the description of the type itself.
    drop_descriptions(&mut schema);
    schema.remove("description");
    schema
}

/// The structural schema, as kube's derive generates it.
fn structural_schema<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let generator = settings
        .with_transform(schema::StructuralSchemaRewriter)
        .with_transform(schema::OptionalEnum)
        .with_transform(schema::OptionalIntOrString)
        .into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    schema.remove("title");
    schema
}
