//! A process that takes part in leader election, and the electors of its controllers.

use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};

use futures::{FutureExt, future::join_all};
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Client, client::ClientBuilder};
use parking_lot::Mutex;
use prometheus::Registry;
use reknit_injection::Informer;
use tokio::{sync::watch, time::Instant};

use super::{
    Error, Identity, LeaderElectionConfig, Leadership, Member,
    bucket::BucketReporter,
    config::is_lease_name,
    elector::Elector,
    lease::LeaseWatch,
    members::{Balance, Membership},
    metrics::ElectionMetrics,
};

/// Creates a client for [`Candidate`]s that does not retry requests: a retry would delay the answer beyond the deadline
/// of an attempt. Call this function within a tokio runtime.
///
/// # Errors
///
/// Returns an error for a configuration from which no client can be created.
pub fn lease_client(mut config: kube::Config) -> Result<Client, Error> {
    config.default_retry = false;
    Ok(ClientBuilder::try_from(config).map_err(Error::Client)?.build())
}

/// A process that takes part in leader election.
///
/// ```no_run
/// # async fn example(config: kube::Config, registry: prometheus::Registry) -> Result<(), Box<dyn std::error::Error>> {
/// # let (sigterm, drained) = (std::future::pending(), std::future::pending());
/// use reknit_leadership::{Candidate, Identity, LeaderElectionConfig, lease_client};
///
/// let election = LeaderElectionConfig::default();
/// let client = lease_client(config)?;
/// let candidate = Candidate::new(client, "knative-samples", "controller", Identity::of_process(), &election)?
///     .metrics(&registry)?;
/// let (leadership, electors) = candidate.electors_for("addressableservices.samples.knative.dev")?;
/// // The controller gets the leadership. The electors run beside it until it has drained.
/// electors.run(sigterm, drained).await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Candidate {
    client: Client,
    namespace: String,
    identity: Identity,
    config: LeaderElectionConfig,
    component: String,
    metrics: Option<ElectionMetrics>,
    pub(super) watch: LeaseWatch,
    owner: Option<OwnerReference>,
    /// The controllers whose electors run.
    controllers: Arc<watch::Sender<BTreeSet<String>>>,
    /// The time until which this process may rely on being known to the other members.
    valid_until: Arc<Mutex<Option<Instant>>>,
}

impl Candidate {
    /// Creates a candidate for the leases of this component in the system namespace, with a client from
    /// [`lease_client`].
    ///
    /// # Errors
    ///
    /// Returns the error of [`LeaderElectionConfig::check_times`].
    pub fn new(
        client: Client,
        namespace: &str,
        component: &str,
        identity: Identity,
        config: &LeaderElectionConfig,
    ) -> Result<Self, Error> {
        config.check_times()?;
        Ok(Self {
            client,
            namespace: namespace.into(),
            component: component.into(),
            identity,
            config: config.clone(),
            metrics: None,
            watch: LeaseWatch::none(),
            owner: None,
            controllers: Arc::default(),
            valid_until: Arc::default(),
        })
    }

    /// Watches the leases of the system namespace by an informer, which selects that namespace and is not started yet.
    /// Then a released lease is taken at once and an expired one when it expires, and the replicas whose
    /// [`member`](Self::member) runs divide the buckets among them. Without a watch, or if the API server refuses it,
    /// a candidate polls each lease at the retry period and leads all buckets that it gets.
    pub fn watching(mut self, leases: Informer<Lease>) -> Self {
        self.watch = LeaseWatch::of(leases);
        self
    }

    /// Sets the owner of this process's own lease, the Pod that it runs in, with which the lease is deleted.
    pub fn owned_by(mut self, pod: OwnerReference) -> Self {
        self.owner = Some(pod);
        self
    }

    /// Returns the member that announces this process to the other replicas. A process has one member, for all of its
    /// controllers.
    pub fn member(&self) -> Member {
        Member {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            component: self.component.clone(),
            identity: self.identity.clone(),
            config: self.config.clone(),
            watch: self.watch.clone(),
            owner: self.owner.clone(),
            controllers: self.controllers.subscribe(),
            valid_until: self.valid_until.clone(),
        }
    }

    /// Registers the gauge `leader_election_master_status` of each lease, and the gauges
    /// `reknit_leader_election_*` of each controller's buckets.
    ///
    /// # Errors
    ///
    /// Returns an error if the registry already has these metrics. A process needs only one candidate.
    pub fn metrics(mut self, registry: &Registry) -> Result<Self, Error> {
        self.metrics = Some(ElectionMetrics::register(registry)?);
        Ok(self)
    }

    /// Creates the leadership of one queue and the electors of its buckets, each with its own Lease. The electors
    /// acquire no lease until they run.
    ///
    /// # Errors
    ///
    /// Returns an error for a queue name that is not valid in the name of a lease.
    pub fn electors_for(&self, queue: &str) -> Result<(Leadership, Electors), Error> {
        let names = self.lease_names(queue)?;
        let (identity, buckets) = (self.identity.as_str(), self.config.buckets);
        let membership = Membership::new(identity, &self.component, queue, buckets, self.valid_until.clone());
        let balance = Arc::new(Balance::new(names.clone(), membership, self.watch.clone()));
        let (leadership, buckets) = Leadership::elected(names);
        if let (Some(metrics), Some(bucket)) = (&self.metrics, buckets.first()) {
            metrics.count_buckets(queue, &balance, bucket);
        }
        let electors = buckets.into_iter().map(|bucket| {
            let metrics = self.metrics.as_ref().map(|metrics| metrics.bucket(queue, bucket.name()));
            let bucket = BucketReporter::new(bucket, self.identity.clone(), metrics);
            let (client, watch) = (self.client.clone(), self.watch.clone());
            Elector::new(client, &self.namespace, &self.config, watch, balance.clone(), bucket)
        });
        let electors = Electors {
            electors: electors.collect(),
            balance: balance.clone(),
            sync_limit: self.config.retry_period,
            controller: queue.into(),
            running: self.controllers.clone(),
        };
        Ok((leadership, electors))
    }

