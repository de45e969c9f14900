//! The content of a child as it is applied, and the part of an existing object to compare with it.

use std::{
    fmt::Display,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    iter,
};

use k8s_openapi::ByteString;
use kube::{
    Resource,
    api::{ApiResource, ObjectMeta},
};
use md5::{Digest, Md5};
use reknit_apis::{Key, Scope, to_json};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    annotation::{APPLIED, applied, applied_value},
    error::{NotApplied, kind_and_key},
    owner::{controller_reference, other_owners},
};
use crate::object_client::ObjectKind;

/// The desired state of a child, as it is applied.
#[derive(Clone)]
pub(super) struct Desired {
    pub(super) key: Key,
    /// Kind and key, for errors.
    pub(super) name: String,
    /// The value of the annotation, with a hash of all other applied content.
    pub(super) applied: String,
    /// The fields that are set, and no others.
    pub(super) body: Value,
}

/// The state of an existing object, to compare with a [`Desired`].
pub(super) struct Observed {
    /// The fields of [`Desired::body`], with the values of the existing object.
    pub(super) fields: Value,
    /// A hash of everything but metadata and status.
    pub(super) content_hash: u64,
}

/// Returns the body that [`Owned::apply`](crate::Owned::apply) sends for this owner and this child of any Kind, for
/// tests. The Kind counts as namespaced if the owner or the child has a namespace.
///
/// # Errors
///
/// Returns the error of `apply` for a child that cannot be applied.
pub fn apply_body<O, T>(owner: &O, child: T, kind: &ApiResource) -> Result<Value, NotApplied>
where
    O: Resource<DynamicType = (), Scope: Scope>,
    T: Resource + Serialize,
{
    let is_namespaced = owner.meta().namespace.is_some() || child.meta().namespace.is_some();
    let kind = ObjectKind { resource: kind.clone(), is_namespaced };
    Desired::of(owner, child, &kind, "test").map(|desired| desired.body)
}

impl Desired {
    /// The state that this component applies.
    pub(super) fn of<O, T>(
        owner: &O,
        mut child: T,
        kind: &ObjectKind,
        component: &str,
    ) -> Result<Self, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Resource + Serialize,
    {
        let (key, resource) = (key_of(owner, Key::of(&child), kind)?, &kind.resource);
        *child.meta_mut() = metadata_to_apply(owner, child.meta(), &key);
        let mut body = to_json(&child).map_err(|error| not_json(kind, error))?;
        let fields = body.as_object_mut().ok_or_else(|| unusable(kind, "that is not a JSON object"))?;
        fields.remove("status");
        encode_string_data(resource, fields);
        fields.insert("apiVersion".into(), json!(resource.api_version));
        fields.insert("kind".into(), json!(resource.kind));
        body.sort_all_objects(); // a feature of serde_json keeps the order of fields, which may be that of a HashMap
        let hash: String = Md5::digest(body.to_string()).iter().map(|byte| format!("{byte:02x}")).collect();
        let applied = applied_value(&hash, component, owner);
        body["metadata"]["annotations"][APPLIED] = json!(applied);
        Ok(Self { name: kind.with_key(&key), key, applied, body })
    }

    /// Returns true if this was the last content that was applied to the object.
    pub(super) fn was_applied_to<T: Resource>(&self, object: &T) -> bool {
        applied(object) == Some(&self.applied)
    }

    /// The request body, with the uid of the object to change as a precondition. If the owner is being deleted, the
    /// resourceVersion is one, too: the garbage collector may just have orphaned the child, which would become a child again.
    pub(super) fn with_preconditions(&self, owner: &impl Resource, existing: Option<&ObjectMeta>) -> Value {
        let mut body = self.body.clone();
        let Some(existing) = existing else { return body };
        if let Some(uid) = &existing.uid {
            body["metadata"]["uid"] = json!(uid);
        }
        if owner.meta().deletion_timestamp.is_some() {
            body["metadata"]["resourceVersion"] = json!(existing.resource_version);
        }
        body
    }

