//! The action that leads to each cause, and the cause in the log, in the event and in the metric, on a real API server.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, PodTemplate, Secret, Service, ServiceAccount},
    events::v1::Event as StoredEvent,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use reknit_apis::KReference;
use reknit_injection::{Context, Features, select};
use reknit_leadership::{
    Leadership,
    internal::{BucketWriter, elected},
};
use reknit_reconciler::{
    Controller, Error, Key, Kinds, ObserveDeletion, Outcome, Owned, Queue, ReconcileKey, ReconcileKind,
    Result, Tracked, TrackedAny, controller_reference,
};
use reknit_testing::eventually;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::{Fixture, TIMEOUT, logs, run};

/// The result of the next pass. Every other pass fails, so that its causes are in the log and in an event.
#[derive(Clone, Copy, Default)]
enum Next {
    #[default]
    FailForGood,
    Fail,
    Wait,
}

#[derive(Clone, Default)]
struct Script {
    next: Arc<Mutex<Next>>,
    failures: Arc<AtomicUsize>,
}

impl Script {
    fn play(&self) -> Result<Outcome> {
        // An error of its own for each pass, since equal events are one series.
        let error = format!("as planned, {}", self.failures.fetch_add(1, Ordering::Relaxed));
        match std::mem::take(&mut *self.next.lock().unwrap()) {
            Next::FailForGood => Err(Error::permanent(error)),
            Next::Fail => Err(error.into()),
            Next::Wait => Ok(Outcome::after(Duration::from_millis(10))),
        }
    }
}

/// Reads a Service, and a PodTemplate by a reference if the ConfigMap says so.
struct Reader {
    script: Script,
    services: Tracked<Service>,
    anything: TrackedAny,
    _secrets: Owned<Secret>,
}

impl ReconcileKind for Reader {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        self.services.get(map, "web");
        if map.data.as_ref().is_some_and(|data| data.contains_key("reference")) {
            let reference = KReference {
                api_version: "v1".into(),
                kind: "PodTemplate".into(),
                name: "template".into(),
                ..KReference::default()
            };
            self.anything.get(map, &reference).await?;
        }
        self.script.play()
    }
}

impl ObserveDeletion for Reader {
    async fn observe_deletion(&self, _: &Key) -> Result<Outcome> {
        self.script.play()
    }
}

/// Writes the ConfigMap of its key, except in the first pass.
struct Writer {
    script: Script,
    client: Client,
}

impl ReconcileKey for Writer {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        let failures = self.script.failures.load(Ordering::Relaxed);
        if failures > 0 {
            let namespace = key.namespace.as_deref().unwrap_or_default();
            let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
            let data = Patch::Merge(json!({"data": {"failures": failures.to_string()}}));
            maps.patch(&key.name, &PatchParams::default(), &data).await?;
        }
        self.script.play()
    }
}

/// A process with the controllers `configmaps`, whose bucket nobody leads yet, and `writer`, which has no Kind.
struct Process {
    fixture: Fixture,
    script: Script,
    bucket: BucketWriter,
    queue: Queue,
    writers: Queue,
    metrics: prometheus::Registry,
    /// The labels of the causes that were shown.
    shown: Mutex<BTreeSet<String>>,
    running: Mutex<JoinSet<()>>,
}

impl Process {
    /// Starts the process, and returns the controller `writer`, which does not run yet.
    async fn start() -> (Self, Controller) {
        let fixture = Fixture::new("causes").await;
        fixture.create("config-features", &[]).await;
        fixture.create("a", &[]).await;
        fixture.merge("a", json!({"metadata": {"labels": {"app": "a"}}})).await;
        let (leadership, mut buckets) = elected(vec!["bucket".into()]);
        let (script, namespace) = (Script::default(), fixture.namespace.clone());
        let builder = Context::builder("test", fixture.client.clone());
        let cx = builder.system_namespace(Some(namespace.clone())).build();
        let here = select().namespace(&namespace);
        let mut build = Controller::selected::<ConfigMap>(&cx, here.clone().label("app", "a")).workers(1);
        let reader = Reader {
            script: script.clone(),
            services: build.track(),
            anything: build.track_any(Kinds::any()),
            _secrets: build.owns(),
        };
        let a = Key::new(namespace.as_str(), "a");
        let mapped = a.clone();
        build.watch(&cx.informer::<ServiceAccount>(here)).keys(move |_| [mapped.clone()]);
        build.config::<Features>();
        let queue = build.queue();
        let reader = build.reconciler(reader).observing_deletion_as_leader().build();
        let mut build = Controller::named("writer", &cx);
        build.add_key(a);
        let (client, writers) = (build.client(), build.queue());
        let writer = build.reconciler(Writer { script: script.clone(), client });
        let metrics = cx.metrics().clone();
        cx.informers().start();
        drop(cx);
        let mut running = JoinSet::new();
        running.spawn(run(reader, leadership));
        let running = Mutex::new(running);
        let bucket = buckets.remove(0);
        let shown = Mutex::default();
        let process = Self { fixture, script, bucket, queue, writers, metrics, shown, running };
        (process, writer)
    }

