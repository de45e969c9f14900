//! The order of two leaders of a bucket: the next one begins once its caches have what the last one wrote.
//!
//! A released lease names the versions up to which the watches report the writes of its last holder. The caches of that
//! process had each write with its response, but those of the next leader follow the watches. Without this order, its first
//! passes might not see a child that has just been created, and create another one.
//!
//! A lease that expired, or whose holder was proven dead, names none: its next leader begins seconds after the last write.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use parking_lot::Mutex;
use reknit_injection::InformerHandle;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::selections::shorten;

/// The annotation of a released lease, a JSON object of [`Versions`].
pub(crate) const LAST_WRITES: &str = "leaderelection.reknit.dev/last-writes";
/// The maximum number of versions in a lease, since the size of annotations is limited. A controller has more only if it
/// has written in more selected namespaces.
const MAX_VERSIONS: usize = 200;

/// The time after which what the watches have not reported is listed.
const MAX_LAG: Duration = Duration::from_secs(2);

/// Versions by the name of an informer and the part of its selection.
type Versions = BTreeMap<String, BTreeMap<usize, String>>;

/// The last writes of the holders of one lease.
#[derive(Default)]
pub(crate) struct LastWrites {
    /// The informers that the passes read.
    informers: Mutex<Vec<Arc<dyn InformerHandle>>>,
    /// The last writes of the holders before this process.
    inherited: Mutex<Versions>,
}

impl LastWrites {
    pub(crate) fn set_informers(&self, informers: &[Arc<dyn InformerHandle>]) {
        *self.informers.lock() = informers.to_vec();
    }

    /// The annotations for a write of the lease, which was read in this state: the last writes if this write releases it.
    /// Any other write removes those of an earlier release.
    pub(crate) fn annotations(&self, is_release: bool, read: &Value) -> Option<Value> {
        let versions = if is_release { self.versions() } else { Versions::new() };
        match versions.is_empty() {
            false => Some(json!({LAST_WRITES: json!(versions).to_string()})),
            true => annotation(read).map(|_| json!({LAST_WRITES: null})),
        }
    }

    /// Reads the last writes of the holders before this process, from the lease that this process is about to acquire.
    pub(crate) fn inherit(&self, read: &Value) {
        let versions = annotation(read).and_then(|text| serde_json::from_str(text).ok());
        *self.inherited.lock() = versions.unwrap_or_default();
    }

    /// Waits until the informers have what the holders before this process have written. Lists what is missing after
    /// [`MAX_LAG`]. At the limit, logs a warning and returns: the lease has to be renewed.
    pub(crate) async fn wait_until_seen(&self, lease: &str, limit: Duration) {
        let (inherited, start) = (self.inherited.lock().clone(), Instant::now());
        let informers = self.informers.lock().clone();
        let awaited: Vec<_> =
            informers.iter().flat_map(|informer| versions_of(informer, &inherited)).collect();
        let seen =
            || join_all(awaited.iter().map(|(informer, part, version)| informer.reached(*part, version)));
        if timeout(MAX_LAG.min(limit / 2), seen()).await.is_ok() {
            return;
        }
        for (informer, part, version) in &awaited {
            if informer.reached(*part, version).now_or_never().is_none() {
                info!(
                    lease,
                    informer = informer.name(),
                    version,
                    "the watch is behind the last leader, listing again"
                );
                informer.list_again(*part);
            }
        }
        if timeout(limit.saturating_sub(start.elapsed()), seen()).await.is_err() {
            self.inherited.lock().clear(); // these may be edited versions, which do not exist
            warn!(
                lease,
                "the caches do not have the last writes of the last leader yet, and this process leads all the same: \
                 children with generated names may be created twice; look at reflector_last_response_age_seconds"
            );
        }
    }

    /// The versions that the next holder has to wait for: those of own writes, and of the writes of earlier holders, which its
    /// watches may not have reported either.
    fn versions(&self) -> Versions {
        let (inherited, mut versions) = (self.inherited.lock().clone(), Versions::new());
        for informer in self.informers.lock().iter() {
            let name = shorten(informer.name());
            let inherited = inherited.get(&name).into_iter().flatten();
            let inherited = inherited.map(|(part, version)| (*part, version.clone()));
            for (part, version) in informer.last_writes().into_iter().chain(inherited) {
                let last = versions.entry(name.clone()).or_default().entry(part).or_default();
                if is_later(&version, last) {
                    *last = version;
                }
            }
        }
        let mut count = 0;
        for parts in versions.values_mut() {
            parts.retain(|_, _| {
                count += 1;
                count <= MAX_VERSIONS
            });
        }
        versions.retain(|_, parts| !parts.is_empty());
        versions
    }
}

/// Compares versions that are numbers of any size.
fn is_later(version: &str, other: &str) -> bool {
    (version.len(), version) > (other.len(), other)
}

/// The versions that the last holder has written of this informer's objects.
fn versions_of<'a>(
    informer: &'a Arc<dyn InformerHandle>,
    written: &'a Versions,
) -> impl Iterator<Item = (&'a Arc<dyn InformerHandle>, usize, &'a str)> {
    let versions = written.get(&shorten(informer.name())).into_iter().flatten();
    versions.map(move |(part, version)| (informer, *part, version.as_str()))
}

fn annotation(lease: &Value) -> Option<&str> {
    lease["metadata"]["annotations"][LAST_WRITES].as_str()
}
