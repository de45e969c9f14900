//! A random model of an API server, a lagging watch, relists, and answers to own writes that arrive at any time.
//!
//! In every order the store must end as the server is, and no state may be reported twice.

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

/// One state of one object.
#[derive(Clone, Debug, PartialEq)]
struct Object {
    name: &'static str,
    uid: u32,
    version: u32,
    /// True if the informer's selection admits it.
    selected: bool,
}

impl Object {
    fn key(&self) -> Key {
        Key::new("n", self.name)
    }

    fn cached(&self) -> object::Object {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some("n".into());
        object.metadata.name = Some(self.name.into());
        object.metadata.uid = Some(self.uid.to_string());
        object.metadata.resource_version = Some(self.version.to_string());
        encode(&object, &ApiResource::erase::<ConfigMap>(&())).unwrap().0
    }
}

/// The name, the uid and the version of a state.
fn of(state: ObjectState<'_>) -> (String, (String, String)) {
    (state.name.into(), (state.uid.unwrap().into(), state.resource_version.into()))
}

#[derive(Clone, Default)]
struct Server {
    version: u32,
    uids: u32,
    objects: BTreeMap<&'static str, Object>,
    /// Every change: the object before it and after it.
    log: Vec<(u32, Option<Object>, Option<Object>)>,
}

impl Server {
    fn put(&mut self, name: &'static str, selected: bool) -> Object {
        self.version += 1;
        let old = self.objects.get(name).cloned();
        let uid = old.as_ref().map_or_else(
            || {
                self.uids += 1;
                self.uids
            },
            |old| old.uid,
        );
        let new = Object { name, uid, version: self.version, selected };
        self.objects.insert(name, new.clone());
        self.log.push((self.version, old, Some(new.clone())));
        new
    }

    /// The deleted object, at the version of its deletion.
    fn delete(&mut self, name: &str) -> Option<Object> {
        let old = self.objects.remove(name)?;
        self.version += 1;
        self.log.push((self.version, Some(old.clone()), None));
        Some(Object { version: self.version, ..old })
    }

    /// Other resources share the counter.
    fn skip(&mut self) {
        self.version += 1;
    }

    fn selected(&self) -> Vec<Object> {
        self.objects.values().filter(|object| object.selected).cloned().collect()
    }
}

/// An event of the watch.
enum Event {
    There(Object),
    Gone(Object),
}

fn event(version: u32, old: Option<&Object>, new: Option<&Object>) -> Option<Event> {
    let old = old.filter(|object| object.selected);
    match (old, new.filter(|object| object.selected)) {
        (_, Some(new)) => Some(Event::There(new.clone())),
        (Some(old), None) => Some(Event::Gone(Object { version, ..old.clone() })),
        (None, None) => None,
    }
}

/// An answer that has not arrived yet.
enum Answer {
    Wrote(Object),
    /// An answer with the object, at the version of its deletion, or at the one before if its last finalizer was removed.
    Deleted(Object),
    /// An answer with a Status that names the uid.
    Erased(Object),
}

enum Follows {
    /// A watch that has reported everything up to this version.
    Watch(u32),
    /// A list: its version and the remaining items; `None` before the first request.
    List(Option<(u32, Vec<Object>)>),
}

struct World {
    random: StdRng,
    server: Server,
    store: Store,
    follows: Follows,
    answers: Vec<Answer>,
    rewinds: bool,
    /// True if objects leave the selection and return. Then a lagging watch can show for a moment an object whose deletion
    /// was answered, since leaving the selection looks like a deletion.
    selects: bool,
    /// The states that the handlers know, by name.
    believed: BTreeMap<String, (String, String)>,
    seen: HashSet<(String, String)>,
    /// The uids of objects that the answer to a deletion has removed.
    dead: HashSet<String>,
}

impl World {
    fn new(seed: u64, rewinds: bool, selects: bool) -> Self {
        let mut world = Self {
            random: StdRng::seed_from_u64(seed),
            server: Server::default(),
            store: Store::default(),
            follows: Follows::Watch(0),
            answers: Vec::new(),
            rewinds,
            selects,
            believed: BTreeMap::new(),
            seen: HashSet::new(),
            dead: HashSet::new(),
        };
        world.server.skip();
        world.relist();
        world
    }

    fn step(&mut self) {
        let name = NAMES[self.random.random_range(0..NAMES.len())];
        let selected = !self.selects || self.random.random_bool(0.8);
        match self.random.random_range(0..23) {
            0..2 => drop(self.server.put(name, selected)),
            2 => drop(self.server.delete(name)),
            3 => self.server.skip(),
            4..7 => {
                let written = self.server.put(name, selected);
                self.answers.push(Answer::Wrote(written));
            }
            7 => self.answers.extend(self.server.delete(name).map(Answer::Deleted)),
            8 => self.answers.extend(self.server.delete(name).map(Answer::Erased)),
            9 => {
                let last = self.server.objects.get(name).cloned();
                self.server.delete(name);
                self.answers.extend(last.map(Answer::Deleted));
            }
            10..14 => self.answer(),
            14..20 => self.follow(),
            20 => self.bookmark(),
            21 => self.relist(),
            _ if self.rewinds && self.random.random_bool(0.3) => self.rewind(),
            _ => {}
        }
    }

