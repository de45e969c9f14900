//! The fields that a request writes.

use futures::FutureExt;
use http::{Method, Request, Uri, header::CONTENT_TYPE};
use kube::client::Body;
use serde_json::{Map, Value};

use super::{
    field::{Field, Step},
    managers::OwnedFields,
};
use crate::object::Object;

/// The request of a write.
///
/// The cached state to which its response is compared may be older than the one that the API server changed. So
/// a difference may be the change of another client, unless the request writes the field.
pub(crate) struct WriteRequest {
    body: Option<Body>,
    uri: Uri,
    method: Method,
    pub(super) is_apply: bool,
}

/// A write: its request, the states before and after it, and the `managedFields` of its response.
#[derive(Clone, Copy)]
pub(crate) struct Write<'a> {
    pub(crate) request: &'a WriteRequest,
    pub(crate) before: &'a Object,
    pub(crate) after: &'a Object,
    pub(crate) managed_fields: Option<&'a str>,
}

impl WriteRequest {
    pub(crate) fn of(request: &Request<Body>) -> Self {
        let content_type = request.headers().get(CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
        Self {
            body: request.body().try_clone(),
            uri: request.uri().clone(),
            method: request.method().clone(),
            is_apply: content_type.starts_with(b"application/apply-patch"),
        }
    }

    pub(crate) fn path(&self) -> &str {
        self.uri.path()
    }

    fn json_body(&self) -> Option<Value> {
        let body = self.body.as_ref()?.try_clone()?.collect_bytes().now_or_never()?;
        serde_json::from_slice(&body.ok()?).ok()
    }

    fn field_manager(&self) -> Option<String> {
        let mut query = form_urlencoded::parse(self.uri.query()?.as_bytes());
        query.find(|(name, _)| name == "fieldManager").map(|(_, manager)| manager.into_owned())
    }
}

impl Write<'_> {
    /// Fills in the values of absent fields that an apply has set to an empty value, such as the rules of a NetworkPolicy that
    /// admits nothing: the API server leaves such fields out.
    pub(super) fn fill_in_empty(&self, fields: &mut [Field]) {
        let mut absent = fields.iter_mut().filter(|field| field.ours.is_none()).peekable();
        if !self.request.is_apply || absent.peek().is_none() {
            return;
        }
        let Some(body) = self.request.json_body() else { return };
        let owned = self.owned_in(self.managed_fields);
        for field in absent {
            let value = value_at(&body, &field.path, owned.as_ref());
            field.ours = value.filter(|value| is_empty(value)).cloned();
        }
    }

    /// The fields that the field manager of the request owns.
    fn owned_in(&self, managed_fields: Option<&str>) -> Option<OwnedFields> {
        OwnedFields::decode(managed_fields?, &self.request.field_manager()?)
    }

    /// Removes the fields that the request has not written:
    ///
    /// - a value that its field manager does not own in the response,
    /// - a value that is absent there, and that its field manager did not own before, if it is an apply,
    /// - a field that a patch does not name; a JSON patch counts as naming all, and an apply also removes what it does not
    ///   name,
    /// - all fields, if it names a `resourceVersion` other than that of the state before.
    ///
    /// Keeps a field of which this is not known, such as the `managedFields` before.
    pub(super) fn retain_written(&self, fields: &mut Vec<Field>, managed_before: Option<&str>) {
        if fields.is_empty() {
            return;
        }
        let body = self.request.json_body();
        let version = body.as_ref().and_then(|body| body["metadata"]["resourceVersion"].as_str());
        if version.is_some_and(|version| self.before.state().resource_version != version) {
            return fields.clear();
        }
        let [before, after] = [managed_before, self.managed_fields].map(|managed| self.owned_in(managed));
        let owns = |owned: &Option<OwnedFields>, field: &Field| {
            owned.as_ref().is_none_or(|owned| owned.contain(&field.path))
        };
        let patch = body.filter(|_| self.request.method == Method::PATCH);
        let is_named = |field: &Field| patch.as_ref().is_none_or(|patch| names(patch, &field.path));
        fields.retain(|field| match field.ours {
            Some(_) => owns(&after, field) && is_named(field),
            None if self.request.is_apply => owns(&before, field),
            None => is_named(field),
        });
    }
}

/// Returns the value of a field in the body of an apply. Its list may have another order than that of the state: an item is found
/// by its key in the `managedFields`. A list that is managed as a whole has the same order.
fn value_at<'a>(body: &'a Value, path: &[Step], owned: Option<&OwnedFields>) -> Option<&'a Value> {
    path.iter().enumerate().try_fold(body, |value, (depth, step)| match step {
        Step::Name(name) => value.get(name),
        Step::Item(n, [_, item]) => {
            let items = value.as_array()?;
            match owned?.key_of_item(&path[..depth], item) {
                Some(key) => item_with_key(items, &key),
                None => items.get(*n),
            }
        }
    })
}

/// Returns the item with this key. It may lack a part of the key that the API server has set, such as the protocol of a port,
/// unless another item has that part.
fn item_with_key<'a>(items: &'a [Value], key: &Map<String, Value>) -> Option<&'a Value> {
    let is_other =
        |item: &Value| key.iter().any(|(name, value)| item.get(name).is_some_and(|own| own != value));
    let parts = |item: &&Value| key.keys().filter(|name| item.get(name).is_some()).count();
    items.iter().filter(|item| !is_other(item)).max_by_key(parts)
}

/// Returns true for a value that a field of Go with `omitempty` leaves out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => false, // an apply leaves the field to others
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Returns true if the body contains the field, or a value or a list above it, whose items may have another order.
fn names(body: &Value, path: &[Step]) -> bool {
    match (path.split_first(), body) {
        (Some((Step::Name(name), rest)), Value::Object(fields)) => {
            fields.get(name).is_some_and(|below| names(below, rest))
        }
        _ => true,
    }
}
