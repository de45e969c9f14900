//! The names of the Service and the Secret of a webhook.

use reknit_apis::cluster_domain;

/// The names of the objects of a webhook in the system namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNames {
    /// The name of the Service. The default is `webhook`.
    pub service: String,
    /// The name of the Secret with the certificate. The default is `webhook-certs`.
    pub secret: String,
}

impl Default for ServiceNames {
    fn default() -> Self {
        Self { service: "webhook".into(), secret: "webhook-certs".into() }
    }
}

impl ServiceNames {
    /// The DNS names of the Service within the cluster.
    pub(crate) fn dns_names(&self, namespace: &str) -> Vec<String> {
        let domain = cluster_domain();
        let suffixes =
            [format!(".{namespace}.svc"), format!(".{namespace}.svc.{domain}"), format!(".{namespace}")];
        let names = suffixes.iter().map(|suffix| format!("{}{suffix}", self.service));
        names.chain([self.service.clone()]).collect()
    }
}
