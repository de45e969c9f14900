//! The scenario of a simulation: the program, what happens to its objects, and what must hold.

use std::{sync::Arc, time::Duration};

use reknit_injection::Context;
use reknit_leadership::LeaderElectionConfig;
use reknit_reconciler::{Controller, Result};
use reknit_sharedmain::internal::SimulatedProgram;

use crate::{admission::Attempt, cluster::Cluster, faults::Plan, time::Time};

/// The name of the program in its Leases.
pub(crate) const COMPONENT: &str = "controller";
/// The time after the last step in which faults are injected.
const FAULTS_AFTER_LAST_STEP: Duration = Duration::from_secs(60);
/// The time at the end in which nobody may write. Longer than the wait between the passes of a storm.
pub(crate) const REST: Duration = Duration::from_secs(65);

pub(crate) type Constructor = Arc<dyn Fn(&Context) -> Result<Controller> + Send + Sync>;
pub(crate) type Provide = Arc<dyn Fn(&Context) + Send + Sync>;
pub(crate) type Stub = Box<dyn Fn(&mut Cluster) + Send + Sync>;
pub(crate) type Check = Box<dyn Fn(&Cluster) -> std::result::Result<(), String> + Send + Sync>;

pub(crate) type Admission = Box<dyn Fn(&Cluster, &Attempt) -> std::result::Result<(), String> + Send + Sync>;

pub(crate) struct Scenario {
    pub(crate) constructors: Vec<Constructor>,
    pub(crate) provided: Vec<Provide>,
    pub(crate) replicas: usize,
    pub(crate) election: LeaderElectionConfig,
    pub(crate) initial: Vec<Stub>,
    pub(crate) steps: Vec<Step>,
    pub(crate) stubs: Vec<Stub>,
    pub(crate) admission: Vec<Admission>,
    pub(crate) always: Vec<(String, Check)>,
    pub(crate) finally: Vec<(String, Check)>,
    /// The number of requests that a run may send.
    pub(crate) max_requests: usize,
}

pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) run: Stub,
}

impl Scenario {
    pub(crate) fn program(&self) -> SimulatedProgram {
        let mut program = SimulatedProgram::new(COMPONENT).election(self.election.clone());
        for provide in &self.provided {
            let provide = provide.clone();
            program = program.provide(move |cx| provide(cx));
        }
        for constructor in &self.constructors {
            let constructor = constructor.clone();
            program = program.controller(move |cx| constructor(cx));
        }
        program
    }

    fn last_step(&self) -> Duration {
        self.steps.iter().map(|step| step.at).max().unwrap_or_default()
    }

    /// The end of the faults and of a run with this plan. Waits of retries double, so that a run takes more than twice
    /// as long as its faults. Without faults, it takes as long as a takeover.
    pub(crate) fn times(&self, plan: &Plan) -> (Time, Time) {
        let faults = self.last_step() + FAULTS_AFTER_LAST_STEP;
        let takeover = self.election.lease_duration * 3;
        let quiet = if plan.kinds.is_empty() { self.last_step() } else { faults * 2 };
        (Time::after_start(faults), Time::after_start(quiet + takeover + REST))
    }
}
