//! A process that competes for one lease, with a client whose requests a test can intercept.

use std::{future::Future, sync::Arc, time::Duration};

use futures::FutureExt;
use http::{Request, Response};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    client::Body,
};
use prometheus::Registry;
use reknit_apis::Key;
use reknit_leadership::{
    LeaderElectionConfig, Leadership,
    internal::{Candidate, Electors, Identity, lease_client},
};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};
use tower::BoxError;

/// The shortest valid durations, since leases count whole seconds.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(3);
pub(crate) const RENEW_DEADLINE: Duration = Duration::from_secs(2);
pub(crate) const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The timeout of each wait. It is long, because the machine may be busy.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const QUEUE: &str = "lamps.demo";
/// The lease of the queue's only bucket.
pub(crate) const LEASE_NAME: &str = "test.lamps.demo.00-of-01";

pub(crate) fn config() -> LeaderElectionConfig {
    LeaderElectionConfig {
        lease_duration: LEASE_DURATION,
        renew_deadline: RENEW_DEADLINE,
        retry_period: RETRY_PERIOD,
        ..LeaderElectionConfig::default()
    }
}

/// Longer durations, for tests in which a slow response must not end leadership.
pub(crate) fn long_config() -> LeaderElectionConfig {
    LeaderElectionConfig {
        lease_duration: LEASE_DURATION * 5,
        renew_deadline: RENEW_DEADLINE * 5,
        ..config()
    }
}

/// A candidate for the lease. Dropping it kills the process: the lease is not released, and its leadership expires.
pub(crate) struct Process {
    pub(crate) identity: Identity,
    pub(crate) leadership: Leadership,
    stop: Option<oneshot::Sender<()>>,
    electors: JoinHandle<()>,
}

impl Process {
    pub(crate) fn start(client: Client, namespace: &str, config: &LeaderElectionConfig) -> Self {
        let identity = Identity::on("host");
        let (own, registry) = (identity.clone(), Registry::new());
        let candidate = Candidate::new(client, namespace, "test", own, config, &registry).unwrap();
        let (leadership, electors) = Electors::new(&candidate, QUEUE).unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = stopped.map(drop).shared();
        // There are no passes to wait for, so a process that stops has drained.
        let electors = tokio::spawn(electors.run(stopped.clone(), stopped));
        Self { identity, leadership, stop: Some(stop), electors }
    }

    pub(crate) fn leads(&self) -> bool {
        self.leadership.leads(&key())
    }

    /// Waits until this process no longer leads.
    pub(crate) async fn wait_for_loss(&self) {
        let Some(pass) = self.leadership.start_pass(&key()) else { return };
        tokio::time::timeout(TIMEOUT, pass.lost()).await.expect("leadership did not end in time");
    }

    /// Waits until this process gains the bucket.
    pub(crate) async fn wait_for_leadership(&mut self) {
        let promoted = async { while self.leadership.changed().await.gained.is_empty() {} };
        tokio::time::timeout(TIMEOUT, promoted).await.expect("the process did not become the leader in time");
    }

    /// Stops the process as SIGTERM does, with nothing to drain.
    pub(crate) async fn stop(mut self) {
        self.stop.take();
        (&mut self.electors).await.expect("the electors panicked");
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

/// Returns the client of an elector.
pub(crate) fn elector_client(plane: &reknit_testing::ControlPlane) -> Client {
    lease_client(plane.config().unwrap()).unwrap()
}

/// Returns a client that passes its requests through `interceptor`. Each request runs in a task, so that it is not
/// cancelled when its caller stops waiting.
pub(crate) fn client_with_interceptor<F>(
    client: Client,
    interceptor: impl Fn(Client, Request<Body>) -> F + Send + 'static,
) -> Client
where
    F: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
{
    let service = tower::service_fn(move |request| {
        let response = tokio::spawn(interceptor(client.clone(), request));
        async move { response.await? }
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

    pub(crate) async fn create(&self, name: &str, spec: Value) {
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

    pub(crate) async fn is_empty(&self) -> bool {
        self.0.list(&Default::default()).await.unwrap().items.is_empty()
    }
}

/// The spec of a lease whose times are long past. A process does not rely on these times: it waits until it has seen
/// the lease unchanged for the lease's own duration, here a second.
pub(crate) fn expired_lease() -> Value {
    json!({"holderIdentity": "dead", "leaseDurationSeconds": 1, "leaseTransitions": 4,
        "acquireTime": "2020-01-01T00:00:00.000000Z", "renewTime": "2020-01-01T00:00:00.000000Z"})
}
