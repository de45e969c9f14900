//! Recognises fights: a field that passes of a controller write, and somebody else writes back.
//!
//! After each write of a pass, the state that it led to is kept. If the same controller next writes the object from
//! another state, somebody else has written the object in between. A field that differs in that state, and has the same
//! value before and after it, was restored by the controller. A field that counts up, or that the controller never sets,
//! is none of these.
//!
//! The states are compared whichever client sent the write, and whichever verb, also of the status. Nothing is decoded
//! unless both writers have changed the same part of the object. The kept states are those of the cache, so they take
//! memory only while somebody else has changed an object.

mod field;
mod managers;
#[cfg(test)]
mod tests;
mod text;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::discovery::ApiResource;
use parking_lot::Mutex;
use reknit_apis::{Key, internal::HashMap};
use tokio::time::Instant;

pub(crate) use self::text::describe_change;
use self::{field::restored_fields, managers::rival_of, text::RestoredText};
use crate::object::{Object, Parts, RawObject};

/// The maximum number of objects of an informer whose last states are kept.
const MAX_OBJECTS: usize = 1024;
/// The time for which the state of an object without a restored field is kept although others need the room.
const MIN_AGE: Duration = Duration::from_secs(60);
/// The longest time between two restored fields of a fight. Tools that sync every few minutes fight too.
const MAX_PAUSE: Duration = Duration::from_secs(10 * 60);
/// The number of times that fields of an object are restored until it is a fight.
const FIGHT: u32 = 3;
/// The number of further times until a fight is reported although its other writer is not known.
const PATIENCE: u32 = 3;
/// The number of states of an object in a fight whose managers are kept. The watch may report an own write before its
/// response arrives.
const MAX_STATES: usize = 4;
/// The time until a fight is reported again, doubled each time.
const REPORT_AGAIN: Duration = Duration::from_secs(10 * 60);

/// A field that a write has restored in a fight.
///
/// Displays as `Deployment shop/shop-7: capacity-bot set spec.replicas to 5, restored to 2, 900 times in 12 minutes`.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The Kind of the object.
    pub kind: Arc<ApiResource>,
    /// The key of the object.
    pub object: Key,
    /// True for the first one of a fight, and then after ten minutes, twenty, and so on.
    pub is_to_report: bool,
    text: RestoredText,
}

impl std::fmt::Display for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.kind.kind, self.object.to_string().trim_start_matches('/'), self.text)
    }
}

/// The last states that the passes of this process have written, of the objects of one informer.
#[derive(Default)]
pub(crate) struct Fights {
    objects: Mutex<Objects>,
    /// True if the managers of some object are followed, so that watch events are searched for them.
    is_following: AtomicBool,
}

#[derive(Default)]
struct Objects {
    written: HashMap<Key, WrittenObject>,
    swept: Option<Instant>,
}

#[derive(Default)]
struct WrittenObject {
    by: Vec<Writer>,
    /// The resourceVersions and the `managedFields` of the last states, once a field was restored.
    managed_fields: VecDeque<(Box<str>, Box<str>)>,
}

/// A controller that has written an object.
struct Writer {
    controller: Arc<str>,
    /// The state to which its last write led.
    state: Object,
    written: Instant,
    /// The number of times that it has restored a field, and the first and the last time.
    restored: u32,
    since: Instant,
    last: Instant,
    report: Instant,
    next_gap: Duration,
}

impl WrittenObject {
    fn add_managed_fields(&mut self, version: &str, managed_fields: Option<&str>) {
        if let Some(managed_fields) = managed_fields
            && self.by.iter().any(|writer| writer.restored > 0)
            && managed_fields_of(&self.managed_fields, version).is_none()
        {
            self.managed_fields.truncate(MAX_STATES - 1);
            self.managed_fields.push_front((version.into(), managed_fields.into()));
        }
    }
}

/// Returns the `managedFields` of the state with this resourceVersion, if they are kept.
fn managed_fields_of<'a>(kept: &'a VecDeque<(Box<str>, Box<str>)>, version: &str) -> Option<&'a str> {
    kept.iter().find(|(other, _)| **other == *version).map(|(_, managed_fields)| &**managed_fields)
}

impl Writer {
    fn is_expired(&self, now: Instant, is_full: bool) -> bool {
        now - self.written > if is_full && self.restored == 0 { MIN_AGE } else { MAX_PAUSE }
    }
}

