//! [`Duck`]: the common fields of objects of many Kinds.

use std::borrow::Cow;

use kube::{
    Resource,
    api::{ApiResource, DynamicObject, ObjectMeta},
    core::DynamicResourceScope,
};
use reknit_apis::{KReference, Key};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, IgnoredAny},
};

use crate::{Error, Result};

/// The fields that a controller reads of objects of any Kind, as in Knative's duck types: the metadata, and those
/// fields of the status and the spec that the types name. Other fields are ignored, and an absent or null status or
/// spec is the default. Without a type for the spec, nothing of the spec is read.
///
/// [`TrackedAny::get_as`](crate::TrackedAny::get_as) returns a `Duck`. As a `Duck` is a [`Resource`], kube's
/// `ResourceExt` returns its name and labels.
///
/// ```
/// use reknit_reconciler::Duck;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, Default)]
/// #[serde(rename_all = "camelCase", default)]
/// struct ChannelableStatus {
///     dead_letter_sink_uri: Option<String>,
/// }
///
/// type Channelable = Duck<ChannelableStatus>;
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
    bound(deserialize = "Status: Deserialize<'de> + Default, Spec: Deserialize<'de> + Default")
)]
pub struct Duck<Status = IgnoredAny, Spec = IgnoredAny> {
    /// The group and the version.
    #[serde(default)]
    pub api_version: String,
    /// The Kind.
    #[serde(default)]
    pub kind: String,
    /// The metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The fields of the status.
    #[serde(default, deserialize_with = "or_default")]
    pub status: Status,
    /// The fields of the spec.
    #[serde(default, deserialize_with = "or_default")]
    pub spec: Spec,
}

impl<Status, Spec> Duck<Status, Spec>
where
    Self: DeserializeOwned,
{
    /// Reads the fields of an object of any Kind, such as a child of [`OwnedAny`](crate::OwnedAny).
    ///
    /// ```
    /// use kube::api::DynamicObject;
    /// use reknit_reconciler::{Duck, Result};
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize, Default)]
    /// struct Scaled {
    ///     replicas: Option<i32>,
    /// }
    ///
    /// fn replicas_of(object: &DynamicObject) -> Result<Option<i32>> {
    ///     Ok(Duck::<Scaled>::of(object)?.status.replicas)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if a field has another type. The error is permanent, since only a change of the object can help.
    pub fn of(object: &DynamicObject) -> Result<Self> {
        decode(object)
    }
}

impl<Status, Spec> Duck<Status, Spec> {
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

impl<Status, Spec> Resource for Duck<Status, Spec> {
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

/// Decodes an object of any Kind. The error is permanent, and contains no value of a Secret.
pub(super) fn decode<T: DeserializeOwned>(object: &DynamicObject) -> Result<T> {
    let json = serde_json::to_value(object).map_err(|error| error.to_string());
    let decoded =
        json.and_then(|json| serde_path_to_error::deserialize(json).map_err(|error| error.to_string()));
    decoded.map_err(|reason| {
        let kind = object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or_default();
        let reason = if kind == "Secret" { "a value of the wrong form" } else { &reason };
        Error::permanent(format!("failed to decode {kind} {}: {reason}", Key::of(object)))
    })
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
