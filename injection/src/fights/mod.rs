//! Recognises fights: a field that passes of a controller write, and somebody else writes back.
//!
//! After each write of a pass, the state that it led to is kept. If the same controller next writes the object from
//! another state, somebody else has written the object in between. A field that differs in that state, and has the same
//! value before and after it, was restored by the controller, if the request has written it. A field that counts up, or
//! that the controller never sets, is none of these. A watch that lags behind may report the state that was written from
//! only later, even after further writes: if it shows that the write has restored nothing, the write does not count. Nor
//! does it if more states arrived before its response than are kept, or if the state to which the write before it led is not
//! known, since its response was lost, or came after a newer state.
//!
//! The states are compared whichever client sent the write, and whichever verb, also of the status. Nothing is decoded
//! unless both writers have changed the same part of the object. The kept states are those of the cache, so they take
//! memory only while somebody else has changed an object.

mod field;
mod managers;
mod request;
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
use reknit_apis::Key;
use tokio::time::Instant;

pub(crate) use self::request::{Write, WriteRequest};
pub use self::text::FieldChange;
use self::{
    field::{Field, Step, restored_fields},
    managers::rival_of,
    text::{RestoredText, path_text},
};
use crate::{
    object::{Object, ObjectState, Parts, RawObject},
    redaction::Redaction,
    shared_table::SharedTable,
};

/// The maximum number of objects of an informer whose last states are kept. The namespaces share them.
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

/// Formats with the values of the field, and with `#`, without them.
impl std::fmt::Display for Restored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: ", self.kind.kind, self.object)?;
        std::fmt::Display::fmt(&self.text, f)
    }
}

/// The last states that the passes of this process have written, of the objects of one informer.
#[derive(Default)]
pub(crate) struct Fights {
    objects: Mutex<Objects>,
    /// True if the managers of some object are followed, so that watch events are searched for them.
    is_following: AtomicBool,
    redaction: Redaction,
}

#[derive(Default)]
struct Objects {
    written: SharedTable<Key, WrittenObject, MAX_OBJECTS>,
    swept: Option<Instant>,
}

#[derive(Default)]
struct WrittenObject {
    by: Vec<Writer>,
    /// The last states, once a field was restored.
    states: VecDeque<State>,
    /// The newest of those that were dropped.
    dropped: Option<Object>,
}

struct State {
    object: Object,
    managed_fields: Option<Box<str>>,
}

/// A controller that has written an object.
struct Writer {
    controller: Arc<str>,
    /// The state to which its last write led.
    state: Object,
    /// True while the state to which the last write led is not known: its response has not arrived, or only after a newer state.
    is_unanswered: bool,
    /// True if there was such a write before the last one.
    is_outdated: bool,
    written: Instant,
    /// The states of the last write that has restored a field as far as is known. The next such write is sent from a newer
    /// state, so the watch has then reported all states that could show otherwise.
    last_restored: Option<RestoredStates>,
    /// The number of times that it has restored a field, and the first and the last time.
    restored: u32,
    since: Instant,
    last: Instant,
    report: Instant,
    next_gap: Duration,
}

/// The states that show that a write has restored a field.
struct RestoredStates {
    /// The state to which the write before it led.
    last: Object,
    /// The state that was cached when it was sent.
    before: Object,
    /// The state to which it led.
    after: Object,
    /// The paths of the fields.
    paths: Vec<String>,
}

impl WrittenObject {
    /// The number of restored fields and the time of the last write: the lowest is dropped first.
    fn usefulness(&self) -> (u32, Option<Instant>) {
        let restored = self.by.iter().map(|writer| writer.restored).max();
        (restored.unwrap_or_default(), self.by.iter().map(|writer| writer.written).max())
    }

    /// Keeps a state with its `managedFields`, if a field was restored before.
    fn add_state(
        &mut self,
        state: &ObjectState<'_>,
        managed_fields: Option<&str>,
        object: impl FnOnce() -> Option<Object>,
    ) {
        let is_kept = |kept: &State| kept.object.state().resource_version == state.resource_version;
        if self.by.iter().any(|writer| writer.restored > 0)
            && !self.states.iter().any(is_kept)
            && let Some(object) = object()
        {
            let dropped = self.states.drain((MAX_STATES - 1).min(self.states.len())..);
            let dropped = dropped.map(|state| state.object).chain(self.dropped.take());
            self.dropped = dropped.max_by(|a, b| a.version().cmp(&b.version()));
            self.states.push_front(State { object, managed_fields: managed_fields.map(Into::into) });
        }
    }
}