    /// The names of the queue's leases.
    fn lease_names(&self, queue: &str) -> Result<Vec<Arc<str>>, Error> {
        let names = self.config.bucket_names(&self.component, queue);
        if let Some(name) = names.iter().find(|name| !is_lease_name(name)) {
            let (component, queue, name) = (self.component.clone(), queue.into(), name.clone());
            return Err(Error::LeaseName { component, queue, name });
        }
        Ok(names.into_iter().map(Arc::from).collect())
    }
}

/// The electors of one controller's buckets. They acquire and renew leases while they [run](Self::run).
#[must_use = "no bucket is led unless the electors run"]
pub struct Electors {
    electors: Vec<Elector>,
    balance: Arc<Balance>,
    /// The time to wait for the first list of leases before they are polled.
    sync_limit: Duration,
    controller: String,
    /// The controllers whose electors run, which the member announces.
    running: Arc<watch::Sender<BTreeSet<String>>>,
}

impl Electors {
    /// Acquires and renews the leases. After `stopping` resolves, no further lease is acquired, but held leases are
    /// renewed, so that running passes can end. After `drained` resolves too, the leases are released, and another
    /// process acquires them at its next attempt. Returns after the release. A release that takes longer than five
    /// seconds is given up: the lease then expires.
    ///
    /// If this future is dropped instead, leadership ends at the renew deadline and the leases expire.
    pub async fn run(
        self,
        stopping: impl Future<Output = ()> + Send,
        drained: impl Future<Output = ()> + Send,
    ) {
        let (stopping, drained) = (stopping.shared(), drained.shared());
        tokio::select! {
            () = self.balance.wait_until_synced(self.sync_limit) => {}
            () = stopping.clone() => return,
        }
        self.running.send_modify(|running| {
            running.insert(self.controller.clone());
        });
        let announced = async {
            stopping.clone().await;
            self.running.send_modify(|running| {
                running.remove(&self.controller);
            });
        };
        let electors =
            self.electors.into_iter().map(|elector| elector.run(stopping.clone(), drained.clone()));
        tokio::join!(announced, join_all(electors));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reknit_apis::Key;

    use super::{super::fake::FakeApi, *};

    fn candidate(config: &LeaderElectionConfig) -> Result<Candidate, Error> {
        let client = FakeApi::default().client();
        Candidate::new(client, "ns", "Controller", Identity::on("host"), config)
    }

    #[tokio::test(start_paused = true)]
    async fn each_bucket_has_a_lease() {
        let config = LeaderElectionConfig { buckets: 2, ..Default::default() };
        let registry = Registry::new();
        let candidate = candidate(&config).unwrap().metrics(&registry).unwrap();
        let (mut leadership, electors) = candidate.electors_for("lamps.demo").unwrap();
        let gauge_values = || {
            let families = registry.gather();
            families[0].get_metric().iter().map(|metric| metric.get_gauge().get_value()).collect::<Vec<_>>()
        };
        assert_eq!(gauge_values(), [0.0, 0.0]);

        let run = tokio::spawn(electors.run(std::future::pending(), std::future::pending()));
        let mut gained = Vec::new();
        while gained.len() < 2 {
            gained.extend(leadership.changed().await.gained);
        }
        gained.sort();
        assert_eq!(
            gained,
            ["controller.lamps.demo.00-of-02".into(), "controller.lamps.demo.01-of-02".into()]
        );
        assert!(leadership.leads(&Key::new("default", "web")) && leadership.has_known_leaders());
        assert_eq!(gauge_values(), [1.0, 1.0]);
        run.abort();
    }

    #[tokio::test]
    async fn a_queue_name_that_is_no_valid_lease_name_is_refused() {
        for queue in ["lamps/demo", "", "lämps", ".lamps", &"l".repeat(250)] {
            let error =
                candidate(&Default::default()).unwrap().electors_for(queue).err().unwrap().to_string();
            assert!(error.contains("map-lease-prefix.Controller."), "{error}");
        }
    }

    #[tokio::test]
    async fn durations_that_allow_two_leaders_are_refused() {
        let config = LeaderElectionConfig { renew_deadline: Duration::from_secs(60), ..Default::default() };
        assert!(matches!(candidate(&config), Err(Error::Config(_))));
    }

    #[tokio::test]
    async fn metrics_are_registered_once_a_process() {
        let registry = Registry::new();
        candidate(&Default::default()).unwrap().metrics(&registry).unwrap();
        let error = candidate(&Default::default()).unwrap().metrics(&registry).err().unwrap();
        assert!(matches!(error, Error::Metrics(_)), "{error}");
    }
}