    /// Delivers one of the answers, chosen at random.
    fn answer(&mut self) {
        self.answers.shuffle(&mut self.random);
        let answer = self.answers.pop();
        let deleted = matches!(answer, Some(Answer::Deleted(_) | Answer::Erased(_)));
        let deltas = match answer {
            None => return,
            Some(Answer::Wrote(object)) => self.store.apply_own_write(object.cached(), object.selected),
            Some(Answer::Deleted(object)) => self.store.apply_own_deletion(&object.cached().state()),
            Some(Answer::Erased(object)) => self.store.delete_uid(&object.key(), &object.uid.to_string()),
        };
        if let [Some(Delta::Deleted(last)), None] = &deltas
            && deleted
        {
            self.dead.extend(last.state().uid.map(str::to_owned));
        }
        self.hear(deltas);
    }

    /// Delivers the next event of the watch or the next item of the list.
    fn follow(&mut self) {
        match &mut self.follows {
            Follows::Watch(version) => {
                let Some((next, old, new)) = self.server.log.iter().find(|(at, ..)| *at > *version) else {
                    return;
                };
                *version = *next;
                let deltas = match event(*next, old.as_ref(), new.as_ref()) {
                    None => return,
                    Some(Event::There(object)) => self.store.apply_watched(object.cached()),
                    Some(Event::Gone(object)) => self.store.apply_deletion(&object.cached().state()),
                };
                self.hear(deltas);
            }
            Follows::List(pages @ None) => {
                let mut items = self.server.selected();
                items.shuffle(&mut self.random);
                *pages = Some((self.server.version, items));
            }
            Follows::List(Some((version, items))) => match items.pop() {
                Some(object) => {
                    let deltas = self.store.apply_listed(object.cached());
                    self.hear(deltas);
                }
                None => {
                    let version = *version;
                    for last in self.store.finish_list(&version.to_string()) {
                        self.hear([Some(Delta::Deleted(last)), None]);
                    }
                    self.follows = Follows::Watch(version);
                }
            },
        }
    }

    /// Delivers a bookmark.
    fn bookmark(&mut self) {
        let Follows::Watch(version) = &mut self.follows else { return };
        let next = self
            .server
            .log
            .iter()
            .find(|(at, old, new)| at > version && event(*at, old.as_ref(), new.as_ref()).is_some());
        *version = next.map_or(self.server.version, |(at, ..)| at - 1).max(*version);
        self.store.apply_bookmark(&version.to_string());
    }

    /// Starts a list, as after a 410 or a failed list.
    fn relist(&mut self) {
        self.follows = Follows::List(None);
        self.store.start_list();
    }

    /// Restores the server from a backup. Answers and events that have not arrived are lost.
    fn rewind(&mut self) {
        let uids = self.server.uids;
        let version = self.random.random_range(self.server.version / 2..=self.server.version);
        let mut restored = Server { version, uids, ..Server::default() };
        for (at, old, new) in &self.server.log {
            if *at <= version {
                match (old, new) {
                    (_, Some(new)) => drop(restored.objects.insert(new.name, new.clone())),
                    (Some(old), None) => drop(restored.objects.remove(old.name)),
                    (None, None) => {}
                }
                restored.log.push((*at, old.clone(), new.clone()));
            }
        }
        self.server = restored;
        self.answers.clear();
        self.relist();
    }

    /// Checks that each delta follows from the ones before.
    fn hear(&mut self, deltas: Deltas) {
        for delta in deltas.into_iter().flatten() {
            let of = |object: &object::Object| of(object.state());
            let (before, now) = match &delta {
                Delta::Added(new) => (None, Some(of(new))),
                Delta::Updated { old, new } => (Some(of(old)), Some(of(new))),
                Delta::Deleted(last) => (Some(of(last)), None),
            };
            let name = now.as_ref().or(before.as_ref()).unwrap().0.clone();
            assert_eq!(
                self.believed.remove(&name),
                before.clone().map(|b| b.1),
                "{name}: {before:?} {now:?}"
            );
            if let Some((_, new)) = now {
                assert!(self.seen.insert(new.clone()) || self.rewinds, "{name} was reported twice: {new:?}");
                let back = self.dead.contains(&new.0);
                assert!(!back || self.selects || self.rewinds, "{name} was restored: {new:?}");
                self.believed.insert(name, new);
            }
        }
    }

    /// Delivers everything that is left, in random order, and compares the store with the server.
    fn settle(&mut self) {
        loop {
            let done = match &self.follows {
                Follows::Watch(version) => self.server.log.last().is_none_or(|(at, ..)| at <= version),
                Follows::List(_) => false,
            };
            match (self.answers.is_empty(), done) {
                (true, true) => break,
                (false, true) => self.answer(),
                (false, false) if self.random.random_bool(0.3) => self.answer(),
                _ => self.follow(),
            }
        }
        self.bookmark();
        let state =
            |object: Object| (object.name.to_owned(), (object.uid.to_string(), object.version.to_string()));
        let truth: BTreeMap<_, _> = self.server.selected().into_iter().map(state).collect();
        assert_eq!(self.believed, truth, "the handlers and the server");
        let held = self.store.table.all().map(|object| of(object.state()));
        assert_eq!(held.collect::<BTreeMap<_, _>>(), truth, "the cache and the server");
        assert_eq!(self.store.tombstones(), 0, "no tombstone remains");
    }
}

fn explore(seeds: std::ops::Range<u64>, rewinds: bool, selects: bool) {
    for seed in seeds {
        let ran = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, rewinds, selects);
            for _ in 0..80 {
                world.step();
            }
            world.settle();
        });
        if ran.is_err() {
            panic!("seed {seed}");
        }
    }
}

#[test]
fn the_store_ends_as_the_server_in_any_order_of_events() {
    explore(0..2_000, false, true);
    explore(0..2_000, false, false);
}

#[test]
fn a_restored_server_is_followed_in_any_order_of_events() {
    explore(0..2_000, true, true);
}