/// The fields that a write has restored: the states are those after the last own write, before this one, and after it.
fn restored_by_write(kind: &ApiResource, states: [&Object; 3]) -> Vec<Field> {
    let [last, before, after] = states;
    if last.is_same_state(&before.state()) || last.state().uid != before.state().uid {
        return Vec::new();
    }
    // A comparison of texts, which nearly always suffices.
    match Parts::between(last, before).intersects(Parts::between(before, after)) {
        true => restored_fields(kind, states),
        false => Vec::new(),
    }
}

/// Returns the newest kept state between two states.
fn state_between<'a>(kept: &'a VecDeque<State>, before: &Object, after: &Object) -> Option<&'a Object> {
    let between = |state: &&Object| before.version() < state.version() && state.version() < after.version();
    kept.iter().map(|state| &state.object).filter(between).max_by_key(|state| state.version())
}

/// Returns the `managedFields` of a state, if they are kept.
fn managed_fields_of<'a>(kept: &'a VecDeque<State>, object: &Object) -> Option<&'a str> {
    let state = kept.iter().find(|state| state.object.is_same_state(&object.state()))?;
    state.managed_fields.as_deref()
}

impl Writer {
    fn is_expired(&self, now: Instant, is_full: bool) -> bool {
        now - self.written > if is_full && self.restored == 0 { MIN_AGE } else { MAX_PAUSE }
    }
}

impl Fights {
    /// Creates an empty table whose texts do not show these values.
    pub(crate) fn new(redaction: Redaction) -> Self {
        Self { redaction, ..Self::default() }
    }

    /// Describes the change that a request has made from one state of an object to another.
    pub(crate) fn describe_change(&self, kind: &ApiResource, write: &Write<'_>) -> Option<FieldChange> {
        let Write { before, after, .. } = *write;
        // The fields of the new state that differ in the old one.
        let mut changed = restored_fields(kind, [after, before, after]);
        write.retain_written(&mut changed, None);
        let field = changed.first()?;
        let object = format!("{} {}", kind.kind, after.state().key());
        Some(FieldChange::new(&object, field, self.hides(kind, write, field)))
    }

    /// Returns true if a value of the field is hidden in the state before the write or in the one after it.
    fn hides(&self, kind: &ApiResource, write: &Write<'_>, field: &Field) -> bool {
        let path: Vec<_> = field.path.iter().map(Step::segment).collect();
        [write.before, write.after].iter().any(|state| {
            let object = state.to_json(kind).and_then(|text| serde_json::from_str(&text));
            object.map_or(true, |object| self.redaction.hides(&object, &path))
        })
    }

    /// Notes that a pass of this controller sends a write of the object.
    pub(crate) fn begin_write(&self, key: &Key, controller: &str) {
        self.with_writer(key, controller, |writer| {
            writer.is_outdated |= std::mem::replace(&mut writer.is_unanswered, true);
        });
    }

    /// Notes that the write that a pass of this controller has sent has changed nothing.
    pub(crate) fn end_unchanged(&self, key: &Key, controller: &str) {
        self.with_writer(key, controller, |writer| writer.is_unanswered = false);
    }

    fn with_writer(&self, key: &Key, controller: &str, change: impl FnOnce(&mut Writer)) {
        let mut objects = self.objects.lock();
        let mut by = objects.written.get_mut(key).into_iter().flat_map(|object| &mut object.by);
        if let Some(writer) = by.find(|writer| *writer.controller == *controller) {
            change(writer);
        }
    }

    /// Remembers the write of an object by a pass of this controller. Returns the field that it has restored, if this is
    /// a fight. The state before the write is the one that was cached when it was sent.
    pub(crate) fn record_write(
        &self,
        kind: &Arc<ApiResource>,
        controller: &Arc<str>,
        write: &Write<'_>,
    ) -> Option<Restored> {
        let Write { before, after, managed_fields, .. } = *write;
        let (now, key) = (Instant::now(), after.state().key());
        let mut objects = self.objects.lock();
        if !objects.has_room_for(&key, now, &self.is_following) {
            return None;
        }
        let object = objects.written.entry(key.clone(), WrittenObject::default);
        object.add_state(&after.state(), managed_fields, || Some(after.clone()));
        object.by.retain(|writer| !writer.is_expired(now, false));
        let Some(writer) = object.by.iter_mut().find(|writer| writer.controller == *controller) else {
            object.by.push(Writer::new(controller, after, now));
            return None;
        };
        let is_outdated = writer.is_outdated;
        let last = writer.replace_state(after, now);
        if is_outdated || object.dropped.as_ref().and_then(Object::version) > before.version() {
            return None;
        }
        let before = state_between(&object.states, before, after).unwrap_or(before);
        let mut fields = restored_by_write(kind, [&last, before, after]);
        let managed_before = managed_fields_of(&object.states, before);
        let write = Write { before, ..*write };
        write.fill_in_empty(&mut fields);
        write.retain_written(&mut fields, managed_before);
        // Until a first field is restored, the managers of no state are kept.
        if write.request.is_apply && writer.restored > 0 && managed_before.is_none() {
            fields.retain(|field| field.ours.is_some());
        }
        if fields.is_empty() {
            return None;
        }
        self.is_following.store(true, Ordering::Relaxed);
        let paths = fields.iter().map(|field| path_text(&field.path)).collect();
        let states =
            RestoredStates { last: last.clone(), before: before.clone(), after: after.clone(), paths };
        writer.count_restored(states, now);
        if writer.restored < FIGHT {
            return None;
        }
        let managed_last = managed_fields_of(&object.states, &last);
        let rival = rival_of([managed_last, managed_before, managed_fields], &fields[0]);
        let is_to_report = writer.begin_report(rival.is_some(), now);
        let others = fields.len() - 1;
        let field = fields.swap_remove(0);
        let is_hidden = self.hides(kind, &write, &field);
        let text = RestoredText::new(rival, &field, is_hidden, others, writer.restored, now - writer.since);
        Some(Restored { kind: kind.clone(), object: key, is_to_report, text })
    }

