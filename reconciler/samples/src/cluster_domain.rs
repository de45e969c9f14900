//! The domain under which this cluster's Services are reached.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use reknit::{apis::cluster_domain, prelude::*};

/// Injected, so that a test may provide another one.
#[derive(Clone, Debug)]
pub struct ClusterDomain(Arc<str>);

impl ClusterDomain {
    /// For instance `cluster.local`.
    pub fn new(domain: &str) -> Self {
        Self(domain.into())
    }

    /// Where the Service is reached from within the cluster.
    pub fn address_of(&self, service: &Service) -> Addressable {
        let namespace = service.namespace().unwrap_or_default();
        let host = format!("{}.{namespace}.svc.{}", service.name_any(), self.0);
        Addressable { url: Some(Url::http(host)), ..Addressable::default() }
    }
}

impl Inject for ClusterDomain {
    fn inject(_: &Context) -> Self {
        Self::new(cluster_domain())
    }
}
