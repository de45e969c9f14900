//! Discovery: finds the resource of a Kind that is known only at run time.

use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::{
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use serde_json::Value;

use crate::{
    client::{NoRetry, Transport},
    reflector::{Failure, fetch},
};

/// The error of a failed discovery of the resource of a Kind.
#[derive(Debug, thiserror::Error)]
#[error("failed to discover the resource of {kind} of {api_version}: {source}")]
pub struct Unresolved {
    api_version: String,
    kind: String,
    source: Failure,
}

/// Requests the resource and the scope of a Kind. `None` if the API server does not know the Kind.
pub(super) async fn discover(
    transport: &Transport,
    kind: &GroupVersionKind,
) -> Result<Option<(ApiResource, Scope)>, Unresolved> {
    let unresolved = |source| Unresolved { api_version: kind.api_version(), kind: kind.kind.clone(), source };
    let root = if kind.group.is_empty() { "/api" } else { "/apis" };
    let request = Request::get(format!("{root}/{}", kind.api_version())).extension(NoRetry).body(Vec::new());
    let request = request.map_err(|error| unresolved(kube::Error::HttpError(error).into()))?;
    let response = match fetch(transport, request).await {
        Ok(response) => response,
        Err(Failure::NotFound(_)) => return Ok(None),
        Err(failure) => return Err(unresolved(failure)),
    };
    let list = serde_json::from_slice(&response).map_err(|error| unresolved(Failure::malformed(error)))?;
    Ok(find_resource(kind, list))
}

fn find_resource(kind: &GroupVersionKind, list: APIResourceList) -> Option<(ApiResource, Scope)> {
    // The list contains subresources too: `pods/status` is also of Kind Pod.
    let mut resources = list.resources.into_iter();
    let resource = resources.find(|resource| resource.kind == kind.kind && !resource.name.contains('/'))?;
    let scope = if resource.namespaced { Scope::Namespaced } else { Scope::Cluster };
    Some((ApiResource::from_gvk_with_plural(kind, &resource.name), scope))
}

/// Guesses the plural as kube does, and the scope from the preloaded objects.
pub(super) fn guess(kind: &GroupVersionKind, objects: &[Value]) -> (ApiResource, Scope) {
    let is_of_kind =
        |object: &&Value| object["kind"] == kind.kind && object["apiVersion"] == kind.api_version();
    let scope = match objects.iter().find(is_of_kind) {
        Some(object) if object["metadata"]["namespace"].is_null() => Scope::Cluster,
        _ => Scope::Namespaced,
    };
    (ApiResource::from_gvk(kind), scope)
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use serde_json::json;

    use super::*;
    use crate::{Context, testing::server};

    fn lamp() -> GroupVersionKind {
        GroupVersionKind::gvk("example.com", "v1", "Lamp")
    }

    #[tokio::test]
    async fn a_kind_is_requested_until_it_is_found_and_then_remembered() {
        let (client, mut server) = server();
        let informers = Context::new("test", client).informers();
        let resolve = async || informers.resolve(&lamp()).await;
        let (absent, ()) =
            tokio::join!(resolve(), async { server.next().await.respond(404, "404 page not found") });
        assert!(absent.unwrap().is_none());
        let (failed, ()) =
            tokio::join!(resolve(), async { server.next().await.fail(403, "you may not look") });
        let error = failed.unwrap_err().to_string();
        assert_eq!(
            error,
            "failed to discover the resource of Lamp of example.com/v1: you may not look (403)"
        );
        let resources = json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": [
            {"name": "lampen/status", "kind": "Lamp", "namespaced": false, "singularName": "", "verbs": ["get"]},
            {"name": "lampen", "kind": "Lamp", "namespaced": false, "singularName": "lamp", "verbs": ["get"]},
        ]});
        let (found, ()) = tokio::join!(resolve(), async { server.next().await.respond(200, resources) });
        let (resource, scope) = found.unwrap().unwrap();
        assert_eq!((resource.plural.as_str(), scope), ("lampen", Scope::Cluster));
        assert_eq!(resolve().await.unwrap().unwrap().0, resource);
        assert!(server.is_idle());
    }

    #[tokio::test]
    async fn preloaded_informers_send_no_request() {
        let (client, mut server) = server();
        let object = |namespace| json!({"apiVersion": "example.com/v1", "kind": "Lamp", "metadata": {"name": "a", "namespace": namespace}});
        for (object, expected) in [(object(Some("n")), Scope::Namespaced), (object(None), Scope::Cluster)] {
            let informers = Context::preloaded("test", client.clone(), vec![object]).informers();
            let (resource, scope) = informers.resolve(&lamp()).await.unwrap().unwrap();
            assert_eq!((resource.plural.as_str(), scope), ("lamps", expected));
            assert_eq!(informers.open::<DynamicObject>(&resource, crate::select()).await.unwrap().len(), 1);
        }
        assert!(server.is_idle());
    }
}
