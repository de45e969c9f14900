//! Keys that are reconciled again and again although nothing changes from outside, on a real API server.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use reknit_injection::{Context, select};
use reknit_reconciler::{Controller, Outcome, Owned, Queue, ReconcileKind, Result, Tracked};
use reknit_testing::{Controllers, eventually};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{Fixture, TIMEOUT, count, measured};

/// The mistake of a reconciler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// Milliseconds instead of seconds.
    Requeues,
    /// Enqueues all keys.
    Resyncs,
    /// Writes a quantity and leaves out a default, each through the client and in its own form, with a timestamp.
    Rewrites,
    /// Writes a quantity in another form than the API server stores it.
    Quantity,
    /// Leaves out a default that the API server fills in.
    Default,
    /// Writes two values in turn.
    Alternates,
    /// Writes the time into the status of another object.
    Stamps,
    /// Does the same, and each tenth reconcile fails.
    StampsAndFails,
    /// Writes the time too, and another client then changes the object while the reconcile still runs.
    StampsWithAnswer,
    /// Creates an object of a new name each time, since it looks for another name.
    Creates,
    /// Does the same, and another client then changes the object that the last reconcile has created.
    CreatesWithAnswer,
}

struct Mistaken {
    mistake: Mistake,
    client: Client,
    other_client: Client,
    queue: Queue,
    deployments: Tracked<Deployment>,
    maps: Owned<ConfigMap>,
    last_child: Mutex<Option<String>>,
    passes: Arc<AtomicUsize>,
}

impl Mistaken {
    /// Changes the Deployment as another client, until the cache has it.
    async fn answer(&self, map: &ConfigMap, name: &str, answer: &str) -> Result<()> {
        let api: Api<Deployment> =
            Api::namespaced(self.other_client.clone(), &map.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"answer": answer}}}));
        api.patch(name, &PatchParams::default(), &patch).await?;
        eventually("the answer in the cache", TIMEOUT, async || {
            let cached = self.deployments.get(map, name);
            cached
                .is_some_and(|cached| cached.annotations().get("answer").is_some_and(|known| known == answer))
        })
        .await;
        Ok(())
    }

    /// Changes the child as another client, until the cache has it.
    async fn change_child(&self, map: &ConfigMap, name: &str) -> Result<()> {
        let api: Api<ConfigMap> =
            Api::namespaced(self.other_client.clone(), &map.namespace().unwrap_or_default());
        let patch = Patch::Merge(json!({"data": {"state": "seen"}}));
        api.patch(name, &PatchParams::default(), &patch).await?;
        eventually("the change in the cache", TIMEOUT, async || {
            self.maps.of(map).any(|child| child.name_any() == name && child.data.is_some())
        })
        .await;
        Ok(())
    }
}

fn deployment(name: &str, pass: usize) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {"synced": pass.to_string()}},
        "spec": {
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{
                    "name": "main", "image": "one", "resources": {"limits": {"cpu": "1000m"}},
                }]},
            },
        },
    })
}

