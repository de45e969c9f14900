//! The driver of one simulation: it owns the API server and the order of events, and steps the replicas.
//!
//! The driver takes the earliest event of its queue, runs each replica up to that time, and then lets the event happen.
//! A replica stops early when it has sent a request, whose way to the server becomes events. So everything that a
//! replica is told happens at an exact time; only events that other replicas caused may reach it up to one
//! [`STEP`] late, as a watch may.

use std::{collections::BTreeMap, mem, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::RETRY_AFTER, request::Parts};
use reknit_injection::internal::HttpResponse;
use serde_json::json;
use tower::BoxError;

use crate::{
    cluster::Cluster,
    faults::{Fate, Fault, Faults, Plan, Single},
    link::{EventBody, EventSender, Outgoing, Reply, full},
    observer::{self, PassChange},
    oracles::{self, Terms, Violation},
    replica::Replica,
    scenario::Scenario,
    server::{Answer, Server, Watch},
    time::Time,
    trace::{Pass, RequestId, Sent, Trace},
};

/// The longest time that several replicas run without an exchange between them.
const STEP: Duration = Duration::from_millis(250);
/// The time for which a stale cache stays as it is.
const STALE: Duration = Duration::from_secs(15);
/// The share of the writes after which a replica crashes, stands still or is cut off.
const INTERRUPTED: f64 = 0.02;
/// A limit of the calls of stubs after one change.
const MAX_STUB_CALLS: usize = 50;

/// The result of one run.
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) trace: Trace,
    pub(crate) violations: Vec<Violation>,
    pub(crate) end: Time,
    /// The final objects, without what may differ between two runs.
    pub(crate) state: BTreeMap<String, serde_json::Value>,
    /// The numbers of writes and passes, for the exhaustive search.
    pub(crate) writes: usize,
    pub(crate) passes: usize,
}

enum Event {
    Start(usize),
    Stop(usize),
    Crash(usize),
    Pause(usize, Duration),
    Resume(usize),
    Cut(usize, Duration),
    /// A request has left its replica.
    Sent(RequestId),
    /// A request reaches the API server.
    Handle(InFlight),
    /// A response reaches its replica.
    Answer(Delivery),
    /// The events of a watch reach its replica.
    Notify(usize),
    /// A watch ends.
    Break(usize),
    /// A step of the scenario.
    Step(usize),
    Stubs,
    CollectGarbage,
    Compact,
}

struct InFlight {
    id: RequestId,
    process: Process,
    request: Request<Bytes>,
    reply: Reply,
    fate: Fate,
}

/// One run of the process of a replica.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Process {
    replica: usize,
    incarnation: u32,
}

/// Something that reaches a replica.
enum Delivery {
    Response {
        id: RequestId,
        process: Process,
        reply: Reply,
        response: Result<HttpResponse, BoxError>,
        text: String,
    },
    Events {
        process: Process,
        sender: EventSender,
        events: Bytes,
    },
    /// The end of the stream, when the sender is dropped.
    End {
        process: Process,
        sender: EventSender,
    },
}

impl Delivery {
    fn process(&self) -> Process {
        match self {
            Self::Response { process, .. } | Self::Events { process, .. } | Self::End { process, .. } => {
                *process
            }
        }
    }
}

struct OpenWatch {
    process: Process,
    watch: Watch,
    /// `None` after the end of the watch.
    sender: Option<EventSender>,
    /// The time of the last delivery, which later ones must not overtake.
    delivered: Time,
    is_notified: bool,
}

#[derive(Default)]
struct Slot {
    replica: Option<Replica>,
    incarnation: u32,
    is_paused: bool,
    is_stopping: bool,
    mailbox: Vec<Delivery>,
    cut_until: Time,
    stale_until: Time,
}

pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    seed: u64,
    now: Time,
    end: Time,
    cluster: Cluster,
    slots: Vec<Slot>,
    events: BTreeMap<(Time, u64), Event>,
    next_event: u64,
    faults: Faults,
    plan: Plan,
    trace: Trace,
    watches: Vec<OpenWatch>,
    violations: Vec<Violation>,
    terms: Terms,
    is_collecting: bool,
    writes: usize,
    passes: usize,
}

