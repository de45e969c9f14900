//! The last guard of a plan, below all other layers: refuses every request that would change something.

use http::{Method, Request};
use kube::client::Body;
use reknit_injection::internal::{HttpResponse, ResourcePath, Transport};
use serde_json::{Value, json};
use tower::BoxError;

/// Wraps the transport of a plan, so that it sends only reads and dry runs.
pub(crate) fn guarded(bare: &Transport, namespace: &str) -> Transport {
    let bare = bare.clone();
    Transport::new(tower::service_fn(move |request| send(bare.clone(), request)), namespace)
}

async fn send(bare: Transport, request: Request<Body>) -> Result<HttpResponse, BoxError> {
    let (head, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    if !is_harmless(&head.method, &head.uri, &body) {
        return Err(format!(
            "a plan does not send {} {}, which is not a dry run",
            head.method,
            head.uri.path()
        )
        .into());
    }
    Ok(bare.send(Request::from_parts(head, Body::from(body.to_vec()))).await?)
}

/// Returns true for a read, and for a write that is a dry run. The API server ignores the query of a DELETE with a body,
/// so the body decides. A proxied request, or a command in a container, may change anything, whatever its method.
fn is_harmless(method: &Method, uri: &http::Uri, body: &[u8]) -> bool {
    let subresource = ResourcePath::parse(uri.path()).and_then(|path| path.subresource());
    if matches!(subresource, Some("attach" | "exec" | "portforward" | "proxy")) {
        return false;
    }
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => true,
        Method::DELETE => {
            serde_json::from_slice(body).is_ok_and(|options: Value| options["dryRun"] == json!(["All"]))
        }
        _ => {
            let query = uri.query().unwrap_or_default().as_bytes();
            let mut stages = form_urlencoded::parse(query).filter(|(name, _)| name == "dryRun").peekable();
            stages.peek().is_some() && stages.all(|(_, stage)| stage == "All")
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{DeleteParams, Patch, PatchParams, PostParams},
    };
    use reknit_apiserver::ApiServer;

    use super::*;

    #[tokio::test]
    async fn a_write_that_is_not_a_dry_run_is_refused() {
        let server = ApiServer::new();
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "a", "namespace": "default"}})).unwrap();
        server.insert(&map);
        let maps: Api<ConfigMap> =
            Api::default_namespaced(guarded(&server.client().into(), "default").client());
        let patch = Patch::Merge(json!({"data": {"a": "b"}}));
        assert!(maps.create(&PostParams::default(), &map).await.is_err());
        assert!(maps.replace("a", &PostParams::default(), &map).await.is_err());
        assert!(maps.patch("a", &PatchParams::default(), &patch).await.is_err());
        assert!(maps.delete("a", &DeleteParams::default()).await.is_err());
        assert!(maps.delete_collection(&DeleteParams::default(), &Default::default()).await.is_err());
        assert_eq!(server.take_writes(), []);

        assert!(maps.get("a").await.is_ok());
        maps.patch("a", &PatchParams { dry_run: true, ..PatchParams::default() }, &patch).await.unwrap();
        let _ = maps.delete("a", &DeleteParams::default().dry_run()).await.unwrap();
        assert!(server.take_writes().iter().all(|write| write.dry_run));
    }

    #[test]
    fn a_deletion_is_a_dry_run_by_its_body_alone() {
        let is_harmless = |method: Method, uri: &'static str, body: &str| {
            is_harmless(&method, &http::Uri::from_static(uri), body.as_bytes())
        };
        let (object, dry_run) = ("/api/v1/namespaces/a/pods/b", "/api/v1/namespaces/a/pods/b?dryRun=All");
        for body in ["", "{}", r#"{"propagationPolicy":"Background"}"#, r#"{"dryRun":[]}"#, "dryRun"] {
            assert!(!is_harmless(Method::DELETE, dry_run, body), "{body}");
        }
        assert!(is_harmless(Method::DELETE, object, r#"{"dryRun":["All"]}"#));
        assert!(is_harmless(Method::PATCH, dry_run, "{}"));
        for uri in [object, "/api/v1/namespaces/a/pods/b?dryRun=", "/api/v1/namespaces/a/pods/b?x=dryRun=All"]
        {
            assert!(!is_harmless(Method::PUT, uri, r#"{"dryRun":["All"]}"#), "{uri}");
        }
        assert!(!is_harmless(Method::GET, "/api/v1/namespaces/a/services/b/proxy/delete?dryRun=All", ""));
    }
}
