//! The top-level parts of an object that differ from an earlier state.

use std::fmt;

use super::{Object, Scanner};

/// The names of the parts, by bit.
const NAMES: [&str; 5] = ["metadata", "spec", "status", "data", "other fields"];
/// The metadata that changes with any other part.
const CONSEQUENTIAL: [&str; 2] = ["generation", "managedFields"];

/// Top-level parts of an object. Formats as `spec, status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts(u8);

impl Parts {
    /// Returns the parts of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if a part is in both.
    pub(crate) fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns true if there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The parts in which two states of an object differ, apart from the resourceVersion.
    pub(crate) fn between(old: &Object, new: &Object) -> Self {
        let ([old_metadata, old_rest], [metadata, rest]) = (old.fields(), new.fields());
        let mut parts = 0;
        for_each_difference(old_metadata, metadata, |name| {
            parts |= u8::from(!CONSEQUENTIAL.contains(&name));
        });
        for_each_difference(old_rest, rest, |name| {
            let known = NAMES.iter().position(|known| *known == name);
            parts |= 1 << known.unwrap_or(NAMES.len() - 1);
        });
        Self(parts)
    }
}

/// Calls `act` with the name of each field whose value differs. Malformed fields are ignored.
fn for_each_difference(old: &str, new: &str, mut act: impl FnMut(&str)) {
    if old == new {
        return;
    }
    let [old, new] = [old, new].map(|text| Scanner::fields(text).collect::<Vec<_>>());
    let changed = new.iter().filter(|field| !old.contains(field));
    let removed = old.iter().filter(|(name, _)| new.iter().all(|(other, _)| other != name));
    changed.chain(removed).for_each(|(name, _)| act(name));
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = NAMES.iter().enumerate().filter(|(bit, _)| self.0 & 1 << bit != 0);
        for (n, (_, name)) in names.enumerate() {
            write!(f, "{}{name}", if n > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::discovery::ApiResource;
    use serde_json::{Value, json};

    use super::*;
    use crate::object::RawObject;

    fn cached(object: &Value) -> Object {
        let text = object.to_string();
        RawObject::scan_text(&text).unwrap().encode::<Pod>(&ApiResource::erase::<Pod>(&()), true).unwrap()
    }

    #[test]
    fn the_parts_that_differ_are_named_and_versions_and_generations_are_not_parts() {
        let old = json!({"metadata": {"name": "p", "resourceVersion": "7", "generation": 1, "labels": {"a": "b"}},
            "spec": {"nodeName": "n"}, "status": {"phase": "Running"}, "extra": 1});
        let differ = |change: &dyn Fn(&mut Value)| {
            let mut new = old.clone();
            new["metadata"]["resourceVersion"] = json!("8");
            change(&mut new);
            Parts::between(&cached(&old), &cached(&new)).to_string()
        };
        assert_eq!(differ(&|_| {}), "");
        assert_eq!(differ(&|new| new["metadata"]["labels"]["a"] = json!("c")), "metadata");
        let spec = |new: &mut Value| {
            new["spec"]["nodeName"] = json!("m");
            new["metadata"]["generation"] = json!(2);
        };
        assert_eq!(differ(&spec), "spec");
        assert_eq!(differ(&|new| drop(new.as_object_mut().unwrap().remove("status"))), "status");
        let several =
            |new: &mut Value| (new["status"], new["data"], new["extra"]) = (json!({}), json!({}), json!(2));
        assert_eq!(differ(&several), "status, data, other fields");
    }
}
