//! Authorization of requests.

use http::StatusCode;
use kube::discovery::verbs;
use serde_json::Value;

use crate::{
    collection::Collection,
    objects::Objects,
    request::Request,
    request_info::RequestInfo,
    response::{Response, failure},
    write::stores_object,
};

/// Refuses requests by a function of the test.
pub(crate) struct Authorizer(Box<Authorize>);

/// Returns the reason for which a request is refused.
type Authorize = dyn FnMut(&RequestInfo) -> Result<(), String> + Send;

impl Authorizer {
    pub(crate) fn new(authorize: impl FnMut(&RequestInfo) -> Result<(), String> + Send + 'static) -> Self {
        Self(Box::new(authorize))
    }

    /// Returns the response that refuses the request, if it is not allowed.
    pub(crate) fn refuse(&mut self, request: &Request, objects: &Objects) -> Option<Response> {
        let Collection { group, namespace, .. } = &request.collection;
        let info = |verb, group: &str, resource, name| RequestInfo {
            verb,
            group: group.into(),
            resource,
            namespace: namespace.clone(),
            name,
            grants: None,
        };
        let itself = info(request.verb, group, request.resource(), request.authorized_name().map(Into::into));
        let creates_by_apply = request.is_apply() && !objects.has(request);
        let create = creates_by_apply.then(|| info(verbs::CREATE, group, request.resource(), None));
        let finalizers = objects.owners_to_block(request).into_iter();
        let finalizers =
            finalizers.map(|(group, resource, name)| info(verbs::UPDATE, &group, resource, Some(name)));
        let needed = [itself].into_iter().chain(create).chain(finalizers).chain(objects.escalation(request));
        let refusals = needed.filter_map(|needed| (self.0)(&needed).err());
        refusals.last().map(|message| failure(StatusCode::FORBIDDEN, "Forbidden", &message))
    }
}

impl Request {
    /// The name that RBAC compares with `resourceNames`: the name in the path, or the name that a list selects by
    /// `metadata.name`.
    fn authorized_name(&self) -> Option<&str> {
        let selected =
            || self.param("fieldSelector").split(',').find_map(|term| term.strip_prefix("metadata.name="));
        match self.verb {
            verbs::CREATE => self.subresource.as_ref().and(self.name.as_deref()),
            _ => self.name.as_deref().or_else(selected),
        }
    }
}

impl Objects {
    /// Returns true if the object of the request exists.
    fn has(&self, request: &Request) -> bool {
        let name = request.name.as_deref().unwrap_or_default();
        self.get(&request.collection, name).is_some()
    }

    /// Returns the owners whose deletion the request blocks: group, subresource `finalizers` and name. The admission
    /// plugin OwnerReferencesPermissionEnforcement requires the permission to update that subresource.
    fn owners_to_block(&self, request: &Request) -> Vec<(String, String, String)> {
        let is_write = stores_object(request.verb);
        if !is_write || request.subresource.is_some() {
            return Vec::new();
        }
        let name = request.name.as_deref().unwrap_or_default();
        let known =
            self.get(&request.collection, name).map(|object| blocked_owners(object)).unwrap_or_default();
        let added = blocked_owners(&request.body).into_iter().filter(|owner| !known.contains(owner));
        added.filter_map(|owner| self.finalizers_of(owner)).collect()
    }

    /// The subresource `finalizers` of an owner, if an object of its Kind is stored.
    fn finalizers_of(&self, owner: &Value) -> Option<(String, String, String)> {
        let collection = self.collection_of(&owner["apiVersion"], &owner["kind"])?;
        let name = owner["name"].as_str().unwrap_or_default();
        Some((collection.group.clone(), format!("{}/finalizers", collection.plural), name.into()))
    }
}

/// The owner references that block the deletion of the owner.
fn blocked_owners(object: &Value) -> Vec<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true).collect()
}
