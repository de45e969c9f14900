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

/// The API server did not answer which resource a Kind has.
#[derive(Debug, thiserror::Error)]
#[error("failed to discover the resource of {kind} of {api_version}: {source}")]
pub struct Unresolved {
    api_version: String,
    kind: String,
    source: Failure,
}

/// Asks the API server for the resource of a Kind.
pub(super) async fn discover(
    transport: &Transport,
    kind: &GroupVersionKind,
) -> Result<Option<(ApiResource, Scope)>, Unresolved> {
    let unresolved = |source| Unresolved { api_version: kind.api_version(), kind: kind.kind.clone(), source };
    let root = if kind.group.is_empty() { "/api" } else { "/apis" };
    let request = Request::get(format!("{root}/{}", kind.api_version())).extension(NoRetry).body(Vec::new());
    let request = request.map_err(|error| unresolved(kube::Error::HttpError(error).into()))?;
    let answer = match fetch(transport, request).await {
        Ok(answer) => answer,
        Err(Failure::NotFound(_)) => return Ok(None),
        Err(failure) => return Err(unresolved(failure)),
    };
    let list = serde_json::from_slice(&answer).map_err(|error| unresolved(Failure::malformed(error)))?;
    Ok(find(kind, list))
}

fn find(kind: &GroupVersionKind, list: APIResourceList) -> Option<(ApiResource, Scope)> {
    // `pods/status` is of Kind Pod as well.
    let is_it = |plural: &str, of: &str| of == kind.kind && !plural.contains('/');
    let found = list.resources.into_iter().find(|resource| is_it(&resource.name, &resource.kind))?;
    let scope = if found.namespaced { Scope::Namespaced } else { Scope::Cluster };
    Some((ApiResource::from_gvk_with_plural(kind, &found.name), scope))
}

/// Guesses the resource as kube does, and the scope from the preloaded objects.
pub(super) fn guess(kind: &GroupVersionKind, objects: &[Value]) -> (ApiResource, Scope) {
    let is_it = |object: &&Value| object["kind"] == kind.kind && object["apiVersion"] == kind.api_version();
    let scope = match objects.iter().find(is_it) {
        Some(object) if object["metadata"]["namespace"].is_null() => Scope::Cluster,
        _ => Scope::Namespaced,
    };
    (ApiResource::from_gvk(kind), scope)
}

#[cfg(test)]
mod tests {
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
            tokio::join!(resolve(), async { server.next().await.answer(404, "404 page not found") });
        assert!(absent.unwrap().is_none());
        let (failed, ()) =
            tokio::join!(resolve(), async { server.next().await.fail(403, "you may not look") });
        let said = failed.unwrap_err().to_string();
        assert_eq!(said, "failed to discover the resource of Lamp of example.com/v1: you may not look (403)");
        let all = json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": [
            {"name": "lampen/status", "kind": "Lamp", "namespaced": false, "singularName": "", "verbs": ["get"]},
            {"name": "lampen", "kind": "Lamp", "namespaced": false, "singularName": "lamp", "verbs": ["get"]},
        ]});
        let (found, ()) = tokio::join!(resolve(), async { server.next().await.answer(200, all) });
        let (resource, scope) = found.unwrap().unwrap();
        assert_eq!((resource.plural.as_str(), scope), ("lampen", Scope::Cluster));
        assert_eq!(resolve().await.unwrap().unwrap().0, resource);
        assert!(server.is_idle());
    }

    #[tokio::test]
    async fn preloaded_informers_send_no_request() {
        let (client, mut server) = server();
        let given = |namespace| json!({"apiVersion": "example.com/v1", "kind": "Lamp", "metadata": {"name": "a", "namespace": namespace}});
        for (object, expected) in [(given(Some("n")), Scope::Namespaced), (given(None), Scope::Cluster)] {
            let informers = Context::preloaded("test", client.clone(), vec![object]).informers();
            let (resource, scope) = informers.resolve(&lamp()).await.unwrap().unwrap();
            assert_eq!((resource.plural.as_str(), scope), ("lamps", expected));
            assert_eq!(informers.get_dynamic(&resource, crate::select()).len(), 1);
        }
        assert!(server.is_idle());
    }
}
