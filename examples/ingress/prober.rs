//! Probes which version of a host the gateways serve.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use http::{Request, header::HOST};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use parking_lot::Mutex;
use reknit::{injection::Inject, prelude::*, reconciler::PerKey};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// The header of a gateway's answer with the version that it serves.
const VERSION_HEADER: &str = "route-version";
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The version that a gateway serves, which is empty if it does not serve the host.
type Answer = Result<String, String>;
type SendProbe = dyn Fn(SocketAddr, String) -> BoxFuture<'static, Answer> + Send + Sync;

/// Asks a gateway for the version of a host, over HTTP. A test provides another implementation.
#[derive(Clone)]
pub(crate) struct Probes(pub(crate) Arc<SendProbe>);

impl Inject for Probes {
    fn inject(_: &Context) -> Self {
        let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        Self(Arc::new(move |gateway, host| send(client.clone(), gateway, host).boxed()))
    }
}

async fn send(client: Client<HttpConnector, String>, gateway: SocketAddr, host: String) -> Answer {
    let request = Request::get(format!("http://{gateway}/")).header(HOST, host).header("route-probe", "");
    let request = request.body(String::new()).map_err(|error| error.to_string())?;
    let answer = timeout(PROBE_TIMEOUT, client.request(request)).await.map_err(|_| "no answer within 1s")?;
    let answer = answer.map_err(|error| format!("{:#}", reknit::reconciler::Error::from(error)))?;
    let version = answer.headers().get(VERSION_HEADER).and_then(|version| version.to_str().ok());
    Ok(version.unwrap_or_default().into())
}

/// The state of a host that all gateways should have.
#[derive(Clone, PartialEq)]
pub(crate) struct Target {
    pub(crate) host: String,
    /// The uid and the generation of a Route.
    pub(crate) version: String,
    /// Serve this version, or no version of the Route.
    pub(crate) is_served: bool,
    pub(crate) gateways: BTreeSet<SocketAddr>,
}

impl Target {
    fn is_reached(&self, served: &str) -> bool {
        let uid = |version: &str| version.split('/').next().map(str::to_owned);
        if self.is_served { served == self.version } else { uid(served) != uid(&self.version) }
    }
}

/// `Ok` once all gateways have reached the goal, and until then what the first of them does instead.
type Progress = Result<(), String>;

/// Probes gateways in the background, and enqueues the key of a Route when its progress changes. A probe ends when its
/// goal is reached, or this replica stops leading the key.
pub(crate) struct Prober {
    pub(crate) probes: Probes,
    pub(crate) running: PerKey<Arc<Running>>,
    pub(crate) queue: Queue,
}

pub(crate) struct Running {
    target: Target,
    progress: Arc<Mutex<Progress>>,
    _task: AbortOnDropHandle<()>,
}

impl Prober {
    /// Returns the progress of this target. Probes it instead of an earlier target of the key.
    pub(crate) fn progress(&self, key: Key, target: Target) -> Progress {
        if let Some(running) = self.running.get(&key).filter(|running| running.target == target) {
            return running.progress.lock().clone();
        }
        let started = Err("probing the gateways".to_owned());
        let progress = Arc::new(Mutex::new(started.clone()));
        let (queue, same_key) = (self.queue.clone(), key.clone());
        let task =
            run(self.probes.clone(), target.clone(), progress.clone(), move || queue.add(same_key.clone()));
        let task = AbortOnDropHandle::new(tokio::spawn(task));
        self.running.insert(key, Arc::new(Running { target, progress, _task: task }));
        started
    }
}

async fn run(probes: Probes, target: Target, progress: Arc<Mutex<Progress>>, on_change: impl Fn()) {
    loop {
        let answers = target.gateways.iter().map(|gateway| (probes.0)(*gateway, target.host.clone()));
        let newest = progress_of(&target, join_all(answers).await);
        let last = std::mem::replace(&mut *progress.lock(), newest.clone());
        if last != newest {
            on_change();
        }
        if newest.is_ok() {
            return;
        }
        sleep(PROBE_INTERVAL).await;
    }
}

fn progress_of(target: &Target, answers: Vec<Answer>) -> Progress {
    for (gateway, answer) in target.gateways.iter().zip(answers) {
        let served = answer.map_err(|error| format!("the gateway {gateway} cannot be probed: {error}"))?;
        if !target.is_reached(&served) {
            return Err(format!("the gateway {gateway} serves {served:?} for {}", target.host));
        }
    }
    Ok(())
}
