//! Authorization of requests by the permissions that a controller has declared.

use std::collections::BTreeSet;

use http::StatusCode;
use reknit_injection::{Permissions, RequestAttributes, Verb};
use serde_json::Value;

use super::{
    objects::Objects,
    request::Request,
    response::{Response, failure},
};

/// The permissions of the client, and the requests that they did not cover.
pub(super) struct Authorizer {
    permissions: Permissions,
    /// Verbs and resources that a test takes away.
    denied: Vec<(Verb, String)>,
    refused: BTreeSet<String>,
}

impl Authorizer {
    pub(super) fn new(permissions: Permissions, denied: Vec<(Verb, String)>) -> Self {
        Self { permissions, denied, refused: BTreeSet::new() }
    }

    /// The requests that were refused, each with the declaration that would allow it.
    pub(super) fn refused(&self) -> impl Iterator<Item = &String> {
        self.refused.iter()
    }

    /// Returns the response that refuses the request, if the permissions do not cover it.
    pub(super) fn refuse(&mut self, request: &Request, objects: &Objects) -> Option<Response> {
        let resource = request.resource();
        let collection = &request.collection;
        let attributes = RequestAttributes {
            verb: request.verb,
            group: &collection.group,
            resource: &resource,
            namespace: collection.namespace.as_deref(),
            name: request.authorized_name(),
        };
        let create = RequestAttributes { verb: Verb::Create, name: None, ..attributes };
        let creates_by_apply = request.is_apply() && !objects.has(request);
        let finalizers = objects.owners_to_block(request);
        let finalizers = finalizers.iter().map(|(group, resource, name)| RequestAttributes {
            verb: Verb::Update,
            group,
            resource,
            namespace: collection.namespace.as_deref(),
            name: Some(name),
        });
        let needed = [attributes].into_iter().chain(creates_by_apply.then_some(create)).chain(finalizers);
        let uncovered: Vec<_> = needed.filter(|needed| !self.covers(needed)).collect();
        uncovered.iter().map(|uncovered| self.record(uncovered)).last()
    }

    fn covers(&self, request: &RequestAttributes<'_>) -> bool {
        !self.is_denied(request)
            && self.permissions.declared().iter().any(|permission| permission.covers(request))
    }

    fn is_denied(&self, request: &RequestAttributes<'_>) -> bool {
        self.denied.iter().any(|(verb, resource)| *verb == request.verb && resource == request.resource)
    }

    fn record(&mut self, request: &RequestAttributes<'_>) -> Response {
        let remedy = match self.is_denied(request) {
            true => "the test takes this permission away".to_owned(),
            false => self.permissions.suggest(request),
        };
        self.refused.insert(format!("{request}: {remedy}"));
        let message = format!("the declared permissions do not cover {request}");
        failure(StatusCode::FORBIDDEN, "Forbidden", &message)
    }
}

impl Request {
    /// The name that RBAC compares with `resourceNames`: the name in the path, or the name that a list selects by
    /// `metadata.name`.
    fn authorized_name(&self) -> Option<&str> {
        let selected =
            || self.param("fieldSelector").split(',').find_map(|term| term.strip_prefix("metadata.name="));
        match self.verb {
            Verb::Create => self.subresource.as_ref().and(self.name.as_deref()),
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
        let is_write = matches!(request.verb, Verb::Create | Verb::Update | Verb::Patch);
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
