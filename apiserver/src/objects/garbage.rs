//! The garbage collector: deletes the dependents of owners that are gone, and carries out the finalizers of the
//! propagation policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::discovery::verbs;
use serde_json::{Value, json};

use super::{
    Objects,
    delete::{FOREGROUND, ORPHAN},
    namespaces,
};
use crate::{
    collection::Collection,
    object::{has_finalizer, is_namespace, is_terminating},
    request::Request,
};

/// The graph of owners and dependents, and the objects that the garbage collector has to look at.
#[derive(Default)]
pub(crate) struct Garbage {
    /// The keys of the objects by their uids.
    keys: BTreeMap<String, String>,
    /// The keys of the dependents by the uid of their owner.
    dependents: BTreeMap<String, BTreeSet<String>>,
    /// The keys of the objects to look at.
    pending: BTreeSet<String>,
    /// The Kinds of namespaced objects that exist or existed.
    namespaced: BTreeSet<String>,
}

impl Garbage {
    /// Takes note of a change of the object of this key.
    pub(crate) fn observe(&mut self, key: &str, before: Option<&Value>, after: Option<&Value>) {
        let [old, new] = [before, after].map(|object| object.map(owner_uids).unwrap_or_default());
        for uid in old.difference(&new) {
            self.remove_dependent(uid, key);
        }
        for uid in new.difference(&old) {
            self.dependents.entry((*uid).to_owned()).or_default().insert(key.to_owned());
        }
        if let Some(uid) = before.and_then(uid) {
            self.keys.remove(uid);
        }
        if let Some(uid) = after.and_then(uid) {
            self.keys.insert(uid.to_owned(), key.to_owned());
        }
        let created = after.filter(|object| before.is_none() && is_namespaced(object));
        self.namespaced.extend(created.map(kind_of));
        self.pending.extend(old.union(&new).filter_map(|uid| self.keys.get(*uid)).cloned());
        match after {
            Some(object) if is_terminating(object) => {
                self.pending.insert(key.to_owned());
                self.add_dependents(object);
            }
            Some(_) if new.is_empty() => {}
            Some(_) => drop(self.pending.insert(key.to_owned())),
            None => {
                self.pending.remove(key);
                before.into_iter().for_each(|object| self.add_dependents(object));
                let namespace = before.and_then(|object| object["metadata"]["namespace"].as_str());
                self.pending.extend(namespace.map(namespaces::key));
            }
        }
    }

    fn remove_dependent(&mut self, uid: &str, key: &str) {
        if let Some(dependents) = self.dependents.get_mut(uid) {
            dependents.remove(key);
            if dependents.is_empty() {
                self.dependents.remove(uid);
            }
        }
    }

    fn add_dependents(&mut self, owner: &Value) {
        let dependents: Vec<_> = self.dependents_of(owner).cloned().collect();
        self.pending.extend(dependents);
    }

    fn dependents_of(&self, owner: &Value) -> impl Iterator<Item = &String> {
        uid(owner).and_then(|uid| self.dependents.get(uid)).into_iter().flatten()
    }
}

impl Objects {
    /// Makes at most one change. Returns false if there is nothing left to do.
    pub(crate) fn collect_garbage(&mut self) -> bool {
        let before = self.history.latest();
        while let Some(key) = self.garbage.pending.pop_first() {
            self.collect(&key);
            if self.history.latest() != before {
                // There may be more to do for this object.
                self.garbage.pending.insert(key);
                return true;
            }
        }
        false
    }

    fn collect(&mut self, key: &str) {
        let Some(object) = self.stored.get(key).map(|stored| stored.object.clone()) else { return };
        if !is_terminating(&object) {
            self.collect_dependent(key, &object);
        } else if has_finalizer(&object, ORPHAN) {
            self.orphan(key, &object);
        } else if has_finalizer(&object, FOREGROUND) {
            self.finish_foreground_deletion(key, &object);
        } else if is_namespace(&object) {
            self.empty_namespace(key, &object);
        }
    }

