//! The representations of objects in responses: whole, or only their metadata.

use std::sync::Arc;

use http::StatusCode;
use kube::core::response::reason;
use serde_json::{Value, json};

use crate::response::{Response, failure};

const METADATA_VERSION: &str = "meta.k8s.io/v1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Representation {
    Object,
    /// `PartialObjectMetadata`.
    Metadata,
}

impl Representation {
    /// Chooses the first supported representation of an `Accept` header.
    pub(crate) fn accepted(header: &str) -> Result<Self, Response> {
        let mut media_types = header.split(',').map(str::trim);
        let supported = media_types.find_map(|media_type| {
            let mut parts = media_type.split(';').map(str::trim);
            let is_json =
                matches!(parts.next(), None | Some("" | "application/json" | "application/*" | "*/*"));
            match parts.find_map(|part| part.strip_prefix("as=")) {
                None => is_json.then_some(Self::Object),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    is_json.then_some(Self::Metadata)
                }
                Some(_) => None,
            }
        });
        supported.ok_or_else(|| {
            let message = "only the following media types are accepted: application/json, \
                 application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
            failure(StatusCode::NOT_ACCEPTABLE, reason::NOT_ACCEPTABLE, message)
        })
    }

    /// Returns the object or the list in this representation. A `Status` is returned as it is.
    pub(crate) fn of(self, value: Arc<Value>) -> Arc<Value> {
        match self {
            Self::Metadata if value["kind"] != "Status" => Arc::new(metadata_of(&value)),
            _ => value,
        }
    }
}

fn metadata_of(value: &Value) -> Value {
    let metadata = &value["metadata"];
    let Some(items) = value["items"].as_array() else {
        return json!({ "kind": "PartialObjectMetadata", "apiVersion": METADATA_VERSION, "metadata": metadata });
    };
    let mut metadata = metadata.as_object().cloned().unwrap_or_default();
    metadata.retain(|_, value| *value != "");
    let items: Vec<_> = items.iter().map(metadata_of).collect();
    json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": METADATA_VERSION,
        "metadata": metadata,
        "items": (!items.is_empty()).then_some(items),
    })
}
