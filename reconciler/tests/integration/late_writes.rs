//! The writes of a dead leader that a proxy delivers after another replica has taken over by the proof of its death.

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use futures::future::join_all;
use http::{Method, Request, Response};
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Pod, Secret, ServiceAccount},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use prometheus::Registry;
use reknit_injection::{Context, Shutdown, select};
use reknit_leadership::{
    LeaderElectionConfig, Leadership,
    internal::{Candidate, Electors, Identity, Member, lease_client},
};
use reknit_reconciler::{Controller, Outcome, Owned, OwnedOptions, ReconcileKind, Result, Run};
use reknit_testing::{ControlPlane, eventually};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use crate::{Fixture, TIMEOUT};

/// The shortest time from the proof of a death to the first pass of a successor.
const FENCE: Duration = Duration::from_secs(2);
/// The account that is updated, and neither created nor deleted.
const SETTINGS: &str = "settings";

/// Writes children as the data of the owner asks: a Deployment is applied, Secrets are created with generated names, and
/// accounts are created, updated and deleted. All writes of a pass are sent at once.
struct Children {
    deployments: Owned<Deployment>,
    secrets: Owned<Secret>,
    accounts: Owned<ServiceAccount>,
}

impl ReconcileKind for Children {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, owner: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let data = owner.data.clone().unwrap_or_default();
        let (applied, secrets, accounts) = tokio::join!(
            self.deployments.apply(owner, deployment(&data["replicas"])),
            self.scale_secrets(owner, data["secrets"].parse()?),
            self.sync_accounts(owner, &data["account"], &data["replicas"]),
        );
        applied?;
        secrets.and(accounts)?;
        Ok(Outcome::done())
    }
}

impl Children {
    async fn scale_secrets(&self, owner: &ConfigMap, wanted: usize) -> Result<()> {
        let secrets: Vec<_> = self.secrets.of(owner).collect();
        for _ in secrets.len()..wanted {
            let mut secret = Secret::default();
            secret.metadata.generate_name = Some("secret-".into());
            self.secrets.create(owner, secret).await?;
        }
        for surplus in secrets.iter().skip(wanted) {
            self.secrets.delete(surplus).await?;
        }
        Ok(())
    }

    async fn sync_accounts(&self, owner: &ConfigMap, wanted: &str, version: &str) -> Result<()> {
        let unwanted: Vec<_> = self.accounts.of(owner).collect();
        let unwanted = unwanted.iter().filter(|account| ![wanted, SETTINGS].contains(&&*account.name_any()));
        let deletions = join_all(unwanted.map(|account| self.accounts.delete(account)));
        let version = version.to_owned();
        let (created, updated, deleted) = tokio::join!(
            self.accounts.create_or_update(owner, account(wanted), |_| {}),
            self.accounts.create_or_update(owner, account(SETTINGS), move |account| {
                account.annotations_mut().insert("version".into(), version);
            }),
            deletions,
        );
        created?;
        updated?;
        deleted.into_iter().collect::<kube::Result<()>>()?;
        Ok(())
    }
}

fn deployment(replicas: &str) -> Deployment {
    let replicas: i32 = replicas.parse().unwrap();
    let deployment = json!({"metadata": {"name": "child"}, "spec": {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "a"}},
        "template": {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}},
    }});
    serde_json::from_value(deployment).unwrap()
}