impl Fights {
    /// Remembers the write of an object by a pass of this controller. Returns the field that it has restored, if this is
    /// a fight. `before` is the cached state when the write was sent, and `after` the state to which it led.
    pub(crate) fn record_write(
        &self,
        kind: &Arc<ApiResource>,
        controller: &Arc<str>,
        before: &Object,
        after: &Object,
        managed_fields: Option<&str>,
    ) -> Option<Restored> {
        let (now, key) = (Instant::now(), after.state().key());
        let mut objects = self.objects.lock();
        if !objects.has_room_for(&key, now, &self.is_following) {
            return None;
        }
        let object = objects.written.entry(key.clone()).or_default();
        object.add_managed_fields(after.state().resource_version, managed_fields);
        object.by.retain(|writer| !writer.is_expired(now, false));
        let Some(writer) = object.by.iter_mut().find(|writer| writer.controller == *controller) else {
            object.by.push(Writer::new(controller, after, now));
            return None;
        };
        writer.written = now;
        let last = std::mem::replace(&mut writer.state, after.clone());
        if last.is_same_state(&before.state()) || last.state().uid != before.state().uid {
            return None;
        }
        // A comparison of texts, which nearly always suffices.
        if !Parts::between(&last, before).intersects(Parts::between(before, after)) {
            return None;
        }
        let mut fields = restored_fields(kind, [&last, before, after]);
        if fields.is_empty() {
            return None;
        }
        self.is_following.store(true, Ordering::Relaxed);
        writer.count_restored(now);
        if writer.restored < FIGHT {
            return None;
        }
        let kept = |state: &Object| managed_fields_of(&object.managed_fields, state.state().resource_version);
        let rival = rival_of([kept(&last), kept(before), managed_fields], &fields[0]);
        let is_known = rival.is_some() || writer.restored >= FIGHT + PATIENCE;
        let is_to_report = writer.report <= now && is_known;
        if is_to_report {
            writer.report = now + writer.next_gap;
            writer.next_gap *= 2;
        }
        let others = fields.len() - 1;
        let field = fields.swap_remove(0);
        let text = RestoredText::new(kind, rival, &field, others, writer.restored, now - writer.since);
        Some(Restored { kind: kind.clone(), object: key, is_to_report, text })
    }

    /// Keeps the managers of a state that the watch reports, if a field of the object was restored before. A forced apply
    /// takes the field from them again.
    pub(crate) fn record_watched(&self, raw: &RawObject<'_>) {
        if !self.is_following.load(Ordering::Relaxed) {
            return;
        }
        let mut objects = self.objects.lock();
        if let Some(object) = objects.written.get_mut(&raw.key()) {
            object.add_managed_fields(raw.resource_version(), raw.managed_fields());
        }
    }
}

impl Objects {
    /// Drops expired states at most once a second, and returns true if the state of this object can be kept.
    fn has_room_for(&mut self, key: &Key, now: Instant, is_following: &AtomicBool) -> bool {
        let is_full = self.written.len() >= MAX_OBJECTS;
        let age = self.swept.map_or(MIN_AGE, |swept| now - swept);
        if age >= MIN_AGE || (is_full && age >= Duration::from_secs(1)) {
            self.swept = Some(now);
            self.written.retain(|_, object| {
                object.by.retain(|writer| !writer.is_expired(now, is_full));
                !object.by.is_empty()
            });
            let mut writers = self.written.values().flat_map(|object| &object.by);
            is_following.store(writers.any(|writer| writer.restored > 0), Ordering::Relaxed);
        }
        self.written.len() < MAX_OBJECTS || self.written.contains_key(key)
    }
}

impl Writer {
    fn new(controller: &Arc<str>, state: &Object, now: Instant) -> Self {
        Self {
            controller: controller.clone(),
            state: state.clone(),
            written: now,
            restored: 0,
            since: now,
            last: now,
            report: now,
            next_gap: REPORT_AGAIN,
        }
    }

    /// Counts a restored field. A pause that is too long ends a fight, also if the controller has written other fields
    /// meanwhile.
    fn count_restored(&mut self, now: Instant) {
        if self.restored == 0 || now - self.last > MAX_PAUSE {
            (self.restored, self.since) = (0, now);
            (self.report, self.next_gap) = (now, REPORT_AGAIN);
        }
        self.restored += 1;
        self.last = now;
    }
}
