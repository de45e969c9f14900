//! The subresource `scale`: the replicas of an object as a `Scale` of `autoscaling/v1`.

use http::StatusCode;
use kube::discovery::verbs;
use serde_json::{Map, Value, json};

use super::{Objects, Stored, checks::check_name, checks::check_namespace};
use crate::{
    collection::Collection,
    object::text,
    patch,
    request::{PatchKind, Request},
    response::{FieldError, Response, bad_request, internal_error, invalid, not_supported},
};

/// The built-in resources with a scale.
const SCALED: [&str; 4] =
    ["deployments.apps", "replicasets.apps", "statefulsets.apps", "replicationcontrollers"];

/// The fields of an object that its scale shows, as JSON pointers.
pub(super) struct ScaleFields {
    is_built_in: bool,
    replicas: String,
    status_replicas: String,
    selector: String,
}

impl Objects {
    /// The fields that the scale of a Kind shows. `None` if the Kind has no scale.
    pub(super) fn scale_fields(&self, collection: &Collection) -> Option<ScaleFields> {
        if collection.is_built_in() {
            let pointer = |field: &str| format!("/{field}");
            return SCALED.contains(&&*collection.full_resource()).then(|| ScaleFields {
                is_built_in: true,
                replicas: pointer("spec/replicas"),
                status_replicas: pointer("status/replicas"),
                selector: pointer("spec/selector"),
            });
        }
        let scale = self.version_definition(collection)?["subresources"].get("scale")?;
        let pointer = |field: &str| text(&scale[field]).replace('.', "/");
        Some(ScaleFields {
            is_built_in: false,
            replicas: pointer("specReplicasPath"),
            status_replicas: pointer("statusReplicasPath"),
            selector: pointer("labelSelectorPath"),
        })
    }

    /// Answers a request for the scale of an object.
    pub(super) fn scale(&mut self, request: &Request, name: &str, old: Stored) -> Result<Response, Response> {
        let collection = &request.collection;
        let Some(fields) = self.scale_fields(collection) else { return Err(not_supported("this scale")) };
        let scale = fields.scale_of(&old.object)?;
        if request.verb == verbs::GET {
            return Ok((StatusCode::OK, scale.into()));
        }
        let requested = match request.patch {
            _ if request.verb == verbs::UPDATE => request.body.clone(),
            PatchKind::Merge => patch::merge(&scale, &request.body)?,
            PatchKind::Json => patch::json(&scale, &request.body)?,
            PatchKind::Apply => return Err(not_supported("server-side apply of a scale")),
        };
        check_name(&requested, name)?;
        check_namespace(collection, &requested)?;
        let replicas = requested_replicas(&requested)?;
        if replicas < 0 {
            return Err(self.negative_replicas(request, name, &old, &fields, replicas));
        }
        let mut new = patch::merge(&old.object, &nested(&fields.replicas, json!(replicas)))?;
        for field in ["resourceVersion", "uid"] {
            if !text(&requested["metadata"][field]).is_empty() {
                new["metadata"][field] = requested["metadata"][field].clone();
            }
        }
        let (code, new) = self.store_requested(request, name, &old, new, None)?;
        Ok((code, fields.scale_of(&new)?.into()))
    }

    /// The response to a scale below zero. That of a custom resource names the field of the resource.
    fn negative_replicas(
        &self,
        request: &Request,
        name: &str,
        old: &Stored,
        fields: &ScaleFields,
        replicas: i64,
    ) -> Response {
        let (rule, field) = match fields.is_built_in {
            true => ("must be greater than or equal to 0", "spec.replicas".to_owned()),
            false => ("should be a non-negative integer", fields.replicas.replace('/', ".")),
        };
        let error =
            FieldError::new(&field, "FieldValueInvalid", format!("Invalid value: {replicas}: {rule}"));
        match fields.is_built_in {
            true => invalid("autoscaling", "Scale", name, error),
            false => invalid(&request.collection.group, &self.kind_of(request, &old.object), name, error),
        }
    }
}

impl ScaleFields {
    fn scale_of(&self, object: &Value) -> Result<Value, Response> {
        let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
        let replicas = match number(&self.replicas) {
            Some(replicas) => replicas,
            None if self.is_built_in => 1, // the default
            None => {
                let path = self.replicas.replace('/', ".");
                return Err(internal_error(&format!("the spec replicas field {path:?} does not exist")));
            }
        };
        let fields = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
        let metadata = fields
            .into_iter()
            .filter_map(|field| object["metadata"].get(field).map(|value| (field.to_owned(), value.clone())));
        let mut scale = json!({
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": metadata.collect::<Map<_, _>>(),
            "spec": {},
            "status": { "replicas": number(&self.status_replicas).unwrap_or_default() },
        });
        if replicas != 0 {
            scale["spec"]["replicas"] = json!(replicas);
        }
        let selector = object.pointer(&self.selector).map(selector_text).unwrap_or_default();
        if !selector.is_empty() {
            scale["status"]["selector"] = json!(selector);
        }
        Ok(scale)
    }
}

/// The replicas of a requested scale.
fn requested_replicas(scale: &Value) -> Result<i64, Response> {
    match &scale["spec"]["replicas"] {
        Value::Null => Ok(0),
        replicas => replicas.as_i64().ok_or_else(|| {
            bad_request(&format!(
                "Scale in version \"v1\" cannot be handled as a Scale: spec.replicas is {replicas}"
            ))
        }),
    }
}

/// An object whose only field is at a pointer.
fn nested(pointer: &str, value: Value) -> Value {
    let fields = pointer.trim_start_matches('/').rsplit('/');
    fields.fold(value, |value, field| json!({ field: value }))
}

/// Formats a selector: a text of a custom resource, the labels of a ReplicationController, or a LabelSelector.
fn selector_text(selector: &Value) -> String {
    let Value::Object(fields) = selector else { return text(selector) };
    let is_label_selector = fields.contains_key("matchLabels") || fields.contains_key("matchExpressions");
    let labels = if is_label_selector { &selector["matchLabels"] } else { selector };
    let labels = labels.as_object().into_iter().flatten();
    let mut terms: Vec<_> =
        labels.map(|(key, value)| (key.clone(), format!("{key}={}", text(value)))).collect();
    for expression in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = text(&expression["key"]);
        let values = expression["values"].as_array().into_iter().flatten();
        let mut values: Vec<_> = values.map(text).collect();
        values.sort();
        let values = values.join(",");
        let term = match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.clone(),
        };
        terms.push((key, term));
    }
    terms.sort_by(|(key, _), (other, _)| key.cmp(other));
    terms.into_iter().map(|(_, term)| term).collect::<Vec<_>>().join(",")
}
