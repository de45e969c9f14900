//! How the replicas of a process share the work.
use kube::Client;
use prometheus::Registry;
use reknit_reconciler::{
    Controller,
    leader::{Candidate, Electors, Identity, LeaderElectionConfig, Leadership, StatefulReplica},
};

use crate::{cli::environment::Environment, process::failure::Failure};

/// Decided once for the process; each controller then has a leadership of its own.
pub(crate) enum Election {
    /// `--disable-ha`: this process does everything.
    Disabled,
    /// A replica of a StatefulSet leads the bucket of its ordinal.
    Stateful { replica: StatefulReplica, buckets: u32, namespace: String },
    /// A lease for each bucket.
    Leases(Box<Candidate>),
}

/// A controller that may start: its leases have names.
pub(crate) struct Standing {
    pub(crate) controller: Controller,
    pub(crate) leadership: Leadership,
    /// What has to run for it.
    pub(crate) electors: Option<Electors>,
}

impl Election {
    pub(crate) fn stand(&self, controller: Controller) -> Result<Standing, Failure> {
        let (leadership, electors) = self.lead(controller.name())?;
        Ok(Standing { controller, leadership, electors })
    }

    /// The leadership of one controller, and what has to run for it.
    fn lead(&self, controller: &str) -> Result<(Leadership, Option<Electors>), Failure> {
        match self {
            Self::Disabled => Ok((Leadership::always(), None)),
            Self::Stateful { replica, buckets, namespace } => {
                let domain = reknit_apis::cluster_domain();
                let leadership = Leadership::stateful(replica, *buckets, namespace, domain);
                Ok((leadership.map_err(Failure::new)?, None))
            }
            Self::Leases(candidate) => {
                let (leadership, electors) = candidate.stand(controller).map_err(Failure::new)?;
                Ok((leadership, Some(electors)))
            }
        }
    }
}

/// Takes part in elections; how is not known before config-leader-election is.
pub(crate) struct Voter {
    namespace: String,
    replica: Option<StatefulReplica>,
}

impl Voter {
    /// Nobody, where `--disable-ha` says so.
    pub(crate) fn of(disable_ha: bool, environment: &Environment) -> Result<Option<Self>, Failure> {
        if disable_ha {
            return Ok(None);
        }
        let namespace = environment.namespace_for_leases()?.to_owned();
        let replica = StatefulReplica::from_env(|name| std::env::var(name).ok()).map_err(Failure::new)?;
        Ok(Some(Self { namespace, replica }))
    }

    /// By ordinal in a StatefulSet, and by leases everywhere else. Electors need connections that nobody else uses: one
    /// whose other end is gone without a word costs whoever takes it an attempt, and they have few.
    pub(crate) fn elect(
        self,
        component: &str,
        pod: Option<&str>,
        client: impl FnOnce() -> Result<Client, Failure>,
        config: &LeaderElectionConfig,
        registry: &Registry,
    ) -> Result<Election, Failure> {
        let Self { namespace, replica } = self;
        if let Some(replica) = replica {
            return Ok(Election::Stateful { replica, buckets: config.buckets, namespace });
        }
        let identity = pod.map_or_else(Identity::of_process, Identity::on);
        let candidate = Candidate::new(client()?, &namespace, component, identity, config)
            .and_then(|candidate| candidate.metrics(registry))
            .map_err(|e| Failure::new(format!("leader election: {e}")))?;
        Ok(Election::Leases(Box::new(candidate)))
    }
}
