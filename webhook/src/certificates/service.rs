//! By what names a webhook is found.

use reknit_apis::cluster_domain;

/// The names by which a webhook is found, all in the system namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The Service in front of it: `webhook`.
    pub service: String,
    /// The Secret with its certificate: `webhook-certs`.
    pub secret: String,
}

impl Default for Place {
    fn default() -> Self {
        Self { service: "webhook".into(), secret: "webhook-certs".into() }
    }
}

impl Place {
    /// The names of the Service within the cluster.
    pub(crate) fn names(&self, namespace: &str) -> Vec<String> {
        let domain = cluster_domain();
        let suffixes =
            [format!(".{namespace}.svc"), format!(".{namespace}.svc.{domain}"), format!(".{namespace}")];
        let names = suffixes.iter().map(|suffix| format!("{}{suffix}", self.service));
        names.chain([self.service.clone()]).collect()
    }
}
