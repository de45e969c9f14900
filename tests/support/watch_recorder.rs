//! Records the events of a watch, and what each write changed.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use futures::TryStreamExt;
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
    discovery::ApiResource,
};
use parking_lot::Mutex;
use reknit::testing::eventually;

use super::wait::TIMEOUT;

/// The change of a write: the difference between an event and the previous event of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Write {
    Created,
    /// Only the status changed.
    Status,
    /// Only the finalizers changed.
    Finalizers,
    /// Any other change, or several changes at once.
    Other,
    Deleted,
}

/// One event of the watch.
#[derive(Clone, Debug)]
pub(crate) struct RecordedEvent {
    pub write: Write,
    /// The time of arrival.
    pub at: Instant,
    pub object: DynamicObject,
}

impl RecordedEvent {
    /// The resourceVersion as a number. A later event of any Kind has a higher number.
    pub(crate) fn version(&self) -> u64 {
        let version = self.object.metadata.resource_version.as_deref().unwrap_or_default();
        version.parse().expect("a resourceVersion is a number")
    }
}

/// Counts of one type of write: the lowest and the highest count of an object, and the sum over all objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteCounts {
    pub min: usize,
    pub max: usize,
    pub sum: usize,
}

type EventsByName = BTreeMap<String, Vec<RecordedEvent>>;

/// Records the events of one Kind in one namespace until it is dropped.
pub(crate) struct WatchRecorder {
    events: Arc<Mutex<EventsByName>>,
    task: tokio::task::JoinHandle<()>,
}

impl WatchRecorder {
    pub(crate) async fn start<K: Resource<DynamicType = ()>>(client: &Client, namespace: &str) -> Self {
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &ApiResource::erase::<K>(&()));
        let list = api.list(&ListParams::default()).await.expect("the list");
        let version = list.metadata.resource_version.expect("a resourceVersion");
        let objects = list.items.into_iter().map(|object| (name_of(&object), object)).collect();
        let events = Arc::default();
        let task = tokio::spawn(watch(api, version, objects, Arc::clone(&events)));
        Self { events, task }
    }

    /// The events of one object, in order.
    pub(crate) fn events_of(&self, name: &str) -> Vec<RecordedEvent> {
        self.events.lock().get(name).cloned().unwrap_or_default()
    }

    /// The events of all objects, ordered by resourceVersion.
    pub(crate) fn all_events(&self) -> Vec<RecordedEvent> {
        let mut all: Vec<_> = self.events.lock().values().flatten().cloned().collect();
        all.sort_by_key(RecordedEvent::version);
        all
    }

    /// The writes to one object, in order.
    pub(crate) fn writes(&self, name: &str) -> Vec<Write> {
        self.events_of(name).into_iter().map(|event| event.write).collect()
    }

    /// Counts the writes of one type to each object that has events.
    pub(crate) fn counts(&self, write: Write) -> WriteCounts {
        let events = self.events.lock();
        let counts = events.values().map(|events| events.iter().filter(|event| event.write == write).count());
        let (min, max) = (counts.clone().min().unwrap_or_default(), counts.clone().max().unwrap_or_default());
        WriteCounts { min, max, sum: counts.sum() }
    }

    /// The number of all events.
    pub(crate) fn event_count(&self) -> usize {
        self.events.lock().values().map(Vec::len).sum()
    }

    /// Waits for a matching event of the object `name`, and returns its time of arrival.
    pub(crate) async fn wait_for_event(
        &self,
        what: &str,
        name: &str,
        matching: impl Fn(&RecordedEvent) -> bool,
    ) -> Instant {
        eventually(what, TIMEOUT, async || {
            self.events_of(name).into_iter().find(|event| matching(event)).map(|event| event.at)
        })
        .await
    }
}

impl Drop for WatchRecorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Watches from `version` on. `objects` are the states at that version.
async fn watch(
    api: Api<DynamicObject>,
    mut version: String,
    mut objects: BTreeMap<String, DynamicObject>,
    events: Arc<Mutex<EventsByName>>,
) {
    loop {
        if let Ok(stream) = api.watch(&WatchParams::default(), &version).await {
            let mut stream = std::pin::pin!(stream);
            while let Ok(Some(event)) = stream.try_next().await {
                let at = Instant::now();
                let (object, deleted) = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                    WatchEvent::Deleted(object) => (object, true),
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(error) => panic!("the test's own watch failed: {error}"),
                };
                version = object.metadata.resource_version.clone().expect("a resourceVersion");
                let name = name_of(&object);
                let write = if deleted {
                    objects.remove(&name);
                    Write::Deleted
                } else {
                    let old = objects.insert(name.clone(), object.clone());
                    difference(old.as_ref(), &object)
                };
                events.lock().entry(name).or_default().push(RecordedEvent { write, at, object });
            }
        }
        // The API server is stopped, or it ended the watch. Resume from the last resourceVersion.
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn difference(old: Option<&DynamicObject>, new: &DynamicObject) -> Write {
    let Some(old) = old else { return Write::Created };
    let status = old.data["status"] != new.data["status"];
    let finalizers = old.metadata.finalizers != new.metadata.finalizers;
    let other = old.metadata.generation != new.metadata.generation
        || old.metadata.labels != new.metadata.labels
        || old.metadata.annotations != new.metadata.annotations
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp;
    match (status, finalizers, other) {
        (true, false, false) => Write::Status,
        (false, true, false) => Write::Finalizers,
        _ => Write::Other,
    }
}

fn name_of(object: &DynamicObject) -> String {
    object.metadata.name.clone().unwrap_or_default()
}
