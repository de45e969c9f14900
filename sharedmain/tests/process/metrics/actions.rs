//! The actions of the table.
use std::{io::Write, net::TcpStream};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    discovery::ApiResource,
};
use reknit_testing::eventually;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpListener, sync::watch};

use super::program::{Bulb, WORKERS, definition};
use crate::{
    child::{Child, TestCommand},
    cluster::{TIMEOUT, TestCluster, post_review},
    observability::{convert_oven, scrape_sum},
    scenarios::Lamp,
};

/// A server whose clients wait while it is closed.
struct Gate {
    address: String,
    is_open: watch::Sender<bool>,
}

impl Gate {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (is_open, receiver) = watch::channel(false);
        tokio::spawn(async move {
            loop {
                let ((mut client, _), mut is_open) = (listener.accept().await.unwrap(), receiver.clone());
                tokio::spawn(async move {
                    is_open.wait_for(|is_open| *is_open).await.unwrap();
                    _ = client.write_u8(1).await; // its process may have ended
                });
            }
        });
        Self { address, is_open }
    }

    fn set_open(&self, is_open: bool) {
        self.is_open.send_replace(is_open);
    }
}

/// A process, and what acts on it.
pub(super) struct Actions {
    cluster: TestCluster,
    gate: Gate,
    leader: Child,
    shadow: Option<Child>,
    other_replica: Option<Child>,
}

impl Actions {
    /// Starts a process that finds an object with a child.
    pub(super) async fn new(cluster: TestCluster) -> Self {
        cluster.plane.install_crd(definition()).await.unwrap();
        let times =
            json!({"lease-duration": "12s", "renew-deadline": "8s", "retry-period": "1s", "buckets": "2"});
        cluster.configure("config-leader-election", times).await;
        apply_bulb(&cluster, "found", json!({"spec": {"task": "map"}})).await;
        let leader = command(&cluster, "red").env("POD_NAME", "faulty-0").spawn();
        Self { cluster, gate: Gate::new().await, leader, shadow: None, other_replica: None }
    }

    /// The process whose metrics change.
    pub(super) fn process(&self) -> &Child {
        self.shadow.as_ref().unwrap_or(&self.leader)
    }

    pub(super) async fn act(&mut self, action: &str) {
        let cluster = &self.cluster;
        match action {
            "the process starts, and finds an object and a missing Kind" => {}
            "the Kind is installed" => cluster.plane.install::<Lamp>().await.unwrap(),
            "an object is created" => self.bulb("a", "").await,
            "its pass asks for a later one" => self.bulb("a", "wait").await,
            "it is paused" => {
                let metadata = json!({"annotations": {"reknit.dev/paused": ""}});
                apply_bulb(cluster, "a", json!({"metadata": metadata, "spec": {"task": "wait"}})).await;
            }
            "it is resumed" => self.bulb("a", "wait").await,
            "it is deleted" => self.delete_bulb("a").await,
            "a pass fails" => self.bulb("b", "fail").await,
            "its object is corrected" => self.bulb("b", "").await,
            "a pass fails with a permanent error" => self.bulb("b", "fail for good").await,
            "a pass panics" => self.bulb("b", "panic").await,
            "a pass exceeds its deadline" => cluster.apply_map("endless", json!({})).await,
            "the passes of all workers wait, and another object is created" => {
                self.bulb("b", "").await;
                self.hold("held").await;
                self.bulb("queued", "").await;
            }
            "they end" | "the validation ends" | "the shadow compares all keys" | "the passes end" => {
                self.gate.set_open(true);
            }
            "a pass sets a label that its object has" => self.bulb("c", "same label").await,
            "a pass records thirty events about one object" => self.bulb("d", "events").await,
            "a child is created" => self.bulb("e", "map").await,
            "it is updated" => {
                apply_bulb(cluster, "e", json!({"spec": {"task": "map", "value": "2"}})).await;
            }
            "another client changes it" => self.change_map("e").await,
            "another client changes it again and again" => {
                for _ in 0..4 {
                    self.change_map("e").await;
                }
            }
            "a child has a field that its definition lacks" => self.bulb("f", "bulb").await,
            "each pass changes a child" => self.bulb("g", "changing map").await,
            "the object of these passes is deleted" => self.delete_bulb("g").await,
            "an object cannot be decoded" => {
                apply_bulb(cluster, "wrong", json!({"spec": {"task": "", "watts": "many"}})).await;
            }
            "that object is deleted" => self.delete_bulb("wrong").await,
            "the certificate is replaced by another text" => self.break_certificate(false).await,
            "the certificate is replaced by a text that cannot be changed" => {
                self.break_certificate(true).await
            }
            "that certificate is deleted" => self.delete_certificate().await,
            "a shadow starts, and the passes of some keys wait" => {
                self.gate.set_open(false);
                self.shadow = Some(command(cluster, "green").arg("--shadow").spawn());
            }
            "an object that differs is deleted" => self.delete_bulb("e").await,
            "the shadow stops, and another replica starts while passes run" => {
                self.shadow = None;
                self.hold("again").await;
                self.other_replica = Some(command(cluster, "red").env("POD_NAME", "faulty-1").spawn());
            }
            "the other replica stops" => end(self.other_replica.take().unwrap()),
            "the API server stops" => cluster.plane.stop().await.unwrap(),
            "the API server starts again" => cluster.plane.restart().await.unwrap(),
            _ => self.call_webhook(action).await,
        }
    }

