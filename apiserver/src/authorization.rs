//! Authorization of requests.

use http::StatusCode;
use kube::discovery::verbs;
use serde_json::Value;

use crate::{
    objects::Objects,
    request::Request,
    response::{Response, failure},
    write::stores_object,
};

/// What RBAC knows of a request.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The verb, such as `deletecollection`.
    pub verb: &'a str,
    /// The API group, empty for the core group.
    pub group: &'a str,
    /// The plural name, with the subresource if there is one: `pods/status`.
    pub resource: &'a str,
    /// The namespace in the path.
    pub namespace: Option<&'a str>,
    /// The name in the path, or the name that a list selects. A request that creates an object has none.
    pub name: Option<&'a str>,
}

/// The function of a test that authorizes requests.
type Authorize = dyn FnMut(&Attributes<'_>) -> Result<(), String> + Send;

/// Refuses requests.
pub(crate) struct Authorizer(Box<Authorize>);

impl Authorizer {
    pub(crate) fn new(authorize: impl FnMut(&Attributes<'_>) -> Result<(), String> + Send + 'static) -> Self {
        Self(Box::new(authorize))
    }

    /// Returns the response that refuses the request, if it is not allowed.
    pub(crate) fn refuse(&mut self, request: &Request, objects: &Objects) -> Option<Response> {
        let resource = request.resource();
        let collection = &request.collection;
        let attributes = Attributes {
            verb: request.verb,
            group: &collection.group,
            resource: &resource,
            namespace: collection.namespace.as_deref(),
            name: request.authorized_name(),
        };
        let create = Attributes { verb: verbs::CREATE, name: None, ..attributes };
        let creates_by_apply = request.is_apply() && !objects.has(request);
        let finalizers = objects.owners_to_block(request);
        let finalizers = finalizers.iter().map(|(group, resource, name)| Attributes {
            verb: verbs::UPDATE,
            group,
            resource,
            namespace: collection.namespace.as_deref(),
            name: Some(name),
        });
        let needed = [attributes].into_iter().chain(creates_by_apply.then_some(create)).chain(finalizers);
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
        let known = self.get(&request.collection, name).map(blocked_owners).unwrap_or_default();
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