    /// Deletes the object if none of its owners keeps it.
    fn collect_dependent(&mut self, key: &str, object: &Value) {
        let owners = owner_references(object);
        // A cluster-scoped object cannot have an owner in a namespace. The garbage collector leaves it alone.
        if !is_namespaced(object)
            && owners.iter().any(|owner| self.garbage.namespaced.contains(&kind_of(owner)))
        {
            return;
        }
        let (solid, rest): (Vec<_>, Vec<_>) = owners
            .iter()
            .partition(|reference| self.owner(reference, object).is_some_and(|owner| !is_foreground(&owner)));
        if rest.is_empty() {
            return;
        }
        if !solid.is_empty() {
            return self.patch_metadata(key, json!({ "ownerReferences": solid }));
        }
        let waits = rest.iter().any(|reference| self.owner(reference, object).is_some());
        let dependents: Vec<_> = self.dependents(object);
        if !waits || dependents.is_empty() {
            let policies = [(ORPHAN, "Orphan"), (FOREGROUND, "Foreground")];
            let policy = policies.into_iter().find(|(finalizer, _)| has_finalizer(object, finalizer));
            return self.delete_by_policy(key, policy.map_or("Background", |(_, policy)| policy));
        }
        // Objects that own each other in a circle would wait for each other.
        let is_circle = dependents.iter().any(|(_, dependent)| is_foreground(dependent));
        if is_circle && rest.iter().any(|reference| reference["blockOwnerDeletion"] == true) {
            let unblocked = rest.iter().map(|reference| {
                let mut reference = Value::clone(reference);
                reference["blockOwnerDeletion"] = json!(false);
                reference
            });
            return self.patch_metadata(key, json!({ "ownerReferences": unblocked.collect::<Vec<_>>() }));
        }
        self.delete_by_policy(key, "Foreground");
    }

    /// Removes the owner from its dependents, and then its finalizer.
    fn orphan(&mut self, key: &str, owner: &Value) {
        match self.dependents(owner).into_iter().next() {
            Some((dependent, object)) => {
                let mut others = owner_references(&object).to_vec();
                others.retain(|reference| reference["uid"] != owner["metadata"]["uid"]);
                self.patch_metadata(&dependent, json!({ "ownerReferences": others }));
            }
            None => self.remove_finalizer(key, owner, ORPHAN),
        }
    }

    /// Removes the finalizer once no dependent blocks the deletion.
    fn finish_foreground_deletion(&mut self, key: &str, owner: &Value) {
        let blocks = |reference: &Value| {
            reference["uid"] == owner["metadata"]["uid"] && reference["blockOwnerDeletion"] == true
        };
        if !self.dependents(owner).iter().any(|(_, dependent)| owner_references(dependent).iter().any(blocks))
        {
            self.remove_finalizer(key, owner, FOREGROUND);
        }
    }

    /// The object that a reference names. A namespaced owner is in the namespace of its dependent.
    fn owner(&self, reference: &Value, dependent: &Value) -> Option<Arc<Value>> {
        let key = self.garbage.keys.get(reference["uid"].as_str()?)?;
        let owner = &self.stored.get(key)?.object;
        let namespace = &owner["metadata"]["namespace"];
        (namespace.is_null() || *namespace == dependent["metadata"]["namespace"]).then(|| owner.clone())
    }

    fn dependents(&self, owner: &Value) -> Vec<(String, Arc<Value>)> {
        let keys = self.garbage.dependents_of(owner);
        keys.filter_map(|key| Some((key.clone(), self.stored.get(key)?.object.clone()))).collect()
    }

    fn remove_finalizer(&mut self, key: &str, object: &Value, finalizer: &str) {
        let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        let others: Vec<_> = finalizers.filter(|other| *other != finalizer).collect();
        self.patch_metadata(key, json!({ "finalizers": others }));
    }

    fn patch_metadata(&mut self, key: &str, metadata: Value) {
        self.send(verbs::PATCH, key, json!({ "metadata": metadata }));
    }

    pub(crate) fn delete_by_policy(&mut self, key: &str, policy: &str) {
        self.send(verbs::DELETE, key, json!({ "propagationPolicy": policy }));
    }

    /// Handles a request of the garbage collector, which leaves an object alone if the request is refused.
    fn send(&mut self, verb: &'static str, key: &str, body: Value) {
        if let Some((collection, name)) = Collection::of_key(key) {
            let _ = self.handle(&Request::of(verb, collection, Some(name), body));
        }
    }
}

fn owner_references(object: &Value) -> &[Value] {
    object["metadata"]["ownerReferences"].as_array().map_or(&[], Vec::as_slice)
}

fn owner_uids(object: &Value) -> BTreeSet<&str> {
    owner_references(object).iter().filter_map(|reference| reference["uid"].as_str()).collect()
}

fn is_namespaced(object: &Value) -> bool {
    object["metadata"]["namespace"].is_string()
}

/// The API version and the Kind of an object, or of the owner that a reference names.
fn kind_of(object: &Value) -> String {
    format!("{} {}", object["apiVersion"], object["kind"])
}

fn uid(object: &Value) -> Option<&str> {
    object["metadata"]["uid"].as_str()
}

/// Returns true if the object is deleted in the foreground: it waits for its dependents.
fn is_foreground(object: &Value) -> bool {
    is_terminating(object) && has_finalizer(object, FOREGROUND)
}
