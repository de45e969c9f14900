//! Records the writes to each object with its own watch.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use futures::TryStreamExt;
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
    discovery::ApiResource,
};
use parking_lot::Mutex;
use reknit::testing::eventually;

use super::wait::SOON;

/// The difference between an event and the previous event of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Write {
    Created,
    /// Only the status changed.
    Status,
    /// Only the finalizers changed.
    Finalizers,
    Other,
    Deleted,
}

/// One event of the watch.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub write: Write,
    pub at: Instant,
    pub object: DynamicObject,
}

impl Seen {
    /// The resourceVersion as a number. A later event of any Kind has a higher number.
    pub(crate) fn version(&self) -> u64 {
        let version = self.object.metadata.resource_version.as_deref().unwrap_or_default();
        version.parse().expect("a resourceVersion is a number")
    }
}

/// Records the events of one Kind in one namespace until it is dropped.
pub(crate) struct Tally {
    seen: Arc<Mutex<BTreeMap<String, Vec<Seen>>>>,
    watching: tokio::task::JoinHandle<()>,
}

impl Tally {
    pub(crate) async fn of<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str) -> Self {
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<K>(&()));
        let listed = api.list(&ListParams::default()).await.expect("the list");
        let version = listed.metadata.resource_version.expect("a version");
        let held = listed.items.into_iter().map(|object| (name(&object), object)).collect();
        let seen = Arc::default();
        let watching = tokio::spawn(watch(api, version, held, Arc::clone(&seen)));
        Self { seen, watching }
    }

    /// The events of one object, in order.
    pub(crate) fn seen(&self, name: &str) -> Vec<Seen> {
        self.seen.lock().get(name).cloned().unwrap_or_default()
    }

    /// The events of all objects, ordered by resourceVersion.
    pub(crate) fn all(&self) -> Vec<Seen> {
        let mut all: Vec<_> = self.seen.lock().values().flatten().cloned().collect();
        all.sort_by_key(Seen::version);
        all
    }

    /// The writes to one object, in order.
    pub(crate) fn writes(&self, name: &str) -> Vec<Write> {
        self.seen(name).into_iter().map(|seen| seen.write).collect()
    }

    /// The lowest and the highest number of writes of one kind per object, and their sum. Objects without any event are not
    /// counted.
    pub(crate) fn spread(&self, of: Write) -> (usize, usize, usize) {
        let seen = self.seen.lock();
        let counts = seen.values().map(|seen| seen.iter().filter(|seen| seen.write == of).count());
        let (mut low, mut high, mut sum) = (usize::MAX, 0, 0);
        counts.for_each(|count| (low, high, sum) = (low.min(count), high.max(count), sum + count));
        (if low == usize::MAX { 0 } else { low }, high, sum)
    }

    /// The number of all events.
    pub(crate) fn total(&self) -> usize {
        self.seen.lock().values().map(Vec::len).sum()
    }

    /// Waits for a matching event of `name`, and returns its time.
    pub(crate) async fn when(&self, what: &str, name: &str, matching: impl Fn(&Seen) -> bool) -> Instant {
        eventually(what, SOON, async || {
            self.seen(name).into_iter().find(|seen| matching(seen)).map(|seen| seen.at)
        })
        .await
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

async fn watch(
    api: Api<DynamicObject>,
    mut version: String,
    mut held: BTreeMap<String, DynamicObject>,
    into: Arc<Mutex<BTreeMap<String, Vec<Seen>>>>,
) {
    loop {
        if let Ok(events) = api.watch(&WatchParams::default(), &version).await {
            let mut events = std::pin::pin!(events);
            while let Ok(Some(event)) = events.try_next().await {
                let at = Instant::now();
                let (object, deleted) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                    WatchEvent::Deleted(object) => (object, true),
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(error) => panic!("the test's own watch failed: {error}"),
                };
                version = object.metadata.resource_version.clone().expect("a version");
                let name = name(&object);
                let before =
                    if deleted { held.remove(&name) } else { held.insert(name.clone(), object.clone()) };
                let write = if deleted { Write::Deleted } else { written(before.as_ref(), &object) };
                into.lock().entry(name).or_default().push(Seen { write, at, object });
            }
        }
        // The watch ended or could not be opened, because the server is away. Resume from the last resourceVersion.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn written(before: Option<&DynamicObject>, after: &DynamicObject) -> Write {
    let Some(before) = before else { return Write::Created };
    let status = before.data["status"] != after.data["status"];
    let finalizers = before.metadata.finalizers != after.metadata.finalizers;
    let rest = before.metadata.generation != after.metadata.generation
        || before.metadata.labels != after.metadata.labels
        || before.metadata.annotations != after.metadata.annotations
        || before.metadata.deletion_timestamp != after.metadata.deletion_timestamp;
    match (status, finalizers, rest) {
        (true, false, false) => Write::Status,
        (false, true, false) => Write::Finalizers,
        _ => Write::Other,
    }
}

fn name(object: &DynamicObject) -> String {
    object.metadata.name.clone().unwrap_or_default()
}
