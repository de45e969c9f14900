//! The clients of a process: a bare one, and one for controllers on top of it.
use std::sync::Arc;

use http::{HeaderValue, Request, header};
use kube::{
    Client,
    client::{Body, ClientBuilder, retry::RetryPolicy},
};
use tower::{Layer, retry::RetryLayer, util::MapRequestLayer};

use crate::{
    cause::root, failure::Failure, kubeconfig::Access, rate_limit::RateLimitLayer, token_file::TokenFile,
};

/// The user agent of every request, cut where a header could not hold it.
pub(crate) fn user_agent(component: &str, version: &str) -> String {
    let agent = format!("{component}/{version} reknit/{}", env!("CARGO_PKG_VERSION"));
    agent.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect()
}

/// A client that neither retries nor holds requests back: what leader election and the start need. Credential
/// plugins are run here, once, and again before their credentials expire.
pub(crate) fn bare(access: &Access, agent: &str) -> Result<Client, Failure> {
    let failed = |why: String| Failure::new(format!("{}: {why}", access.origin));
    // Named, so that another provider that a dependency brings does not make the choice ambiguous. It fails where
    // one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = access.config.clone();
    config.default_retry = false;
    let agent = HeaderValue::try_from(agent).map_err(|e| failed(e.to_string()))?;
    config.headers.push((header::USER_AGENT, agent));
    let token = config.auth_info.token_file.take().map(TokenFile::open).transpose().map_err(failed)?;
    let builder = ClientBuilder::try_from(config).map_err(|e| failed(root(&e)))?;
    Ok(match token.map(Arc::new) {
        None => builder.build(),
        Some(token) => builder.with_layer(&MapRequestLayer::new(move |r| token.authorize(r))).build(),
    })
}

/// The client that controllers get: it retries what a busy API server refused, and keeps to a rate if there is one.
pub(crate) fn for_controllers(bare: &Client, namespace: &str, per_second: f64, burst: u32) -> Client {
    let inner = bare.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = inner.clone();
        async move { client.send(request).await.map_err(tower::BoxError::from) }
    });
    let retried = RetryLayer::new(RetryPolicy::server_retry()).layer(service);
    let builder = ClientBuilder::new(retried, namespace);
    if per_second > 0.0 {
        builder.with_layer(&RateLimitLayer::new(per_second, burst)).build()
    } else {
        builder.build()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicU32, Ordering},
        time::Duration,
    };

    use http::{Response, StatusCode};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use tokio::time::Instant;

    use super::*;

    /// Refuses so many requests as too many, and answers the others.
    fn busy_for(refusals: u32) -> (Client, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let count = asked.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let busy = count.fetch_add(1, Ordering::Relaxed) < refusals;
            async move {
                let (status, body) = if busy {
                    (StatusCode::TOO_MANY_REQUESTS, "{}")
                } else {
                    (StatusCode::OK, r#"{"metadata":{"name":"a"}}"#)
                };
                let body = Body::from(body.as_bytes().to_vec());
                let mut answer = Response::new(body);
                *answer.status_mut() = status;
                Ok::<_, Infallible>(answer)
            }
        });
        (Client::new(service, "default"), asked)
    }

    async fn get(client: &Client) -> kube::Result<ConfigMap> {
        Api::default_namespaced(client.clone()).get("a").await
    }

    #[tokio::test(start_paused = true)]
    async fn controllers_wait_for_a_busy_server_and_a_bare_client_does_not() {
        let (bare, asked) = busy_for(2);
        assert!(get(&bare).await.is_err());
        assert!(get(&for_controllers(&bare, "default", 0.0, 1)).await.is_ok());
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn all_clones_of_a_limited_client_keep_to_one_rate() {
        let client = for_controllers(&busy_for(0).0, "default", 10.0, 2);
        let start = Instant::now();
        let requests = (0..12).map(|_| {
            let client = client.clone();
            tokio::spawn(async move { get(&client).await })
        });
        for request in requests.collect::<Vec<_>>() {
            request.await.unwrap().unwrap();
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_millis(1200), "{took:?}");
    }

    #[test]
    fn a_user_agent_is_a_header() {
        let agent = user_agent("contrôleur\n", "1.0");
        assert!(HeaderValue::try_from(&agent).is_ok());
        assert!(agent.starts_with("contrleur/1.0 reknit/"), "{agent}");
    }
}
