//! Informers against a real API server.
#![cfg(test)]

mod deletions;
mod gaps;
mod gate;
mod kinds;
mod own_writes;
mod reported;
mod selections;
mod utf8;

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

/// The time limit of [`eventually`](reknit_testing::eventually) in these tests: more than twice the reflector's longest
/// backoff.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(90);

/// A ConfigMap with these labels.
pub(crate) fn map(name: &str, labels: &[(&str, &str)]) -> ConfigMap {
    let labels = labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let metadata = ObjectMeta { name: Some(name.into()), labels: Some(labels), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}
