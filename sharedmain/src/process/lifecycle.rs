//! The life of a process, from its command line to its exit status.
use std::{io, num::NonZero, process::ExitCode, sync::Arc, thread};

use kube::Client;
use prometheus::Registry;
use reknit_injection::{Context, Feed, Informers, Shutdown};
use reknit_reconciler::{Controller, Recorder};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{
    cli::environment::Environment,
    cli::flags::Flags,
    cli::listen_address::BindAddress,
    client,
    client::kubeconfig::{self, Access},
    config::maps::ConfigMaps,
    config::observability::{Metrics, ObservabilityConfig},
    config::watch::{Elected, Observed, follow},
    election::{Election, Standing, Voter},
    health::probes::Probes,
    observe::logging::Logging,
    observe::metrics,
    observe::otlp::{self, Exports},
    process::Task,
    process::constructors::{Constructed, Constructors},
    process::failure::Failure,
    process::listen::{self, Host},
    process::panics,
    process::running::Running,
    process::signals,
    process::startup::Startup,
    process::stop::Stop,
    webhook::Settings,
};

/// What is to run, and what the command line said.
pub(crate) struct Process {
    pub(crate) component: String,
    pub(crate) version: String,
    pub(crate) flags: Flags,
    pub(crate) constructors: Constructors,
}

impl Process {
    /// Everything, until it is over.
    pub(crate) fn run(self) -> ExitCode {
        let environment = Environment::read();
        let known = environment.as_ref().ok();
        let pod = known.and_then(|environment| environment.pod.as_deref());
        let rust_log = known.and_then(|environment| environment.rust_log.as_deref());
        let logging = Logging::install(&self.component, pod, rust_log);
        panics::log_them();
        match environment.and_then(|environment| self.live(environment, logging.clone())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                logging.fatal(&failure);
                failure.exit_code()
            }
        }
    }

    fn live(self, environment: Environment, logging: Logging) -> Result<(), Failure> {
        within_no_runtime()?;
        let failed = |e| Failure::new(format!("the runtime cannot be started: {e}"));
        let runtime = runtime(processors()).map_err(failed)?;
        let ended = runtime.block_on(self.phases(environment, logging));
        // Blocking code that a task left behind must not keep the process alive.
        runtime.shutdown_background();
        ended
    }

    /// What is local is checked first, and what is remote only then; nothing of the user's runs before all of it is
    /// known to be there.
    async fn phases(self, environment: Environment, logging: Logging) -> Result<(), Failure> {
        let probes = Probes::starting("waiting for the API server");
        let (stop, shutdown) = Stop::new(&probes);
        heed_signals(&stop)?;
        let access = kubeconfig::find(&self.flags).await?;
        let voter = Voter::of(self.flags.disable_ha, &environment)?;
        let assembly = self.assemble(&access, environment, logging, voter, shutdown.clone())?;
        serve_probes(&probes, &assembly.flags, &assembly.environment).await?;
        let ready = tokio::select! {
            ready = assembly.await_remote(&access, &shutdown) => ready?,
            () = shutdown.wait() => return Ok(()),
        };
        ready.start(&probes, stop, shutdown).until_over().await
    }

    /// Makes the clients and runs the constructors. The Context ends here.
    fn assemble(
        self,
        access: &Access,
        environment: Environment,
        logging: Logging,
        voter: Option<Voter>,
        shutdown: Shutdown,
    ) -> Result<Assembly, Failure> {
        let Self { component, version, flags, constructors } = self;
        let bare = client::bare(access, &client::user_agent(&component, &version))?;
        let namespace = &access.config.default_namespace;
        let transport = client::for_controllers(&bare, namespace, flags.kube_api_qps, flags.kube_api_burst);
        let registry = metrics::registry();
        let cx = Context::builder(&component, transport)
            .system_namespace(environment.system_namespace.clone())
            .metrics(registry.clone())
            .shutdown(shutdown)
            .build();
        cx.provide(BindAddress(flags.bind_address));
        cx.provide(Settings::of(&environment));
        let Constructed { controllers, tasks, webhooks } =
            constructors.run(&cx, &flags.disable_controllers)?;
        let (observed, elected) = (Observed::default(), Elected::default());
        let elects = voter.is_some().then_some(&elected);
        let followed = follow(&cx, &environment, &logging, &observed, elects);
        Ok(Assembly {
            informers: cx.informers(),
            recorder: cx.get(),
            followed,
            observed,
            elected,
            exports: Exports::default(),
            component,
            version,
            flags,
            environment,
            logging,
            voter,
            bare: bare.client(),
            registry,
            controllers,
            tasks,
            webhooks,
        })
    }
}

/// Those that this process may use, which in a container is what its limit allows.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// A worker thread for each processor: a pass waits for the API server most of the time, and more threads would only
/// take turns. But two at least: beside a pass that computes, or blocks, leases and probes take turns with it.
fn runtime(processors: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(processors.max(2)).enable_all().build()
}

/// A runtime cannot run within another.
fn within_no_runtime() -> Result<(), Failure> {
    match Handle::try_current() {
        Ok(_) => Err(Failure::new(
            "main is called within a tokio runtime, and starts one of its own: call it from a plain fn main, without \
             #[tokio::main], or on a thread of std::thread::spawn",
        )),
        Err(_) => Ok(()),
    }
}