    /// Keeps a state that the watch reports, if a field of the object was restored before: with its managers, since a
    /// forced apply takes the field from them again. A write that has restored nothing from this state no longer counts.
    pub(crate) fn record_watched(
        &self,
        kind: &ApiResource,
        raw: &RawObject<'_>,
        encode: impl FnOnce() -> Option<Object>,
    ) {
        if !self.is_following.load(Ordering::Relaxed) {
            return;
        }
        let mut objects = self.objects.lock();
        if let Some(object) = objects.written.get_mut(&raw.key()) {
            object.add_state(&raw.state(), raw.managed_fields(), encode);
            object.by.iter_mut().for_each(|writer| writer.check_restored(kind, &object.states));
        }
    }
}

impl Objects {
    /// Drops expired states at most once a second, and returns true if the state of this object can be kept.
    fn has_room_for(&mut self, key: &Key, now: Instant, is_following: &AtomicBool) -> bool {
        let is_full = self.written.is_full();
        let age = self.swept.map_or(MIN_AGE, |swept| now - swept);
        if age >= MIN_AGE || (is_full && age >= Duration::from_secs(1)) {
            self.swept = Some(now);
            self.written.retain(|object| {
                object.by.retain(|writer| !writer.is_expired(now, is_full));
                !object.by.is_empty()
            });
            let mut writers = self.written.values().flat_map(|object| &object.by);
            is_following.store(writers.any(|writer| writer.restored > 0), Ordering::Relaxed);
        }
        self.written.has_room_for(key, WrittenObject::usefulness)
    }
}

impl Writer {
    fn new(controller: &Arc<str>, state: &Object, now: Instant) -> Self {
        Self {
            controller: controller.clone(),
            state: state.clone(),
            is_unanswered: false,
            is_outdated: false,
            written: now,
            last_restored: None,
            restored: 0,
            since: now,
            last: now,
            report: now,
            next_gap: REPORT_AGAIN,
        }
    }

    /// Returns the state to which the write before this one led.
    fn replace_state(&mut self, after: &Object, now: Instant) -> Object {
        self.written = now;
        (self.is_unanswered, self.is_outdated) = (false, false);
        std::mem::replace(&mut self.state, after.clone())
    }

    /// Returns true if the fight is to be reported now. Then it is next reported after a gap.
    fn begin_report(&mut self, is_rival_known: bool, now: Instant) -> bool {
        let is_due = self.report <= now && (is_rival_known || self.restored >= FIGHT + PATIENCE);
        if is_due {
            self.report = now + self.next_gap;
            self.next_gap *= 2;
        }
        is_due
    }

    /// Counts a restored field. A pause that is too long ends a fight, also if the controller has written other fields
    /// meanwhile.
    fn count_restored(&mut self, states: RestoredStates, now: Instant) {
        if self.restored == 0 || now - self.last > MAX_PAUSE {
            (self.restored, self.since) = (0, now);
            (self.report, self.next_gap) = (now, REPORT_AGAIN);
        }
        self.restored += 1;
        self.last = now;
        self.last_restored = Some(states);
    }

    /// Takes the last such write from the count if it has restored nothing from the state that it was sent to, as is known
    /// now.
    fn check_restored(&mut self, kind: &ApiResource, states: &VecDeque<State>) {
        if let Some(RestoredStates { last, before, after, paths }) = &self.last_restored
            && let Some(before) = state_between(states, before, after)
            && !restored_fields(kind, [last, before, after])
                .iter()
                .any(|field| paths.contains(&path_text(&field.path)))
        {
            self.restored -= 1;
            self.last_restored = None;
        }
    }
}
