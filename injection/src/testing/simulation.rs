//! A random simulation of a store: an API server, a lagging watch, relists, and responses to own writes that arrive at
//! any time.
//!
//! The store must end with the objects of the server in any order of events, and must not report a state twice.

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::discovery::ApiResource;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use reknit_apis::Key;

use crate::{
    cache::{
        Store,
        delta::{Delta, Deltas},
    },
    object::{self, ObjectState, encode},
};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// One state of one object on the server.
#[derive(Clone, Debug, PartialEq)]
struct Object {
    name: &'static str,
    uid: u32,
    version: u32,
    is_selected: bool,
}

impl Object {
    fn key(&self) -> Key {
        Key::new("n", self.name)
    }

    fn encoded(&self) -> object::Object {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some("n".into());
        object.metadata.name = Some(self.name.into());
        object.metadata.uid = Some(self.uid.to_string());
        object.metadata.resource_version = Some(self.version.to_string());
        encode(&object, &ApiResource::erase::<ConfigMap>(&())).unwrap().0
    }
}

/// The uid and the resourceVersion of a state.
type UidAndVersion = (String, String);

fn name_and_state(state: ObjectState<'_>) -> (String, UidAndVersion) {
    (state.name.into(), (state.uid.unwrap().into(), state.resource_version.into()))
}

#[derive(Clone, Default)]
struct Server {
    version: u32,
    last_uid: u32,
    objects: BTreeMap<&'static str, Object>,
    /// Every change.
    log: Vec<Change>,
}

impl Server {
    fn put(&mut self, name: &'static str, is_selected: bool) -> Object {
        self.version += 1;
        let old = self.objects.get(name).cloned();
        self.last_uid += u32::from(old.is_none());
        let uid = old.as_ref().map_or(self.last_uid, |old| old.uid);
        let new = Object { name, uid, version: self.version, is_selected };
        self.objects.insert(name, new.clone());
        self.log.push((self.version, old, Some(new.clone())));
        new
    }

    /// Deletes and returns the object, at the version of its deletion.
    fn delete(&mut self, name: &str) -> Option<Object> {
        let old = self.objects.remove(name)?;
        self.version += 1;
        self.log.push((self.version, Some(old.clone()), None));
        Some(Object { version: self.version, ..old })
    }

    /// Increments the version, as a write of another resource does.
    fn write_other_resource(&mut self) {
        self.version += 1;
    }

    fn selected_objects(&self) -> Vec<Object> {
        self.objects.values().filter(|object| object.is_selected).cloned().collect()
    }
}

/// A change: its version, and the object before and after it.
type Change = (u32, Option<Object>, Option<Object>);

/// The event that the watch reports for a change, with the object: `Ok` for `ADDED` and `MODIFIED`, `Err` for `DELETED`.
/// `None` if the object is not in the selection.
fn watch_event((version, old, new): &Change) -> Option<Result<Object, Object>> {
    let [old, new] = [old, new].map(|object| object.clone().filter(|object| object.is_selected));
    new.map(Ok).or_else(|| old.map(|old| Err(Object { version: *version, ..old })))
}

/// A response to an own write that has not arrived yet.
enum PendingResponse {
    Written(Object),
    /// A deletion whose response contains the object, at the version of the deletion or, if the write removed the last
    /// finalizer, at the version before.
    Deleted(Object),
    /// A deletion whose response is a Status with the uid.
    DeletedUid(Object),
}

/// The response that the simulated reflector is reading.
enum Reading {
    /// A watch that has reported everything up to this version.
    Watch(u32),
    /// A list: its version and the remaining items; `None` before the server has taken the snapshot.
    List(Option<(u32, Vec<Object>)>),
}

struct Simulation {
    random: StdRng,
    server: Server,
    store: Store,
    reading: Reading,
    responses: Vec<PendingResponse>,
    /// True if the server may be restored from a backup.
    with_restores: bool,
    /// True if objects leave the selection and return. Leaving looks like a deletion, so a lagging watch may for a
    /// moment restore an object that an own deletion has removed.
    with_selection: bool,
    /// The current states that the deltas have reported, by name.
    reported: BTreeMap<String, UidAndVersion>,
    /// All states that the deltas have ever reported.
    ever_reported: HashSet<UidAndVersion>,
    /// The uids of objects that the response to a deletion has removed.
    deleted_uids: HashSet<String>,
}

