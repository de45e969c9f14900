//! A process without an environment: for a simulation, which runs several on one thread.
use std::time::Duration;

use prometheus::Registry;
use reknit_injection::{Context, internal::Transport};
use reknit_leadership::LeaderElectionConfig;
use reknit_reconciler::{Controller, Recorder, Result};
use tokio::runtime::Handle;

use super::{
    constructors::{Constructors, PartContexts},
    failure::Failure,
    lifecycle::Lifecycle,
    replica::Replica,
    running::Running,
};
use crate::{
    client,
    election::{Participant, Pod},
    observe::otlp::Exports,
};

/// The time that running reconciles get after the stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);

/// No limit of the rate of requests: a simulation reports a hot loop instead.
const NO_RATE_LIMIT: f64 = 0.0;

/// A program as a replica of it runs in the current runtime, with leases but without sockets, signals and ConfigMaps.
pub struct SimulatedProgram {
    component: String,
    constructors: Constructors,
    election: LeaderElectionConfig,
}

impl SimulatedProgram {
    /// Creates a program of this component, without controllers.
    pub fn new(component: &str) -> Self {
        Self {
            component: component.into(),
            constructors: Constructors::default(),
            election: LeaderElectionConfig::default(),
        }
    }

    /// Adds a controller by its constructor.
    pub fn controller(mut self, constructor: impl Fn(&Context) -> Result<Controller> + 'static) -> Self {
        self.constructors.controllers.push(Box::new(constructor));
        self
    }

    /// Adds a function that provides values to the constructors.
    pub fn provide(mut self, provide: impl Fn(&Context) + 'static) -> Self {
        self.constructors.values.push(Box::new(provide));
        self
    }

    /// Sets the settings of `config-leader-election`.
    pub fn election(mut self, election: LeaderElectionConfig) -> Self {
        self.election = election;
        self
    }

    /// Starts the program as this pod of this system namespace, in the current runtime. Returns a future that runs it
    /// until `stop` resolves, and then shuts it down.
    ///
    /// # Errors
    ///
    /// The message of the failure that ended the process, here or later.
    pub fn start<S>(
        self,
        pod: &str,
        namespace: &str,
        transport: Transport,
        stop: S,
    ) -> Result<impl Future<Output = Result<(), String>> + Send + use<S>, String>
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let (running, recorder) =
            self.try_start(pod, namespace, transport, stop).map_err(|failure| failure.to_string())?;
        Ok(async {
            let ended = running.run_until_stopped(recorder, Exports::none()).await;
            ended.map_err(|failure| failure.to_string())
        })
    }

    fn try_start(
        self,
        pod: &str,
        namespace: &str,
        bare: Transport,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(Running, Recorder), Failure> {
        let lifecycle = Lifecycle::new();
        let stopped = lifecycle.clone();
        tokio::spawn(async move {
            stop.await;
            stopped.stop();
        });
        let registry = Registry::new();
        let transport = client::controller_transport(&bare, namespace, NO_RATE_LIMIT, 1);
        let cx = Context::builder(&self.component, transport)
            .system_namespace(Some(namespace.into()))
            .metrics(registry.clone())
            .shutdown(lifecycle.shutdown.clone())
            .build();
        let constructed = self.constructors.run(PartContexts::of(None, &cx), &[])?;
        let participant = Participant::in_namespace(namespace, pod);
        let replica = Replica::new(&cx, constructed, Some(&participant), bare, Handle::current(), None);
        let pod = Pod { name: Some(pod), uid: None, termination_message_path: None };
        let election = replica.elect(participant, &self.component, pod, &self.election, &registry)?;
        let recorder = replica.recorder.clone();
        let running = replica.start(&election, lifecycle, SHUTDOWN_TIMEOUT, None)?;
        Ok((running, recorder))
    }
}
