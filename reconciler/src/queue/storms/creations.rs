//! Passes of a key that create an object each, and so lead to the next one.
//!
//! Other controllers write a new Job, Pod or Deployment too, so that each of these passes has causes from outside, and none is
//! counted otherwise. A pass is counted here if it follows one of the key, and creates as many objects as the last one. A
//! pass that creates none ends the count, and one that creates another number begins a new one. So a controller that creates a
//! Job for each message, or for each Job that has finished, is no storm: some of its passes follow the status of a Job
//! and create nothing, and others create several at once. A wait of a second or more is meant: a pass that ends one does not
//! count, and neither does one that fails before it creates as many objects.

use std::sync::Arc;

use reknit_apis::{Key, internal::HashMap};
use reknit_injection::internal::CurrentPass;
use tokio::time::Instant;

use super::{Causes, MAX_AGE, PROGRESS, STORM, Storm, StormKind};
use crate::capacity::shrink;

/// The number of passes that are a storm: as many as of those that are progress.
const CREATING: u32 = STORM * PROGRESS;

/// The last passes of the keys whose last pass has created objects.
#[derive(Debug, Default)]
pub(super) struct Creations(HashMap<Arc<Key>, Row>);

/// The passes of a key that have created the same number of objects each, and follow each other.
#[derive(Debug)]
struct Row {
    objects: u32,
    passes: u32,
    since: Instant,
    /// The end of the last pass.
    ended: Instant,
    /// True if the last pass has failed before it created as many objects. The next one follows it, whatever its cause.
    has_failed: bool,
}

impl Creations {
    /// Returns true if the pass has created something, or the one before has.
    pub(super) fn concerns(&self, pass: &CurrentPass) -> bool {
        pass.creations() > 0 || self.0.contains_key(&pass.key)
    }

    /// Counts a pass that ends now. Returns the storm to which it belongs, if any. A storm is new at 300 passes, and again at
    /// twice as many, four times as many, and so on.
    pub(super) fn count(&mut self, pass: &CurrentPass, causes: &Causes, has_failed: bool) -> Option<Storm> {
        let (objects, now) = (pass.creations(), Instant::now());
        let row = self.0.get_mut(&pass.key).filter(|row| pass.begun - row.ended < MAX_AGE);
        let Some(row) = row.filter(|row| row.objects == objects || has_failed) else {
            self.begin_anew(pass, now);
            return None;
        };
        let gap = pass.begun - std::mem::replace(&mut row.ended, now);
        let follows = std::mem::replace(&mut row.has_failed, row.objects != objects);
        if row.has_failed || causes.has_long_wait() {
            return None;
        }
        if !follows && !causes.follow_pass_of(&pass.key) {
            self.begin_anew(pass, now);
            return None;
        }
        row.passes = row.passes.saturating_add(1);
        let is_new = row.passes.is_multiple_of(CREATING) && (row.passes / CREATING).is_power_of_two();
        (row.passes >= CREATING).then(|| Storm {
            passes: row.passes,
            within: now - row.since,
            gap,
            is_new,
            kind: StormKind::Creating,
        })
    }

    /// Begins a new count with a pass that has created something. Any other one ends the count.
    fn begin_anew(&mut self, pass: &CurrentPass, now: Instant) {
        match pass.creations() {
            0 => drop(self.0.remove(&pass.key)),
            objects => {
                let row = Row { objects, passes: 1, since: pass.begun, ended: now, has_failed: false };
                self.0.insert(pass.key.clone(), row);
            }
        }
    }

    /// Drops the counts of keys that have had no pass for long.
    pub(super) fn sweep(&mut self, now: Instant) {
        self.0.retain(|_, row| now - row.ended < MAX_AGE);
        shrink(&mut self.0);
    }
}
