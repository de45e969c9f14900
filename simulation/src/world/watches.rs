//! The open watches, and the delivery of their events.

use std::time::Duration;

use http::Response;

use super::{
    Event, Process, World,
    deliveries::Delivery,
    requests::{InFlight, failure},
};
use crate::{
    faults::{Fate, Fault},
    link::{EventBody, EventSender},
    server::Watch,
    time::Time,
};

/// The share of the open watches that end when the API server forgets old events.
const EXPIRED: f64 = 0.5;

pub(super) struct OpenWatch {
    pub(super) process: Process,
    pub(super) watch: Box<Watch>,
    /// `None` after the end of the watch.
    pub(super) sender: Option<EventSender>,
    /// The time of the last delivery, which later ones must not overtake.
    pub(super) delivered: Time,
    pub(super) is_notified: bool,
}

impl World<'_> {
    pub(super) fn open_watch(&mut self, flight: InFlight, head: Response<()>, watch: Box<Watch>) {
        let InFlight { id, process, reply, fate, .. } = flight;
        let (sender, body) = EventBody::new();
        let down = if let Fate::Handled { down, .. } = fate { down } else { Duration::ZERO };
        let index = self.watches.len();
        let delivered = self.now + down;
        self.watches.push(OpenWatch { process, watch, sender: Some(sender), delivered, is_notified: false });
        let response = Ok(body.response(head));
        let text = "watching".into();
        self.schedule(delivered, Event::Answer(Delivery::Response { id, process, reply, response, text }));
        let life = self.faults.watch_life(self.now);
        if let Some(life) = life.into_iter().chain(self.watches[index].watch.timeout()).min() {
            self.schedule(delivered + life, Event::Break(index));
        }
        self.schedule_notifications();
    }

    /// Schedules the delivery of the events that watches have to report.
    pub(super) fn schedule_notifications(&mut self) {
        for index in 0..self.watches.len() {
            let watch = &mut self.watches[index];
            if watch.is_notified || watch.sender.is_none() || !watch.watch.has_events() {
                continue;
            }
            watch.is_notified = true;
            let at = (self.now + self.faults.watch_delay(self.now)).max(self.watches[index].delivered);
            self.schedule(at, Event::Notify(index));
        }
    }

    /// Lets some of the open watches end with 410, as those do that the API server has not sent what it forgets.
    pub(super) fn expire_watches(&mut self) {
        let expired = failure(410, "too old resource version: the simulation forgets the old events");
        for open in self.watches.iter_mut().filter(|open| open.sender.is_some()) {
            if self.faults.meets(Fault::ExpiredWatches, EXPIRED, self.now) {
                open.watch.expire(&expired);
            }
        }
        self.schedule_notifications();
    }

    pub(super) fn notify(&mut self, index: usize) {
        let process = self.watches[index].process;
        let slot = &self.slots[process.replica];
        // A watch sees nothing of a server that it is cut off from.
        let hold = slot.stale_until.max(slot.cut_until);
        if hold > self.now {
            self.schedule(hold, Event::Notify(index));
            return;
        }
        let watch = &mut self.watches[index];
        watch.is_notified = false;
        watch.delivered = self.now;
        let Some(sender) = watch.sender.clone() else { return };
        let (events, is_over) = watch.watch.take_events();
        if !events.is_empty() {
            self.deliver(Delivery::Events { process, sender, events });
        }
        if is_over {
            self.break_watch(index);
        }
    }

    pub(super) fn break_watch(&mut self, index: usize) {
        let process = self.watches[index].process;
        if let Some(sender) = self.watches[index].sender.take() {
            self.deliver(Delivery::End { process, sender });
        }
    }
}
