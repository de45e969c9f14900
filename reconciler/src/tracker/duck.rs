//! [`Duck`]: the common fields of objects of many Kinds.

use std::borrow::Cow;

use kube::{
    Resource,
    api::{ApiResource, DynamicObject, ObjectMeta},
    core::DynamicResourceScope,
};
use reknit_apis::{KReference, Key};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::{Result, ResultExt};

/// The fields that a controller reads of objects of any Kind, as in Knative's duck types: the metadata, and those
/// fields of the spec and the status that the types name. Other fields are ignored, and an absent or null spec or
/// status is the default. Use [`NoFields`] for a part that is not read.
///
/// [`TrackedAny::get_as`](crate::TrackedAny::get_as) returns a `Duck`. As a `Duck` is a [`Resource`], kube's
/// `ResourceExt` returns its name and labels.
///
/// ```
/// use reknit_reconciler::{Duck, NoFields};
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, Default)]
/// #[serde(rename_all = "camelCase", default)]
/// struct ChannelableStatus {
///     dead_letter_sink_uri: Option<String>,
/// }
///
/// type Channelable = Duck<NoFields, ChannelableStatus>;
///
/// let channel: Channelable = serde_json::from_value(json!({
///     "apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel", "metadata": {"name": "orders"},
///     "spec": {"subscribers": []}, "status": {"deadLetterSinkUri": "http://sink"},
/// }))?;
/// assert_eq!(channel.kind, "InMemoryChannel");
/// assert_eq!(channel.status.dead_letter_sink_uri.as_deref(), Some("http://sink"));
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(
    rename_all = "camelCase",
    bound(deserialize = "Spec: Deserialize<'de> + Default, Status: Deserialize<'de> + Default")
)]
pub struct Duck<Spec = NoFields, Status = NoFields> {
    /// The group and the version.
    #[serde(default)]
    pub api_version: String,
    /// The Kind.
    #[serde(default)]
    pub kind: String,
    /// The metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The fields of the spec.
    #[serde(default, deserialize_with = "or_default")]
    pub spec: Spec,
    /// The fields of the status.
    #[serde(default, deserialize_with = "or_default")]
    pub status: Status,
}

impl<Spec, Status> Duck<Spec, Status>
where
    Self: DeserializeOwned,
{
    /// Reads the fields of an object of any Kind, such as a child of [`OwnedAny`](crate::OwnedAny).
    ///
    /// ```
    /// use kube::api::DynamicObject;
    /// use reknit_reconciler::{Duck, NoFields, Result};
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize, Default)]
    /// struct Scalable {
    ///     replicas: Option<i32>,
    /// }
    ///
    /// fn replicas_of(object: &DynamicObject) -> Result<Option<i32>> {
    ///     Ok(Duck::<Scalable, NoFields>::of(object)?.spec.replicas)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if a field has another type. The error is permanent, since only a change of the object can help.
    pub fn of(object: &DynamicObject) -> Result<Self> {
        decode(object).permanent()
    }
}

impl<Spec, Status> Duck<Spec, Status> {
    /// Returns a reference to the object.
    pub fn reference(&self) -> KReference {
        KReference {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone().unwrap_or_default(),
            address: None,
        }
    }
}

/// A spec or a status of which no field is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct NoFields {}

impl<Spec, Status> Resource for Duck<Spec, Status> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::kind(resource)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::group(resource)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::version(resource)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        DynamicObject::plural(resource)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The error of an object that does not have the form of a duck type.
#[derive(Debug, thiserror::Error)]
#[error("failed to decode {kind} {key}: {reason}")]
pub(super) struct NotDecoded {
    kind: String,
    key: Key,
    reason: String,
}

/// Decodes an object of any Kind. The error contains no value of a Secret.
pub(super) fn decode<T: DeserializeOwned>(object: &DynamicObject) -> Result<T, NotDecoded> {
    let json = serde_json::to_value(object).map_err(|error| error.to_string());
    let decoded =
        json.and_then(|json| serde_path_to_error::deserialize(json).map_err(|error| error.to_string()));
    decoded.map_err(|reason| {
        let kind = object.types.as_ref().map(|types| types.kind.clone()).unwrap_or_default();
        let reason = if kind == "Secret" { "a value of the wrong form".into() } else { reason };
        NotDecoded { kind, key: Key::of(object), reason }
    })
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
