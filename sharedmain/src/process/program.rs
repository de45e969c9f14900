//! The run of a program, from its parsed command line to its exit status.
use std::{io::Write, path::Path, process::ExitCode, sync::Arc};

use kube::Client;
use prometheus::Registry;
use reknit_injection::{
    Context, Effects, InformerHandle, Shutdown,
    internal::{Recordings, Redaction, Transport, read_recorded, redaction},
};
use reknit_reconciler::{Controller, internal::PassLog};
use reknit_server::Plain;
use tokio::runtime::Handle;

use super::{
    constructors::{Constructors, PartContexts},
    failure::Failure,
    lifecycle::Lifecycle,
    listen::{self, Host},
    open_files, panics,
    replica::Replica,
    runtimes::Runtimes,
    self_signed::SelfSigned,
    signals,
    startup::Startup,
    task::ShutdownTimeout,
    termination_message::append_failure,
};
use crate::{
    cli::{
        bind_address::EndpointAddress,
        environment::Environment,
        flags::{Flags, Part, PlanOutput},
        listen_address::BindAddress,
    },
    client::{
        self,
        credentials::Credentials,
        kubeconfig::{self, Access, Origin},
        metrics::RequestMetrics,
    },
    config::{
        maps::ConfigMaps,
        observability::{Metrics, ObservabilityConfig},
        watch::ConfigWatcher,
    },
    console::{self, Console},
    election::{Election, Participant, Pod},
    health::{checks::ProcessHealth, probes::Probes, workers::Workers},
    observe::{access::require_access, logging::Logging, metrics, otlp::Exports, passes::Passes},
    plan::{Plan, Shadow, guarded},
};

/// A program: its constructors and its parsed flags.
pub(crate) struct Program {
    pub(crate) component: String,
    pub(crate) version: String,
    pub(crate) flags: Flags,
    pub(crate) constructors: Constructors,
}

impl Program {
    /// Runs the process to its end.
    pub(crate) fn run(self) -> ExitCode {
        if let Some(path) = &self.flags.print_recorded {
            return print_recorded(path);
        }
        let environment = Environment::read();
        let (pod, rust_log) = environment.as_ref().map_or((None, None), |environment| {
            (environment.pod.as_deref(), environment.rust_log.as_deref())
        });
        let logging = Logging::install(&self.component, pod, rust_log);
        let message_path = environment.as_ref().ok().map(|read| read.termination_message_path.clone());
        panics::log_panics();
        match environment.and_then(|environment| self.run_in_runtimes(environment, logging.clone())) {
            Ok(status) => status,
            Err(failure) => {
                logging.fatal(&failure);
                if let Some(path) = message_path {
                    append_failure(&path, &failure);
                }
                failure.exit_code()
            }
        }
    }

    /// Installs the signal handlers, raises the limit of open files, starts the runtimes, and runs the process in them.
    fn run_in_runtimes(self, environment: Environment, logging: Logging) -> Result<ExitCode, Failure> {
        refuse_outer_runtime()?;
        self.check_rehearsal()?;
        let lifecycle = Lifecycle::new();
        let lifecycle_to_stop = lifecycle.clone();
        signals::handle(move |signal| {
            tracing::info!("received {signal}: shutting down");
            lifecycle_to_stop.stop();
        })?;
        let failed = |e| Failure::new(format!("failed to start the tokio runtime: {e}"));
        open_files::raise_limit();
        let runtimes = Runtimes::build().map_err(failed)?;
        if self.flags.plan {
            return runtimes.run(|_| self.plan(environment, lifecycle.shutdown));
        }
        let ended = runtimes.run(|control| self.run_process(environment, logging, lifecycle, control));
        ended.map(|()| ExitCode::SUCCESS)
    }

