//! A process that takes part in leader election.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Api, Client, client::ClientBuilder};
use kube_leader_election::{Error as LockError, LeaseLock};
use parking_lot::Mutex;
use prometheus::Registry;
use reknit_injection::{
    Informer, Permission, Verb,
    internal::{jittered, watch},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    config::{LeaderElectionConfig, is_lease_name},
    error::Error,
    heartbeat::Heartbeat,
    identity::Identity,
    last_writes::LastWrites,
    lease::{Guard, LeaseWatch, RunningControllers, asked_wait},
    metrics::ElectionMetrics,
    moment::Deadline,
    retries::{Retries, pause_within},
};

/// Creates a client for a [`Candidate`] that does not retry requests: a retry would delay the answer beyond the
/// deadline of an attempt. Call this function within a tokio runtime.
///
/// # Errors
///
/// Returns an error for a configuration from which no client can be created.
pub fn lease_client(mut config: kube::Config) -> Result<Client, Error> {
    config.default_retry = false;
    Ok(ClientBuilder::try_from(config).map_err(Error::Client)?.build())
}

/// A process that takes part in leader election. Clones stand for the same process.
///
/// ```no_run
/// # async fn example(config: kube::Config, registry: prometheus::Registry) -> Result<(), Box<dyn std::error::Error>> {
/// # let (sigterm, drained) = (std::future::pending(), std::future::pending());
/// use reknit_leadership::LeaderElectionConfig;
/// use reknit_leadership::internal::{Candidate, Electors, Identity, lease_client};
///
/// let (client, election) = (lease_client(config)?, LeaderElectionConfig::default());
/// let candidate =
///     Candidate::new(client, "knative-samples", "controller", Identity::of_process(), &election, &registry)?;
/// let (leadership, electors) = Electors::new(&candidate, "addressableservices.samples.knative.dev")?;
/// // The controller gets the leadership. The electors run beside it until it has drained.
/// electors.run(sigterm, drained).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Candidate {
    client: Client,
    namespace: String,
    pub(crate) component: String,
    pub(crate) identity: Identity,
    pub(crate) config: LeaderElectionConfig,
    pub(crate) metrics: ElectionMetrics,
    pub(crate) watch: LeaseWatch,
    /// The budget of failed attempts that are repeated.
    pub(crate) retries: Retries,
    /// The heartbeat of the runtime that runs the passes.
    passes: Option<Heartbeat>,
    /// The Pod that this process runs in.
    pub(crate) owner: Option<OwnerReference>,
    /// The controllers whose electors run, which the [`Member`](crate::internal::Member) announces.
    pub(crate) controllers: Arc<watch::Sender<RunningControllers>>,
    /// The time until which this process may rely on being known to the other members.
    pub(crate) member_until: Arc<Mutex<Option<Deadline>>>,
}

impl Candidate {
    /// Creates a candidate for the leases of this component in the system namespace, with a client from
    /// [`lease_client`]. Registers the gauge `leader_election_master_status` of each lease, and the gauges
    /// `reknit_leader_election_*` of each controller's buckets.
    ///
    /// # Errors
    ///
    /// Returns the error of [`LeaderElectionConfig::check_times`], or an error if the registry already has these
    /// metrics. A process needs only one candidate.
    pub fn new(
        client: Client,
        namespace: &str,
        component: &str,
        identity: Identity,
        config: &LeaderElectionConfig,
        registry: &Registry,
    ) -> Result<Self, Error> {
        config.check_times()?;
        Ok(Self {
            client,
            namespace: namespace.into(),
            component: component.into(),
            identity,
            config: config.clone(),
            metrics: ElectionMetrics::register(registry)?,
            watch: LeaseWatch::default(),
            retries: Retries::default(),
            passes: None,
            owner: None,
            controllers: Arc::default(),
            member_until: Arc::default(),
        })
    }

    /// Watches the leases of the system namespace by an informer, which selects that namespace and is not started yet.
    /// Then a released lease is taken at once and an expired one when it expires, and the replicas whose
    /// [`Member`](crate::internal::Member) runs divide the buckets among them. Without a watch, or if the API server
    /// refuses it, a candidate polls each lease at the retry period and leads all buckets that it gets.
    pub fn watching(mut self, leases: Informer<Lease>) -> Self {
        self.watch = LeaseWatch::of(leases);
        self
    }

