//! Faults of whole replicas.

use std::time::Duration;

use super::{Event, INTERRUPTED, World};
use crate::{
    faults::{Fate, Fault},
    time::Time,
};

/// The longest time that the last write of a process takes to arrive, in milliseconds.
const LATEST_WRITE: u64 = 1900;

impl World<'_> {
    /// The event of a fault that meets this replica.
    pub(super) fn event_of(&mut self, kind: Fault, replica: usize) -> Event {
        match kind {
            Fault::Crashes => Event::Crash(replica),
            Fault::Restarts => Event::Stop(replica),
            Fault::Pauses => Event::Pause(replica, self.outage(kind)),
            Fault::Partitions => Event::Cut(replica, self.outage(kind)),
            _ => Event::Compact,
        }
    }

    /// A short time, or one in whose course the leases of the replica expire.
    pub(super) fn outage(&mut self, kind: Fault) -> Duration {
        let lease = u64::try_from(self.scenario.election.lease_duration.as_millis()).unwrap_or(u64::MAX);
        match self.faults.choose(kind, 2) {
            0 => self.faults.duration(kind, 100, lease),
            _ => self.faults.duration(kind, lease / 2, lease * 2),
        }
    }

    /// Injects faults of a replica right after it has sent a write: in the middle of what it does. The last write before
    /// a crash may arrive late, but within the fence of a takeover.
    pub(super) fn interrupt(&mut self, replica: usize, at: Time, fate: Fate) -> Fate {
        let mut crashes = false;
        for kind in [Fault::Crashes, Fault::Pauses, Fault::Partitions] {
            if self.faults.meets(kind, INTERRUPTED, at) {
                crashes |= kind == Fault::Crashes;
                let event = self.event_of(kind, replica);
                self.schedule(at, event);
            }
        }
        match fate {
            Fate::Handled { down, .. } if crashes => {
                Fate::Handled { up: self.faults.duration(Fault::Crashes, 1, LATEST_WRITE), down }
            }
            fate => fate,
        }
    }
}