    /// Checks that the program allows the plan or the shadow, if it is to be one.
    pub(crate) fn check_rehearsal(&self) -> Result<(), Failure> {
        let flag = match (self.flags.plan, self.flags.shadow) {
            (true, _) => "--plan",
            (false, true) => "--shadow",
            (false, false) => return Ok(()),
        };
        if self.flags.only == Some(Part::Webhook) {
            return Err(Failure::usage(format!(
                "{flag}: --only=webhook has no controllers to run; leave it out"
            )));
        }
        if !self.constructors.is_plannable {
            return Err(Failure::usage(format!(
                "{flag}: the program does not allow it, because its code may change more than objects of the API server: \
                 let such code ask Effects, and call Main::plannable",
            )));
        }
        Ok(())
    }

    /// Prints what the controllers would change.
    async fn plan(self, environment: Environment, shutdown: Shutdown) -> Result<ExitCode, Failure> {
        let Self { component, version, flags, constructors } = self;
        let access = kubeconfig::find(&flags).await?;
        let credentials = client::load_credentials(&access, &client::user_agent(&component, &version, None))?;
        let namespace = &access.config.default_namespace;
        let requests = Arc::new(RequestMetrics::new(&metrics::new_registry(), &access.config.cluster_url));
        let guarded = guarded(&client::bare_transport(&access, &credentials, &requests)?, namespace);
        let startup = Startup::new(&access, &credentials, flags.startup_timeout);
        startup.check_version(&guarded.client(), &environment.min_version).await?;
        let transport =
            client::controller_transport(&guarded, namespace, flags.kube_api_qps, flags.kube_api_burst);
        let (disabled, system_namespace) = (&flags.disable_controllers, environment.system_namespace);
        let plan = Plan::construct(&component, constructors, disabled, transport, system_namespace)?;
        let report = tokio::select! {
            biased;
            () = shutdown.wait() => return Err(Failure::new("the plan was interrupted")),
            report = plan.run(flags.startup_timeout) => report,
        };
        let text = match flags.plan_output {
            PlanOutput::Text => report.text(),
            PlanOutput::Json => {
                report.json().map_err(|error| Failure::new(format!("failed to encode the plan: {error}")))?
            }
        };
        let printed = std::io::stdout().write_all(text.as_bytes());
        printed.map_err(|error| Failure::new(format!("failed to print the plan: {error}")))?;
        Ok(report.exit_status().into())
    }

    /// Runs the process until it has shut down. It checks the kubeconfig and the constructors first, then the version
    /// and the ConfigMaps of the API server. No controller starts before all are valid.
    async fn run_process(
        self,
        environment: Environment,
        logging: Logging,
        lifecycle: Lifecycle,
        control: Handle,
    ) -> Result<(), Failure> {
        let Lifecycle { probes, shutdown, .. } = lifecycle.clone();
        let access = kubeconfig::find(&self.flags).await?;
        let participant = Participant::new(self.flags.is_without_election(), &environment)?;
        let mut process = self.construct(
            access,
            environment,
            logging,
            participant.as_ref(),
            shutdown.clone(),
            control.clone(),
        )?;
        process.serve_probes(&probes).await?;
        let (election, exports) = tokio::select! {
            biased;
            () = shutdown.wait() => return Ok(()),
            connected = process.connect(participant, &shutdown) => connected?,
        };
        let (shutdown_timeout, workers) = (process.flags.shutdown_timeout, process.environment.workers);
        let Replica { heartbeat, informers, recorder, leases, .. } = &process.replica;
        let (heartbeat, informers, recorder) = (heartbeat.clone(), informers.clone(), recorder.clone());
        let leases = leases.clone().zip(process.environment.system_namespace.clone());
        let (webhooks, tasks) = (process.replica.take_webhook_checks(), process.replica.take_task_checks());
        if let Some(per_minute) = process.flags.max_unprompted_changes {
            process.replica.limit_unprompted_changes(per_minute);
        }
        let running = process.replica.start(&election, lifecycle, shutdown_timeout, workers)?;
        process.console.set_running(console::Running::new(
            running.health.clone(),
            informers.clone(),
            leases,
            process.passes.clone(),
            process.recordings.clone(),
        ));
        let controllers = running.health.iter().map(|(health, _)| health.clone()).collect();
        let workers = Workers::new(heartbeat, controllers);
        control.spawn(workers.clone().log_blocks());
        probes.set_running(Arc::new(ProcessHealth {
            workers,
            controllers: running.health.clone(),
            credentials: process.credentials,
            informers,
            webhooks,
            tasks,
        }));
        let running = control.spawn(running.run_until_stopped(recorder, exports));
        running.await.map_err(Failure::new).flatten()
    }