fn heed_signals(stop: &Stop) -> Result<(), Failure> {
    let stop = stop.clone();
    signals::watch(move |signal| {
        tracing::info!("received {signal}: shutting down");
        stop.now();
    })
}

async fn serve_probes(probes: &Probes, flags: &Flags, environment: &Environment) -> Result<(), Failure> {
    let port = environment.probes_port;
    let listener = listen::bind("probes", flags.host(), port, "KNATIVE_HEALTH_PROBES_PORT").await?;
    listen::serve("probes", listener, probes.router());
    Ok(())
}

/// Everything constructed, and nothing started.
struct Assembly {
    component: String,
    version: String,
    flags: Flags,
    environment: Environment,
    logging: Logging,
    voter: Option<Voter>,
    bare: Client,
    registry: Registry,
    informers: Informers,
    recorder: Recorder,
    followed: Vec<Arc<dyn Feed>>,
    observed: Observed,
    elected: Elected,
    exports: Exports,
    controllers: Vec<Controller>,
    tasks: Vec<Task>,
    webhooks: Vec<reknit_webhook::Health>,
}

/// An assembly whose API server answers, with all that is known from there: nothing can fail any more.
struct Ready {
    assembly: Assembly,
    standing: Vec<Standing>,
}

impl Assembly {
    async fn await_remote(mut self, access: &Access, shutdown: &Shutdown) -> Result<Ready, Failure> {
        let startup = Startup::new(access, self.flags.startup_timeout);
        let version = startup.check_version(&self.bare, &self.environment.min_version).await?;
        tracing::info!(server = %access.config.cluster_url, %version, "API server found by {}", access.origin);
        let maps = ConfigMaps::read(&startup, &self.bare, &self.environment).await?;
        self.logging.set_level(maps.logging.level_of(&self.component));
        self.observe(&maps.observability, shutdown).await?;
        let election = match self.voter.take() {
            None => {
                tracing::info!("leader election is disabled");
                Election::Disabled
            }
            Some(voter) => {
                self.elected.start(&maps.election);
                let pod = self.environment.pod.as_deref();
                let agent = client::user_agent(&self.component, &self.version);
                let client = || client::bare(access, &agent).map(|own| own.client());
                voter.elect(&self.component, pod, client, &maps.election, &self.registry)?
            }
        };
        let standing = self.controllers.drain(..).map(|controller| election.stand(controller));
        let standing = standing.collect::<Result<_, _>>()?;
        Ok(Ready { assembly: self, standing })
    }

    async fn observe(&mut self, config: &ObservabilityConfig, shutdown: &Shutdown) -> Result<(), Failure> {
        self.observed.start(config);
        self.serve_metrics(config).await?;
        self.serve_profiles().await?;
        let (namespace, pod) =
            (self.environment.system_namespace.as_deref(), self.environment.pod.as_deref());
        let resource = otlp::resource(&self.component, &self.version, namespace, pod);
        let (registry, tracer) = (self.registry.clone(), self.logging.tracer());
        self.exports = Exports::start(config, resource, registry, tracer, shutdown.clone())?;
        Ok(())
    }

    /// Without ConfigMaps nothing could enable it.
    async fn serve_profiles(&self) -> Result<(), Failure> {
        if self.environment.system_namespace.is_none() {
            return Ok(());
        }
        let port = self.environment.profiling_port;
        let listener = listen::bind("profiling", self.flags.host(), port, "PROFILING_PORT").await?;
        listen::serve("profiling", listener, self.observed.profiling.router());
        Ok(())
    }

    async fn serve_metrics(&self, config: &ObservabilityConfig) -> Result<(), Failure> {
        let Metrics::Prometheus { host, port } = &config.metrics else { return Ok(()) };
        let port = self.environment.metrics_port.or(*port).unwrap_or(9090);
        let by_variable =
            self.environment.metrics_host.map(|ip| Host { ip, setting: "METRICS_PROMETHEUS_HOST" });
        let by_map = host.map(|ip| Host { ip, setting: "metrics-endpoint in config-observability" });
        let host = by_variable.or(by_map).or(self.flags.host());
        let listener = listen::bind("metrics", host, port, "METRICS_PROMETHEUS_PORT").await?;
        listen::serve("metrics", listener, metrics::router(self.registry.clone()));
        Ok(())
    }
}

impl Ready {
    fn start(self, probes: &Probes, stop: Stop, shutdown: Shutdown) -> Running {
        let Self { assembly, standing } = self;
        let mut running = Running::new(
            stop,
            shutdown,
            assembly.flags.shutdown_timeout,
            assembly.recorder,
            assembly.followed,
            assembly.exports,
        );
        assembly.informers.start();
        standing.into_iter().for_each(|one| running.controller(one, assembly.environment.workers));
        assembly.tasks.into_iter().for_each(|task| running.task(task));
        probes.running(Arc::new(running.vitals(assembly.informers, assembly.webhooks)));
        running
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, time::Duration};

    use super::*;

    #[test]
    fn beside_code_that_blocks_others_go_on_also_on_one_processor() {
        let runtime = runtime(1).unwrap();
        let ((begin, begun), (end, ended)) = (channel(), channel());
        let blocking = runtime.spawn(async move {
            begin.send(()).unwrap();
            ended.recv_timeout(Duration::from_secs(30))
        });
        begun.recv().unwrap();
        runtime.spawn(async move { end.send(()) });
        assert_eq!(runtime.block_on(blocking).unwrap(), Ok(()));
    }
}
