//! Strict decoding of objects: unknown fields are errors that name their paths.

#[cfg(test)]
mod tests;

use std::{borrow::Cow, collections::BTreeMap, marker::PhantomData, panic::catch_unwind, sync::Arc};

use kube::CustomResourceExt;
use reknit_apis::{CauseType, FieldError, Kind, internal::complete_schema, to_json};
use serde_json::Value;

use super::{
    change::Change,
    denial::Denial,
    fault_path::FaultPath,
    group_version_kind::GroupVersionKind,
    unknown_fields::{KnownFields, UnknownFields},
};

/// A strict decoder of one Kind.
///
/// A field is unknown if it is lost when the object is decoded and encoded again, and the schema of the Kind does not
/// have it either. The first check alone would also report an empty list that is not encoded. The second check alone
/// would report the keys of a flattened map.
pub(crate) struct Decoder<K> {
    definition: Arc<Definition>,
    kind: PhantomData<fn() -> K>,
}

/// The definitions of the Kinds whose objects are decoded.
#[derive(Clone, Default)]
pub(crate) struct Definitions(BTreeMap<GroupVersionKind, Arc<Definition>>);

/// The parts of a Kind's CustomResourceDefinition that decoding needs: as a cluster has them, but with the fields that the
/// status requires.
#[derive(Debug)]
pub(crate) struct Definition {
    schema: Value,
    /// True if the status is a subresource. Otherwise it is decoded like any other field.
    pub(crate) has_status_subresource: bool,
}

/// A decoded object, and the JSON to which it is encoded again.
pub(crate) struct Decoded<K> {
    pub(crate) object: K,
    pub(crate) encoded: Value,
}

impl<K: Kind> Decoded<K> {
    pub(crate) fn new(object: K) -> Result<Self, Denial> {
        let encoded = to_json(&object).map_err(|error| Denial::from(error.to_string()))?;
        Ok(Self { object, encoded })
    }
}

/// Decodes an object and ignores unknown fields. The schema of the Kind is used only to find the path of a fault below
/// a flattened field, and can be null.
pub(crate) fn decode<K: Kind>(value: &Value, schema: &Value) -> Result<K, Denial> {
    serde_path_to_error::deserialize(value).map_err(|error| describe_fault(&error, value, schema))
}

/// Decodes an object. If only its status cannot be decoded and `may_drop_status` is set, decodes the rest. Also returns
/// the JSON that was decoded.
pub(crate) fn decode_leniently<'a, K: Kind>(
    value: &'a Value,
    schema: &Value,
    may_drop_status: bool,
) -> Result<(K, Cow<'a, Value>), Denial> {
    let error = match decode(value, schema) {
        Ok(object) => return Ok((object, Cow::Borrowed(value))),
        Err(error) => error,
    };
    let mut rest = value.clone();
    match rest.as_object_mut().filter(|_| may_drop_status).and_then(|fields| fields.remove("status")) {
        Some(_) => Ok((decode(&rest, schema).map_err(|_| error)?, Cow::Owned(rest))),
        None => Err(error),
    }
}

impl Definition {
    fn of<K: Kind + CustomResourceExt>() -> Self {
        // kube panics for some types, although their objects can be decoded. Without a schema, every field is known.
        let crd = catch_unwind(|| complete_schema(K::crd())).map_err(|_| {
            tracing::warn!(
                kind = %K::kind(&()),
                "cannot generate the schema, so unknown fields are not refused: add \
                 `#[schemars(transform = reknit::apis::structural)]` to the spec and the status"
            );
        });
        let crd = crd.ok().and_then(|crd| serde_json::to_value(crd).ok()).unwrap_or_default();
        let mut versions = crd["spec"]["versions"].as_array().into_iter().flatten();
        let version = versions.find(|version| version["name"] == *K::version(&())).unwrap_or(&Value::Null);
        let schema = version["schema"]["openAPIV3Schema"].clone();
        Self { schema, has_status_subresource: version["subresources"]["status"].is_object() }
    }

    /// The schema of the Kind. Null if the definition has none.
    pub(crate) fn schema(&self) -> &Value {
        &self.schema
    }
}

impl Definitions {
    /// Returns a decoder of this Kind. Generating the definition of a Kind with a pod template takes long, so all
    /// decoders of the Kind share it.
    pub(crate) fn decoder<K: Kind + CustomResourceExt>(&mut self) -> Decoder<K> {
        Decoder::new(self.definition::<K>())
    }

    pub(crate) fn definition<K: Kind + CustomResourceExt>(&mut self) -> Arc<Definition> {
        let definition = self.0.entry(GroupVersionKind::of::<K>());
        definition.or_insert_with(|| Arc::new(Definition::of::<K>())).clone()
    }
}

impl<K: Kind + CustomResourceExt> Decoder<K> {
    fn new(definition: Arc<Definition>) -> Self {
        Self { definition, kind: PhantomData }
    }

    /// Decodes the old object. Returns `None` if there is none or it cannot be decoded, so that an undecodable object
    /// can still be replaced or deleted.
    pub(crate) fn old_object(&self, change: &Change) -> Option<K> {
        Some(
            decode_leniently(
                change.old.as_ref()?,
                &self.definition.schema,
                self.definition.has_status_subresource,
            )
            .ok()?
            .0,
        )
    }

    /// Decodes the new object and refuses unknown fields. Unknown fields that the old object already has are allowed,
    /// so that its finalizers can still be removed.
    ///
    /// An undecodable status is left out if it is a subresource and the request is for the object itself, since the API
    /// server then discards the status.
    pub(crate) fn new_object(&self, change: &Change) -> Result<Decoded<K>, Denial> {
        let object = change.new_object()?;
        let may_drop_status = self.definition.has_status_subresource && change.request.subresource.is_none();
        decode_leniently(object, &self.definition.schema, may_drop_status)
            .and_then(|(object, value)| self.check_unknown_fields(object, &value, change))
            .map_err(|denial| denial.context("cannot decode incoming new object"))
    }

    fn check_unknown_fields(&self, object: K, value: &Value, change: &Change) -> Result<Decoded<K>, Denial> {
        let decoded = Decoded::new(object)?;
        let known = KnownFields { encoded: &decoded.encoded, schema: &self.definition.schema };
        let mut unknown = UnknownFields::of(value, known);
        if let Some(old) = change.old.as_ref().filter(|_| !unknown.is_empty()) {
            let encoded = self.old_object(change).and_then(|old| Some(Decoded::new(old).ok()?.encoded));
            let known_in_old = KnownFields { encoded: encoded.as_ref().unwrap_or(&Value::Null), ..known };
            unknown = UnknownFields::beyond_old(value, known, old, known_in_old);
        }
        if unknown.is_empty() { Ok(decoded) } else { Err(unknown.into()) }
    }
}

/// Describes a fault with its path. A missing field is described in Knative's words.
fn describe_fault(
    error: &serde_path_to_error::Error<serde_json::Error>,
    value: &Value,
    schema: &Value,
) -> Denial {
    let text = error.inner().to_string();
    let missing = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    let path = FaultPath::find(error.path(), value, schema, missing).to_string();
    match (missing, &*path) {
        (Some(field), "") => FieldError::missing([field]).into(),
        (Some(field), path) => FieldError::missing([field]).via_field(path).into(),
        (None, "") => text.into(),
        (None, path) => {
            let fault = FieldError::generic(&*text, [path]).cause(CauseType::TypeInvalid);
            Denial::new(format!("{path}: {text}"), fault)
        }
    }
}