    /// Creates the clients and runs the constructors. Nothing starts yet.
    fn construct(
        self,
        access: Access,
        environment: Environment,
        logging: Logging,
        participant: Option<&Participant>,
        shutdown: Shutdown,
        control: Handle,
    ) -> Result<Process, Failure> {
        let Self { component, version, flags, constructors } = self;
        let agent = client::user_agent(&component, &version, participant.map(Participant::identity));
        let credentials = client::load_credentials(&access, &agent)?;
        let registry = metrics::new_registry();
        let requests = Arc::new(RequestMetrics::new(&registry, &access.config.cluster_url));
        let namespace = &access.config.default_namespace;
        let transport = || client::bare_transport(&access, &credentials, &requests);
        let (mut bare, mut lease_transport, review_transport) = (transport()?, transport()?, transport()?);
        if flags.shadow {
            (bare, lease_transport) = (guarded(&bare, namespace), guarded(&lease_transport, namespace));
        }
        let transport =
            client::controller_transport(&bare, namespace, flags.kube_api_qps, flags.kube_api_burst);
        let hidden = Redaction::default();
        hidden.set(&constructors.redacted);
        let shadow = flags.shadow.then(|| Shadow::new(transport.clone(), &registry, hidden));
        let cx = match &shadow {
            Some(shadow) => Context::builder(&component, shadow.transport(namespace)).without_own_writes(),
            None => Context::builder(&component, transport),
        };
        let cx = cx
            .system_namespace(environment.system_namespace.clone())
            .metrics(registry.clone())
            .shutdown(shutdown)
            .build();
        let constructors = match &shadow {
            Some(_) => constructors.for_plan(Effects::planned(|_, _| {})),
            None => constructors,
        };
        redaction(&cx.informers()).set(&constructors.redacted);
        let recordings: Recordings = cx.get();
        recordings.set_folder(flags.record_failures.as_deref());
        cx.provide(BindAddress(flags.bind_address));
        cx.provide(ShutdownTimeout(flags.shutdown_timeout));
        let mut webhook = environment.webhook.clone();
        webhook.port = flags.webhook_port.unwrap_or(webhook.port);
        cx.provide(webhook);
        cx.provide(environment.config_maps.clone());
        let constructed = constructors.run(PartContexts::of(flags.only, &cx), &flags.disable_controllers)?;
        if flags.only.is_none() && access.origin == Origin::Pod && !constructed.webhook_checks.is_empty() {
            tracing::warn!(
                "the webhook is served with the rights of the controllers: run --only=controllers and --only=webhook in \
                 Deployments of their own, each as its own service account"
            );
        }
        let recordings = flags.record_failures.is_none().then_some(recordings);
        let config = ConfigWatcher::new(&component, logging.clone(), recordings);
        let console = Console::new(&component, &version, environment.pod.as_deref(), registry.clone());
        let config_informers = environment.system_namespace.as_deref().map_or_else(Vec::new, |namespace| {
            config.watch(&cx, namespace, &environment.config_maps, participant.is_some())
        });
        let controllers = constructed.controllers.iter().map(Controller::health).collect();
        Ok(Process {
            pass_dump: Passes::new(cx.get(), controllers),
            replica: Replica::new(&cx, constructed, participant, lease_transport, control, shadow),
            bare: bare.client(),
            review_transport,
            component,
            version,
            flags,
            access,
            credentials,
            environment,
            logging,
            registry,
            config,
            console,
            passes: cx.get(),
            recordings: cx.get(),
            _config_informers: config_informers,
        })
    }
}

