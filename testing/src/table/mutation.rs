//! Detection of changes in memory to the objects that a reconcile reads. Rust allows such a change only through
//! interior mutability.

use std::collections::BTreeSet;

use kube::discovery::ApiResource;
use reknit_apis::Key;
use reknit_injection::{Cached, Context, Informer, internal::open_unsynced, select};
use serde::Serialize;
use serde_json::Value;

use super::comparable::key_of;
use crate::Write;

/// The resources and keys of the objects that a reconcile wrote.
type Written = BTreeSet<(String, Key)>;

/// A check of one object. Returns the object before and after the reconcile if it was changed in memory, not by a
/// request.
pub(super) type MutationCheck = Box<dyn Fn(&Written) -> Option<(Value, Value)> + Send>;

/// Creates the check of one object, with the informer from the context. `None` if the object cannot be decoded.
pub(super) type StartMutationCheck = Box<dyn FnOnce(&Context) -> Option<MutationCheck>>;

pub(super) fn mutation_check<K: Cached + Serialize>(
    resource: ApiResource,
    object: Value,
) -> StartMutationCheck {
    Box::new(move |cx| {
        let object: K = serde_json::from_value(object).ok()?;
        let informer: Informer<K> = open_unsynced(&cx.informers(), &resource, select());
        let meta = object.meta();
        let key = Key::new(meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default());
        let before = without_managed_fields(serde_json::to_value(&object).ok()?)?;
        let resource_and_key = (resource.plural, key);
        Some(Box::new(move |written| {
            let after =
                without_managed_fields(serde_json::to_value(&*informer.get(&resource_and_key.1)?).ok()?)?;
            (!written.contains(&resource_and_key) && after != before).then(|| (before.clone(), after))
        }))
    })
}

/// The objects that the requests wrote, in the main resource or in a subresource.
pub(super) fn written(writes: &[Write]) -> Written {
    let resource = |write: &Write| write.resource.split('/').next().unwrap_or_default().to_owned();
    writes.iter().map(|write| (resource(write), key_of(write))).collect()
}

/// Returns the object without `managedFields`, which the cache drops.
fn without_managed_fields(mut object: Value) -> Option<Value> {
    object["metadata"].as_object_mut()?.remove("managedFields");
    Some(object)
}