    /// Drops the finalizers that a child which is being deleted does not have any more: the API server allows no new ones.
    pub(super) fn keep_finalizers_of(&mut self, existing: &ObjectMeta) {
        let kept = existing.finalizers.as_deref().unwrap_or_default();
        if let Some(Value::Array(finalizers)) = self.body.pointer_mut("/metadata/finalizers") {
            finalizers.retain(|name| kept.iter().any(|kept| name == kept));
        }
    }

    /// Extracts the part of an existing object to compare with this.
    pub(super) fn observe<T: Serialize>(
        &self,
        object: &T,
        kind: &ObjectKind,
    ) -> serde_json::Result<Observed> {
        let mut found = with_kind(object, kind)?;
        let (metadata, _status) = (found["metadata"].take(), found["status"].take());
        let content_hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&found);
        found["metadata"] = metadata;
        Ok(Observed { fields: values_of(&self.body, found), content_hash })
    }

    pub(super) fn refused(&self, source: kube::Error) -> NotApplied {
        NotApplied::refused(self.name.clone(), source)
    }
}

/// The full key of a child, whose key may lack the namespace. A namespaced child of a namespaced owner is in the owner's
/// namespace. The namespace of a cluster-scoped child is ignored, as by the API server.
pub(super) fn key_of(
    owner: &impl Resource<DynamicType = ()>,
    mut key: Key,
    kind: &ObjectKind,
) -> Result<Key, NotApplied> {
    if key.name.is_empty() {
        return Err(unusable(kind, "without a name"));
    }
    if matches!(&*key.name, "." | "..") || key.name.contains(['/', '%']) {
        return Err(unusable(kind, format!("of the invalid name {:?}", key.name)));
    }
    if !kind.is_namespaced {
        return Ok(Key { namespace: None, ..key });
    }
    match (&key.namespace, owner.meta().namespace.clone()) {
        (Some(own), Some(namespace)) if *own != namespace => {
            Err(NotApplied::OtherNamespace { child: kind.with_key(&key), owner: kind_and_key(owner) })
        }
        (None, None) => Err(unusable(kind, "without a namespace, of an owner without one,")),
        (_, namespace) => {
            key.namespace = namespace.or(key.namespace);
            Ok(key)
        }
    }
}

fn not_json(kind: &ObjectKind, error: impl Display) -> NotApplied {
    unusable(kind, format!("that does not serialize to JSON ({error})"))
}

fn unusable(kind: &ObjectKind, problem: impl Into<String>) -> NotApplied {
    NotApplied::Unusable { kind: kind.resource.kind.clone(), problem: problem.into() }
}

/// The metadata to apply: the owner becomes the controller, and fields that the API server sets are left out.
fn metadata_to_apply<O: Resource<DynamicType = ()>>(owner: &O, child: &ObjectMeta, key: &Key) -> ObjectMeta {
    let controller = controller_reference(owner);
    let owners = iter::once(&controller).chain(other_owners(child, &controller)).cloned().collect();
    let mut annotations = child.annotations.clone();
    // A child that was read from the cache has the annotation. It must not enter the next hash.
    annotations.iter_mut().for_each(|annotations| drop(annotations.remove(APPLIED)));
    ObjectMeta {
        name: Some(key.name.clone()),
        namespace: key.namespace.clone(),
        labels: child.labels.clone(),
        annotations: annotations.filter(|annotations| !annotations.is_empty()),
        finalizers: child.finalizers.clone(),
        owner_references: Some(owners),
        ..ObjectMeta::default()
    }
}

/// Moves the `stringData` of a Secret into `data`. The API server does the same and never returns `stringData`.
pub(super) fn encode_string_data(resource: &ApiResource, object: &mut Map<String, Value>) {
    if resource.kind != "Secret" || resource.api_version != "v1" {
        return;
    }
    let Some(Value::Object(texts)) = object.remove("stringData") else { return };
    let data = object.entry("data").or_insert_with(|| json!({}));
    for (key, text) in texts {
        data[key] = json!(ByteString(text.as_str().unwrap_or_default().into()));
    }
}

