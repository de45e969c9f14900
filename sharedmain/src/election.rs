//! Leader election of a process: which replica reconciles which keys.
use std::path::Path;

use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::OwnerReference};
use prometheus::Registry;
use reknit_injection::{
    Context, Informer,
    internal::{Transport, variable},
    select,
};
use reknit_leadership::{
    LeaderElectionConfig, Leadership,
    internal::{Candidate, Electors, Heartbeat, Identity, Member, StatefulReplica},
};
use reknit_reconciler::Controller;
use tokio::runtime::Handle;

use crate::{
    cli::environment::Environment,
    process::{failure::Failure, termination_message::write_identity},
};

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
    /// Returns the member that announces this process to the other replicas, if leases elect the leaders.
    pub(crate) fn member(&self) -> Option<Member> {
        match self {
            Self::Disabled | Self::Stateful { .. } => None,
            Self::Leases(candidate) => Some(Member::new(candidate)),
        }
    }

    /// Returns the leadership of a controller, and with leases the electors that have to run for it.
    pub(crate) fn join(&self, controller: &Controller) -> Result<(Leadership, Option<Electors>), Failure> {
        match self {
            Self::Disabled => Ok((Leadership::always(), None)),
            Self::Stateful { replica, buckets, namespace } => {
                let domain = reknit_apis::cluster_domain();
                let leadership = Leadership::stateful(replica, *buckets, namespace, domain);
                Ok((leadership.map_err(Failure::new)?, None))
            }
            Self::Leases(candidate) => {
                let (leadership, electors) =
                    Electors::new(candidate, controller.name()).map_err(Failure::new)?;
                Ok((
                    leadership,
                    Some(electors.selecting(controller.selects()).reading(controller.informers())),
                ))
            }
        }
    }
}

/// A replica that takes part in leader election, before `config-leader-election` is read.
pub(crate) struct Participant {
    namespace: String,
    identity: Identity,
    replica: Option<StatefulReplica>,
}

/// What leader election needs of its process.
pub(crate) struct Control<'a> {
    pub(crate) runtime: &'a Handle,
    pub(crate) transport: &'a Transport,
    /// The heartbeat of the runtime that runs the passes.
    pub(crate) passes: Heartbeat,
}

/// The Pod that a process runs in, as far as the environment names it.
#[derive(Clone, Copy)]
pub(crate) struct Pod<'a> {
    pub(crate) name: Option<&'a str>,
    /// Its uid, if it runs in the cluster that the controllers work in. The garbage collector of another cluster would
    /// delete what it owns.
    pub(crate) uid: Option<&'a str>,
    /// The file whose contents the kubelet reports once the container has terminated. `None` in a simulation.
    pub(crate) termination_message_path: Option<&'a Path>,
}

impl Pod<'_> {
    fn owner_reference(self) -> Option<OwnerReference> {
        let (name, uid) = (self.name?.to_owned(), self.uid?.to_owned());
        Some(OwnerReference { api_version: "v1".into(), kind: "Pod".into(), name, uid, ..Default::default() })
    }
}

impl Participant {
    /// Reads the environment. Returns `None` with `--disable-ha`.
    pub(crate) fn new(disable_ha: bool, environment: &Environment) -> Result<Option<Self>, Failure> {
        if disable_ha {
            return Ok(None);
        }
        let namespace = environment.lease_namespace()?.to_owned();
        let replica = StatefulReplica::from_env(variable).map_err(Failure::new)?;
        let identity = environment.pod.as_deref().map_or_else(Identity::of_process, Identity::on);
        Ok(Some(Self { namespace, identity, replica }))
    }

    /// A participant in this namespace and Pod that is no replica of a StatefulSet.
    pub(crate) fn in_namespace(namespace: &str, pod: &str) -> Self {
        Self { namespace: namespace.into(), identity: Identity::on(pod), replica: None }
    }

    /// The identity of this process as the holder of leases.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the informer of the leases of the system namespace, which is not started yet. `None` in a StatefulSet.
    pub(crate) fn lease_informer(&self, cx: &Context) -> Option<Informer<Lease>> {
        self.replica.is_none().then(|| cx.informer(select().namespace(&self.namespace)))
    }

    /// Chooses the election: by ordinal in a StatefulSet, and by leases everywhere else. The electors use the control
    /// runtime and connections of their own: a request on a dead connection costs an attempt, and an elector has few
    /// attempts.
    pub(crate) fn elect(
        self,
        component: &str,
        pod: Pod<'_>,
        leases: Option<Informer<Lease>>,
        Control { runtime, transport, passes }: Control<'_>,
        config: &LeaderElectionConfig,
        registry: &Registry,
    ) -> Result<Election, Failure> {
        let Self { namespace, identity, replica } = self;
        if let Some(replica) = replica {
            return Ok(Election::Stateful { replica, buckets: config.buckets, namespace });
        }
        if let Some(path) = pod.termination_message_path {
            write_identity(path, &identity);
        }
        let client = {
            let _entered = runtime.enter();
            transport.client()
        };
        let mut candidate = Candidate::new(client, &namespace, component, identity, config, registry)
            .map_err(|e| Failure::new(format!("leader election: {e}")))?
            .while_alive(passes);
        if let Some(leases) = leases {
            candidate = candidate.watching(leases);
        }
        if let Some(owner) = pod.owner_reference() {
            candidate = candidate.owned_by(owner);
        }
        Ok(Election::Leases(Box::new(candidate)))
    }
}
