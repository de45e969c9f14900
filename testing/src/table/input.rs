//! Objects that a pass was given, which are no pass's to change.

use std::collections::BTreeSet;

use kube::Resource;
use reknit_apis::Key;
use reknit_injection::{Cached, Context, Informer};
use serde::Serialize;
use serde_json::Value;

use crate::Write;

/// An object that was given, and where passes read it.
struct Input<K: Cached> {
    informer: Informer<K>,
    resource: String,
    key: Key,
    before: Value,
}

/// An object that was given, of any Kind.
pub(super) trait Given: Send {
    /// Where it is not in memory as it was given, though no request of the pass changed it: as it was, as it is.
    fn touched(&self, written: &BTreeSet<(String, Key)>) -> Option<(Value, Value)>;
}

/// An object, once there are informers to read it from. None where it does not decode.
pub(super) type Opens = Box<dyn FnOnce(&Context) -> Option<Box<dyn Given>>>;

pub(super) fn opens<K>(held: Value) -> Opens
where
    K: Cached + Resource<DynamicType = ()> + Serialize,
{
    Box::new(|cx| {
        let object: K = serde_json::from_value(held).ok()?;
        let (meta, resource) = (object.meta(), K::plural(&()).into_owned());
        let key = Key::new(meta.namespace.as_deref(), meta.name.as_deref().unwrap_or_default());
        let before = shown(&object)?;
        Some(Box::new(Input { informer: cx.get::<Informer<K>>(), resource, key, before }))
    })
}

impl<K: Cached + Serialize> Given for Input<K> {
    fn touched(&self, written: &BTreeSet<(String, Key)>) -> Option<(Value, Value)> {
        if written.contains(&(self.resource.clone(), self.key.clone())) {
            return None;
        }
        let after = shown(&*self.informer.get(&self.key)?)?;
        (after != self.before).then(|| (self.before.clone(), after))
    }
}

/// What was written to, apart from which part of it.
pub(super) fn written(writes: &[Write]) -> BTreeSet<(String, Key)> {
    let resource = |write: &Write| write.resource.split('/').next().unwrap_or_default().to_owned();
    writes.iter().map(|write| (resource(write), write.key.clone())).collect()
}

fn shown<K: Serialize>(object: &K) -> Option<Value> {
    let mut value = serde_json::to_value(object).ok()?;
    value["metadata"].as_object_mut()?.remove("managedFields");
    Some(value)
}