/// The object as JSON. The items of a list have no apiVersion and no kind.
pub(super) fn with_kind(object: &impl Serialize, kind: &ObjectKind) -> serde_json::Result<Value> {
    let mut object = to_json(object)?;
    object["apiVersion"] = json!(kind.resource.api_version);
    object["kind"] = json!(kind.resource.kind);
    Ok(object)
}

/// The values that the existing object has in the fields of the desired object.
///
/// A list whose length differs is returned as a whole, since only the API server knows which lists are merged by key.
fn values_of(desired: &Value, existing: Value) -> Value {
    match (desired, existing) {
        (Value::Object(desired), Value::Object(mut existing)) => {
            let field = |(name, desired): (&String, &Value)| {
                let value =
                    existing.remove(name).map_or(Value::Null, |existing| values_of(desired, existing));
                (name.clone(), value)
            };
            Value::Object(desired.iter().map(field).collect())
        }
        (Value::Array(desired), Value::Array(existing)) if desired.len() == existing.len() => Value::Array(
            desired.iter().zip(existing).map(|(desired, existing)| values_of(desired, existing)).collect(),
        ),
        (_, existing) => existing,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde::Deserialize;

    use std::collections::HashMap;

    use super::*;

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Release", namespaced)]
    struct ReleaseSpec {
        chart: Option<String>,
        values: Value,
        overrides: Vec<Option<Value>>,
        parameters: HashMap<u8, u8>,
    }

    fn apply(spec: ReleaseSpec) -> Value {
        let mut owner = ConfigMap::default();
        owner.metadata.namespace = Some("default".into());
        apply_body(&owner, Release::new("x", spec), &ApiResource::erase::<Release>(&())).unwrap()
    }

    /// This fails only if a feature of serde_json keeps the order in which fields are inserted.
    #[test]
    fn the_hash_does_not_depend_on_the_order_of_a_hash_map() {
        let body = || {
            let parameters = (0..50).map(|n| (n, n)).collect();
            apply(ReleaseSpec { chart: None, values: json!({}), overrides: vec![], parameters })
        };
        assert_eq!(body().to_string(), body().to_string());
    }

    #[test]
    fn a_child_that_is_being_deleted_gets_no_finalizer_back() {
        let (owner, kind) = (ConfigMap::default(), ApiResource::erase::<ConfigMap>(&()));
        let kind = ObjectKind { resource: kind, is_namespaced: false };
        let mut child = ConfigMap::default();
        child.metadata.name = Some("x".into());
        child.metadata.finalizers = Some(vec!["a.io/x".into(), "b.io/x".into()]);
        let mut desired = Desired::of(&owner, child.clone(), &kind, "test").unwrap();
        child.metadata.finalizers = Some(vec!["b.io/x".into(), "c.io/x".into()]);
        desired.keep_finalizers_of(&child.metadata);
        assert_eq!(desired.body["metadata"]["finalizers"], json!(["b.io/x"]));
        child.metadata.finalizers = None;
        let mut without = Desired::of(&owner, child.clone(), &kind, "test").unwrap();
        without.keep_finalizers_of(&child.metadata);
        assert_eq!(without.body["metadata"].get("finalizers"), None);
    }

    #[test]
    fn explicit_nulls_in_free_form_json_are_applied_and_unset_options_are_not() {
        let values = json!({"a": null, "b": [{"c": null}]});
        let overrides = vec![Some(json!({"d": null}))];
        let spec = ReleaseSpec { chart: None, values: values.clone(), overrides, parameters: HashMap::new() };
        assert_eq!(
            apply(spec)["spec"],
            json!({"values": values, "overrides": [{"d": null}], "parameters": {}})
        );
    }
}