    fn a(&self) -> Key {
        Key::new(self.fixture.namespace.as_str(), "a")
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.fixture.client.clone(), &self.fixture.namespace)
    }

    async fn create<K>(&self, object: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Serialize
            + Clone
            + Debug,
    {
        let object = serde_json::from_value(object).unwrap();
        self.api::<K>().create(&PostParams::default(), &object).await.unwrap();
    }

    async fn change<K>(&self, name: &str, change: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
    {
        self.api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Adds `a` to the queue, whose next pass has this result.
    fn play(&self, next: Next) {
        *self.script.next.lock().unwrap() = next;
        self.queue.add(self.a());
    }

    /// Shows that the action leads to this cause of a pass of `controller`. The labels in the metric are the cause and the
    /// source. In the text, `#` is a number and `NS` the namespace.
    async fn row(
        &self,
        action: impl Future<Output = ()>,
        controller: &str,
        [cause, source]: [&str; 2],
        text: &str,
    ) {
        let counted = || self.count(controller, cause, source);
        let span = format!("causes={text}}}");
        let logged = || self.lines(controller).iter().filter(|line| line.contains(&span)).count();
        let (counted_before, logged_before) = (counted(), logged());
        action.await;
        eventually(format!("a log line with {text}"), TIMEOUT, async || {
            if logged() > logged_before { Ok(()) } else { Err(self.lines(controller).join("")) }
        })
        .await;
        assert!(counted() > counted_before, "{text}: reknit_reconcile_causes_total is not counted");
        // Without an object there is no event.
        if controller != "writer" && text != "the object deleted" {
            // The annotation has no number of a pass.
            let text = text.replace("pass # of ", "");
            eventually(format!("an event with {text}"), TIMEOUT, async || {
                let annotations = self.annotations().await;
                if annotations.contains(&text) { Ok(()) } else { Err(annotations.join("\n")) }
            })
            .await;
        }
        self.shown.lock().unwrap().insert(cause.into());
    }

    /// Lets `writer` write `a` until a pass knows who did it. On a busy machine the watch may report a write before the
    /// response tells which pass has made it.
    async fn write_until_the_response_comes_first(&self) {
        let lines = || self.lines("configmaps");
        for _ in 0..50 {
            let before = lines().len();
            self.writers.add(self.a());
            let passed = async || if lines().len() > before { Ok(()) } else { Err(lines().join("")) };
            eventually("a pass after the write", TIMEOUT, passed).await;
            if lines()[before..].iter().any(|line| line.contains("by pass # of writer")) {
                return;
            }
        }
    }

    /// The log lines of the passes of this controller, which have failed.
    fn lines(&self, controller: &str) -> Vec<String> {
        let lines = logs::lines_with(&self.fixture.namespace).into_iter();
        let lines = lines.filter(|line| line.contains("the pass failed"));
        let lines = lines.filter(|line| line.contains(&format!("controller=\"{controller}\"")));
        lines.map(|line| self.without_numbers(&line)).collect()
    }

    /// The causes in the annotations of the events.
    async fn annotations(&self) -> Vec<String> {
        let events = self.api::<StoredEvent>().list(&ListParams::default()).await.unwrap();
        let causes = events.iter().filter_map(|event| event.annotations().get("reknit.dev/causes"));
        causes.map(|causes| self.without_numbers(causes)).collect()
    }

    /// The number of passes of the controller with this cause, according to the metric.
    fn count(&self, controller: &str, cause: &str, source: &str) -> f64 {
        let labels = [("controller", controller), ("cause", cause), ("source", source)];
        crate::count(&self.metrics, "reknit_reconcile_causes_total", labels)
    }

    /// Replaces each number by `#`, and the namespace by `NS`.
    fn without_numbers(&self, text: &str) -> String {
        let text = text.replace(&self.fixture.namespace, "NS").replace(|c: char| c.is_ascii_digit(), "#");
        text.chars().fold(String::new(), |mut text, next| {
            if next != '#' || !text.ends_with('#') {
                text.push(next);
            }
            text
        })
    }
}

/// The values of `cause` in the table of docs/debugging.md.
fn documented() -> BTreeSet<String> {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/debugging.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let (_, table) = docs.split_once("| `cause` |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    table.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_action_leads_to_its_cause_in_the_log_the_event_and_the_metric() {
    logs::record();
    let (process, writer) = Process::start().await;
    let process = &process;
    let (maps, a, queue) = ("configmaps", || process.a(), &process.queue);
    let secrets = ["owned", "secrets"];
    let services = ["tracked", "services"];
    let object = ["object", ""];

    let start = async { drop(process.running.lock().unwrap().spawn(run(writer, Leadership::always()))) };
    process.row(start, "writer", ["start", ""], "start").await;
    eventually("a pass without the lead", TIMEOUT, async || process.count(maps, "object", "") > 0.0).await;
    let lead = async { process.bucket.lead(Instant::now() + Duration::from_secs(3600), "test") };
    process.row(lead, maps, ["leadership", ""], "leadership changed").await;

    let create = process.create::<ConfigMap>(json!({"metadata": {"name": "b", "labels": {"app": "a"}}}));
    process.row(create, maps, object, "the object added (#)").await;
    let change = process.change::<ConfigMap>("b", json!({"data": {"x": "1"}}));
    process.row(change, maps, object, "the object changed (#: data)").await;
    process.row(process.delete::<ConfigMap>("b"), maps, object, "the object deleted").await;
    let write = process.write_until_the_response_comes_first();
    process.row(write, maps, object, "the object changed (#: data) by pass # of writer NS/a").await;

    let owner = controller_reference(&process.fixture.maps().get("a").await.unwrap());
    let create = json!({"metadata": {"name": "child", "ownerReferences": [owner]}});
    process.row(process.create::<Secret>(create), maps, secrets, "secrets NS/child added (#), owned").await;
    let change = process.change::<Secret>("child", json!({"stringData": {"x": "1"}}));
    process.row(change, maps, secrets, "secrets NS/child changed (#: data), owned").await;
    process.row(process.delete::<Secret>("child"), maps, secrets, "secrets NS/child deleted, owned").await;

    let create = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    process
        .row(process.create::<Service>(create), maps, services, "services NS/web added (#), tracked")
        .await;
    let change = process.change::<Service>("web", json!({"spec": {"sessionAffinity": "ClientIP"}}));
    process.row(change, maps, services, "services NS/web changed (#: spec), tracked").await;

    let refer = process.change::<ConfigMap>("a", json!({"data": {"reference": "template"}}));
    let text = "the state of the Kind podtemplates changed";
    process.row(refer, maps, ["kind", "podtemplates"], text).await;
    let template = json!({"spec": {"containers": [{"name": "a", "image": "a"}]}});
    let create = json!({"metadata": {"name": "template"}, "template": template});
    let text = "podtemplates NS/template added (#), tracked";
    process.row(process.create::<PodTemplate>(create), maps, ["tracked", "podtemplates"], text).await;

    let create = process.create::<ServiceAccount>(json!({"metadata": {"name": "robot"}}));
    let text = "serviceaccounts NS/robot added (#), watched";
    process.row(create, maps, ["watched", "serviceaccounts"], text).await;
    let change = process.change::<ConfigMap>("config-features", json!({"data": {"x": "Enabled"}}));
    process.row(change, maps, ["config", "config-features"], "config-features changed").await;

    process.row(async { queue.resync() }, maps, ["resync", ""], "resync").await;
    process.row(async { queue.add(a()) }, maps, ["queue", ""], "added to the queue").await;
    let add = async { queue.add_because(a(), "the probe ended") };
    process.row(add, maps, ["queue", ""], "added to the queue: the probe ended").await;
    let add = async { queue.add_after(a(), Duration::from_millis(10)) };
    process.row(add, maps, ["after", ""], "after a wait").await;
    process.row(async { process.play(Next::Wait) }, maps, ["after", ""], "after a wait").await;
    let fail = async { process.play(Next::Fail) };
    process.row(fail, maps, ["retry", ""], "retry # after: as planned, #").await;

    assert_eq!(*process.shown.lock().unwrap(), documented(), "each cause of the docs is shown");
}