fn refuse_outer_runtime() -> Result<(), Failure> {
    match Handle::try_current() {
        Ok(_) => Err(Failure::new(
            "main was called from within a tokio runtime, but starts a runtime of its own: call it from a plain fn main \
             without #[tokio::main], or on a thread of std::thread::spawn",
        )),
        Err(_) => Ok(()),
    }
}

/// A process whose constructors have run. Nothing has started.
struct Process {
    replica: Replica,
    component: String,
    version: String,
    flags: Flags,
    access: Access,
    credentials: Arc<Credentials>,
    environment: Environment,
    logging: Logging,
    /// The client for the start of the process, which neither retries nor limits requests.
    bare: Client,
    /// The transport of reviews of those who read the metrics. It has connections of its own, which blocked threads do not
    /// hold up.
    review_transport: Transport,
    registry: Registry,
    config: ConfigWatcher,
    console: Console,
    passes: PassLog,
    recordings: Recordings,
    pass_dump: Passes,
    /// Keeps the informers of the ConfigMaps running.
    _config_informers: Vec<Arc<dyn InformerHandle>>,
}

impl Process {
    async fn serve_probes(&self, probes: &Probes) -> Result<(), Failure> {
        const FLAG: &str = "--health-probe-bind-address";
        let (host, port, variable) = match self.flags.health_probe_bind_address {
            Some(EndpointAddress::Off) => return Ok(()),
            Some(EndpointAddress::On { ip, port }) => (Host::of_flag(ip, FLAG), port, FLAG),
            None => (None, self.environment.probes_port, "KNATIVE_HEALTH_PROBES_PORT"),
        };
        let (host, router) = (host.or(self.flags.host()), probes.router());
        listen::serve(&self.replica.control, "probes", host, port, variable, Plain, router).await
    }

    /// Connects to the API server, reads the ConfigMaps, and opens the ports that they configure.
    async fn connect(
        &self,
        participant: Option<Participant>,
        shutdown: &Shutdown,
    ) -> Result<(Election, Exports), Failure> {
        let startup = Startup::new(&self.access, &self.credentials, self.flags.startup_timeout);
        let version = startup.check_version(&self.bare, &self.environment.min_version).await?;
        let Access { config, origin, .. } = &self.access;
        tracing::info!(server = %config.cluster_url, version, "connected to the API server of {origin}");
        let maps = match self.environment.system_namespace.as_deref() {
            Some(namespace) => {
                let names = &self.environment.config_maps;
                ConfigMaps::read(&startup, &self.bare, namespace, names, participant.is_some()).await?
            }
            None => ConfigMaps::default(),
        };
        self.config.start(&maps);
        let exports = self.start_observability(&maps.observability, shutdown).await?;
        Ok((self.elect(participant, &maps)?, exports))
    }

    fn elect(&self, participant: Option<Participant>, maps: &ConfigMaps) -> Result<Election, Failure> {
        let Some(participant) = participant else {
            tracing::info!("leader election is disabled");
            return Ok(Election::Disabled);
        };
        if self.environment.system_namespace.as_deref() == Some("kube-system") {
            tracing::warn!(
                "the program runs in kube-system, where its permission for leases includes those of Kubernetes itself: \
                 install it in a namespace of its own"
            );
        }
        let Environment { pod, pod_uid, termination_message_path, .. } = &self.environment;
        let termination_message_path = Some(termination_message_path.as_path());
        let uid = pod_uid.as_deref().filter(|_| self.access.origin == Origin::Pod);
        let pod = Pod { name: pod.as_deref(), uid, termination_message_path };
        let component = self.environment.lease_component.as_ref().unwrap_or(&self.component);
        self.replica.elect(participant, component, pod, &maps.leader_election, &self.registry)
    }

