//! Storms: keys that are reconciled again and again although nothing changes from outside.
//!
//! The passes of a key that only this process causes are counted: by its own changes of objects, by the end of a wait, or by
//! a pass that adds a key to the queue. The number of the causing pass limits that of the caused one, so that two
//! keys or two controllers that cause each other's passes are a storm too, and an object that waits for thousands of others
//! is none. A pass for another object than those before is progress, of which few passes count: a controller that creates an
//! object of a new name in each pass is a storm nevertheless. A wait of a second or more is meant, and any cause from
//! outside is a reason of its own: both begin a new count.
//!
//! A retry neither counts nor begins a new count: it has its own backoff, and what it does continues the pass that failed. So a
//! storm in which a pass fails now and then is one, and a key that only fails is none.
//!
//! If another client changes an object that the last pass has changed, that is no reason of its own either: it may be
//! a controller that answers each write. It may as well be the progress that the pass waits for, so few of these
//! passes count too. In a rollout, a pass for a change of the other client alone follows soon, and begins a new
//! count. If the pass restores the same field each time, the other client is the reason: that is a fight, and no
//! storm.
//!
//! Passes that are no progress are a storm only if they are counted within a minute. Passes that are progress have no such
//! limit, as long as there is one in three seconds on average.
//!
//! Passes that [create objects](creations) which other clients then write are counted on their own. Such a storm is reported and
//! not slowed.
//!
//! In a storm, a key whose pass only this process causes is held until it is due. Any other cause is served at once, and
//! does not end the storm: that ends when a pass comes later than it is due.

mod creations;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use reknit_apis::{Key, internal::HashMap};
use reknit_injection::internal::{CurrentPass, Writers};
use tokio::time::Instant;

use self::creations::Creations;
use super::{Causes, Delay, Delayed};
use crate::capacity::shrink;

/// The number of passes that are a storm, and the time within which they run.
const STORM: u32 = 20;
const WITHIN: Duration = Duration::from_secs(60);
/// Of the passes that are progress, one in this number counts.
const PROGRESS: u32 = 15;
/// Passes that are progress are a storm only if they take less than this on average. It is the pace of 20 in a minute.
const PACE: Duration = Duration::from_secs(3);
/// Another client counts as the reason of a storm if it answered more than one in this number of passes. Fewer answers may be
/// own writes whose responses came late.
const ANSWERED: u32 = 4;
/// A wait that is meant.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(1);
/// The times between the passes of a storm, and the number of passes after which the second one holds.
const GAPS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];
const SHORT_GAPS: u32 = 6;
/// The time after which the count of a key is dropped: longer than any gap.
const MAX_AGE: Duration = Duration::from_secs(120);

#[derive(Debug, Default)]
pub(super) struct Storms {
    rows: HashMap<Arc<Key>, Row>,
    held: Delayed,
    swept: Option<Instant>,
    creations: Creations,
}

/// The passes of a key that only this process has caused.
#[derive(Debug)]
struct Row {
    passes: u32,
    /// The number of passes, with those that do not count.
    all: u32,
    /// The number of those to which another client answered, as far as was known at their end.
    answered: u32,
    since: Instant,
    /// The end of the last pass that was no retry.
    ended: Instant,
    /// The causes so far.
    causes: Causes,
    /// The number of passes of the storm. Zero if there is none.
    slowed: u32,
    /// True if the next pass is, or was, held.
    is_held: bool,
    /// True if the last pass was a retry, which the row does not count.
    is_retry: bool,
}

/// The place of a pass among those that only this process has caused.
#[derive(Clone, Debug, Default)]
pub(crate) struct InARow {
    /// The number of passes, with this one. Zero if the pass has a cause from outside that answers none of them.
    pub(crate) passes: u32,
    /// The storm to which the pass belongs.
    pub(crate) storm: Option<Storm>,
    /// True at the begin of a pass whose causes may still turn out to be own changes. Until that is decided, it has the number of
    /// the last pass.
    pub(crate) is_open: bool,
}

