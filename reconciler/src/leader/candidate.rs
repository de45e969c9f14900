//! A process that stands for election: what it needs once, and the leadership of each controller it runs.

use std::{future::Future, sync::Arc};

use futures::{FutureExt, future::join_all};
use kube::{Client, client::ClientBuilder};
use prometheus::{IntGaugeVec, Opts, Registry};

use super::{
    Error, Identity, LeaderElectionConfig, Leadership, bucket_reporter::BucketReporter,
    config::is_lease_name, elector::Elector,
};

/// A client for [`Candidate`]s: one that never repeats a request by itself. A client's own retries would hold an
/// answer back until it is worth nothing, with no leadership decided meanwhile.
///
/// # Errors
///
/// A configuration that no client can be made of. Has to be called within a tokio runtime.
pub fn lease_client(mut config: kube::Config) -> Result<Client, Error> {
    config.default_retry = false;
    Ok(ClientBuilder::try_from(config).map_err(Error::Client)?.build())
}

/// What the electors of one process have in common.
///
/// ```no_run
/// # async fn example(config: kube::Config, registry: prometheus::Registry) -> Result<(), Box<dyn std::error::Error>> {
/// # let (sigterm, drained) = (std::future::pending(), std::future::pending());
/// use reknit_reconciler::leader::{Candidate, Identity, LeaderElectionConfig, lease_client};
///
/// let election = LeaderElectionConfig::default();
/// let client = lease_client(config)?;
/// let candidate = Candidate::new(client, "knative-samples", "controller", Identity::of_process(), &election)?
///     .metrics(&registry)?;
/// let (leadership, electors) = candidate.stand("addressableservices.samples.knative.dev")?;
/// // The controller gets the leadership; the electors run beside it until it has drained.
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
    status: Option<IntGaugeVec>,
}

impl Candidate {
    /// A candidate for the leases of this component in the system namespace, by a client that [`lease_client`] made.
    ///
    /// # Errors
    ///
    /// Durations that [cannot elect a leader](LeaderElectionConfig::check_times).
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
            status: None,
        })
    }

    /// Shows in this registry which leases are held, as the gauge `leader_election_master_status` with the
    /// label `name`: 1 for a lease held here, 0 for the others.
    ///
    /// # Errors
    ///
    /// A registry that has such a metric already: one candidate is enough for a process.
    pub fn metrics(mut self, registry: &Registry) -> Result<Self, Error> {
        let opts = Opts::new(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. \
             'name' is the string used to identify the lease. Please make sure to group by name.",
        );
        let status = IntGaugeVec::new(opts, &["name"])?;
        registry.register(Box::new(status.clone()))?;
        self.status = Some(status);
        Ok(self)
    }

    /// Stands for the buckets of one queue, each a Lease of its own. Nothing is contended for until the electors
    /// run.
    ///
    /// # Errors
    ///
    /// A queue name of which no lease can be named.
    pub fn stand(&self, queue: &str) -> Result<(Leadership, Electors), Error> {
        let leases = self.leases(queue)?;
        let (leadership, buckets) = Leadership::elected(leases);
        let electors = buckets.into_iter().map(|bucket| {
            let gauge = self.status.as_ref().map(|status| status.with_label_values(&[bucket.name()]));
            let bucket = BucketReporter::new(bucket, self.identity.clone(), gauge);
            Elector::new(self.client.clone(), &self.namespace, &self.config, bucket)
        });
        Ok((leadership, Electors(electors.collect())))
    }

    fn leases(&self, queue: &str) -> Result<Vec<Arc<str>>, Error> {
        let names = self.config.bucket_names(&self.component, queue);
        if let Some(name) = names.iter().find(|name| !is_lease_name(name)) {
            let (component, queue, name) = (self.component.clone(), queue.into(), name.clone());
            return Err(Error::LeaseName { component, queue, name });
        }
        Ok(names.into_iter().map(Arc::from).collect())
    }
}

/// The electors of one controller's buckets. Leadership is contended for, and kept, while they [run](Self::run).
#[must_use = "nothing is ever led unless the electors run"]
pub struct Electors(Vec<Elector>);

impl Electors {
    /// Contends for every bucket, and keeps what was acquired. Once `stopping` resolves no further bucket is
    /// acquired, but what is led goes on being renewed, so that work in flight can end; once `drained` resolves as
    /// well the leases are released, and another process takes over at its next look. Returns when that is done,
    /// or could not be done within five seconds: a lease not released lapses after its duration.
    ///
    /// Where this is dropped instead, leadership ends by the renew deadline and leases lapse.
    pub async fn run(
        self,
        stopping: impl Future<Output = ()> + Send,
        drained: impl Future<Output = ()> + Send,
    ) {
        let (stopping, drained) = (stopping.shared(), drained.shared());
        join_all(self.0.into_iter().map(|elector| elector.run(stopping.clone(), drained.clone()))).await;
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
    async fn each_bucket_is_a_lease_that_one_process_can_lead_alone() {
        let config = LeaderElectionConfig { buckets: 2, ..Default::default() };
        let registry = Registry::new();
        let candidate = candidate(&config).unwrap().metrics(&registry).unwrap();
        let (mut leadership, electors) = candidate.stand("lamps.demo").unwrap();
        let shown = || {
            registry.gather()[0].get_metric().iter().map(|m| m.get_gauge().get_value()).collect::<Vec<_>>()
        };
        assert_eq!(shown(), [0.0, 0.0]);

        // The fake knows only one lease, which whoever reads it holds: one identity leads both.
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
        assert!(leadership.leads(&Key::new("default", "web")) && leadership.known());
        assert_eq!(shown(), [1.0, 1.0]);
        run.abort();
    }

    #[tokio::test]
    async fn a_queue_of_which_no_lease_can_be_named_is_refused() {
        for queue in ["lamps/demo", "", "lämps", ".lamps", &"l".repeat(250)] {
            let error = candidate(&Default::default()).unwrap().stand(queue).err().unwrap().to_string();
            assert!(error.contains("map-lease-prefix.Controller."), "{error}");
        }
    }

    #[tokio::test]
    async fn durations_that_let_two_lead_are_refused() {
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
