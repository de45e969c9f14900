//! Lists, and the snapshots that they read.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use http::StatusCode;
use serde_json::{Value, json};

use super::Objects;
use crate::{
    collection::Collection,
    request::Request,
    response::{FieldError, Response, all_invalid, bad_request, expired, too_large_version},
};

/// The resourceVersion in the continue token of a page that shows the current objects.
const ANY_VERSION: u64 = 0;

const CONTINUE_TOO_OLD: &str = "The provided continue parameter is too old to display a consistent list result. You \
    can start a new list without the continue parameter, or use the continue token in this response to retrieve the \
    remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were \
    created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// The objects of a collection at a resourceVersion, by key.
type Snapshot<'a> = BTreeMap<&'a str, &'a Arc<Value>>;

impl Objects {
    pub(crate) fn list(&self, request: &Request) -> Result<Response, Response> {
        let (selection, prefix) = (self.selection(request)?, request.collection.prefix());
        let (version, start) = self.list_start(request)?;
        let snapshot = self.snapshot(&prefix, version).ok_or_else(|| too_old(request, &start))?;
        let mut rest =
            snapshot.iter().filter(|(key, object)| key[prefix.len()..] > *start && selection.matches(object));
        let limit = request.param("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let page: Vec<_> = rest.by_ref().take(limit).collect();
        let remaining = rest.count();

        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if !request.collection.is_built_in() {
            metadata["continue"] = json!("");
        }
        if let (Some((key, _)), true) = (page.last(), remaining > 0) {
            metadata["continue"] = json!(format!("{version}:{}", &key[prefix.len()..]));
            if request.param("labelSelector").is_empty() && request.param("fieldSelector").is_empty() {
                metadata["remainingItemCount"] = json!(remaining);
            }
        }
        let items = page.into_iter().map(|(_, object)| Value::clone(object)).collect();
        Ok((StatusCode::OK, Arc::new(self.as_list(&request.collection, metadata, items))))
    }

    /// The resourceVersion that a list reads, and the key within the collection after which its page starts.
    fn list_start(&self, request: &Request) -> Result<(u64, String), Response> {
        let (token, latest) = (request.param("continue"), self.history.latest());
        if !token.is_empty() {
            let (version, start) = token
                .split_once(':')
                .and_then(|(version, start)| Some((version.parse().ok()?, start.to_owned())))
                .ok_or_else(|| bad_request("continue key is not valid"))?;
            return Ok((if version == ANY_VERSION { latest } else { version }, start));
        }
        let (requested, rule) = (requested_version(request), request.param("resourceVersionMatch"));
        if !rule.is_empty() && request.param("resourceVersion").is_empty() {
            let fault = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
            return Err(invalid_version_match(&[fault.to_owned()]));
        }
        let requested =
            requested.map_err(|fault| bad_request(&format!("invalid resource version: {fault}")))?;
        match requested {
            0 => Ok((latest, String::new())),
            version if version > latest => Err(too_large_version(version, latest)),
            version if rule == "Exact" || (rule.is_empty() && !request.param("limit").is_empty()) => {
                Ok((version, String::new()))
            }
            _ => Ok((latest, String::new())),
        }
    }

    /// The objects under this prefix as they were at this resourceVersion. `None` if it was compacted away.
    fn snapshot(&self, prefix: &str, version: u64) -> Option<Snapshot<'_>> {
        let mut snapshot: Snapshot<'_> = self.under(prefix).collect();
        let changes = self.history.since(version)?;
        for change in changes.rev().filter(|change| change.key.starts_with(prefix)) {
            match &change.before {
                Some(object) => snapshot.insert(&change.key, object),
                None => snapshot.remove(&*change.key),
            };
        }
        Some(snapshot)
    }

    /// The current objects under this prefix.
    pub(crate) fn under<'a>(
        &'a self,
        prefix: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Arc<Value>)> + use<'a> {
        let from = self.stored.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let prefix = prefix.to_owned();
        from.take_while(move |(key, _)| key.starts_with(&prefix))
            .map(|(key, stored)| (&**key, &stored.object))
    }

    /// Returns the response to a list request, with this list metadata.
    pub(crate) fn as_list(&self, collection: &Collection, metadata: Value, mut items: Vec<Value>) -> Value {
        if collection.is_built_in() {
            items.iter_mut().filter_map(Value::as_object_mut).for_each(|item| {
                item.remove("apiVersion");
                item.remove("kind");
            });
        }
        let kind = format!("{}List", self.kind(collection).unwrap_or_default());
        json!({ "kind": kind, "apiVersion": collection.api_version(), "metadata": metadata, "items": items })
    }
}

/// The response to a list whose resourceVersion was compacted away. A client can continue it from this key with the
/// current objects.
fn too_old(request: &Request, start: &str) -> Response {
    if request.param("continue").is_empty() {
        return expired("The resourceVersion for the provided list is too old.");
    }
    let (code, mut status) = expired(CONTINUE_TOO_OLD);
    Arc::make_mut(&mut status)["metadata"]["continue"] = json!(format!("{ANY_VERSION}:{start}"));
    (code, status)
}

/// The resourceVersion that a list or a watch names, or 0. The error is the message about an invalid one.
pub(crate) fn requested_version(request: &Request) -> Result<u64, String> {
    match request.param("resourceVersion") {
        "" => Ok(0),
        text => text.parse().map_err(|_| {
            format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax")
        }),
    }
}

/// The response to a list or a watch whose `resourceVersionMatch` is invalid for these reasons.
pub(crate) fn invalid_version_match(faults: &[String]) -> Response {
    let error = |fault: &String| {
        let reason =
            if fault.starts_with("Forbidden") { "FieldValueForbidden" } else { "FieldValueNotSupported" };
        FieldError::new("resourceVersionMatch", reason, fault)
    };
    all_invalid("meta.k8s.io", "ListOptions", "", &faults.iter().map(error).collect::<Vec<_>>())
}
