//! A process that takes part in the election for one lease, with a client whose requests a test can change.

use std::{future::Future, sync::Arc, time::Duration};

use futures::FutureExt;
use http::{Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    client::Body,
};
use reknit_apis::Key;
use reknit_reconciler::leader::{Candidate, Identity, LeaderElectionConfig, Leadership, lease_client};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};
use tower::BoxError;

/// The shortest valid durations, since leases count whole seconds.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const RENEW: Duration = Duration::from_secs(2);
pub(crate) const RETRY: Duration = Duration::from_secs(1);
/// The time limit of each expectation, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) const QUEUE: &str = "lamps.demo";
/// The lease of the queue's only bucket.
pub(crate) const NAME: &str = "test.lamps.demo.00-of-01";

pub(crate) fn config() -> LeaderElectionConfig {
    LeaderElectionConfig {
        lease_duration: LEASE,
        renew_deadline: RENEW,
        retry_period: RETRY,
        ..LeaderElectionConfig::default()
    }
}

/// Longer durations, for tests in which slow answers must not end leadership.
pub(crate) fn patient() -> LeaderElectionConfig {
    LeaderElectionConfig { lease_duration: LEASE * 5, renew_deadline: RENEW * 5, ..config() }
}

/// A process that is killed when dropped. It then releases nothing, and its leadership expires.
pub(crate) struct Process {
    pub(crate) identity: Identity,
    pub(crate) leadership: Leadership,
    stop: Option<oneshot::Sender<()>>,
    electors: JoinHandle<()>,
}

impl Process {
    pub(crate) fn start(client: Client, namespace: &str, config: &LeaderElectionConfig) -> Self {
        let identity = Identity::on("test");
        let candidate = Candidate::new(client, namespace, "test", identity.clone(), config).unwrap();
        let (leadership, electors) = candidate.stand(QUEUE).unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = stopped.map(drop).shared();
        let electors = tokio::spawn(electors.run(stopped.clone(), stopped));
        Self { identity, leadership, stop: Some(stop), electors }
    }

    pub(crate) fn leads(&self) -> bool {
        self.leadership.leads(&key())
    }

    pub(crate) async fn lost(&self) {
        tokio::time::timeout(SOON, self.leadership.lost(&key())).await.expect("leadership ends");
    }

    /// Waits for a promotion.
    pub(crate) async fn led(&mut self) {
        let promoted = async { while self.leadership.changed().await.gained.is_empty() {} };
        tokio::time::timeout(SOON, promoted).await.expect("the process becomes leader");
    }

    /// Stops as after a SIGTERM, with nothing to drain.
    pub(crate) async fn stop(mut self) {
        self.stop.take();
        (&mut self.electors).await.expect("the electors end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.electors.abort();
    }
}

pub(crate) fn key() -> Key {
    Key::new("default", "web")
}

/// The lease client of a process.
pub(crate) fn client(plane: &reknit_testing::ControlPlane) -> Client {
    lease_client(plane.config().unwrap()).unwrap()
}

/// A lease client whose requests pass through `tamper`. A request is not cancelled when its caller stops waiting, like a
/// request that is already on its way to the server.
pub(crate) fn tampered<F>(
    client: Client,
    tamper: impl Fn(Client, Request<Body>) -> F + Send + 'static,
) -> Client
where
    F: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
{
    let service = tower::service_fn(move |request| {
        let answer = tokio::spawn(tamper(client.clone(), request));
        async move { answer.await? }
    });
    Client::new(service, "default")
}

/// The Leases in the namespace of one test.
#[derive(Clone)]
pub(crate) struct Leases(Arc<Api<Lease>>);

impl Leases {
    pub(crate) fn of(client: Client, namespace: &str) -> Self {
        Self(Arc::new(Api::namespaced(client, namespace)))
    }

    pub(crate) async fn put(&self, name: &str, spec: Value) {
        let lease = json!({"metadata": {"name": name}, "spec": spec});
        self.0.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    }

    pub(crate) async fn label(&self, name: &str, value: &str) {
        let patch = json!({"metadata": {"labels": {"touched": value}}});
        self.0.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    pub(crate) async fn get(&self, name: &str) -> Lease {
        self.0.get(name).await.unwrap()
    }

    pub(crate) async fn holder(&self, name: &str) -> String {
        self.get(name).await.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    }

    pub(crate) async fn none(&self) -> bool {
        self.0.list(&Default::default()).await.unwrap().items.is_empty()
    }
}

/// A lease whose times are in the distant past. A process that observes it first still waits for its duration.
pub(crate) fn expired() -> Value {
    json!({"holderIdentity": "dead", "leaseDurationSeconds": 1, "leaseTransitions": 4,
        "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"})
}
