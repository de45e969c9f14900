//! Stubs of what refuses a write: quotas, and whatever else a test states.

use k8s_openapi::api::core::v1::ResourceQuota;
use serde_json::Value;

use crate::{cluster::Cluster, trace::Sent};

/// A write that a replica has sent, for a check of [`Simulation::admission`](crate::Simulation::admission).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Attempt {
    /// The verb, as RBAC names it. An apply is a `patch`.
    pub verb: &'static str,
    /// The API group, empty for the core group.
    pub group: String,
    /// The plural name, with the subresource if there is one: `pods/status`.
    pub resource: String,
    /// The namespace of the object.
    pub namespace: Option<String>,
    /// The name of the object; `None` if a `create` leaves it to the API server.
    pub name: Option<String>,
    /// The object, the patch, or the options of a deletion.
    pub body: Value,
    /// The path of the resource, in which the object is or will be.
    collection: String,
}

impl Attempt {
    pub(crate) fn of(sent: &Sent) -> Option<Self> {
        let info = sent.info.clone().filter(|_| sent.is_write())?;
        let body: Value = serde_json::from_slice(&sent.body).unwrap_or_default();
        let path = sent.uri.split('?').next().unwrap_or_default();
        let collection = match &info.name {
            Some(_) => path.rsplit_once('/').map_or(path, |(collection, _)| collection),
            None => path,
        };
        let collection = collection.to_owned();
        let name = info.name.or_else(|| body["metadata"]["name"].as_str().map(ToOwned::to_owned));
        let (verb, group, resource, namespace) = (info.verb, info.group, info.resource, info.namespace);
        Some(Self { verb, group, resource, namespace, name, body, collection })
    }

    /// Returns true if the write creates an object: by `create`, or by an apply of an object that does not exist.
    pub fn creates(&self, cluster: &Cluster) -> bool {
        let is_there = |name| cluster.names(&self.collection).iter().any(|other| other == name);
        match self.verb {
            "create" => !self.resource.contains('/'),
            "patch" => !self.resource.contains('/') && self.name.as_ref().is_some_and(|name| !is_there(name)),
            _ => false,
        }
    }
}

/// Refuses objects beyond the counts of the namespace's ResourceQuotas, such as `count/configmaps` or
/// `count/deployments.apps`. Other limits of a quota are not checked.
///
/// # Errors
///
/// The message of the API server.
///
/// ```no_run
/// # use reknit_simulation::{Simulation, quotas_refuse};
/// # fn with_quota(simulation: Simulation, quota: k8s_openapi::api::core::v1::ResourceQuota) {
/// simulation.given(quota).admission(quotas_refuse).run();
/// # }
/// ```
pub fn quotas_refuse(cluster: &Cluster, attempt: &Attempt) -> Result<(), String> {
    let Attempt { group, resource, namespace, name, .. } = attempt;
    if !attempt.creates(cluster) {
        return Ok(());
    }
    let qualified = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
    let used = cluster.names(&attempt.collection).len();
    for quota in cluster.list::<ResourceQuota>() {
        let limits = quota.spec.and_then(|spec| spec.hard).unwrap_or_default();
        let limits = limits.iter().filter(|(counted, _)| counted.trim_start_matches("count/") == qualified);
        for (counted, limit) in limits.filter(|_| quota.metadata.namespace == *namespace) {
            if limit.0.parse::<usize>().is_ok_and(|limit| used >= limit) {
                return Err(format!(
                    "{resource} {:?} is forbidden: exceeded quota: {}, requested: {counted}=1, used: {counted}={used}, \
                     limited: {counted}={}",
                    name.as_deref().unwrap_or_default(),
                    quota.metadata.name.as_deref().unwrap_or_default(),
                    limit.0,
                ));
            }
        }
    }
    Ok(())
}