impl<'a> World<'a> {
    /// Runs the scenario with the faults of a plan to its end.
    pub(crate) fn run(scenario: &'a Scenario, seed: u64, plan: Plan) -> Run {
        observer::reset();
        let (fault_end, end) = scenario.times(&plan);
        let mut world = Self {
            scenario,
            seed,
            now: Time::default(),
            end,
            cluster: Cluster::new(Server::new()),
            slots: (0..scenario.replicas).map(|_| Slot::default()).collect(),
            events: BTreeMap::new(),
            next_event: 0,
            faults: Faults::new(plan.clone(), seed, fault_end),
            plan,
            trace: Trace::default(),
            watches: Vec::new(),
            violations: Vec::new(),
            terms: Terms::new(&scenario.election),
            is_collecting: false,
            writes: 0,
            passes: 0,
        };
        world.prepare();
        world.go();
        world.finish()
    }

    /// Schedules the steps, the starts and the faults that have a time.
    fn prepare(&mut self) {
        self.scenario.initial.iter().for_each(|create| create(&mut self.cluster));
        for (index, step) in self.scenario.steps.iter().enumerate() {
            self.schedule(Time::after_start(step.at), Event::Step(index));
        }
        for replica in 0..self.slots.len() {
            let delay = self.faults.duration(Fault::Restarts, 1, 200);
            self.schedule(Time::default() + delay, Event::Start(replica));
        }
        let replicas = self.slots.len();
        for (kind, mean) in [
            (Fault::Crashes, Duration::from_secs(25)),
            (Fault::Restarts, Duration::from_secs(40)),
            (Fault::Pauses, Duration::from_secs(40)),
            (Fault::Partitions, Duration::from_secs(40)),
            (Fault::ExpiredWatches, Duration::from_secs(15)),
        ] {
            for time in self.faults.times(kind, mean) {
                let replica = self.faults.choose(kind, replicas);
                let event = self.event_of(kind, replica);
                self.schedule(time, event);
            }
        }
    }

    /// The event of a fault that meets this replica.
    fn event_of(&mut self, kind: Fault, replica: usize) -> Event {
        match kind {
            Fault::Crashes => Event::Crash(replica),
            Fault::Restarts => Event::Stop(replica),
            Fault::Pauses => Event::Pause(replica, self.outage(kind)),
            Fault::Partitions => Event::Cut(replica, self.outage(kind)),
            _ => Event::Compact,
        }
    }

    /// A short time, or one in whose course the leases of the replica expire.
    fn outage(&mut self, kind: Fault) -> Duration {
        let lease = u64::try_from(self.scenario.election.lease_duration.as_millis()).unwrap_or(u64::MAX);
        match self.faults.choose(kind, 2) {
            0 => self.faults.duration(kind, 100, lease),
            _ => self.faults.duration(kind, lease / 2, lease * 2),
        }
    }

    /// Injects faults of a replica right after it has sent a write: in the middle of what it does.
    fn interrupt(&mut self, replica: usize, at: Time) {
        for kind in [Fault::Crashes, Fault::Pauses, Fault::Partitions] {
            if self.faults.meets(kind, INTERRUPTED, at) {
                let event = self.event_of(kind, replica);
                self.schedule(at, event);
            }
        }
    }

    fn schedule(&mut self, at: Time, event: Event) {
        self.next_event += 1;
        self.events.insert((at.max(self.now), self.next_event), event);
    }

    /// Runs until the end, or until something is wrong.
    fn go(&mut self) {
        while self.violations.is_empty() && self.now < self.end {
            let mut horizon = self.horizon();
            loop {
                self.run_replicas(horizon);
                let next = self.horizon();
                if next >= horizon {
                    break;
                }
                horizon = next;
            }
            self.now = horizon;
            self.cluster.set_now(horizon);
            while let Some(entry) = self.events.first_entry()
                && entry.key().0 <= horizon
            {
                let event = entry.remove();
                self.happen(event);
            }
            self.record_passes();
            if self.trace.requests.len() > self.scenario.max_requests {
                let message = format!("more than {} requests: a hot loop", self.scenario.max_requests);
                self.violate("it comes to rest", message, None);
            }
        }
    }

    /// The time to which the replicas run next.
    fn horizon(&self) -> Time {
        let next = self.events.first_key_value().map_or(Time::MAX, |((at, _), _)| *at).max(self.now);
        let is_alone = self.slots.iter().filter(|slot| slot.replica.is_some()).count() < 2;
        let step = if is_alone { Time::MAX } else { self.now + STEP };
        next.min(step).min(self.end)
    }