fn account(name: &str) -> ServiceAccount {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

/// A proxy that can hold the writes of one process, and delivers them although the process has died.
#[derive(Default)]
struct Proxy {
    holds: watch::Sender<bool>,
    held: watch::Sender<usize>,
    /// The answers to the writes that were held: method and resource, status code and body.
    answers: Mutex<Vec<(String, u16, Value)>>,
}

impl Proxy {
    fn client(self: &Arc<Self>, client: &Client) -> Client {
        let (proxy, client) = (self.clone(), client.clone());
        let service = tower::service_fn(move |request| {
            let delivery = tokio::spawn(proxy.clone().deliver(client.clone(), request));
            async move { delivery.await? }
        });
        Client::new(service, "default")
    }

    async fn deliver(
        self: Arc<Self>,
        client: Client,
        request: Request<Body>,
    ) -> Result<Response<Body>, tower::BoxError> {
        let path = request.uri().path().to_owned();
        if *request.method() == Method::GET || path.contains("/events") || !*self.holds.borrow() {
            return Ok(client.send(request).await?);
        }
        let resources = ["/deployments", "/secrets", "/serviceaccounts"];
        let resource = resources.into_iter().find(|resource| path.contains(resource));
        let name = format!("{} {}", request.method(), resource.unwrap_or(&path));
        self.held.send_modify(|held| *held += 1);
        self.holds.subscribe().wait_for(|holds| !*holds).await?;
        let (head, body) = client.send(request).await?.into_parts();
        let body = body.collect_bytes().await?;
        self.answers.lock().unwrap().push((name, head.status.as_u16(), serde_json::from_slice(&body)?));
        Ok(Response::from_parts(head, Body::from(body)))
    }

    async fn wait_until_held(&self, writes: usize) {
        eventually("the writes are held", TIMEOUT, async || *self.held.borrow() == writes).await;
    }

    /// Delivers the writes, and returns the answers by method and resource.
    async fn release(&self) -> Vec<(String, u16, Value)> {
        self.holds.send_replace(false);
        let writes = *self.held.borrow();
        eventually("the answers", TIMEOUT, async || self.answers.lock().unwrap().len() == writes).await;
        let mut answers = self.answers.lock().unwrap().clone();
        answers.sort_by(|one, other| one.0.cmp(&other.0));
        answers
    }
}

/// A replica of the controller, in a Pod of this name.
struct Replica {
    identity: Identity,
    leadership: Leadership,
    proxy: Arc<Proxy>,
    tasks: Vec<JoinHandle<()>>,
}

impl Replica {
    async fn start(fixture: &Fixture, pod: &str) -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        let (identity, proxy) = (Identity::on(pod), Arc::<Proxy>::default());
        let (controller, leases, informers) = {
            let cx = Context::new("test", proxy.client(&fixture.client));
            let selection = select().namespace(&fixture.namespace);
            let mut build = Controller::selected::<ConfigMap>(&cx, selection.clone());
            let children = Children {
                deployments: build.owns_in(&cx.informer(selection.clone()), OwnedOptions::default()),
                secrets: build.owns_in(&cx.informer(selection.clone()), OwnedOptions::default()),
                accounts: build.owns_in(&cx.informer(selection.clone()), OwnedOptions::default()),
            };
            (build.reconciler(children).build(), cx.informer::<Lease>(selection), cx.informers())
        };
        // The lease does not expire within the test, so that only the proof ends it.
        let config = LeaderElectionConfig {
            lease_duration: TIMEOUT * 10,
            renew_deadline: TIMEOUT * 8,
            retry_period: Duration::from_secs(1),
            ..LeaderElectionConfig::default()
        };
        let client = lease_client(plane.config().unwrap()).unwrap();
        let candidate =
            Candidate::new(client, &fixture.namespace, "test", identity.clone(), &config, &Registry::new())
                .unwrap()
                .watching(leases);
        let (leadership, electors) = Electors::new(&candidate, controller.name()).unwrap();
        let run = Run {
            leadership: leadership.clone(),
            stop: Shutdown::never(),
            drain: Duration::ZERO,
            workers: None,
        };
        informers.start();
        let tasks = vec![
            tokio::spawn(Member::new(&candidate).run(pending())),
            tokio::spawn(electors.run(pending(), pending())),
            tokio::spawn(async move {
                let _ = controller.run(run).await;
            }),
        ];
        Self { identity, leadership, proxy, tasks }
    }

    fn kill(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Fixture {
    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Asks for these children.
    async fn ask_for(&self, replicas: i32, secrets: usize, account: &str) {
        let data =
            json!({"replicas": replicas.to_string(), "secrets": secrets.to_string(), "account": account});
        let owner =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}, "data": data});
        self.maps().patch("owner", &PatchParams::apply("user").force(), &Patch::Apply(owner)).await.unwrap();
    }

    /// Waits until the children are as the owner asks.
    async fn wait_for_children(&self, replicas: i32, secrets: usize, account: &str) {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually("the children", TIMEOUT, async || {
            let deployment = self.deployments().get_opt("child").await.unwrap();
            let accounts = accounts.list(&ListParams::default()).await.unwrap();
            let version = accounts.iter().find_map(|account| account.annotations().get("version").cloned());
            let found = (
                deployment.and_then(|deployment| deployment.spec?.replicas),
                self.secrets().list(&ListParams::default()).await.unwrap().items.len(),
                accounts.iter().map(ResourceExt::name_any).collect::<Vec<_>>(),
                version,
            );
            let names = [account, SETTINGS].map(String::from);
            let wanted = (Some(replicas), secrets, names.to_vec(), Some(replicas.to_string()));
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    /// Stores the Pod, as the kubelet reports it after its process of this identity was killed.
    async fn report_death(&self, pod: &str, identity: &Identity) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let container = json!({"name": "c", "image": "i"});
        let object = json!({"metadata": {"name": pod}, "spec": {"containers": [container]}});
        pods.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        let terminated = json!({"exitCode": 137, "reason": "Error", "message": format!("{identity}\n")});
        let status = json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": terminated}});
        let patch = Patch::Merge(json!({"status": {"containerStatuses": [status]}}));
        pods.patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_writes_of_a_dead_leader_without_a_resource_version_are_applied_and_then_corrected() {
    let fixture = Fixture::new("late").await;
    let mut first = Replica::start(&fixture, "first").await;
    fixture.ask_for(1, 1, "kept").await;
    fixture.wait_for_children(1, 1, "kept").await;
    let second = Replica::start(&fixture, "second").await;
    eventually("the standby", TIMEOUT, async || second.leadership.has_known_leaders()).await;

    first.proxy.holds.send_replace(true);
    fixture.ask_for(2, 2, "new").await;
    first.proxy.wait_until_held(5).await;
    first.kill();
    fixture.ask_for(3, 2, "kept").await;
    let died = Instant::now();
    fixture.report_death("first", &first.identity).await;
    fixture.wait_for_children(3, 2, "kept").await;
    println!("the successor had reconciled {:?} after the proof", died.elapsed());
    assert!(died.elapsed() >= FENCE);

    let answers = first.proxy.release().await;
    let statuses: Vec<_> = answers.iter().map(|(name, status, _)| (name.as_str(), *status)).collect();
    let expected = [
        ("DELETE /serviceaccounts", 200), // of an account that the successor keeps
        ("PATCH /deployments", 200),      // over the apply of the successor
        ("POST /secrets", 201),           // a second one
        ("POST /serviceaccounts", 201),   // of an account that the successor does not want
        ("PUT /serviceaccounts", 409),    // has a resourceVersion
    ];
    assert_eq!(statuses, expected);
    assert_eq!(answers[1].2["spec"]["replicas"], 2);
    fixture.wait_for_children(3, 2, "kept").await;
}
