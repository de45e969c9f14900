//! Namespaces: they refuse objects once they terminate, and go when they are empty.

use http::StatusCode;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::response::reason;
use serde_json::{Value, json};

use super::Objects;
use crate::{
    collection::Collection,
    object::{has_finalizers, is_terminating, metadata, text},
    request::Request,
    response::{Response, failure, not_found, with_causes, with_object},
};

/// The namespaces of every cluster.
pub(crate) const INITIAL: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// The label of a namespace that has its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The namespaces that cannot be deleted.
const PROTECTED: [&str; 3] = ["default", "kube-public", "kube-system"];

impl Objects {
    /// Refuses to create an object in a namespace that terminates, or that does not exist although it has to.
    pub(crate) fn check_namespace_accepts(&self, request: &Request, name: &str) -> Result<(), Response> {
        let Some(namespace) = &request.collection.namespace else { return Ok(()) };
        match self.stored.get(&key(namespace)) {
            None if self.requires_namespaces => Err(not_found(&collection(), namespace)),
            Some(stored) if stored.object["status"]["phase"] == "Terminating" => {
                let cause = format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                );
                let cause_details = json!({
                    "reason": "NamespaceTerminating",
                    "message": format!("namespace {namespace} is being terminated"),
                    "field": "metadata.namespace",
                });
                Err(with_causes(forbidden(&request.collection, name, &cause), json!([cause_details])))
            }
            _ => Ok(()),
        }
    }

    /// Deletes an object of a namespace that terminates. Removes the namespace if it is empty.
    pub(crate) fn empty_namespace(&mut self, key: &str, namespace: &Value) {
        let name = text(&namespace["metadata"]["name"]);
        let collections = self.kinds.values();
        let collections =
            collections.map(|kind| Collection { namespace: Some(name.clone()), ..kind.clone() });
        let contents: Vec<_> = collections.flat_map(|contents| self.under(&contents.prefix())).collect();
        match contents.iter().find(|(_, object)| !is_terminating(object)) {
            Some((key, _)) => {
                let key = (*key).to_owned();
                self.delete_by_policy(&key, "Background");
            }
            None if contents.is_empty() => self.finalize_namespace(key),
            // They are kept by their finalizers.
            None => {}
        }
    }

    fn finalize_namespace(&mut self, key: &str) {
        let Some(mut stored) = self.stored.get(key).cloned() else { return };
        let mut namespace = Value::clone(&stored.object);
        namespace["spec"]["finalizers"] = json!([]);
        if !has_finalizers(&namespace) {
            return self.commit(key.to_owned(), None);
        }
        if namespace["spec"]["finalizers"] != stored.object["spec"]["finalizers"] {
            let version = self.history.latest() + 1;
            metadata(&mut namespace).insert("resourceVersion".into(), json!(version.to_string()));
            stored.object = namespace.into();
            self.commit(key.to_owned(), Some(stored));
        }
    }
}

/// Refuses to delete a namespace that every cluster needs.
pub(crate) fn check_deletable(request: &Request, name: &str) -> Result<(), Response> {
    if request.collection == collection() && PROTECTED.contains(&name) {
        return Err(forbidden(&request.collection, name, "this namespace may not be deleted"));
    }
    Ok(())
}

/// Sets the fields that the API server gives to a new namespace.
pub(crate) fn activate(namespace: &mut Value, name: &str) {
    namespace["metadata"]["labels"][NAME_LABEL] = json!(name);
    namespace["spec"] = json!({ "finalizers": ["kubernetes"] });
    namespace["status"] = json!({ "phase": "Active" });
}

/// Keeps the fields of a namespace that no update changes.
pub(crate) fn keep_fixed_fields(new: &mut Value, old: &Value) {
    new["metadata"]["labels"][NAME_LABEL] = old["metadata"]["name"].clone();
    new["spec"] = old["spec"].clone();
}

/// Sets the fields of a namespace that is being deleted. Its finalizer keeps it until it is empty.
pub(crate) fn terminate(namespace: &mut Value) {
    namespace["spec"]["finalizers"] = json!(["kubernetes"]);
    namespace["status"]["phase"] = json!("Terminating");
}

/// The key of a namespace.
pub(crate) fn key(name: &str) -> String {
    collection().key(name)
}

pub(crate) fn collection() -> Collection {
    Collection::of_kind::<Namespace>(None)
}

/// The response of an admission plugin that refuses the request.
fn forbidden(collection: &Collection, name: &str, cause: &str) -> Response {
    let message = format!("{} {name:?} is forbidden: {cause}", collection.full_resource());
    with_object(collection, name, failure(StatusCode::FORBIDDEN, reason::FORBIDDEN, &message))
}