impl Simulation {
    fn new(seed: u64, with_restores: bool, with_selection: bool) -> Self {
        let mut simulation = Self {
            random: StdRng::seed_from_u64(seed),
            server: Server::default(),
            store: Store::default(),
            reading: Reading::Watch(0),
            responses: Vec::new(),
            with_restores,
            with_selection,
            reported: BTreeMap::new(),
            ever_reported: HashSet::new(),
            deleted_uids: HashSet::new(),
        };
        simulation.server.write_other_resource();
        simulation.start_list();
        simulation
    }

    /// Takes one random step, such as a write on the server or a delivery to the store.
    fn step(&mut self) {
        let name = NAMES[self.random.random_range(0..NAMES.len())];
        let is_selected = !self.with_selection || self.random.random_bool(0.8);
        match self.random.random_range(0..23) {
            0..2 => drop(self.server.put(name, is_selected)),
            2 => drop(self.server.delete(name)),
            3 => self.server.write_other_resource(),
            4..7 => {
                let written = self.server.put(name, is_selected);
                self.responses.push(PendingResponse::Written(written));
            }
            7 => self.responses.extend(self.server.delete(name).map(PendingResponse::Deleted)),
            8 => self.responses.extend(self.server.delete(name).map(PendingResponse::DeletedUid)),
            9 => {
                let last = self.server.objects.get(name).cloned();
                self.server.delete(name);
                self.responses.extend(last.map(PendingResponse::Deleted));
            }
            10..14 => self.deliver_response(),
            14..20 => self.deliver_next(),
            20 => self.deliver_bookmark(),
            21 => self.start_list(),
            _ if self.with_restores && self.random.random_bool(0.3) => self.restore_backup(),
            _ => {}
        }
    }

    /// Delivers one of the responses, chosen at random.
    fn deliver_response(&mut self) {
        self.responses.shuffle(&mut self.random);
        let Some(response) = self.responses.pop() else { return };
        let is_deletion = !matches!(response, PendingResponse::Written(_));
        let deltas = match response {
            PendingResponse::Written(object) => {
                self.store.apply_own_write(object.encoded(), object.is_selected)
            }
            PendingResponse::Deleted(object) => self.store.apply_own_deletion(&object.encoded().state()),
            PendingResponse::DeletedUid(object) => {
                self.store.delete_uid(&object.key(), &object.uid.to_string())
            }
        };
        if let [Some(Delta::Deleted(last)), None] = &deltas
            && is_deletion
        {
            self.deleted_uids.extend(last.state().uid.map(str::to_owned));
        }
        self.check(deltas);
    }

    /// Delivers the next event of the watch or the next item of the list.
    fn deliver_next(&mut self) {
        match &mut self.reading {
            Reading::Watch(version) => {
                let Some(next) = self.server.log.iter().find(|(at, ..)| *at > *version) else { return };
                *version = next.0;
                let deltas = match watch_event(next) {
                    None => return,
                    Some(Ok(object)) => self.store.apply_watched(object.encoded()),
                    Some(Err(object)) => self.store.apply_deletion(&object.encoded().state()),
                };
                self.check(deltas);
            }
            Reading::List(snapshot @ None) => {
                let mut items = self.server.selected_objects();
                items.shuffle(&mut self.random);
                *snapshot = Some((self.server.version, items));
            }
            Reading::List(Some((version, items))) => match items.pop() {
                Some(object) => {
                    let deltas = self.store.apply_listed(object.encoded());
                    self.check(deltas);
                }
                None => {
                    let version = *version;
                    for last in self.store.finish_list(&version.to_string()) {
                        self.check([Some(Delta::Deleted(last)), None]);
                    }
                    self.reading = Reading::Watch(version);
                }
            },
        }
    }

