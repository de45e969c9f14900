//! Fields that a controller and another client write in turn, on a real API server.

use std::{sync::OnceLock, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret, ServiceAccount},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use prometheus::Registry;
use reknit_injection::{Context, internal::redaction, select};
use reknit_leadership::Leadership;
use reknit_reconciler::{Controller, Outcome, Owned, ReconcileKind, Result, Tracked};
use reknit_testing::{Controllers, eventually};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use crate::{FINALIZER, Fixture, Idle, TIMEOUT, count, logs, measured, run};

/// The way in which a controller writes the Deployment of a ConfigMap.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Apply,
    Update,
    Client,
    /// Writes the scale, through the client.
    Scale,
    /// Writes the status, through the client.
    Status,
}

/// Wants a Deployment with this number of replicas for each ConfigMap.
struct Scaling {
    verb: Verb,
    replicas: i32,
    client: Client,
    children: Owned<Deployment>,
}

fn deployment(name: &str, replicas: i32) -> Deployment {
    let env = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"team": "ours"}, "annotations": {"note": "ours"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "main", "image": "one", "env": env, "args": []}]},
            },
        },
    }))
    .unwrap()
}

impl ReconcileKind for Scaling {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let wanted = deployment(&map.name_any(), self.replicas);
        let deployments: Api<Deployment> =
            Api::namespaced(self.client.clone(), &map.namespace().unwrap_or_default());
        let params = PatchParams::default();
        let replicas = |deployment: &Deployment| deployment.spec.as_ref().and_then(|spec| spec.replicas);
        match self.verb {
            Verb::Apply => drop(self.children.apply(map, wanted).await?),
            Verb::Update => {
                let scale =
                    |child: &mut Deployment| child.spec.as_mut().unwrap().replicas = Some(self.replicas);
                self.children.create_or_update(map, wanted, scale).await?;
            }
            Verb::Client | Verb::Scale => {
                let child = self.children.create_or_update(map, wanted, |_| {}).await?;
                let patch = Patch::Merge(json!({"spec": {"replicas": self.replicas}}));
                match replicas(&child) == Some(self.replicas) {
                    true => {}
                    false if matches!(self.verb, Verb::Scale) => {
                        deployments.patch_scale(&map.name_any(), &params, &patch).await?;
                    }
                    false => drop(deployments.patch(&map.name_any(), &params, &patch).await?),
                }
            }
            Verb::Status => {
                let child = self.children.create_or_update(map, wanted, |_| {}).await?;
                if child.status.as_ref().and_then(|status| status.observed_generation) != Some(7) {
                    let patch = Patch::Merge(json!({"status": {"observedGeneration": 7}}));
                    deployments.patch_status(&map.name_any(), &params, &patch).await?;
                }
            }
        }
        Ok(Outcome::done())
    }
}

pub(crate) fn scaling(
    fixture: &Fixture,
    verb: Verb,
    replicas: i32,
) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let namespace = fixture.namespace.clone();
    move |cx| {
        let mut build =
            Controller::selected::<ConfigMap>(cx, select().namespace(&namespace).label("app", "a"));
        let (client, children) = (build.client(), build.owns());
        Ok(build.reconciler(Scaling { verb, replicas, client, children }).build())
    }
}

pub(crate) async fn create_owner(fixture: &Fixture) -> ConfigMap {
    fixture.create("owner", &[]).await;
    fixture.merge("owner", json!({"metadata": {"labels": {"app": "a"}}})).await
}

/// Patches the object as this manager until there is an event about the owner, and returns the event's message.
async fn disturb<K>(fixture: &Fixture, owner: &ConfigMap, name: &str, manager: &str, patch: Value) -> String
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + DeserializeOwned
        + Serialize
        + Clone
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let params = PatchParams { field_manager: Some(manager.into()), ..PatchParams::default() };
    eventually(format!("{manager} is named"), TIMEOUT, async || {
        if api.get_opt(name).await.unwrap().is_some() {
            let merge = Patch::Merge(&patch);
            match patch.get("status") {
                Some(_) => drop(api.patch_status(name, &params, &merge).await.unwrap()),
                None => drop(api.patch(name, &params, &merge).await.unwrap()),
            }
        }
        sleep(Duration::from_millis(200)).await;
        contested(fixture, owner).await.into_iter().next()
    })
    .await
}

/// The messages of the events about fights.
pub(crate) async fn contested(fixture: &Fixture, owner: &ConfigMap) -> Vec<String> {
    let events = fixture.events_about(&fixture.namespace, &owner.uid().unwrap()).await;
    let events = events.into_iter().filter(|event| event.reason.as_deref() == Some("FieldContested"));
    events.filter_map(|event| event.note).collect()
}

