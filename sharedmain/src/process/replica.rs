//! The part of a process that watches, elects and reconciles. It has no sockets, signals and ConfigMaps, so that a
//! simulation can run it too.
use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use prometheus::Registry;
use reknit_injection::{
    Context, Informer, Informers,
    internal::{Transport, start_on},
};
use reknit_leadership::{LeaderElectionConfig, internal::Heartbeat};
use reknit_reconciler::Recorder;
use tokio::runtime::Handle;

use super::{
    constructors::Constructed, failure::Failure, lifecycle::Lifecycle, running::Running, task::Readiness,
};
use crate::{
    election::{Control, Election, Participant, Pod},
    health::checks::WebhookChecks,
    plan::Shadow,
};

/// One replica of a program: what its constructors returned, and what these need to run. Nothing has started.
pub(super) struct Replica {
    pub(super) informers: Informers,
    pub(super) recorder: Recorder,
    /// The heartbeat of the workers.
    pub(super) heartbeat: Heartbeat,
    /// The runtime of what has to go on while user code blocks the workers.
    pub(super) control: Handle,
    constructed: Constructed,
    /// The leases of the system namespace, if leases elect the leaders.
    pub(super) leases: Option<Informer<Lease>>,
    /// The transport of leader election.
    lease_transport: Transport,
    /// Runs the controllers if they only show what they would change.
    shadow: Option<Arc<Shadow>>,
}

impl Replica {
    pub(super) fn new(
        cx: &Context,
        constructed: Constructed,
        participant: Option<&Participant>,
        lease_transport: Transport,
        control: Handle,
        shadow: Option<Arc<Shadow>>,
    ) -> Self {
        Self {
            informers: cx.informers(),
            recorder: cx.get(),
            heartbeat: Heartbeat::default(),
            control,
            constructed,
            leases: participant.and_then(|participant| participant.lease_informer(cx)),
            lease_transport,
            shadow,
        }
    }

    pub(super) fn take_webhook_checks(&mut self) -> Vec<WebhookChecks> {
        std::mem::take(&mut self.constructed.webhook_checks)
    }

    /// Takes the readiness checks of the tasks, with their names.
    pub(super) fn take_task_checks(&mut self) -> Vec<(String, Readiness)> {
        let tasks = self.constructed.tasks.iter_mut();
        tasks.filter_map(|task| Some((task.name.clone(), task.readiness.take()?))).collect()
    }

    pub(super) fn elect(
        &self,
        participant: Participant,
        component: &str,
        pod: Pod<'_>,
        config: &LeaderElectionConfig,
        registry: &Registry,
    ) -> Result<Election, Failure> {
        let control = Control {
            runtime: &self.control,
            transport: &self.lease_transport,
            passes: self.heartbeat.clone(),
        };
        participant.elect(component, pod, self.leases.clone(), control, config, registry)
    }

    pub(super) fn limit_unprompted_changes(&self, per_minute: u32) {
        let controllers = self.constructed.controllers.iter();
        controllers.for_each(|controller| controller.limit_unprompted_changes(per_minute));
    }

    /// Starts informers, controllers with their electors, and tasks.
    pub(super) fn start(
        self,
        election: &Election,
        lifecycle: Lifecycle,
        shutdown_timeout: Duration,
        workers: Option<usize>,
    ) -> Result<Running, Failure> {
        let controllers = self.constructed.controllers.into_iter();
        // All controllers join before anything starts, because a lease name may be invalid.
        let joined = {
            let _entered = self.control.enter();
            let joined = controllers.map(|controller| Ok((election.join(&controller)?, controller)));
            joined.collect::<Result<Vec<_>, Failure>>()?
        };
        tokio::spawn(self.heartbeat.beat());
        let mut running = Running::new(lifecycle, shutdown_timeout, self.control.clone());
        if let Some(leases) = &self.leases {
            start_on(leases, &self.control, &self.lease_transport);
        }
        self.informers.start();
        if let Some(member) = election.member() {
            running.start_member(member);
        }
        for ((leadership, electors), controller) in joined {
            match &self.shadow {
                Some(shadow) => running.start_shadow(controller, leadership, shadow.clone()),
                None => running.start_controller(controller, leadership, electors, workers),
            }
        }
        self.constructed.tasks.into_iter().for_each(|task| running.start_task(task));
        Ok(running)
    }
}