    /// Delivers a bookmark with the last version before the next event of the watch.
    fn deliver_bookmark(&mut self) {
        let Reading::Watch(version) = &mut self.reading else { return };
        let is_next = |change: &&Change| change.0 > *version && watch_event(change).is_some();
        let next = self.server.log.iter().find(is_next);
        *version = next.map_or(self.server.version, |(at, ..)| at - 1).max(*version);
        self.store.apply_bookmark(&version.to_string());
    }

    /// Starts a list, as after a 410 or a failed list.
    fn start_list(&mut self) {
        self.reading = Reading::List(None);
        self.store.start_list();
    }

    /// Restores the server from a backup. Responses and events that have not arrived are lost.
    fn restore_backup(&mut self) {
        let last_uid = self.server.last_uid;
        let version = self.random.random_range(self.server.version / 2..=self.server.version);
        let log: Vec<_> = self.server.log.iter().filter(|(at, ..)| *at <= version).cloned().collect();
        let mut objects = BTreeMap::new();
        for (_, old, new) in &log {
            for object in [old, new].into_iter().flatten() {
                objects.insert(object.name, new.clone());
            }
        }
        let objects = objects.into_iter().filter_map(|(name, last)| Some((name, last?))).collect();
        self.server = Server { version, last_uid, objects, log };
        self.responses.clear();
        self.start_list();
    }

    /// Checks that each delta follows from the previous deltas.
    fn check(&mut self, deltas: Deltas) {
        for delta in deltas.into_iter().flatten() {
            let name = delta.latest().state().name.to_owned();
            let [old, new] = delta.objects().map(|object| Some(name_and_state(object?.state()).1));
            assert_eq!(self.reported.remove(&name), old, "{name}: wrong old state in the delta to {new:?}");
            if let Some(new) = new {
                let is_first = self.ever_reported.insert(new.clone());
                assert!(is_first || self.with_restores, "{name} was reported twice: {new:?}");
                let may_return = self.with_selection || self.with_restores;
                assert!(may_return || !self.deleted_uids.contains(&new.0), "{name} was restored: {new:?}");
                self.reported.insert(name, new);
            }
        }
    }

    /// Delivers all remaining events and responses, in random order, and compares the store with the server.
    fn settle(&mut self) {
        loop {
            let is_read = |version| self.server.log.last().is_none_or(|(at, ..)| at <= version);
            let is_up_to_date = matches!(&self.reading, Reading::Watch(version) if is_read(version));
            match (self.responses.is_empty(), is_up_to_date) {
                (true, true) => break,
                (false, true) => self.deliver_response(),
                (false, false) if self.random.random_bool(0.3) => self.deliver_response(),
                _ => self.deliver_next(),
            }
        }
        self.deliver_bookmark();
        let selected = self.server.selected_objects().into_iter();
        let on_server: BTreeMap<_, _> =
            selected.map(|object| name_and_state(object.encoded().state())).collect();
        assert_eq!(self.reported, on_server, "the reported states differ from the server's");
        let cached = self.store.entries.all().map(|object| name_and_state(object.state()));
        assert_eq!(cached.collect::<BTreeMap<_, _>>(), on_server, "the cache differs from the server");
        assert_eq!(self.store.tombstones(), 0, "tombstones remain");
    }
}

/// Values of `with_restores`.
const RESTORES: bool = true;
const NO_RESTORES: bool = false;

/// Values of `with_selection`.
const CHANGING_SELECTION: bool = true;
const FIXED_SELECTION: bool = false;

fn simulate(seeds: std::ops::Range<u64>, with_restores: bool, with_selection: bool) {
    for seed in seeds {
        let result = std::panic::catch_unwind(|| {
            let mut simulation = Simulation::new(seed, with_restores, with_selection);
            for _ in 0..80 {
                simulation.step();
            }
            simulation.settle();
        });
        if result.is_err() {
            panic!("seed {seed}");
        }
    }
}

#[test]
fn the_store_converges_with_the_server_in_any_order_of_events() {
    simulate(0..2_000, NO_RESTORES, CHANGING_SELECTION);
    simulate(0..2_000, NO_RESTORES, FIXED_SELECTION);
}

#[test]
fn the_store_follows_a_restored_server_in_any_order_of_events() {
    simulate(0..2_000, RESTORES, CHANGING_SELECTION);
}