    /// Opens the ports of metrics and profiles, and starts the exports.
    async fn start_observability(
        &self,
        config: &ObservabilityConfig,
        shutdown: &Shutdown,
    ) -> Result<Exports, Failure> {
        self.serve_metrics(&config.metrics).await?;
        self.serve_profiles().await?;
        self.serve_console().await?;
        let (namespace, pod) =
            (self.environment.system_namespace.as_deref(), self.environment.pod.as_deref());
        // The names are OpenTelemetry's semantic conventions.
        let attributes = [
            ("service.name", Some(self.component.as_str())),
            ("service.version", Some(self.version.as_str())),
            ("k8s.namespace.name", namespace),
            ("k8s.pod.name", pod),
            ("service.instance.id", pod),
        ];
        let _entered = self.replica.control.enter();
        Exports::start(config, &attributes, self.registry.clone(), &self.logging.tracer, shutdown.clone())
    }

    async fn serve_metrics(&self, metrics: &Metrics) -> Result<(), Failure> {
        const FLAG: &str = "--metrics-bind-address";
        let Metrics::Prometheus { host, port } = metrics else { return Ok(()) };
        let (from_flag, flag_port) = match self.flags.metrics_bind_address {
            Some(EndpointAddress::Off) => return Ok(()),
            Some(EndpointAddress::On { ip, port }) => (Host::of_flag(ip, FLAG), Some(port)),
            None => (None, None),
        };
        let variable = if flag_port.is_some() { FLAG } else { "METRICS_PROMETHEUS_PORT" };
        let port = flag_port.or(self.environment.metrics_port).or(*port).unwrap_or(9090);
        let from_env =
            self.environment.metrics_host.map(|ip| Host { ip, setting: "METRICS_PROMETHEUS_HOST" });
        let from_config_map = host.map(|ip| Host { ip, setting: "metrics-endpoint in config-observability" });
        let host = from_flag.or(from_env).or(from_config_map).or(self.flags.host());
        let router = metrics::router(self.registry.clone());
        let control = &self.replica.control;
        if !self.flags.reviews_readers() {
            return listen::serve(control, "metrics", host, port, variable, Plain, router).await;
        }
        let tls = SelfSigned::new()
            .map_err(|error| Failure::new(format!("cannot issue a certificate for metrics: {error}")))?;
        let client = {
            let _entered = control.enter();
            self.review_transport.client()
        };
        let router = require_access(router, client);
        listen::serve(control, "metrics", host, port, variable, tls, router).await
    }

    /// Opens the port of the console: now if the flag sets it, or else while config-observability enables it.
    async fn serve_console(&self) -> Result<(), Failure> {
        let (console, control) = (self.console.clone(), &self.replica.control);
        match self.flags.console_bind_address {
            Some(EndpointAddress::Off) => {}
            Some(EndpointAddress::On { ip, port }) => {
                console.serve_at(control, ip, port).await.map_err(Failure::new)?;
            }
            None => drop(control.spawn(console.serve_while(self.config.console.clone(), console::PORT))),
        }
        Ok(())
    }

    /// Opens the port of profiles and of the dump of passes, which answers while user code blocks the workers. Does
    /// nothing without a system namespace, because no ConfigMap could enable profiling.
    async fn serve_profiles(&self) -> Result<(), Failure> {
        if self.environment.system_namespace.is_none() {
            return Ok(());
        }
        let (port, router) =
            (self.environment.profiling_port, self.config.profiling.router(self.pass_dump.router()));
        listen::serve(
            &self.replica.control,
            "profiling",
            self.flags.host(),
            port,
            "PROFILING_PORT",
            Plain,
            router,
        )
        .await
    }
}

/// Prints a recorded pass, or the names of those in a folder. An image needs no shell for it.
fn print_recorded(path: &Path) -> ExitCode {
    let printed = read_recorded(path).and_then(|text| std::io::stdout().write_all(text.as_bytes()));
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let failure = Failure::new(format!("failed to print {}: {error}", path.display()));
            let _ = writeln!(std::io::stderr(), "{failure}");
            failure.exit_code()
        }
    }
}