    async fn call_webhook(&self, action: &str) {
        let address = self.leader.wait_for_address("the webhook");
        match action {
            "an admission review is answered" => {
                assert_eq!(post_review(&address, None).await.unwrap(), 200);
            }
            "the validation of an object waits" => {
                self.gate.set_open(false);
                let spec = json!({"task": "ask", "value": self.gate.address});
                tokio::spawn(async move { review_bulb(&address, spec).await.unwrap() });
            }
            "the validation of an object panics" => {
                review_bulb(&address, json!({"task": "panic"})).await.unwrap_err();
            }
            "the conversion of an object panics" => drop(convert_oven(&address, 0).await.unwrap_err()),
            "an object cannot be converted" => drop(convert_oven(&address, -1).await.unwrap()),
            "a client of the webhook sends no TLS" => {
                TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            }
            _ => panic!("there is no action {action:?}"),
        }
    }

    pub(super) async fn end(self) {
        end(self.leader);
        self.cluster.plane.stop().await.unwrap();
    }

    /// Applies a bulb whose passes do this.
    async fn bulb(&self, name: &str, task: &str) {
        apply_bulb(&self.cluster, name, json!({"spec": {"task": task}})).await;
    }

    async fn delete_bulb(&self, name: &str) {
        bulbs(&self.cluster).delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Lets all workers run passes that wait for the gate.
    async fn hold(&self, prefix: &str) {
        self.gate.set_open(false);
        let spec = json!({"task": "ask", "value": self.gate.address});
        for n in 0..WORKERS {
            apply_bulb(&self.cluster, &format!("{prefix}-{n}"), json!({ "spec": spec })).await;
        }
        eventually("busy workers", TIMEOUT, async || {
            let busy = scrape_sum(&self.leader, "controller_runtime_active_workers");
            if busy == WORKERS as f64 { Ok(()) } else { Err(busy.to_string()) }
        })
        .await;
    }

    /// Changes a child as another client, and waits until it is restored.
    async fn change_map(&self, name: &str) {
        let maps = self.cluster.config_maps();
        let color = async || maps.get(name).await.unwrap().data.unwrap().remove("color");
        let ours = color().await;
        let theirs = Patch::Merge(json!({"data": {"color": "theirs"}}));
        maps.patch(name, &PatchParams::default(), &theirs).await.unwrap();
        eventually("the restored color", TIMEOUT, async || color().await == ours).await;
    }

    async fn break_certificate(&self, immutable: bool) {
        let (secrets, secret) = self.certificate().await;
        let keys = secret.data.iter().flatten().map(|(key, _)| (key.clone(), json!("none")));
        let keys = keys.collect::<serde_json::Map<_, _>>();
        let patch = Patch::Merge(json!({"stringData": keys, "immutable": immutable}));
        let name = secret.metadata.name.as_ref().unwrap();
        secrets.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn delete_certificate(&self) {
        let (secrets, secret) = self.certificate().await;
        let _ =
            secrets.delete(secret.metadata.name.as_ref().unwrap(), &DeleteParams::default()).await.unwrap();
    }

    /// The Secret of the webhook, which is the only one.
    async fn certificate(&self) -> (Api<Secret>, Secret) {
        let secrets: Api<Secret> = Api::namespaced(self.cluster.client(), &self.cluster.namespace);
        let mut list = secrets.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(list.len(), 1);
        (secrets, list.remove(0))
    }
}

fn command(cluster: &TestCluster, color: &str) -> TestCommand {
    cluster.command("metrics").env("WEBHOOK_PORT", "0").env("COLOR", color)
}

fn end(process: Child) {
    process.signal("TERM");
    let (status, lines) = process.wait();
    assert_eq!(status, 0, "{lines:#?}");
}

fn bulbs(cluster: &TestCluster) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client(), &cluster.namespace, &ApiResource::erase::<Bulb>(&()))
}

async fn apply_bulb(cluster: &TestCluster, name: &str, mut bulb: Value) {
    (bulb["apiVersion"], bulb["kind"]) = (json!("process.reknit.dev/v1"), json!("Bulb"));
    bulb["metadata"]["name"] = json!(name);
    let params = PatchParams::apply("test").force();
    bulbs(cluster).patch(name, &params, &Patch::Apply(bulb)).await.unwrap();
}

/// Sends a review of the creation of a bulb to a webhook.
async fn review_bulb(address: &str, spec: Value) -> kube::Result<String> {
    let mut config = kube::Config::new(format!("https://{address}").parse().unwrap());
    (config.accept_invalid_certs, config.read_timeout) = (true, None);
    let bulb = json!({"apiVersion": "process.reknit.dev/v1", "kind": "Bulb", "metadata": {"name": "a"}, "spec": spec});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "kind": {"group": "process.reknit.dev", "version": "v1", "kind": "Bulb"},
        "resource": {"group": "process.reknit.dev", "version": "v1", "resource": "bulbs"},
        "operation": "CREATE", "userInfo": {}, "object": bulb}});
    let request = http::Request::post("/resource-validation").header("content-type", "application/json");
    let request = request.body(serde_json::to_vec(&review).unwrap()).unwrap();
    kube::Client::try_from(config).unwrap().request_text(request).await
}