/// A storm, at one of its passes.
#[derive(Clone, Debug)]
pub(crate) struct Storm {
    /// The number of passes since the storm began to form, with this one.
    pub(crate) passes: u32,
    pub(crate) within: Duration,
    /// The time since the pass before.
    pub(crate) gap: Duration,
    /// True if the storm begins with this pass.
    pub(crate) is_new: bool,
    pub(crate) kind: StormKind,
}

/// The reason for which the passes of a storm follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StormKind {
    /// Only this process has caused them.
    Alone,
    /// Another client changes what the passes have changed.
    Answered,
    /// Each pass creates as many objects as the one before.
    Creating,
}

impl Storms {
    /// Holds the key if it is in a storm, only this process has caused its next pass, and that is not due yet. Returns true
    /// if it is the first key to become due then.
    pub(super) fn hold(&mut self, key: &Arc<Key>, causes: &Causes, now: Instant) -> Option<bool> {
        let row = self.rows.get_mut(key).filter(|_| causes.in_a_row(0, false).is_some())?;
        let due = row.due().filter(|due| now < *due)?;
        row.is_held = true;
        Some(self.held.add(key.clone(), due, Delay::default()))
    }

    /// Counts the pass of a key that is not held, if it is known whether only this process has caused it. If it is not, the
    /// place of the pass is open until [`decide`](Self::decide) is called.
    pub(super) fn begin(
        &mut self,
        key: &Arc<Key>,
        causes: &Causes,
        now: Instant,
        writers: &Writers,
    ) -> InARow {
        self.sweep(now);
        if causes.is_retry() {
            return self.begin_retry(key, causes.is_long_wait());
        }
        let last = self.rows.get(key).map_or(0, |row| row.passes);
        match causes.in_a_row(last, false) {
            Some(causing) => self.count(key, causes, causing, false, now, writers),
            None if causes.is_certainly_external() => self.begin_anew(key, now),
            None => InARow { passes: last, storm: None, is_open: true },
        }
    }

    /// Counts a pass that began at this time for causes that were not known to be own changes: the watch can report the write of
    /// another pass before its response arrives. By now the responses have usually arrived, so the writers are known.
    pub(super) fn decide(
        &mut self,
        key: &Arc<Key>,
        causes: &Causes,
        begun: Instant,
        writers: &Writers,
    ) -> InARow {
        let mut causes = causes.clone();
        causes.find_writers(writers);
        let last = self.rows.get(key).map_or(0, |row| row.passes);
        let alone = causes.in_a_row(last, false);
        match alone.or_else(|| causes.in_a_row(last, true)) {
            Some(causing) => self.count(key, &causes, causing, alone.is_none(), begun, writers),
            None => self.begin_anew(key, begun),
        }
    }

    /// Returns the place of the retry of a failed pass, which is that of the failed one. A long backoff ends the count, as any
    /// wait does that is meant.
    fn begin_retry(&mut self, key: &Key, is_long: bool) -> InARow {
        let Some(row) = self.rows.get_mut(key) else { return InARow::default() };
        if is_long && row.slowed == 0 {
            self.rows.remove(key);
            return InARow::default();
        }
        row.is_retry = true;
        InARow { passes: row.passes, ..InARow::default() }
    }

    /// Begins a new count at a pass that has a cause from outside.
    fn begin_anew(&mut self, key: &Key, now: Instant) -> InARow {
        match self.rows.get_mut(key) {
            Some(row) if row.goes_on(now) => {
                (row.passes, row.slowed, row.is_held, row.is_retry) = (0, 1, false, false);
            }
            Some(_) => drop(self.rows.remove(key)),
            None => {}
        }
        InARow::default()
    }

