//! The processes of the replicas: starts, stops, crashes and pauses.

use std::{mem, time::Duration};

use super::{Event, World, deliveries::Delivery};
use crate::{faults::Fault, replica::Replica, time::Time};

#[derive(Default)]
pub(super) struct Slot {
    pub(super) replica: Option<Replica>,
    pub(super) incarnation: u32,
    pub(super) is_paused: bool,
    pub(super) is_stopping: bool,
    pub(super) mailbox: Vec<Delivery>,
    pub(super) cut_until: Time,
    pub(super) stale_until: Time,
}

impl World<'_> {
    pub(super) fn program_ended(&mut self, replica: usize, result: Result<(), String>) {
        let slot = &mut self.slots[replica];
        if let (true, Ok(())) = (slot.is_stopping, &result) {
            self.trace.note(self.now, Some(replica), "the program has shut down");
            self.end_process(replica);
            let wait = self.faults.duration(Fault::Restarts, 100, 10_000);
            self.schedule(self.now + wait, Event::Start(replica));
            return;
        }
        let reason = result.err().unwrap_or_else(|| "it ended".into());
        self.violate("the program runs", format!("replica-{replica}: {reason}"), None);
    }

    pub(super) fn start(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.incarnation += 1;
        let seed = self.seed.wrapping_mul(31).wrapping_add(index as u64 * 7919 + u64::from(slot.incarnation));
        let (program, incarnation) = (self.scenario.program(), slot.incarnation);
        match Replica::start(index, seed, self.now, program) {
            Ok(replica) => slot.replica = Some(replica),
            Err(error) => self.violate("the program runs", error, None),
        }
        self.trace.note(self.now, Some(index), format!("start {incarnation} of the program"));
    }

    pub(super) fn stop(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if let Some(replica) = slot.replica.as_mut().filter(|_| !slot.is_paused) {
            replica.stop();
            slot.is_stopping = true;
            self.trace.note(self.now, Some(index), "fault: SIGTERM");
        }
    }

    pub(super) fn crash(&mut self, index: usize) {
        if self.slots[index].replica.is_none() {
            return;
        }
        self.trace.note(self.now, Some(index), "fault: the replica crashes");
        self.successions.record_crash((index, self.slots[index].incarnation), self.now);
        self.end_process(index);
        let wait = self.faults.duration(Fault::Crashes, 10, 30_000);
        self.schedule(self.now + wait, Event::Start(index));
    }

    /// Drops the process with its connections. Requests that it has sent may still be handled.
    pub(super) fn end_process(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.incarnation += 1;
        (slot.is_paused, slot.is_stopping) = (false, false);
        slot.mailbox.clear();
        if let Some(replica) = slot.replica.take() {
            replica.crash();
        }
        self.record_passes();
        let now = self.now;
        self.kubelet.report(index, &mut self.faults, now);
        let open =
            self.trace.passes.values_mut().filter(|pass| pass.replica == index && pass.ended.is_none());
        open.for_each(|pass| pass.ended = Some(now));
    }

    pub(super) fn pause(&mut self, index: usize, time: Duration) {
        let slot = &mut self.slots[index];
        if slot.replica.is_some() && !slot.is_paused {
            slot.is_paused = true;
            self.trace.note(self.now, Some(index), format!("fault: the replica stands still for {time:?}"));
            self.schedule(self.now + time, Event::Resume(index));
        }
    }

    /// Lets a paused replica go on. What has arrived meanwhile is there at once; timers fire when it waits again.
    pub(super) fn resume(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if !mem::take(&mut slot.is_paused) {
            return;
        }
        self.trace.note(self.now, Some(index), "the replica goes on");
        for delivery in mem::take(&mut self.slots[index].mailbox) {
            self.deliver(delivery);
        }
        if let Some(replica) = self.slots[index].replica.as_mut() {
            replica.resume_at(self.now);
        }
    }
}
