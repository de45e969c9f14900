//! Takes over the fields that an earlier controller set by updates, before a child is applied for the first time.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::Resource;
use reknit_injection::Cached;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    desired::{APPLIED_HASH, Desired},
    existing::ApplyResult,
    lister::Owned,
    owner::Owner,
};

impl<T: Cached + Serialize> Owned<T> {
    /// Takes over the fields of earlier managers, and returns the existing child as it is then, or `None` if it no
    /// longer exists.
    pub(super) async fn upgrade_fields(
        &self,
        owner: &impl Owner,
        desired: &Desired,
        existing: Arc<T>,
    ) -> ApplyResult<Option<Arc<T>>> {
        let earlier_managers = &self.shared.options.earlier_managers;
        if earlier_managers.is_empty() || was_applied(&*existing) {
            return Ok(Some(existing));
        }
        // The cache has no managedFields.
        let Some(live) = self.read_live(owner, desired).await? else { return Ok(None) };
        let entries = live.meta().managed_fields.as_deref().unwrap_or_default();
        let Some(upgraded) = upgrade(entries, earlier_managers, &self.manager_for(owner)) else {
            return Ok(Some(live));
        };
        let meta = live.meta();
        let body = json!({ "metadata": {
            "uid": meta.uid, "resourceVersion": meta.resource_version, "managedFields": upgraded,
        } });
        let patched = self.shared.client.merge(&desired.key, body).await;
        Ok(Some(Arc::new(patched.map_err(|error| desired.refused(error))?)))
    }
}

/// Returns true if [`Owned::apply`] has applied the object before.
fn was_applied<T: Resource>(object: &T) -> bool {
    object.meta().annotations.as_ref().is_some_and(|annotations| annotations.contains_key(APPLIED_HASH))
}

/// Moves the entries of earlier managers into the entry of the applying manager. `None` if no entry has to be moved.
///
/// As in csaupgrade, a moved entry is dropped if its API version differs from that of the applying manager's entry, or,
/// if there is none, from that of the first moved entry: its fields cannot be converted here.
fn upgrade(
    entries: &[ManagedFieldsEntry],
    earlier: &BTreeSet<String>,
    applier: &str,
) -> Option<Vec<ManagedFieldsEntry>> {
    let is_earlier = |entry: &&ManagedFieldsEntry| {
        entry.operation.as_deref() == Some("Update")
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
            && entry.manager.as_ref().is_some_and(|manager| earlier.contains(manager))
    };
    let is_applier = |entry: &&ManagedFieldsEntry| {
        entry.operation.as_deref() == Some("Apply")
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
            && entry.manager.as_deref() == Some(applier)
    };
    let (moved, others): (Vec<_>, Vec<_>) = entries.iter().partition(is_earlier);
    let (own, mut kept): (Vec<_>, Vec<_>) = others.into_iter().partition(is_applier);
    let mut target = own.first().or(moved.first()).copied()?.clone();
    if moved.is_empty() {
        return None;
    }
    target.manager = Some(applier.into());
    target.operation = Some("Apply".into());
    let mut fields = target.fields_v1.take().map_or_else(|| json!({}), |fields| fields.0);
    for entry in moved.iter().filter(|entry| entry.api_version == target.api_version) {
        merge_fields(&mut fields, entry.fields_v1.as_ref().map_or(&Value::Null, |fields| &fields.0));
    }
    target.fields_v1 = Some(FieldsV1(fields));
    kept.insert(0, &target);
    Some(kept.into_iter().cloned().collect())
}

/// Adds a set of fields to `fields`. Both sets are trees of JSON objects.
fn merge_fields(fields: &mut Value, added: &Value) {
    let (Some(fields), Some(added)) = (fields.as_object_mut(), added.as_object()) else { return };
    for (name, added) in added {
        merge_fields(fields.entry(name).or_insert_with(|| json!({})), added);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: Some(manager.into()),
            operation: Some(operation.into()),
            api_version: Some("v1".into()),
            fields_v1: Some(FieldsV1(fields)),
            ..ManagedFieldsEntry::default()
        }
    }

    #[test]
    fn the_fields_of_earlier_managers_become_those_of_the_applier() {
        let data = |field: &str| json!({"f:data": {field: {}}});
        let status = ManagedFieldsEntry {
            subresource: Some("status".into()),
            ..entry("go", "Update", json!({"f:status": {}}))
        };
        let other_version = ManagedFieldsEntry {
            api_version: Some("v1beta1".into()),
            ..entry("go", "Update", data("f:old"))
        };
        let entries = [
            entry("go", "Update", data("f:a")),
            entry("kubectl", "Update", data("f:b")),
            entry("me", "Apply", data("f:c")),
            other_version,
            entry("earlier-go", "Update", json!({"f:data": {".": {}, "f:d": {}}})),
            status.clone(),
        ];
        let earlier = ["go", "earlier-go"].map(str::to_owned).into();
        let fields = json!({"f:data": {".": {}, "f:a": {}, "f:c": {}, "f:d": {}}});
        let expected = vec![entry("me", "Apply", fields), entry("kubectl", "Update", data("f:b")), status];
        assert_eq!(upgrade(&entries, &earlier, "me"), Some(expected.clone()));
        assert_eq!(upgrade(&expected, &earlier, "me"), None, "there is nothing more to take over");
    }
}