impl ReconcileKind for Mistaken {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let pass = self.passes.fetch_add(1, Ordering::Relaxed);
        let (name, namespace) = (map.name_any(), map.namespace().unwrap());
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &namespace);
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &namespace);
        match self.mistake {
            Mistake::Requeues => return Ok(Outcome::after(Duration::from_millis(30))),
            Mistake::Resyncs => self.queue.resync(),
            Mistake::Rewrites => {
                let wanted: Deployment = serde_json::from_value(deployment(&name, pass))?;
                match self.deployments.get(map, &name) {
                    None => drop(api.create(&PostParams::default(), &wanted).await?),
                    Some(stored) if stored.spec != wanted.spec => {
                        api.replace(&name, &PostParams::default(), &wanted).await?;
                    }
                    Some(_) => {}
                }
            }
            Mistake::Quantity | Mistake::Default => {
                let Some(stored) = self.deployments.get(map, &name) else {
                    let wanted = serde_json::from_value(deployment(&name, 0))?;
                    api.create(&PostParams::default(), &wanted).await?;
                    return Ok(Outcome::done());
                };
                let mut wanted = Deployment::clone(&stored);
                let spec = wanted.spec.as_mut().unwrap();
                match self.mistake {
                    Mistake::Default => spec.revision_history_limit = None,
                    _ => {
                        let resources = json!({"limits": {"cpu": "1000m"}});
                        let containers = &mut spec.template.spec.as_mut().unwrap().containers;
                        containers[0].resources = serde_json::from_value(resources)?;
                    }
                }
                assert_ne!(wanted, *stored, "the API server has stored the written form");
                api.replace(&name, &PostParams::default(), &wanted).await?;
            }
            Mistake::Stamps | Mistake::StampsAndFails | Mistake::StampsWithAnswer => {
                let Some(_) = self.deployments.get(map, &name) else {
                    let wanted = serde_json::from_value(deployment(&name, 0))?;
                    api.create(&PostParams::default(), &wanted).await?;
                    return Ok(Outcome::done());
                };
                let condition = json!({"type": "Ready", "status": "True", "message": format!("pass {pass}")});
                let patch = Patch::Merge(json!({"status": {"conditions": [condition]}}));
                api.patch_status(&name, &PatchParams::default(), &patch).await?;
                if self.mistake == Mistake::StampsWithAnswer {
                    self.answer(map, &name, &pass.to_string()).await?;
                }
                if self.mistake == Mistake::StampsAndFails && pass.is_multiple_of(10) {
                    return Err("the tenth reconcile".into());
                }
            }
            Mistake::CreatesWithAnswer => {
                let last = self.last_child.lock().unwrap().take();
                let child = json!({"metadata": {"generateName": format!("{name}-")}});
                let child = self.maps.create(map, serde_json::from_value(child)?).await?;
                if let Some(last) = last {
                    self.change_child(map, &last).await?;
                }
                *self.last_child.lock().unwrap() = Some(child.name_any());
            }
            Mistake::Creates => {
                if !self.maps.of(map).any(|child| child.name_any() == name) {
                    let child = json!({"metadata": {"generateName": format!("{name}-")}});
                    self.maps.create(map, serde_json::from_value(child)?).await?;
                }
            }
            Mistake::Alternates => {
                let color = if pass.is_multiple_of(2) { "red" } else { "blue" };
                let patch = Patch::Merge(json!({"data": {"color": color}}));
                maps.patch(&name, &PatchParams::default(), &patch).await?;
            }
        }
        Ok(Outcome::done())
    }
}

fn mistaken(
    fixture: &Fixture,
    mistake: Mistake,
    passes: &Arc<AtomicUsize>,
) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let (namespace, passes, other_client) =
        (fixture.namespace.clone(), passes.clone(), fixture.client.clone());
    move |cx| {
        let selection = select().namespace(&namespace).label("app", "a");
        let mut build = Controller::selected::<ConfigMap>(cx, selection);
        let (client, queue, deployments, maps) = (build.client(), build.queue(), build.track(), build.owns());
        let last_child = Mutex::default();
        let mistaken =
            Mistaken { mistake, client, other_client, queue, deployments, maps, last_child, passes };
        Ok(build.reconciler(mistaken).build())
    }
}

/// The messages of the events about the object with this reason.
async fn messages(fixture: &Fixture, map: &ConfigMap, reason: &str) -> Vec<String> {
    let events = fixture.events_about(&fixture.namespace, &map.uid().unwrap()).await;
    let events = events.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
    events.filter_map(|event| event.note).collect()
}

