//! Informers against a real API server.
#![cfg(test)]

mod deletions;
mod gaps;
mod gate;
mod kinds;
mod own_writes;
mod reported;
mod selections;

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

/// Longer than anything takes here: two of the longest waits between attempts, and time to spare.
pub(crate) const SOON: Duration = Duration::from_secs(90);

pub(crate) fn map(name: &str, labels: &[(&str, &str)]) -> ConfigMap {
    let labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let metadata = ObjectMeta { name: Some(name.into()), labels: Some(labels), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}
