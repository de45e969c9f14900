//! Replicas of the sample controller that share an API server, each with its own user and its own link to it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt, api::ListParams};
use reknit::testing::{Program, eventually};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    audit::Write,
    history::{bucket_names, replica_name},
    load::SERVICE,
};
use crate::support::{
    link::{Condition, Link},
    objects::Objects,
    process::{self, Process, SendSignal, Signal},
    proxy::Proxy,
    server::Server,
    wait::TIMEOUT,
};

/// The durations of leader election.
#[derive(Clone, Copy)]
pub(super) struct Durations {
    pub lease: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

/// The default durations.
pub(super) const DEFAULT_LEASES: Durations = durations(60, 40, 10);
/// Short durations, so that a lease expires within seconds.
pub(super) const SHORT_LEASES: Durations = durations(6, 4, 1);

const fn durations(lease: u64, renew_deadline: u64, retry_period: u64) -> Durations {
    Durations {
        lease: Duration::from_secs(lease),
        renew_deadline: Duration::from_secs(renew_deadline),
        retry_period: Duration::from_secs(retry_period),
    }
}

/// Two clusters run at a time, because their replicas compete for the processors.
static TURNS: Semaphore = Semaphore::const_new(2);

/// A namespace in which replicas of the sample controller run.
pub(super) struct Cluster {
    server: Server,
    pub objects: Objects,
    pub durations: Durations,
    /// The number of replicas that were started so far.
    started: AtomicUsize,
    _turn: SemaphorePermit<'static>,
}

/// A process of the sample controller. No two replicas have the same name.
pub(super) struct Replica {
    pub name: String,
    pub process: Process,
    /// The link to the API server, unless the replica connects through a proxy.
    link: Option<Link>,
}

impl Cluster {
    /// Creates a namespace in which service accounts may do everything, and configures leader election.
    pub(super) async fn start(name: &str, durations: Durations, buckets: u32) -> Self {
        let turn = TURNS.acquire().await.expect("the semaphore is never closed");
        let server = Server::audited().await;
        let objects = server.objects_in_new_namespace(name).await;
        let cluster = Self { server, objects, durations, started: AtomicUsize::new(0), _turn: turn };
        let namespace = &cluster.objects.namespace;
        cluster
            .apply(&json!({
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
                    "name": format!("system:serviceaccounts:{namespace}"),
                }],
            }))
            .await;
        cluster.set_buckets(buckets).await;
        cluster.objects.create_service(SERVICE).await;
        cluster
    }

    /// Sets the number of buckets of the replicas that start from now on.
    pub(super) async fn set_buckets(&self, buckets: u32) {
        let seconds = |duration: Duration| format!("{}s", duration.as_secs());
        self.apply(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "config-leader-election", "namespace": self.objects.namespace},
            "data": {
                "lease-duration": seconds(self.durations.lease),
                "renew-deadline": seconds(self.durations.renew_deadline),
                "retry-period": seconds(self.durations.retry_period),
                "buckets": buckets.to_string(),
            },
        }))
        .await;
    }

    async fn apply(&self, object: &Value) {
        self.server.apply_yaml(&object.to_string()).await.expect("the object is applied");
    }

    /// Starts a replica, and waits until it is ready.
    pub(super) async fn start_replica(&self) -> Replica {
        self.start_replica_of(process::controller).await
    }

    /// Starts a replica of a program, and waits until it is ready. The argument makes the program from a kubeconfig.
    pub(super) async fn start_replica_of(&self, program: impl FnOnce(&Path) -> Program) -> Replica {
        let replica = self.spawn_replica_of(program).await;
        replica.process.wait_until_ready().await;
        replica
    }

    pub(super) async fn spawn_replica(&self) -> Replica {
        self.spawn_replica_of(process::controller).await
    }

    async fn spawn_replica_of(&self, program: impl FnOnce(&Path) -> Program) -> Replica {
        let config = self.server.config().expect("a configuration");
        let link = Link::start(config.cluster_url.authority().expect("an address").as_str()).await;
        let name = self.next_name();
        let kubeconfig = link.kubeconfig("https", &self.kubeconfig(&name).await);
        Replica { process: self.spawn(&name, program(&kubeconfig)), name, link: Some(link) }
    }

    /// Starts a replica of a program that connects to the API server through a proxy, and waits until it is ready.
    pub(super) async fn start_replica_through(
        &self,
        proxy: &Proxy,
        program: impl FnOnce(&Path) -> Program,
    ) -> Replica {
        let name = self.next_name();
        let kubeconfig = proxy.kubeconfig(&self.kubeconfig(&name).await);
        let replica = Replica { process: self.spawn(&name, program(&kubeconfig)), name, link: None };
        replica.process.wait_until_ready().await;
        replica
    }

    pub(super) async fn proxy(&self) -> Proxy {
        self.server.proxy().await
    }

    fn next_name(&self) -> String {
        format!("replica-{}", self.started.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The path of a kubeconfig for the service account of the replica with this name.
    async fn kubeconfig(&self, name: &str) -> PathBuf {
        self.server.kubeconfig_as(&self.objects.namespace, name).await.expect("a service account")
    }

    fn spawn(&self, name: &str, program: Program) -> Process {
        let namespace = &self.objects.namespace;
        program.in_namespace(namespace).with_leader_election(namespace, name).spawn()
    }

    /// Starts three replicas, and waits until they share ten buckets.
    pub(super) async fn start_three_replicas(&self) -> [Replica; 3] {
        let replicas = [self.start_replica().await, self.start_replica().await, self.start_replica().await];
        self.wait_for_shares(&[4, 3, 3]).await;
        replicas
    }

    /// Waits until the replicas lead these numbers of ten buckets, in any order.
    pub(super) async fn wait_for_shares(&self, expected: &[usize]) {
        self.wait_for_holders(&format!("the shares {expected:?}"), |shares| {
            let mut counts: Vec<_> = shares.values().copied().collect();
            counts.sort_by(|one, other| other.cmp(one));
            counts == expected
        })
        .await;
    }

    /// Waits until ten buckets are held, and the number of buckets of each replica satisfies the condition.
    pub(super) async fn wait_for_holders(
        &self,
        what: &str,
        condition: impl Fn(&BTreeMap<String, usize>) -> bool,
    ) {
        eventually(what, TIMEOUT, async || {
            let shares = self.shares(10).await;
            if condition(&shares) && shares.values().sum::<usize>() == 10 {
                Ok(())
            } else {
                Err(format!("{shares:?}"))
            }
        })
        .await;
    }

    /// The number of buckets that each replica holds, of this number of buckets.
    pub(super) async fn shares(&self, buckets: u32) -> BTreeMap<String, usize> {
        let leases: Api<Lease> = Api::namespaced(self.objects.client.clone(), &self.objects.namespace);
        let list = leases.list(&ListParams::default()).await.expect("the Leases");
        let names = bucket_names(buckets);
        let mut shares = BTreeMap::new();
        for lease in list.into_iter().filter(|lease| names.contains(&lease.name_any())) {
            let holder = lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty());
            if let Some(holder) = holder {
                *shares.entry(replica_name(&holder).to_owned()).or_default() += 1;
            }
        }
        shares
    }

    /// The writes so far, in the order in which they took effect.
    pub(super) fn writes(&self) -> Vec<Write> {
        Write::all(&self.server, &self.objects.namespace)
    }
}

impl Replica {
    pub(super) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// The lines that the replica has logged about a lease, each with the time first.
    pub(super) fn log_of(&self, lease: &str) -> Vec<String> {
        let lines = self.process.lines().into_iter().filter(|line| line["lease"] == lease);
        lines
            .map(|line| {
                format!("{} {}: {} {}", line["timestamp"], self.name, line["message"], line["reason"])
            })
            .collect()
    }

    pub(super) fn set_link(&self, condition: Condition) {
        self.link.as_ref().expect("a link").set(condition);
    }

    /// Sends SIGTERM, and waits until the process has exited.
    pub(super) async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.process.wait_for_exit().await;
        assert!(status.success(), "{status} after SIGTERM:\n{}", self.process.last_lines());
    }

    /// Kills the process.
    pub(super) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.process.wait_for_exit().await;
    }
}