    /// Counts a pass that only this process has caused by its pass of the number `causing`, or, if `is_answered`, to which
    /// another client answered.
    fn count(
        &mut self,
        key: &Arc<Key>,
        causes: &Causes,
        causing: u32,
        is_answered: bool,
        now: Instant,
        writers: &Writers,
    ) -> InARow {
        let row = self.rows.entry(key.clone()).or_insert_with(|| Row::new(now));
        let gap = now - row.ended;
        let is_progress = is_answered || !causes.repeats(&row.causes);
        let is_over = if row.slowed > 0 {
            !row.goes_on(now) // it is slower by itself
        } else {
            // In a full queue, the end of a wait that is meant comes together with the own write of the pass before.
            let is_paced = is_progress && !causes.has_long_wait();
            let within = if is_paced { WITHIN.max(PACE * row.all) } else { WITHIN };
            causes.is_long_wait() || now - row.since > within
        };
        if is_over {
            *row = Row::new(now);
        }
        row.all = row.all.saturating_add(1);
        row.answered = row.answered.saturating_add(is_answered.into());
        if row.causes.is_empty() || !is_progress || row.all.is_multiple_of(PROGRESS) {
            row.passes = row.passes.min(causing).saturating_add(1);
        }
        row.causes.merge(causes.clone(), writers);
        (row.is_held, row.is_retry) = (false, false);
        let is_new = row.slowed == 0;
        if is_new && row.passes < STORM {
            return InARow { passes: row.passes, storm: None, is_open: false };
        }
        row.slowed = row.slowed.saturating_add(1);
        InARow {
            passes: row.passes,
            is_open: false,
            storm: Some(Storm { passes: row.all, within: now - row.since, gap, is_new, kind: row.kind() }),
        }
    }

    /// Counts the pass, which ends now, if it creates objects. Returns the storm of such passes, if there is one.
    pub(super) fn count_creations(
        &mut self,
        pass: &CurrentPass,
        causes: &Causes,
        has_failed: bool,
        writers: &Writers,
    ) -> Option<Storm> {
        if !self.creations.concerns(pass) {
            return None;
        }
        let mut causes = causes.clone();
        causes.find_writers(writers);
        self.creations.count(pass, &causes, has_failed)
    }

    /// Records the end of a pass, unless it was a retry.
    pub(super) fn ended(&mut self, key: &Key, now: Instant) {
        if let Some(row) = self.rows.get_mut(key).filter(|row| !row.is_retry) {
            row.ended = now;
        }
    }

    /// Forgets the passes of a key whose pass for these causes has restored a field in a fight, unless the field was
    /// changed by this process, or they are a storm already.
    pub(super) fn fought(&mut self, key: &Key, causes: &Causes, writers: &Writers) {
        let mut causes = causes.clone();
        causes.find_writers(writers);
        let is_storm = self.rows.get(key).is_some_and(|row| row.slowed > 0);
        if !is_storm && causes.in_a_row(0, false).is_none() {
            self.rows.remove(key);
        }
    }

    /// The time at which the next pass of the storm is due, if the key is in one.
    pub(super) fn due(&self, key: &Key) -> Option<Instant> {
        self.rows.get(key)?.due()
    }

    /// Removes and returns a held key that is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Arc<Key>> {
        self.held.pop_due(now).map(|(key, _)| key)
    }

    /// The time at which the next held key is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.next_due()
    }

    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now - swept >= WITHIN) {
            self.swept = Some(now);
            self.rows.retain(|_, row| now - row.ended < MAX_AGE);
            shrink(&mut self.rows);
            self.creations.sweep(now);
        }
    }
}

impl Row {
    fn new(now: Instant) -> Self {
        Self {
            passes: 0,
            all: 0,
            answered: 0,
            since: now,
            ended: now,
            causes: Causes::default(),
            slowed: 0,
            is_held: false,
            is_retry: false,
        }
    }

    fn kind(&self) -> StormKind {
        if self.answered > self.all / ANSWERED { StormKind::Answered } else { StormKind::Alone }
    }

    /// The time of the next pass of the storm, if there is one.
    fn due(&self) -> Option<Instant> {
        (self.slowed > 0).then(|| self.ended + GAPS[usize::from(self.slowed > SHORT_GAPS)])
    }

    /// Returns true if there is a storm, which has not ended by itself.
    fn goes_on(&self, now: Instant) -> bool {
        self.is_held || self.due().is_some_and(|due| now < due)
    }
}