/// The first message about a storm of the object.
async fn storm(fixture: &Fixture, map: &ConfigMap, passes: &AtomicUsize) -> String {
    eventually("an event", TIMEOUT, async || {
        let found = messages(fixture, map, "ReconcileStorm").await.into_iter().next();
        found.ok_or_else(|| format!("{} passes", passes.load(Ordering::Relaxed)))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_is_reported_with_its_cause_and_slowed_and_changes_from_outside_are_not() {
    for (mistake, part, cause, source) in [
        (Mistake::Requeues, "after a wait", "after", ""),
        (Mistake::Resyncs, "resync", "resync", ""),
        (Mistake::Rewrites, "metadata.annotations.synced from", "tracked", "deployments.apps"),
        (Mistake::Alternates, "data.color from", "object", ""),
        (Mistake::Stamps, "status.conditions[0].message from", "tracked", "deployments.apps"),
        (Mistake::Creates, " added (", "owned", "configmaps"),
    ] {
        let fixture = Fixture::new("storm").await;
        fixture.create("a", &[]).await;
        let map = fixture.merge("a", json!({"metadata": {"labels": {"app": "a"}}})).await;
        let passes = Arc::<AtomicUsize>::default();
        let (controller, metrics) = measured(mistaken(&fixture, mistake, &passes));
        let running = Controllers::new(fixture.client.clone()).controller(controller).start();
        let message = storm(&fixture, &map, &passes).await;
        println!("{mistake:?}: {message}");
        assert!(message.contains(part), "{message}");
        let labels = [("controller", "configmaps"), ("cause", cause), ("source", source)];
        let counted = count(metrics.get().unwrap(), "reknit_storm_reconciles_total", labels);
        assert!(counted >= 1.0, "{mistake:?}: the reconciles of the storm are not counted");
        let before = passes.load(Ordering::Relaxed);
        sleep(Duration::from_secs(3)).await;
        assert!(passes.load(Ordering::Relaxed) <= before + 1, "the storm is not slowed");
        fixture.merge("a", json!({"data": {"from": "outside"}})).await;
        eventually("a pass for the change", Duration::from_secs(5), async || {
            passes.load(Ordering::Relaxed) > before
        })
        .await;
        assert_eq!(messages(&fixture, &map, "ReconcileStorm").await.len(), 1);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_in_which_each_tenth_reconcile_fails_is_reported_and_slowed() {
    let fixture = Fixture::new("storm").await;
    fixture.create("a", &[]).await;
    let map = fixture.merge("a", json!({"metadata": {"labels": {"app": "a"}}})).await;
    let passes = Arc::<AtomicUsize>::default();
    let controller = mistaken(&fixture, Mistake::StampsAndFails, &passes);
    let running = Controllers::new(fixture.client.clone()).controller(controller).start();
    let message = storm(&fixture, &map, &passes).await;
    println!("{message}");
    assert!(message.contains("although nothing changed from outside"), "{message}");
    let before = passes.load(Ordering::Relaxed);
    sleep(Duration::from_secs(3)).await;
    assert!(passes.load(Ordering::Relaxed) <= before + 2, "the storm is not slowed");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_object_in_each_reconcile_is_a_storm_also_if_another_client_changes_each() {
    let fixture = Fixture::new("storm").await;
    fixture.create("a", &[]).await;
    let map = fixture.merge("a", json!({"metadata": {"labels": {"app": "a"}}})).await;
    let passes = Arc::<AtomicUsize>::default();
    let controller = mistaken(&fixture, Mistake::CreatesWithAnswer, &passes);
    let running = Controllers::new(fixture.client.clone()).controller(controller).start();
    eventually("300 reconciles", 10 * TIMEOUT, async || passes.load(Ordering::Relaxed) > 300).await;
    let message = storm(&fixture, &map, &passes).await;
    println!("{message}");
    assert!(message.contains("each time it creates an object"), "{message}");
    assert!(message.contains("configmaps"), "{message}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_is_reported_if_another_client_answers_each_write() {
    let fixture = Fixture::new("storm").await;
    fixture.create("a", &[]).await;
    let map = fixture.merge("a", json!({"metadata": {"labels": {"app": "a"}}})).await;
    let passes = Arc::<AtomicUsize>::default();
    let controller = mistaken(&fixture, Mistake::StampsWithAnswer, &passes);
    let running = Controllers::new(fixture.client.clone()).controller(controller).start();
    let message = storm(&fixture, &map, &passes).await;
    println!("{message}");
    assert!(message.contains("another client answers"), "{message}");
    assert!(message.contains("status.conditions[0].message from"), "{message}");
    let before = passes.load(Ordering::Relaxed);
    eventually("more passes of the storm", TIMEOUT, async || passes.load(Ordering::Relaxed) > before + 50)
        .await;
    assert_eq!(messages(&fixture, &map, "ReconcileStorm").await.len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_only_says_the_stored_state_in_another_form_is_counted_and_leads_to_no_reconcile() {
    for mistake in [Mistake::Quantity, Mistake::Default] {
        let fixture = Fixture::new("storm").await;
        fixture.create("a", &[]).await;
        let map = fixture.merge("a", json!({"metadata": {"labels": {"app": "a"}}})).await;
        let counter = Arc::<AtomicUsize>::default();
        let (controller, metrics) = measured(mistaken(&fixture, mistake, &counter));
        let running = Controllers::new(fixture.client.clone()).controller(controller).start();
        let passes = || counter.load(Ordering::Relaxed);
        eventually("the first write in another form", TIMEOUT, async || passes() >= 2).await;
        for n in 0..3 {
            let before = passes();
            fixture.merge("a", json!({"data": {"from": format!("outside {n}")}})).await;
            eventually("a pass for the change", TIMEOUT, async || passes() > before).await;
        }
        let before = passes();
        sleep(Duration::from_secs(3)).await;
        assert_eq!(passes(), before, "{mistake:?}");
        assert!(before <= 6, "{mistake:?}: {before} passes");
        assert!(messages(&fixture, &map, "InternalError").await.is_empty());
        let labels = [("controller", "configmaps"), ("group", "apps"), ("resource", "deployments")];
        let no_ops = count(metrics.get().unwrap(), "reknit_no_op_writes_total", labels);
        assert_eq!(no_ops, (before - 1) as f64, "all but the first pass, which creates the Deployment");
        running.stop().await;
    }
}
