//! The pattern of quantities, which the schema of k8s-openapi's `Quantity` lacks.

use std::{borrow::Cow, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{
    JsonSchema, Schema, SchemaGenerator,
    transform::{RecursiveTransform, Transform},
};
use serde_json::{Value, json};

use super::nullable::Node;

/// The pattern that controller-gen writes for a `resource.Quantity`.
const PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Generates the schema of a type, in which each quantity has the pattern.
///
/// A generator that inlines all schemas leaves nothing by which a quantity differs from another integer or string. It
/// refers to a type only within the schema of this type, where the type would contain itself. So the schema of `K` is
/// generated as that of a quantity, and contains a reference for each quantity.
pub(super) fn schema_with_quantities<K: JsonSchema>(mut generator: SchemaGenerator) -> Schema {
    let mut schema = generator.subschema_for::<WithinQuantity<K>>();
    schema.ensure_object().entry("title").or_insert_with(|| K::schema_name().into());
    let resolve = |schema: &mut Schema| {
        schema.as_object_mut().map(resolve_quantity);
    };
    RecursiveTransform(resolve).transform(&mut schema);
    generator.transforms_mut().for_each(|transform| transform.transform(&mut schema));
    schema
}

/// Replaces a reference to a quantity by its schema. Returns true if the node was one.
pub(super) fn resolve_quantity(node: &mut Node) -> bool {
    let is_quantity = |reference: &Value| {
        let name = reference.as_str().and_then(|reference| reference.rsplit('/').next());
        name.is_some_and(|name| name == Quantity::schema_name())
    };
    if !node.get("$ref").is_some_and(is_quantity) {
        return false;
    }
    node.remove("$ref");
    node.insert("x-kubernetes-int-or-string".into(), true.into());
    node.entry("pattern").or_insert_with(|| json!(PATTERN));
    true
}

/// The schema of `K`, for which the generator takes it for that of a quantity.
struct WithinQuantity<K>(PhantomData<K>);

impl<K: JsonSchema> JsonSchema for WithinQuantity<K> {
    fn schema_name() -> Cow<'static, str> {
        Quantity::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        Quantity::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<K>()
    }
}
