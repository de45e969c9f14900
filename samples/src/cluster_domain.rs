//! The domain of the cluster's Services.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use reknit::{
    apis::cluster_domain,
    injection::Inject,
    knative::{Addressable, Url},
    prelude::*,
};

/// The domain of the cluster's Services. It is injected, so that a test can replace it.
#[derive(Clone, Debug)]
pub struct ClusterDomain(Arc<str>);

impl ClusterDomain {
    /// Creates a domain, such as `cluster.local`.
    pub fn new(domain: &str) -> Self {
        Self(domain.into())
    }

    /// The address of the Service within the cluster.
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