/// The value of the metric of restoring writes of Deployments.
fn fight_writes(metrics: &OnceLock<Registry>) -> f64 {
    let labels = [("controller", "configmaps"), ("group", "apps"), ("resource", "deployments")];
    count(metrics.get().unwrap(), "reknit_fight_writes_total", labels)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fight_is_reported_with_the_other_manager_whichever_verb_restores_the_field() {
    for (verb, manager) in [
        (Verb::Apply, "kubectl-edit"),
        (Verb::Update, "kubectl-edit"),
        (Verb::Client, "capacity-bot"),
        (Verb::Scale, "capacity-bot"),
    ] {
        let fixture = Fixture::new("fight").await;
        let owner = create_owner(&fixture).await;
        let (controller, metrics) = measured(scaling(&fixture, verb, 2));
        let running = Controllers::new(fixture.client.clone()).controller(controller).start();
        let patch = json!({"spec": {"replicas": 5}});
        let message = disturb::<Deployment>(&fixture, &owner, "owner", manager, patch).await;
        println!("{verb:?}: {message}");
        let expected = format!(
            "Deployment {}/owner: {manager} set spec.replicas to 5, restored to 2, 3 times in ",
            fixture.namespace
        );
        assert!(message.starts_with(&expected), "{message}");
        assert!(fight_writes(&metrics) >= 1.0, "{verb:?}: the restoring writes are not counted");
        assert_eq!(contested(&fixture, &owner).await.len(), 1);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_another_client_deletes_again_and_again_is_reported() {
    let fixture = Fixture::new("fight-deletion").await;
    let owner = create_owner(&fixture).await;
    let (controller, metrics) = measured(scaling(&fixture, Verb::Apply, 2));
    let running = Controllers::new(fixture.client.clone()).controller(controller).start();
    let api: Api<Deployment> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let message = eventually("the deletions are reported", TIMEOUT, async || {
        _ = api.delete("owner", &DeleteParams::default()).await; // not found until it is created again
        sleep(Duration::from_millis(200)).await;
        let events = fixture.events_about(&fixture.namespace, &owner.uid().unwrap()).await.into_iter();
        events.filter(|event| event.reason.as_deref() == Some("ChildDeleted")).find_map(|event| event.note)
    })
    .await;
    let expected = format!("another client deleted deployments.apps {}/owner 3 times in ", fixture.namespace);
    assert!(message.starts_with(&expected), "{message}");
    assert!(fight_writes(&metrics) >= 1.0, "the deletions are not counted");
    running.stop().await;
}

/// Wants a Secret for each ConfigMap.
struct Keeping(Owned<Secret>);

impl ReconcileKind for Keeping {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let metadata = ObjectMeta { name: map.metadata.name.clone(), ..ObjectMeta::default() };
        let string_data = Some([("password".to_owned(), "ours".to_owned())].into());
        self.0.apply(map, Secret { metadata, string_data, ..Secret::default() }).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fight_about_a_secret_is_reported_without_its_values() {
    let fixture = Fixture::new("fight-secret").await;
    let owner = create_owner(&fixture).await;
    let namespace = fixture.namespace.clone();
    let controllers = Controllers::new(fixture.client.clone()).controller(move |cx| {
        let mut build =
            Controller::selected::<ConfigMap>(cx, select().namespace(&namespace).label("app", "a"));
        let secrets = build.owns();
        Ok(build.reconciler(Keeping(secrets)).build())
    });
    let running = controllers.start();
    let patch = json!({"stringData": {"password": "theirs"}});
    let message = disturb::<Secret>(&fixture, &owner, "owner", "rotator", patch).await;
    println!("{message}");
    assert!(message.contains("rotator set data.password to (hidden), restored to (hidden)"), "{message}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fight_about_a_value_that_the_author_names_is_reported_without_it() {
    let fixture = Fixture::new("fight-hidden").await;
    let owner = create_owner(&fixture).await;
    let constructor = scaling(&fixture, Verb::Apply, 2);
    let controllers = Controllers::new(fixture.client.clone()).controller(move |cx| {
        redaction(&cx.informers()).set(&["/spec/replicas".into()]);
        constructor(cx)
    });
    let running = controllers.start();
    let patch = json!({"spec": {"replicas": 5}});
    let message = disturb::<Deployment>(&fixture, &owner, "owner", "scaler", patch).await;
    assert!(
        message.contains("scaler set spec.replicas to (hidden), restored to (hidden), 3 times"),
        "{message}"
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fight_about_any_part_of_an_object_is_reported_without_a_wrong_name() {
    let containers = |name: &str, image: &str, env: Value| {
        let container = json!({"name": name, "image": image, "env": env});
        json!({"spec": {"template": {"spec": {"containers": [container]}}}})
    };
    let env = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    let reversed = json!([{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]);
    let only_a = json!([{"name": "A", "value": "1"}]);
    let path = "spec.template.spec.containers[0]";
    let mut with_args = containers("main", "one", env.clone());
    with_args["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["-v"]);
    for (verb, patch, text) in [
        (
            Verb::Apply,
            json!({"metadata": {"labels": {"team": "theirs"}}}),
            "bot set metadata.labels.team to \"theirs\"",
        ),
        (
            Verb::Apply,
            json!({"metadata": {"annotations": {"note": null}}}),
            "another client set metadata.annotations.note to nothing, restored to \"ours\"",
        ),
        (
            Verb::Apply,
            containers("main", "two", env),
            &format!("bot set {path}.image to \"two\", restored to \"one\""),
        ),
        (Verb::Apply, containers("main", "one", only_a), &format!("another client set {path}.env to [")),
        (
            Verb::Apply,
            containers("main", "one", reversed),
            &format!("another client set {path}.env[0].name (and 3 more) to \"B\""),
        ),
        (Verb::Apply, with_args, &format!("bot set {path}.args to [\"-v\"], restored to []")),
        (
            Verb::Status,
            json!({"status": {"observedGeneration": 9}}),
            "bot set status.observedGeneration to 9, restored to 7",
        ),
    ] {
        let fixture = Fixture::new("fight").await;
        let owner = create_owner(&fixture).await;
        let running = Controllers::new(fixture.client.clone()).controller(scaling(&fixture, verb, 2)).start();
        let message = disturb::<Deployment>(&fixture, &owner, "owner", "bot", patch).await;
        println!("{message}");
        assert!(message.contains(&format!(": {text}")), "{text}: {message}");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fight_about_a_finalizer_is_reported() {
    let fixture = Fixture::new("fight").await;
    let owner = create_owner(&fixture).await;
    let selection = select().namespace(&fixture.namespace).label("app", "a");
    let controllers = Controllers::new(fixture.client.clone()).controller(move |cx| {
        let build = Controller::selected::<ConfigMap>(cx, selection).finalizer(FINALIZER);
        Ok(build.reconciler(Idle).finalizing().build())
    });
    let running = controllers.start();
    let patch = json!({"metadata": {"finalizers": null}});
    let message = disturb::<ConfigMap>(&fixture, &owner, "owner", "remover", patch).await;
    println!("{message}");
    let text = format!("another client set metadata.finalizers to nothing, restored to [\"{FINALIZER}\"]");
    assert!(message.contains(&text), "{message}");
    running.stop().await;
}

/// Applies five replicas to the Deployment of the same name, which another controller owns.
struct Capacity {
    client: Client,
    deployments: Tracked<Deployment>,
}

impl ReconcileKind for Capacity {
    type Kind = ServiceAccount;

    async fn reconcile_kind(&self, account: &ServiceAccount, _: &mut ()) -> Result<Outcome> {
        let (name, namespace) = (account.name_any(), account.namespace().unwrap_or_default());
        let Some(deployment) = self.deployments.get(account, &name) else { return Ok(Outcome::done()) };
        if deployment.spec.as_ref().and_then(|spec| spec.replicas) != Some(5) {
            let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &namespace);
            let patch = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 5}});
            deployments.patch(&name, &PatchParams::apply("blue").force(), &Patch::Apply(patch)).await?;
        }
        Ok(Outcome::done())
    }
}

fn capacity(fixture: &Fixture) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let namespace = fixture.namespace.clone();
    move |cx| {
        let mut build = Controller::selected::<ServiceAccount>(cx, select().namespace(&namespace));
        let (client, deployments) = (build.client(), build.track());
        Ok(build.reconciler(Capacity { client, deployments }).build())
    }
}

async fn create_account(fixture: &Fixture) -> ServiceAccount {
    let accounts: Api<ServiceAccount> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let account = serde_json::from_value(json!({"metadata": {"name": "owner"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap()
}

/// Runs a controller in a program of this name, as its leader.
fn start_program(
    programs: &mut JoinSet<()>,
    fixture: &Fixture,
    component: &str,
    constructor: impl FnOnce(&Context) -> Result<Controller>,
) {
    let cx = Context::new(component, fixture.client.clone());
    let controller = constructor(&cx).unwrap();
    cx.informers().start();
    programs.spawn(run(controller, Leadership::always()));
}

/// Waits until there is one event from each program, and asserts that each is as expected and stands in one warning.
async fn assert_contested(fixture: &Fixture, objects: &[&str], texts: [String; 2]) {
    let expected = texts.map(|text| format!("Deployment {}/owner: {text}, 3 times in ", fixture.namespace));
    let messages = eventually("an event of each program", TIMEOUT, async || {
        let events = join_all(objects.iter().map(|uid| fixture.events_about(&fixture.namespace, uid)));
        let events = events.await.into_iter().flatten();
        let events = events.filter(|event| event.reason.as_deref() == Some("FieldContested"));
        let mut messages: Vec<_> = events.filter_map(|event| event.note).collect();
        messages.sort();
        if messages.len() >= 2 { Ok(messages) } else { Err(format!("{messages:?}")) }
    })
    .await;
    println!("{messages:?}");
    for expected in &expected {
        assert_eq!(
            messages.iter().filter(|message| message.starts_with(expected)).count(),
            1,
            "{expected}: {messages:?}"
        );
        let lines = logs::lines_with(expected);
        assert_eq!(lines.len(), 1, "{expected}: {lines:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_programs_that_write_the_same_field_each_report_the_other_one() {
    logs::record();
    let other = "another client with the field manager ";
    for (verb, first, second, prefix) in [
        (Verb::Apply, "red", "blue", ""),
        (Verb::Apply, "red", "red", other),
        (Verb::Update, "red", "blue", ""),
    ] {
        let fixture = Fixture::new("programs").await;
        let owner = create_owner(&fixture).await;
        let uid = owner.uid().unwrap();
        let mut programs = JoinSet::new();
        start_program(&mut programs, &fixture, first, scaling(&fixture, verb, 2));
        start_program(&mut programs, &fixture, second, scaling(&fixture, verb, 5));
        let suffix = if matches!(verb, Verb::Apply) { format!("-{uid}") } else { String::new() };
        let texts = [
            format!("{prefix}{second}{suffix} set spec.replicas to 5, restored to 2"),
            format!("{prefix}{first}{suffix} set spec.replicas to 2, restored to 5"),
        ];
        assert_contested(&fixture, &[&uid], texts).await;
        programs.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_of_two_kinds_that_write_the_same_field_each_report_the_other_one() {
    logs::record();
    let fixture = Fixture::new("kinds").await;
    let owner = create_owner(&fixture).await;
    let account = create_account(&fixture).await;
    let mut programs = JoinSet::new();
    start_program(&mut programs, &fixture, "red", scaling(&fixture, Verb::Apply, 2));
    start_program(&mut programs, &fixture, "blue", capacity(&fixture));
    let (uid, account) = (owner.uid().unwrap(), account.uid().unwrap());
    let texts = [
        "blue set spec.replicas to 5, restored to 2".to_owned(),
        format!("red-{uid} set spec.replicas to 2, restored to 5"),
    ];
    assert_contested(&fixture, &[&uid, &account], texts).await;
    programs.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_controllers_of_one_program_each_report_the_other_one_and_are_slowed_as_a_storm() {
    logs::record();
    let fixture = Fixture::new("one-program").await;
    let owner = create_owner(&fixture).await;
    let account = create_account(&fixture).await;
    let cx = Context::new("red", fixture.client.clone());
    let controllers = [scaling(&fixture, Verb::Apply, 2)(&cx).unwrap(), capacity(&fixture)(&cx).unwrap()];
    cx.informers().start();
    let mut running = JoinSet::new();
    for controller in controllers {
        running.spawn(run(controller, Leadership::always()));
    }
    let (uid, account) = (owner.uid().unwrap(), account.uid().unwrap());
    let texts = [
        "blue set spec.replicas to 5, restored to 2".to_owned(),
        format!("red-{uid} set spec.replicas to 2, restored to 5"),
    ];
    assert_contested(&fixture, &[&uid, &account], texts).await;
    let storm = eventually("an event about the storm", TIMEOUT, async || {
        let events = [&uid, &account].map(|uid| fixture.events_about(&fixture.namespace, uid));
        let events = join_all(events).await.into_iter().flatten();
        events.filter(|event| event.reason.as_deref() == Some("ReconcileStorm")).find_map(|event| event.note)
    })
    .await;
    println!("{storm}");
    assert!(storm.contains("nothing changed from outside"), "{storm}");
    let deployments: Api<Deployment> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let writes = async || deployments.get("owner").await.unwrap().metadata.generation.unwrap();
    let (before, window) = (writes().await, Duration::from_secs(5));
    sleep(window).await;
    let during = writes().await - before;
    println!("{before} writes until the storm was reported, {during} in {window:?} after that");
    assert!(during < 50, "it is not slowed");
    running.shutdown().await;
}