    /// Runs each replica to this time, or to an earlier one at which the first of its requests is an event.
    fn run_replicas(&mut self, mut horizon: Time) {
        for index in 0..self.slots.len() {
            loop {
                let slot = &mut self.slots[index];
                let incarnation = slot.incarnation;
                let Some(replica) = slot.replica.as_mut().filter(|_| !slot.is_paused) else { break };
                if replica.now() > horizon {
                    break;
                }
                let sent = replica.run_until(horizon);
                let (is_there, ended) = (replica.now() >= horizon && sent.is_empty(), replica.result());
                for (at, outgoing) in sent {
                    self.send(Process { replica: index, incarnation }, at, outgoing);
                }
                if let Some(result) = ended {
                    self.program_ended(index, result);
                    break;
                }
                if is_there {
                    break;
                }
                horizon = horizon.min(self.horizon());
            }
        }
    }

    fn program_ended(&mut self, replica: usize, result: Result<(), String>) {
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

    fn send(&mut self, process: Process, at: Time, outgoing: Outgoing) {
        let Outgoing { head, body, pass, reply, .. } = outgoing;
        let id = self.trace.requests.len();
        let sent = Sent {
            at,
            replica: process.replica,
            incarnation: process.incarnation,
            pass,
            method: head.method.clone(),
            uri: head.uri.to_string(),
            body: body.clone(),
            info: reknit_apiserver::RequestInfo::of(&head.method, &head.uri),
            handled: None,
            answered: None,
            stored: None,
        };
        let is_cut = at < self.slots[process.replica].cut_until;
        let fate = match self.faults.fate(&sent, at) {
            _ if is_cut => Fate::RequestLost { after: Duration::from_secs(5) },
            fate => fate,
        };
        let is_effect = sent.is_effect();
        self.trace.requests.push(sent);
        self.schedule(at, Event::Sent(id));
        let fate = if is_effect { self.apply_single(process, at, fate) } else { fate };
        if is_effect {
            self.interrupt(process.replica, at);
        }
        let flight = InFlight { id, process, request: request(head, body), reply, fate };
        match fate {
            Fate::RequestLost { after } => self.answer_lost(flight, at + after),
            Fate::Refused { code, after } => {
                let response = refusal(code, &self.trace.requests[id]);
                self.answer(flight, at + after, response);
            }
            Fate::Handled { up, .. } | Fate::ResponseLost { up, .. } | Fate::FailsAfterEffect { up, .. } => {
                self.schedule(at + up, Event::Handle(flight));
            }
        }
    }

    /// Counts a write, and injects the single fault that is planned for it.
    fn apply_single(&mut self, process: Process, at: Time, fate: Fate) -> Fate {
        self.writes += 1;
        match (self.faults.single(), fate) {
            (Some(Single::LoseResponse(n)), Fate::Handled { up, .. }) if n == self.writes => {
                // With fresh caches, most controllers would see what they wrote.
                self.slots[process.replica].stale_until = at + STALE;
                let text = "fault: the response to the next write is lost, and watches report it late";
                self.trace.note(at, Some(process.replica), text);
                Fate::ResponseLost { up, after: Duration::from_millis(100) }
            }
            (Some(Single::CrashAfterWrite(n)), Fate::Handled { up, .. }) if n == self.writes => {
                self.schedule(at + up, Event::Crash(process.replica));
                Fate::ResponseLost { up, after: Duration::from_secs(60) }
            }
            (Some(Single::ChangeLeader(n)), _) if n == self.writes => {
                let election = &self.scenario.election;
                self.slots[process.replica].cut_until = at + election.lease_duration * 2;
                self.trace.note(
                    at,
                    Some(process.replica),
                    "fault: the replica is cut off from the API server",
                );
                Fate::RequestLost { after: Duration::from_secs(5) }
            }
            (_, fate) => fate,
        }
    }

    fn answer_lost(&mut self, flight: InFlight, at: Time) {
        let InFlight { id, process, reply, .. } = flight;
        let response = Err("the connection was reset".into());
        let text = "lost".into();
        self.schedule(at, Event::Answer(Delivery::Response { id, process, reply, response, text }));
    }

    fn answer(&mut self, flight: InFlight, at: Time, response: Response<Bytes>) {
        let InFlight { id, process, reply, .. } = flight;
        let text = response.status().as_u16().to_string();
        let response = Ok(response.map(full));
        self.schedule(at, Event::Answer(Delivery::Response { id, process, reply, response, text }));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(replica) => self.start(replica),
            Event::Stop(replica) => self.stop(replica),
            Event::Crash(replica) => self.crash(replica),
            Event::Pause(replica, time) => self.pause(replica, time),
            Event::Resume(replica) => self.resume(replica),
            Event::Cut(replica, time) => {
                let slot = &mut self.slots[replica];
                slot.cut_until = slot.cut_until.max(self.now + time);
                let text = format!("fault: cut off from the API server for {time:?}");
                self.trace.note(self.now, Some(replica), text);
            }
            Event::Sent(id) => {
                if let Some(violation) = self.terms.check(&self.trace, id) {
                    self.violations.push(violation);
                }
            }
            Event::Handle(flight) => self.handle(flight),
            Event::Answer(delivery) => self.deliver(delivery),
            Event::Notify(watch) => self.notify(watch),
            Event::Break(watch) => self.break_watch(watch),
            Event::Step(index) => {
                let step = &self.scenario.steps[index];
                self.trace.note(self.now, None, format!("step {} of the test", index + 1));
                (step.run)(&mut self.cluster);
                self.changed();
            }
            Event::Stubs => self.changed(),
            Event::CollectGarbage => {
                self.is_collecting = false;
                if self.cluster.server().api().collect_garbage() {
                    self.changed();
                }
            }
            Event::Compact => {
                self.cluster.server().api().compact();
                self.trace.note(self.now, None, "fault: the API server forgets the old events of watches");
            }
        }
    }

