//! The console: a page that shows what the process does, and the JSON behind it. It only reads.
//!
//! A view is a function from the [`State`] to JSON, and a path in [`routes`]. [`guard`] decides which requests reach a view.
//! The views read the metrics of the process and the health of its controllers. The console stores nothing but the last
//! handovers of buckets. What the page plots, the page samples.

mod controllers;
mod gathered;
mod guard;
mod informers;
mod keys;
mod leadership;
mod passes;
mod routes;
#[cfg(test)]
mod tests;
mod webhook;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::coordination::v1::Lease;
use prometheus::Registry;
use reknit_injection::{
    Informer, Informers,
    internal::{Recordings, watch},
};
use reknit_leadership::Leadership;
use reknit_reconciler::{Health, internal::PassLog};
use reknit_server::{Limits, Plain, Server};
use tokio::{net::TcpListener, runtime::Handle, sync::Semaphore};

use self::{gathered::Gathered, leadership::Handovers};
use crate::process::listen::{self, Host};

const PURPOSE: &str = "the console";
const FLAG: &str = "--console-bind-address";
/// The port, unless the flag sets another address.
pub(crate) const PORT: u16 = 8009;
/// The path of the page.
const PATH: &str = "/debug/reknit/";
/// A page has one connection, or a few at its start.
const CONNECTIONS: usize = 20;
/// The number of answers in memory at once. Each may have some megabytes.
const ANSWERS: usize = 2;

/// The switch of the key `console` of config-observability, which may change at any time.
pub(crate) type Switch = Arc<watch::Sender<bool>>;

/// The console of a process.
#[derive(Clone)]
pub(crate) struct Console(Arc<State>);

/// The parameters of a request.
type Parameters = BTreeMap<String, String>;

/// The parts of the process that views read.
struct State {
    component: String,
    version: String,
    pod: Option<String>,
    registry: Registry,
    /// A permit for each answer, until it is sent.
    answers: Arc<Semaphore>,
    /// Set once the controllers have started.
    running: OnceLock<Running>,
}

/// The running parts of the process.
pub(crate) struct Running {
    pub(crate) controllers: Vec<(Health, Leadership)>,
    pub(crate) informers: Informers,
    /// The Leases of this namespace, if they elect the leaders.
    pub(crate) leases: Option<(Informer<Lease>, String)>,
    pub(crate) passes: PassLog,
    pub(crate) recordings: Recordings,
    handovers: Handovers,
}

impl Running {
    /// Records handovers from now on.
    pub(crate) fn new(
        controllers: Vec<(Health, Leadership)>,
        informers: Informers,
        leases: Option<(Informer<Lease>, String)>,
        passes: PassLog,
        recordings: Recordings,
    ) -> Self {
        let handovers = Handovers::default();
        for (health, leadership) in controllers.iter().filter(|(_, leadership)| leadership.has_buckets()) {
            tokio::spawn(handovers.clone().follow(health.name().to_owned(), leadership.clone()));
        }
        Self { controllers, informers, leases, passes, recordings, handovers }
    }
}

impl Console {
    pub(crate) fn new(component: &str, version: &str, pod: Option<&str>, registry: Registry) -> Self {
        Self(Arc::new(State {
            component: component.into(),
            version: version.into(),
            pod: pod.map(Into::into),
            registry,
            answers: Arc::new(Semaphore::new(ANSWERS)),
            running: OnceLock::new(),
        }))
    }

    /// Shows these controllers and informers from now on.
    pub(crate) fn set_running(&self, running: Running) {
        // Cannot fail: a process starts once.
        let _ = self.0.running.set(running);
    }

    /// Serves at the address of the flag until the process ends.
    ///
    /// # Errors
    ///
    /// Fails if the address or the port is not available.
    pub(crate) async fn serve_at(
        self,
        control: &Handle,
        ip: Option<IpAddr>,
        port: u16,
    ) -> Result<(), String> {
        let serving = control.spawn(async move {
            let listener = open(ip, port).await?;
            tokio::spawn(self.server().run(listener, std::future::pending()));
            Ok(())
        });
        serving.await.map_err(|error| error.to_string()).flatten()
    }

    /// Serves at this port of 127.0.0.1 while the switch is on. A port that is in use is logged: it does not end the
    /// process.
    pub(crate) async fn serve_while(self, switch: Switch, port: u16) {
        let (mut on, mut off) = (switch.subscribe(), switch.subscribe());
        loop {
            // Never fails: `switch` is a sender.
            let _ = on.wait_for(|on| *on).await;
            match open(None, port).await {
                Ok(listener) => {
                    let is_off = async { off.wait_for(|on| !*on).await.unwrap_or_default() };
                    self.server().run(listener, is_off).await;
                    tracing::info!("the console is disabled");
                }
                Err(error) => {
                    tracing::error!("{error}");
                    let _ = off.wait_for(|on| !*on).await;
                }
            }
        }
    }

    fn server(&self) -> Server<Plain> {
        let limits = Limits { connections: CONNECTIONS, ..Limits::default() };
        Server::new(PURPOSE, Plain, routes::router(self.0.clone()), limits)
    }
}

/// Opens the port, on 127.0.0.1 unless the flag names another address.
async fn open(ip: Option<IpAddr>, port: u16) -> Result<TcpListener, String> {
    let ip = ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let listener = listen::open(PURPOSE, Some(Host { ip, setting: FLAG }), port, Some(FLAG)).await?;
    listen::log_address(PURPOSE, &listener);
    if !ip.is_loopback() {
        tracing::warn!(
            "the console asks nobody for a password, and {FLAG} opens it to everyone who reaches {ip}: a NetworkPolicy \
             or 127.0.0.1 with kubectl port-forward limits that"
        );
    }
    Ok(listener)
}

impl State {
    fn controllers(&self) -> &[(Health, Leadership)] {
        self.running.get().map_or(&[], |running| &running.controllers)
    }

    fn gather(&self) -> Gathered {
        Gathered(self.registry.gather())
    }
}
