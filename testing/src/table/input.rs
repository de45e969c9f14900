//! Detection of changes in memory to the objects that a reconcile reads.

use std::collections::BTreeSet;

use kube::Resource;
use reknit_apis::Key;
use reknit_injection::{Cached, Context, Informer};
use serde::Serialize;
use serde_json::Value;

use crate::Write;

/// The resources and keys of the objects that a reconcile wrote.
type Written = BTreeSet<(String, Key)>;

/// Returns an object as it was given and as it is, if it was changed in memory and not by a request.
pub(super) type Changed = Box<dyn Fn(&Written) -> Option<(Value, Value)> + Send>;

/// Reads an object from its informer, which the context makes. `None` if the object does not decode.
pub(super) type Opens = Box<dyn FnOnce(&Context) -> Option<Changed>>;

pub(super) fn opens<K>(held: Value) -> Opens
where
    K: Cached + Resource<DynamicType = ()> + Serialize,
{
    Box::new(|cx| {
        let object: K = serde_json::from_value(held).ok()?;
        let (meta, informer) = (object.meta(), cx.get::<Informer<K>>());
        let key = Key::new(meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default());
        let (place, before) = ((K::plural(&()).into_owned(), key), shown(&object)?);
        Some(Box::new(move |written| {
            let after = shown(&*informer.get(&place.1)?)?;
            (!written.contains(&place) && after != before).then(|| (before.clone(), after))
        }))
    })
}

/// The objects that the requests wrote, whichever subresource they used.
pub(super) fn written(writes: &[Write]) -> Written {
    let resource = |write: &Write| write.resource.split('/').next().unwrap_or_default().to_owned();
    writes.iter().map(|write| (resource(write), write.key.clone())).collect()
}

fn shown<K: Serialize>(object: &K) -> Option<Value> {
    let mut value = serde_json::to_value(object).ok()?;
    value["metadata"].as_object_mut()?.remove("managedFields");
    Some(value)
}