    fn start(&mut self, index: usize) {
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

    fn stop(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if let Some(replica) = slot.replica.as_mut().filter(|_| !slot.is_paused) {
            replica.stop();
            slot.is_stopping = true;
            self.trace.note(self.now, Some(index), "fault: SIGTERM");
        }
    }

    fn crash(&mut self, index: usize) {
        if self.slots[index].replica.is_none() {
            return;
        }
        self.trace.note(self.now, Some(index), "fault: the replica crashes");
        self.end_process(index);
        let wait = self.faults.duration(Fault::Crashes, 10, 30_000);
        self.schedule(self.now + wait, Event::Start(index));
    }

    /// Drops the process with its connections. Requests that it has sent may still be handled.
    fn end_process(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.incarnation += 1;
        (slot.is_paused, slot.is_stopping) = (false, false);
        slot.mailbox.clear();
        if let Some(replica) = slot.replica.take() {
            replica.crash();
        }
        self.record_passes();
        let now = self.now;
        let open =
            self.trace.passes.values_mut().filter(|pass| pass.replica == index && pass.ended.is_none());
        open.for_each(|pass| pass.ended = Some(now));
    }

    fn pause(&mut self, index: usize, time: Duration) {
        let slot = &mut self.slots[index];
        if slot.replica.is_some() && !slot.is_paused {
            slot.is_paused = true;
            self.trace.note(self.now, Some(index), format!("fault: the replica stands still for {time:?}"));
            self.schedule(self.now + time, Event::Resume(index));
        }
    }

    /// Lets a paused replica go on. What has arrived meanwhile is there at once; timers fire when it waits again.
    fn resume(&mut self, index: usize) {
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

    fn handle(&mut self, flight: InFlight) {
        let id = flight.id;
        self.trace.requests[id].handled = Some(self.now);
        let answer = self.cluster.server().handle(&flight.request);
        match answer {
            Answer::Watch(head, watch) => self.open_watch(flight, head, watch),
            Answer::Response(response) => {
                let is_success = response.status().is_success();
                let sent = &mut self.trace.requests[id];
                let is_write = is_success && sent.is_write();
                if is_write && sent.is_of_leases() {
                    self.terms.record(sent, response.body(), self.now);
                } else if is_write && sent.is_effect() {
                    sent.stored = oracles::content(response.body());
                }
                match flight.fate {
                    Fate::ResponseLost { after, .. } => self.answer_lost(flight, self.now + after),
                    Fate::FailsAfterEffect { code, down, .. } => {
                        let response = refusal(code, &self.trace.requests[id]);
                        self.answer(flight, self.now + down, response);
                    }
                    Fate::Handled { down, .. } => self.answer(flight, self.now + down, response),
                    // These have not reached the server.
                    Fate::RequestLost { .. } | Fate::Refused { .. } => {}
                }
                if is_write {
                    self.changed();
                }
            }
        }
    }

    fn open_watch(&mut self, flight: InFlight, head: Response<()>, watch: Watch) {
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

    /// Does what follows from a change of an object.
    fn changed(&mut self) {
        for _ in 0..MAX_STUB_CALLS {
            self.scenario.stubs.iter().for_each(|stub| stub(&mut self.cluster));
            if !self.cluster.take_written() {
                break;
            }
        }
        if let Some(wake) = self.cluster.take_wake() {
            self.schedule(wake, Event::Stubs);
        }
        if !self.is_collecting {
            self.is_collecting = true;
            let wait = self.faults.duration(Fault::LaggingWatches, 1, 2000);
            self.schedule(self.now + wait, Event::CollectGarbage);
        }
        self.schedule_notifications();
        for (name, check) in &self.scenario.always {
            if let Err(message) = check(&self.cluster) {
                let violation = Violation { oracle: name.clone(), message, keys: Vec::new(), at: self.now };
                self.violations.push(violation);
            }
        }
    }

    /// Schedules the delivery of the events that watches have to report.
    fn schedule_notifications(&mut self) {
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

    fn notify(&mut self, index: usize) {
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

    fn break_watch(&mut self, index: usize) {
        let process = self.watches[index].process;
        if let Some(sender) = self.watches[index].sender.take() {
            self.deliver(Delivery::End { process, sender });
        }
    }

    /// Hands something to a replica, which finds it when it runs next. A process that has ended gets nothing, and a
    /// paused one gets it when it goes on.
    fn deliver(&mut self, delivery: Delivery) {
        let process = delivery.process();
        let slot = &mut self.slots[process.replica];
        if slot.incarnation != process.incarnation || slot.replica.is_none() {
            return;
        }
        if slot.is_paused {
            slot.mailbox.push(delivery);
            return;
        }
        match delivery {
            Delivery::Response { id, reply, response, text, .. } => {
                self.trace.requests[id].answered = Some((self.now, text));
                reply.send(response).ok();
            }
            Delivery::Events { sender, events, .. } => drop(sender.send(Ok(events))),
            Delivery::End { sender, .. } => drop(sender),
        }
    }

    /// Moves the observed passes into the trace.
    fn record_passes(&mut self) {
        for event in observer::take_events() {
            let replica = self.slots[event.replica].replica.as_ref();
            let at = replica.zip(event.at).map_or(self.now, |(replica, at)| replica.time_of(at));
            match event.change {
                PassChange::Begins { controller, key } => {
                    self.pass_begins(event.pass, event.replica, at, controller, key)
                }
                PassChange::Ends { result } => {
                    if let Some(pass) = self.trace.passes.get_mut(&event.pass) {
                        (pass.ended, pass.result) = (Some(at), result);
                        if pass.result.as_deref() == Some("panic") {
                            let (message, key) =
                                (format!("a pass of {} panicked", pass.key), pass.key.clone());
                            self.violate("no pass panics", message, Some(key));
                        }
                    }
                }
            }
        }
    }

    fn pass_begins(&mut self, id: u64, replica: usize, at: Time, controller: String, key: String) {
        self.passes += 1;
        if self.faults.single() == Some(Single::StaleRead(self.passes)) {
            self.slots[replica].stale_until = at + STALE;
            self.trace.note(at, Some(replica), "fault: the caches stay as they are for a while");
        }
        let is_open = |pass: &&Pass| {
            pass.ended.is_none()
                && pass.key == key
                && pass.controller == controller
                && pass.replica == replica
        };
        if let Some(open) = self.trace.passes.values().find(is_open) {
            let message = format!(
                "{key}: a pass begins, and another one of replica-{replica} runs since {}",
                open.begun
            );
            self.violate("no key has two passes at once", message, Some(key.clone()));
        }
        self.trace.passes.insert(id, Pass { replica, controller, key, begun: at, ended: None, result: None });
    }

    fn violate(&mut self, oracle: &str, message: String, key: Option<String>) {
        let violation =
            Violation { oracle: oracle.into(), message, keys: key.into_iter().collect(), at: self.now };
        self.violations.push(violation);
    }

    /// Checks the final state, and ends the replicas.
    fn finish(mut self) -> Run {
        let state = oracles::final_state(&self.cluster);
        if self.violations.is_empty() {
            self.violations = oracles::check_end(&self.trace, &self.cluster, self.scenario, self.end);
        }
        for replica in self.slots.iter_mut().filter_map(|slot| slot.replica.take()) {
            replica.crash();
        }
        let Self { plan, trace, violations, writes, passes, end, .. } = self;
        Run { plan, trace, violations, end, state, writes, passes }
    }
}

fn request(head: Parts, body: Bytes) -> Request<Bytes> {
    Request::from_parts(head, body)
}

/// The response of an overloaded or failing API server.
fn refusal(code: u16, sent: &Sent) -> Response<Bytes> {
    let reason = match code {
        409 => "Conflict",
        429 => "TooManyRequests",
        504 => "Timeout",
        _ => "InternalError",
    };
    let message = format!("the simulation answers {} with {code}", sent.summary());
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code});
    let mut response = Response::new(Bytes::from(status.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if code == 429 {
        response.headers_mut().insert(RETRY_AFTER, http::HeaderValue::from_static("1"));
    }
    response
}
