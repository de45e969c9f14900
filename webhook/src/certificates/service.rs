//! The names of the objects of a webhook.

use std::collections::BTreeMap;

use reknit_apis::cluster_domain;

/// The names of the objects of a webhook, which differ between two installations in one cluster, and their owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceNames {
    /// The name of the Service. The default is `webhook`.
    pub service: String,
    /// The name of the Secret with the certificate. The default is `webhook-certs`.
    pub secret: String,
    /// The names of webhook configurations, by the step that they call: `defaulting`, `validation`, `config`, or the path
    /// of a mutator. The default is `<step>.webhook.<domain>`.
    pub configurations: BTreeMap<String, String>,
    /// True if the system namespace owns the webhook configurations, so that its deletion deletes them. The default is
    /// true.
    pub owned_by_namespace: bool,
}

impl Default for ServiceNames {
    fn default() -> Self {
        Self {
            service: "webhook".into(),
            secret: "webhook-certs".into(),
            configurations: BTreeMap::new(),
            owned_by_namespace: true,
        }
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
