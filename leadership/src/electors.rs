//! The electors of one controller's buckets.

use std::{future::Future, sync::Arc};

use futures::{FutureExt, future::join_all};
use reknit_injection::InformerHandle;

use crate::{
    balance::Balance, bucket::Buckets, candidate::Candidate, elector::Elector, error::Error,
    leadership::Leadership, selections::shorten,
};

/// The electors of one controller's buckets. They acquire and renew leases while they [run](Self::run).
#[must_use = "no bucket is led unless the electors run"]
pub struct Electors {
    candidate: Candidate,
    controller: String,
    /// The text of the controller's selection, if known.
    selects: Option<String>,
    electors: Vec<Elector>,
}

impl Electors {
    /// Creates the leadership of a controller and the electors of its buckets, each with its own Lease. The electors
    /// acquire no lease until they run. Call this function within a tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns an error for a name of the controller that is not valid in the name of a lease.
    pub fn new(candidate: &Candidate, controller: &str) -> Result<(Leadership, Self), Error> {
        let buckets = Buckets::unknown(candidate.lease_names(controller)?);
        let balance = Arc::new(Balance::new(candidate.clone(), controller, buckets.clone()));
        let sampled = Arc::downgrade(&balance); // weak, because the candidate in it has the metrics
        candidate.metrics.add(controller, move || Some(sampled.upgrade()?.sample()));
        let writers = buckets.writers(&candidate.identity).into_iter();
        let electors =
            writers.map(|bucket| Elector::new(candidate.clone(), balance.clone(), bucket)).collect();
        let electors =
            Self { candidate: candidate.clone(), controller: controller.into(), selects: None, electors };
        Ok((Leadership::of(buckets, candidate.config.lease_duration), electors))
    }

    /// Announces what the controller selects, so that a process warns of another one that shares its leases and selects
    /// other objects. A text of more than 225 characters, such as one of many namespaces, is cut and ends with its hash,
    /// because the size of annotations is limited.
    pub fn selecting(mut self, selects: &str) -> Self {
        self.selects = Some(shorten(selects));
        self
    }

    /// Sets the informers that the passes read. A leader that releases a lease then names its last writes in it, and this
    /// process begins to lead once these informers have those of the last leader, or once half of the renew deadline without
    /// a retry period has passed.
    pub fn reading(self, informers: &[Arc<dyn InformerHandle>]) -> Self {
        self.electors.iter().for_each(|elector| elector.last_writes.set_informers(informers));
        self
    }

    /// Acquires and renews the leases. After `stopping` resolves, no further lease is acquired, but held leases are
    /// renewed, so that running passes can end. After `drained` resolves too, the leases are released, and another
    /// process acquires them at once if it watches Leases, otherwise at its next attempt. Returns after the release. A
    /// release that takes longer than five seconds is given up: the lease then expires.
    ///
    /// If this future is dropped instead, leadership ends at the renew deadline and the leases expire.
    pub async fn run(
        self,
        stopping: impl Future<Output = ()> + Send,
        drained: impl Future<Output = ()> + Send,
    ) {
        let Self { candidate, controller, selects, electors } = self;
        let (stopping, drained) = (stopping.shared(), drained.shared());
        tokio::select! {
            biased;
            () = stopping.clone() => return,
            () = candidate.watch.wait_until_synced(candidate.config.retry_period) => {}
        }
        candidate.controllers.send_modify(|running| {
            running.insert(controller.clone(), selects);
        });
        let announced = async {
            stopping.clone().await;
            candidate.controllers.send_if_modified(|running| running.remove(&controller).is_some());
        };
        let electors = electors.into_iter().map(|elector| elector.run(stopping.clone(), drained.clone()));
        tokio::join!(announced, join_all(electors));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::Registry;
    use reknit_apis::Key;

    use super::*;
    use crate::{config::LeaderElectionConfig, fake::FakeApi, identity::Identity};

    fn candidate(config: &LeaderElectionConfig, registry: &Registry) -> Result<Candidate, Error> {
        let client = FakeApi::default().client();
        Candidate::new(client, "ns", "Controller", Identity::on("host"), config, registry)
    }

    #[tokio::test(start_paused = true)]
    async fn each_bucket_has_a_lease() {
        let config = LeaderElectionConfig { buckets: 2, ..Default::default() };
        let registry = Registry::new();
        let candidate = candidate(&config, &registry).unwrap();
        let (mut leadership, electors) = Electors::new(&candidate, "lamps.demo").unwrap();
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
    async fn long_selections_are_cut_and_still_differ() {
        let (config, registry) = (LeaderElectionConfig::default(), Registry::new());
        let candidate = candidate(&config, &registry).unwrap();
        let announced = |controller: &str, selects: &str| {
            let (_leadership, electors) = Electors::new(&candidate, controller).unwrap();
            electors.selecting(selects).selects.unwrap()
        };
        let (short, long) = ("namespace=ä".to_owned() + &"a".repeat(189), "ä,".repeat(1000));
        assert_eq!(announced("short", &short), short);
        let (one, other) = (announced("one", &long), announced("other", &(long.clone() + "b")));
        assert!(one != other && one.starts_with("ä,ä,") && one.chars().count() < 230, "{one}");
    }

    #[tokio::test]
    async fn electors_that_have_ended_are_freed_although_their_metrics_stay() {
        let registry = Registry::new();
        let candidate = candidate(&Default::default(), &registry).unwrap();
        let (_leadership, electors) = Electors::new(&candidate, "lamps.demo").unwrap();
        let balance = Arc::downgrade(&electors.electors[0].balance);
        drop(electors);
        assert_eq!((balance.strong_count(), registry.gather().len()), (0, 0));
    }

    #[tokio::test]
    async fn a_queue_name_that_is_no_valid_lease_name_is_refused() {
        let candidate = candidate(&Default::default(), &Registry::new()).unwrap();
        for queue in ["lamps/demo", "", "lämps", ".lamps", &"l".repeat(250)] {
            let error = Electors::new(&candidate, queue).err().unwrap().to_string();
            assert!(error.contains("map-lease-prefix.Controller."), "{error}");
        }
    }

    #[tokio::test]
    async fn durations_that_allow_two_leaders_are_refused() {
        let config = LeaderElectionConfig { renew_deadline: Duration::from_secs(60), ..Default::default() };
        assert!(matches!(candidate(&config, &Registry::new()), Err(Error::Config(_))));
    }

    #[tokio::test]
    async fn metrics_are_registered_once_a_process() {
        let registry = Registry::new();
        candidate(&Default::default(), &registry).unwrap();
        let error = candidate(&Default::default(), &registry).err().unwrap();
        assert!(matches!(error, Error::Metrics(_)), "{error}");
    }
}
