//! The versions in which field managers have set the fields of an object.
//!
//! For server-side apply, the API server converts the object to each version that its `metadata.managedFields` name. It fails
//! once it does not know one of them any more (kubernetes/kubernetes#111937), whoever has set fields in that version. So
//! such a version is replaced. The manager then owns the fields of the same path in the other version.

use json_patch::{Patch, PatchOperation, ReplaceOperation, jsonptr::PointerBuf};
use serde::Deserialize;
use serde_json::json;

/// Returns true for the message of a failed apply to an object whose managed fields name a version that was removed.
pub fn is_of_removed_version(message: &str) -> bool {
    message.contains("request to convert CR to an invalid group/version")
}

/// The part of an object that names the versions of its managers. It can be decoded however deep the object is nested.
#[derive(Debug, Deserialize)]
pub struct ManagedObject {
    /// The metadata of the object.
    pub metadata: ManagedMetadata,
}

/// The metadata of a [`ManagedObject`].
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ManagedMetadata {
    /// The namespace; empty for an object that is in none.
    pub namespace: String,
    /// The name.
    pub name: String,
    resource_version: Option<String>,
    managed_fields: Option<Vec<Manager>>,
}

/// An entry of the managed fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Manager {
    api_version: String,
}

impl ManagedMetadata {
    /// Returns true if the object is in the same state as in these metadata.
    pub fn has_version_of(&self, other: &Self) -> bool {
        self.resource_version == other.resource_version
    }

    /// Returns true if the object has this resourceVersion.
    pub(crate) fn has_version(&self, version: Option<&str>) -> bool {
        self.resource_version.as_deref() == version
    }

    /// Returns the patch that replaces the other versions of the group in the managed fields by this one, such as
    /// `apps/v1`, on the condition that the object is unchanged. `None` if there are none.
    pub fn patch_to_version(&self, api_version: &str) -> Option<Patch> {
        let (group, _) = api_version.split_once('/')?; // no version of the core group was ever removed
        let is_other = |manager: &Manager| {
            let of = manager.api_version.split_once('/').map(|(of, _)| of);
            of == Some(group) && manager.api_version != api_version
        };
        let replace = |path: &[&str], value| {
            PatchOperation::Replace(ReplaceOperation {
                path: PointerBuf::from_tokens(path.iter().copied()),
                value,
            })
        };
        let managers = self.managed_fields.iter().flatten().enumerate();
        let others = managers.filter(|(_, manager)| is_other(manager));
        let mut changes: Vec<_> = others
            .map(|(index, _)| {
                replace(&["metadata", "managedFields", &index.to_string(), "apiVersion"], json!(api_version))
            })
            .collect();
        if changes.is_empty() {
            return None;
        }
        changes.push(replace(&["metadata", "resourceVersion"], json!(self.resource_version)));
        Some(Patch(changes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(managed_fields: serde_json::Value, api_version: &str) -> serde_json::Value {
        let metadata = json!({"name": "x", "resourceVersion": "7", "managedFields": managed_fields});
        let object: ManagedObject = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        json!(object.metadata.patch_to_version(api_version))
    }

    #[test]
    fn other_versions_of_the_same_group_are_replaced_if_the_object_is_unchanged() {
        let managers = json!([
            {"manager": "a", "apiVersion": "x.dev/v1", "fieldsV1": {}},
            {"manager": "b", "apiVersion": "x.dev/v1alpha1", "fieldsV1": {}},
            {"manager": "c", "apiVersion": "autoscaling/v1", "subresource": "scale"},
            {"manager": "d"},
            {"manager": "e", "apiVersion": "x.dev/v1beta1", "subresource": "status"},
        ]);
        let replace = |path: &str, value: &str| json!({"op": "replace", "path": path, "value": value});
        let expected = json!([
            replace("/metadata/managedFields/1/apiVersion", "x.dev/v1"),
            replace("/metadata/managedFields/4/apiVersion", "x.dev/v1"),
            replace("/metadata/resourceVersion", "7"),
        ]);
        assert_eq!(patch(managers, "x.dev/v1"), expected);
        for current in [json!(null), json!([]), json!([{"apiVersion": "x.dev/v1"}])] {
            assert_eq!(patch(current, "x.dev/v1"), json!(null));
        }
        assert_eq!(patch(json!([{"apiVersion": "v1beta3"}]), "v1"), json!(null));
    }
}
