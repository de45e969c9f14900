//! Leader election of a process: which replica reconciles which keys.
use kube::Client;
use prometheus::Registry;
use reknit_reconciler::leader::{
    Candidate, Electors, Identity, LeaderElectionConfig, Leadership, StatefulReplica,
};

use crate::{cli::environment::Environment, process::failure::Failure};

/// The method by which this process becomes a leader.
pub(crate) enum Election {
    /// `--disable-ha`: this process leads everything.
    Disabled,
    /// A replica of a StatefulSet leads the bucket of its ordinal.
    Stateful { replica: StatefulReplica, buckets: u32, namespace: String },
    /// The holder of a bucket's lease leads it.
    Leases(Box<Candidate>),
}

impl Election {
    /// Returns the leadership of a controller, and with leases the electors that have to run for it.
    pub(crate) fn join(&self, controller: &str) -> Result<(Leadership, Option<Electors>), Failure> {
        match self {
            Self::Disabled => Ok((Leadership::always(), None)),
            Self::Stateful { replica, buckets, namespace } => {
                let domain = reknit_apis::cluster_domain();
                let leadership = Leadership::stateful(replica, *buckets, namespace, domain);
                Ok((leadership.map_err(Failure::new)?, None))
            }
            Self::Leases(candidate) => {
                let (leadership, electors) = candidate.electors_for(controller).map_err(Failure::new)?;
                Ok((leadership, Some(electors)))
            }
        }
    }
}

/// A replica that takes part in leader election, before `config-leader-election` is read.
pub(crate) struct Participant {
    namespace: String,
    replica: Option<StatefulReplica>,
}

impl Participant {
    /// Reads the environment. Returns `None` with `--disable-ha`.
    pub(crate) fn new(disable_ha: bool, environment: &Environment) -> Result<Option<Self>, Failure> {
        if disable_ha {
            return Ok(None);
        }
        let namespace = environment.lease_namespace()?.to_owned();
        let replica = StatefulReplica::from_env(|name| std::env::var(name).ok()).map_err(Failure::new)?;
        Ok(Some(Self { namespace, replica }))
    }

    /// Chooses the election: by ordinal in a StatefulSet, and by leases everywhere else. `client` makes the client of
    /// the electors, which needs its own connections: a request on a dead connection costs an attempt, and an elector
    /// has few attempts.
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
