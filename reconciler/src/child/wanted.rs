//! What is applied of a child, and what of the child as it is concerns it.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    iter,
};

use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Resource, api::ObjectMeta};
use md5::{Digest, Md5};
use reknit_apis::{Key, Scope};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::error::{NotApplied, named, said};

/// Holds a hash of what was applied, this annotation aside.
const APPLIED: &str = "reknit.dev/applied";

/// What is to be applied.
pub(super) struct Wanted {
    pub(super) key: Key,
    /// The child in the words of an error.
    pub(super) said: String,
    pub(super) hash: String,
    /// Every field that is set, and no other.
    pub(super) body: Value,
}

/// What [`Owned::apply`](crate::Owned::apply) sends for this child of this owner: for tests that compare it.
///
/// # Errors
///
/// As there, where the child is one that cannot be applied.
pub fn applied<O, T>(owner: &O, child: T) -> Result<Value, NotApplied>
where
    O: Resource<DynamicType = (), Scope: Scope>,
    T: Resource<DynamicType = (), Scope: Scope> + Serialize,
{
    Wanted::of(owner, child).map(|wanted| wanted.body)
}

/// What of an object concerns what is applied.
pub(super) struct Found {
    /// The fields that are set, with the values that they have there.
    pub(super) fields: Value,
    /// A hash of everything but metadata and status.
    pub(super) whole: u64,
}

impl Wanted {
    pub(super) fn of<O, T>(owner: &O, mut child: T) -> Result<Self, NotApplied>
    where
        O: Resource<DynamicType = (), Scope: Scope>,
        T: Resource<DynamicType = (), Scope: Scope> + Serialize,
    {
        let key = place(owner, &child)?;
        *child.meta_mut() = metadata(owner, child.meta(), &key);
        let unusable = |problem: String| NotApplied::Unusable { kind: T::kind(&()).into_owned(), problem };
        let sent = serde_json::to_value(&child);
        let mut body = without_nulls(sent.map_err(|error| unusable(format!("that is no JSON ({error})")))?);
        let Some(fields) = body.as_object_mut() else {
            return Err(unusable("that is no JSON object".into()));
        };
        fields.remove("status");
        if T::kind(&()) == "Secret" && T::api_version(&()) == "v1" {
            readable(fields);
        }
        fields.insert("apiVersion".into(), json!(T::api_version(&())));
        fields.insert("kind".into(), json!(T::kind(&())));
        let hash = hash(&body);
        body["metadata"]["annotations"][APPLIED] = json!(hash);
        Ok(Self { said: named::<T>(&key), key, hash, body })
    }

    /// What is sent: to this very object, or to none yet.
    pub(super) fn to_send(&self, uid: Option<String>) -> Value {
        let mut body = self.body.clone();
        if let Some(uid) = uid {
            body["metadata"]["uid"] = json!(uid);
        }
        body
    }

    pub(super) fn found_in<T: Resource<DynamicType = ()> + Serialize>(
        &self,
        object: &T,
    ) -> serde_json::Result<Found> {
        let mut there = serde_json::to_value(object)?;
        let (metadata, _status) = (there["metadata"].take(), there["status"].take());
        // What a list answers has neither.
        there["apiVersion"] = json!(T::api_version(&()));
        there["kind"] = json!(T::kind(&()));
        let whole = BuildHasherDefault::<DefaultHasher>::default().hash_one(&there);
        there["metadata"] = metadata;
        Ok(Found { fields: fields(&self.body, there), whole })
    }

    pub(super) fn refused(&self, source: kube::Error) -> NotApplied {
        NotApplied::Refused { child: self.said.clone(), source: Box::new(source) }
    }
}

/// Where the child belongs: a namespaced one beside its owner, if that is in a namespace.
fn place<O, T>(owner: &O, child: &T) -> Result<Key, NotApplied>
where
    O: Resource<DynamicType = ()>,
    T: Resource<DynamicType = (), Scope: Scope>,
{
    let mut key = Key::of(child);
    if key.name.is_empty() {
        return Err(NotApplied::Unusable {
            kind: T::kind(&()).into_owned(),
            problem: "without a name".into(),
        });
    }
    let beside = owner.meta().namespace.clone().filter(|_| T::Scope::NAMESPACED);
    match (&key.namespace, beside) {
        (Some(given), Some(beside)) if *given != beside => {
            return Err(NotApplied::OtherNamespace { child: said(child), owner: said(owner) });
        }
        (_, Some(beside)) => key.namespace = Some(beside),
        (None, None) if T::Scope::NAMESPACED => {
            let problem = "without a namespace, of an owner without one,".into();
            return Err(NotApplied::Unusable { kind: T::kind(&()).into_owned(), problem });
        }
        (_, None) => {}
    }
    Ok(key)
}

/// What a controller has to say of an object's metadata.
fn metadata<O: Resource<DynamicType = ()>>(owner: &O, given: &ObjectMeta, key: &Key) -> ObjectMeta {
    let further = given.owner_references.iter().flatten().filter(|owner| owner.controller != Some(true));
    let owners = iter::once(controller(owner)).chain(further.cloned()).collect();
    let mut annotations = given.annotations.clone();
    // It is there where the child was read before; hashed with the rest, it would change with each apply.
    annotations.iter_mut().for_each(|annotations| drop(annotations.remove(APPLIED)));
    ObjectMeta {
        name: Some(key.name.clone()),
        namespace: key.namespace.clone(),
        labels: given.labels.clone(),
        annotations: annotations.filter(|annotations| !annotations.is_empty()),
        finalizers: given.finalizers.clone(),
        owner_references: Some(owners),
        ..ObjectMeta::default()
    }
}

pub(super) fn controller<O: Resource<DynamicType = ()>>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::api_version(&()).into_owned(),
        kind: O::kind(&()).into_owned(),
        name: Key::of(owner).name,
        uid: owner.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// What is not set is not applied; applied as null it would be refused, or taken away from others.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let set = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(set.map(|(name, value)| (name, without_nulls(value))).collect())
        }
        Value::Array(all) => Value::Array(all.into_iter().map(without_nulls).collect()),
        value => value,
    }
}

/// A Secret's `stringData` is written as `data`, and never read: what becomes of it would not show.
fn readable(secret: &mut Map<String, Value>) {
    let Some(Value::Object(texts)) = secret.remove("stringData") else { return };
    let data = secret.entry("data").or_insert_with(|| json!({}));
    for (key, text) in texts {
        data[key] = json!(ByteString(text.as_str().unwrap_or_default().into()));
    }
}

fn hash(body: &Value) -> String {
    Md5::digest(body.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A list is looked at as a whole, since only the API server knows which lists are kept by key: in one that somebody else
/// added to, something differs.
fn fields(set: &Value, there: Value) -> Value {
    match (set, there) {
        (Value::Object(set), Value::Object(mut there)) => {
            let field = |(name, set): (&String, &Value)| {
                (name.clone(), there.remove(name).map_or(Value::Null, |there| fields(set, there)))
            };
            Value::Object(set.iter().map(field).collect())
        }
        (Value::Array(set), Value::Array(there)) if set.len() == there.len() => {
            Value::Array(set.iter().zip(there).map(|(set, there)| fields(set, there)).collect())
        }
        (_, there) => there,
    }
}
