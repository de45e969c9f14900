//! Fields that a controller and another client write in turn, on a real API server.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Secret},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
};
use reknit_injection::{Context, select};
use reknit_reconciler::{Controller, Outcome, Owned, ReconcileKind, Result};
use reknit_testing::{Controllers, eventually};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{Fixture, TIMEOUT};

/// The way in which a controller writes the Deployment of a ConfigMap.
#[derive(Clone, Copy, Debug)]
enum Verb {
    Apply,
    Update,
    Client,
}

/// Wants a Deployment with two replicas for each ConfigMap.
struct Scaling {
    verb: Verb,
    client: Client,
    children: Owned<Deployment>,
}

fn deployment(name: &str) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "main", "image": "one"}]},
            },
        },
    }))
    .unwrap()
}

impl ReconcileKind for Scaling {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let wanted = deployment(&map.name_any());
        let replicas = |deployment: &Deployment| deployment.spec.as_ref().and_then(|spec| spec.replicas);
        match self.verb {
            Verb::Apply => drop(self.children.apply(map, wanted).await?),
            Verb::Update => {
                let scale = |child: &mut Deployment| child.spec.as_mut().unwrap().replicas = Some(2);
                self.children.create_or_update(map, wanted, scale).await?;
            }
            Verb::Client => {
                let child = self.children.create_or_update(map, wanted, |_| {}).await?;
                if replicas(&child) != Some(2) {
                    let namespace = map.namespace().unwrap();
                    let api: Api<Deployment> = Api::namespaced(self.client.clone(), &namespace);
                    let patch = Patch::Merge(json!({"spec": {"replicas": 2}}));
                    api.patch(&map.name_any(), &PatchParams::default(), &patch).await?;
                }
            }
        }
        Ok(Outcome::done())
    }
}

fn scaling(fixture: &Fixture, verb: Verb) -> impl FnOnce(&Context) -> Result<Controller> + 'static {
    let namespace = fixture.namespace.clone();
    move |cx| {
        let mut build =
            Controller::selected::<ConfigMap>(cx, select().namespace(&namespace).label("app", "a"));
        let (client, children) = (build.client(), build.owns());
        Ok(build.reconciler(Scaling { verb, client, children }).build())
    }
}

async fn create_owner(fixture: &Fixture) -> ConfigMap {
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
            api.patch(name, &params, &Patch::Merge(&patch)).await.unwrap();
        }
        sleep(Duration::from_millis(200)).await;
        contested(fixture, owner).await.into_iter().next()
    })
    .await
}

/// The messages of the events about fights.
async fn contested(fixture: &Fixture, owner: &ConfigMap) -> Vec<String> {
    let events = fixture.events_about(&fixture.namespace, &owner.uid().unwrap()).await;
    let events = events.into_iter().filter(|event| event.reason.as_deref() == Some("FieldContested"));
    events.filter_map(|event| event.note).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fight_is_reported_with_the_other_manager_whichever_verb_restores_the_field() {
    for (verb, manager) in [
        (Verb::Apply, "horizontal-pod-autoscaler"),
        (Verb::Update, "kubectl-edit"),
        (Verb::Client, "capacity-bot"),
    ] {
        let fixture = Fixture::new("fight").await;
        let owner = create_owner(&fixture).await;
        let running = Controllers::new(fixture.client.clone()).controller(scaling(&fixture, verb)).start();
        let patch = json!({"spec": {"replicas": 5}});
        let message = disturb::<Deployment>(&fixture, &owner, "owner", manager, patch).await;
        println!("{verb:?}: {message}");
        let expected = format!(
            "Deployment {}/owner: {manager} set spec.replicas to 5, restored to 2, 3 times in ",
            fixture.namespace
        );
        assert!(message.starts_with(&expected), "{message}");
        assert_eq!(contested(&fixture, &owner).await.len(), 1);
        running.stop().await;
    }
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
