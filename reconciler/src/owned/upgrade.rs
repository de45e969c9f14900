//! Takes over the fields of an existing child that another controller has set, before the child is applied: an earlier
//! controller, or this one before the child was restored from a backup.

use std::{iter, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use reknit_injection::Cached;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    annotation::{parts, was_applied_by, was_applied_for_any},
    desired::Desired,
    existing::ApplyResult,
    lister::{Owned, manager_of},
    owner::{Owner, is_controlled_by},
};

/// The length of a uid in the name of a field manager.
const UID_LENGTH: usize = 36;

impl<T: Cached + Serialize> Owned<T> {
    /// Takes over the fields of earlier managers, and returns the existing child as it is then, or `None` if it no
    /// longer exists.
    pub(super) async fn take_over(
        &self,
        owner: &impl Owner,
        desired: &Desired,
        existing: Arc<T>,
    ) -> ApplyResult<Option<Arc<T>>> {
        if is_controlled_by(owner, &*existing) {
            if was_applied_by(&*existing, owner, &self.shared.client.manager) {
                return Ok(Some(existing));
            }
            // A child that this component has applied for another owner is taken over: its owner was replaced, for example
            // because the Kind has moved to another API group.
            let is_of_other_writer = !was_applied_for_any(&*existing, &self.shared.client.manager);
            if self.shared.options.earlier_managers.is_empty() && is_of_other_writer {
                warn_of_other_fields(&*existing, desired);
                return Ok(Some(existing));
            }
        }
        // The cache has no managedFields.
        let Some(live) = self.read_live(owner, &desired.key).await? else { return Ok(None) };
        if !is_controlled_by(owner, &*live) {
            self.check_owner_exists(owner, desired).await?;
        }
        let live = self.remove_former_owner(owner, desired, live).await?;
        let entries = live.meta().managed_fields.as_deref().unwrap_or_default();
        let applier = self.manager_for(owner);
        let is_earlier = |entry: &ManagedFieldsEntry| self.is_earlier(entry);
        let Some(upgraded) = upgrade(entries, is_earlier, &applier) else { return Ok(Some(live)) };
        let patched = self.shared.client.replace_items(&*live, "managedFields", upgraded).await;
        Ok(Some(Arc::new(patched.map_err(|error| desired.refused(error))?)))
    }

    /// Returns true if an earlier manager has set these fields: by any request, or by `apply` for an owner. The fields
    /// that this component applied before a restore have the uid of the earlier owner in their manager.
    fn is_earlier(&self, entry: &ManagedFieldsEntry) -> bool {
        let Some(manager) = entry.manager.as_deref() else { return false };
        if self.shared.options.earlier_managers.contains(manager) {
            return true;
        }
        let uid = manager.len().checked_sub(UID_LENGTH).and_then(|start| manager.get(start..));
        let is_applied = entry.operation.as_deref() == Some("Apply");
        is_applied && uid.is_some_and(|uid| self.components().any(|name| manager == manager_of(name, uid)))
    }
}

/// Warns of a child that another component has applied, or this one has updated.
fn warn_of_other_fields<T: Cached>(existing: &T, desired: &Desired) {
    if let Some((_, origin)) = parts(existing) {
        tracing::warn!(
            child = desired.name,
            "the child was written {origin}, and fields of that writer stay: if it no longer writes the child, name it \
             in OwnedOptions::upgrading_from"
        );
    }
}

/// Moves the entries of earlier managers into the entry of the applying manager. Returns the new content of entries by
/// their index, or `None` for an entry to remove, the last one first. Other entries are not sent: they may have been
/// nested too deep to be decoded completely. Returns `None` if no entry has to be moved.
///
/// As in csaupgrade, a moved entry is dropped if its API version differs from that of the applying manager's entry, or,
/// if there is none, from that of the first moved entry: its fields cannot be converted here.
fn upgrade(
    entries: &[ManagedFieldsEntry],
    is_earlier: impl Fn(&ManagedFieldsEntry) -> bool,
    applier: &str,
) -> Option<Vec<(usize, Option<ManagedFieldsEntry>)>> {
    let is_main = |entry: &ManagedFieldsEntry| entry.subresource.as_deref().unwrap_or_default().is_empty();
    let is_applier = |entry: &ManagedFieldsEntry| {
        entry.operation.as_deref() == Some("Apply")
            && is_main(entry)
            && entry.manager.as_deref() == Some(applier)
    };
    let is_moved = |entry: &ManagedFieldsEntry| !is_applier(entry) && is_main(entry) && is_earlier(entry);
    let moved: Vec<_> = (0..entries.len()).filter(|index| is_moved(&entries[*index])).collect();
    let index =
        entries.iter().position(is_applier).or(moved.first().copied()).filter(|_| !moved.is_empty())?;
    let mut target = entries[index].clone();
    target.manager = Some(applier.into());
    target.operation = Some("Apply".into());
    let mut fields = target.fields_v1.take().map_or_else(|| json!({}), |fields| fields.0);
    for entry in moved.iter().map(|index| &entries[*index]) {
        if entry.api_version == target.api_version {
            merge_fields(&mut fields, entry.fields_v1.as_ref().map_or(&Value::Null, |fields| &fields.0));
        }
    }
    target.fields_v1 = Some(FieldsV1(fields));
    let removed = moved.into_iter().rev().filter(|moved| *moved != index).map(|index| (index, None));
    Some(iter::once((index, Some(target))).chain(removed).collect())
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
        let is_earlier = |entry: &ManagedFieldsEntry| entry.manager.as_ref().unwrap().ends_with("go");
        let fields = json!({"f:data": {".": {}, "f:a": {}, "f:c": {}, "f:d": {}}});
        let me = entry("me", "Apply", fields);
        let expected = vec![(2, Some(me.clone())), (4, None), (3, None), (0, None)];
        assert_eq!(upgrade(&entries, is_earlier, "me"), Some(expected));
        let upgraded = [entry("kubectl", "Update", data("f:b")), me, status];
        assert_eq!(upgrade(&upgraded, is_earlier, "me"), None, "there is nothing more to take over");
    }
}