    /// Stops to acquire and renew leases once the runtime that runs the passes has been silent for the renew deadline.
    /// If the electors run in another runtime, they would otherwise lead for ever while no pass makes progress.
    pub fn while_alive(mut self, passes: Heartbeat) -> Self {
        self.passes = Some(passes);
        self
    }

    /// Returns true if the passes have made no progress for the renew deadline.
    pub(crate) fn is_stalled(&self) -> bool {
        self.passes.as_ref().is_some_and(|passes| passes.silence() >= self.config.renew_deadline)
    }

    /// The pause of an elector or member that is stalled.
    pub(crate) fn stalled_pause(&self) -> Duration {
        self.config.retry_period / 5
    }

    /// Sets the owner of this process's own lease, the Pod that it runs in, with which the lease is deleted.
    pub fn owned_by(mut self, pod: OwnerReference) -> Self {
        self.owner = Some(pod);
        self
    }

    /// The pause after a failed attempt on a lease, jittered so that candidates that started at the same time spread their
    /// attempts. It is as long as the API server asked, or else a fifth of the retry period before the `deadline` of a
    /// lease that this process holds, and the retry period without one. Before the deadline, many attempts fit.
    pub(crate) fn pause_after(&self, lease: &str, error: &LockError, deadline: Option<Instant>) -> Duration {
        let jittered = |wait, part| jittered(format_args!("elector/{lease}"), wait, part);
        let (retry, asked) = (self.config.retry_period, asked_wait(error));
        let asked = asked.map(|asked| jittered(asked * 5 / 4, 0.2)); // not earlier than the server asked
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            Some(left) => pause_within(asked.unwrap_or_else(|| jittered(retry / 5, 0.5)), left),
            None => asked.map_or_else(|| jittered(retry, 0.5), |asked| asked.min(self.config.renew_deadline)),
        }
    }

    /// Returns true before the renew deadline of this process's own lease.
    pub(crate) fn is_member(&self, now: Instant) -> bool {
        self.member_until.lock().is_some_and(|until| now < until.instant())
    }

    /// Returns the names of a controller's leases, one for each bucket.
    pub(crate) fn lease_names(&self, controller: &str) -> Result<Vec<Arc<str>>, Error> {
        let component = &self.component;
        let names = self.config.bucket_names(component, controller);
        if let Some(name) = names.iter().find(|name| !is_lease_name(name)) {
            return Err(Error::Invalid(format!(
                "the lease of queue {controller:?} would have the invalid name {name:?}; rename the controller, or set \
                 map-lease-prefix.{component}.{controller}"
            )));
        }
        Ok(names.into_iter().map(Arc::from).collect())
    }

    /// Creates the lock on a Lease. Every write adds the metadata to the Lease, and a release the last writes. Call this
    /// function within a tokio runtime.
    pub(crate) fn lock(&self, lease: &str, metadata: Value, last_writes: Arc<LastWrites>) -> LeaseLock {
        let (client, watch) = (self.client.clone(), self.watch.clone());
        let guard = Guard::new(client, lease, self.identity.as_str(), watch, metadata, last_writes);
        guard.lock(&self.namespace, &self.config)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(crate) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }
}

/// Returns the permissions that leader election needs in the system namespace, for the generated RBAC rules.
///
/// A Lease has a name for each controller, bucket and replica, and `create` cannot be restricted to names, so the
/// permission is on all Leases of the namespace. A replica deletes its own Lease when it stops, and those of dead
/// replicas. It reads the Pod of a replica whose renewals are overdue, which may prove that the replica is dead.
pub fn permissions() -> Vec<Permission> {
    let verbs = [Verb::Get, Verb::List, Verb::Watch, Verb::Create, Verb::Patch, Verb::Delete];
    vec![Permission::new("coordination.k8s.io", "leases", verbs), Permission::new("", "pods", [Verb::Get])]
}
