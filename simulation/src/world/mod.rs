//! The driver of one simulation: it owns the API server and the order of events, and steps the replicas.
//!
//! The driver takes the earliest event of its queue, runs each replica up to that time, and then lets the event happen.
//! A replica stops early when it has sent a request, whose way to the server becomes events. So everything that a
//! replica is told happens at an exact time; only events that other replicas caused may reach it up to one
//! [`STEP`] late, as a watch may.

mod deliveries;
mod kubelet;
mod outages;
mod passes;
mod processes;
mod requests;
mod watches;

use std::{collections::BTreeMap, time::Duration};

use self::{deliveries::Delivery, kubelet::Kubelet, processes::Slot, requests::InFlight, watches::OpenWatch};
use crate::{
    cluster::Cluster,
    faults::{Fault, Faults, Plan},
    observer,
    oracles::{self, Successions, Terms, Violation},
    scenario::Scenario,
    server::Server,
    time::Time,
    trace::{RequestId, Trace},
    watchdog,
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

/// One run of the process of a replica.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Process {
    replica: usize,
    incarnation: u32,
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
    successions: Successions,
    kubelet: Kubelet,
    is_collecting: bool,
    writes: usize,
    passes: usize,
}

impl<'a> World<'a> {
    /// Runs the scenario with the faults of a plan to its end.
    pub(crate) fn run(scenario: &'a Scenario, seed: u64, plan: Plan) -> Run {
        observer::reset();
        watchdog::set_run(format!("seed {seed}, faults: {plan}"));
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
            successions: Successions::default(),
            kubelet: Kubelet::new(scenario.replicas),
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
            self.record_passes(); // before the requests that they have sent are checked
            while let Some(entry) = self.events.first_entry()
                && entry.key().0 <= horizon
            {
                let event = entry.remove();
                self.happen(event);
            }
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
                self.expire_watches();
            }
        }
    }

    /// Does what follows from a change of an object.
    fn changed(&mut self) {
        for _ in 0..MAX_STUB_CALLS {
            self.scenario.stubs.iter().for_each(|stub| stub(&mut self.cluster));
            if !std::mem::take(&mut self.cluster.has_written) {
                break;
            }
        }
        if let Some(wake) = self.cluster.wake.take() {
            self.schedule(wake, Event::Stubs);
        }
        if !self.is_collecting {
            self.is_collecting = true;
            let wait = self.faults.duration(Fault::LaggingWatches, 1, 2000);
            self.schedule(self.now + wait, Event::CollectGarbage);
        }
        self.schedule_notifications();
        let scenario = self.scenario;
        for (name, check) in &scenario.always {
            if let Err(message) = check(&self.cluster) {
                self.violate(name, message, None);
            }
        }
    }

    fn violate(&mut self, oracle: &str, message: String, key: Option<String>) {
        self.violations.push(Violation::new(oracle, message, key.into_iter().collect(), self.now));
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
