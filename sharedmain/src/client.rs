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
