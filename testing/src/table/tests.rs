use std::sync::Mutex;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client, CustomResource, ResourceExt, api::*};
use reknit_apis::{DuckStatus, KRShaped, kind};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Error, Event, Outcome, Owned, ReconcileKind, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::*;
use crate::{InformerExt, Verb};

fn shop() -> Namespace {
    let mut shop = Namespace::default();
    shop.metadata.name = Some("shop".into());
    shop
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "shop"}, "data": {"k": value}}))
        .unwrap()
}

/// A Kind whose unset fields are serialized as null.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
struct LampSpec {
    watts: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
struct LampStatus {
    #[serde(flatten)]
    duck: DuckStatus,
    lit: Option<bool>,
}

kind!(Lamp { status: LampStatus, conditions: knative(duck) });

fn lamp() -> Lamp {
    let mut lamp = Lamp::new("hall", LampSpec { watts: None });
    lamp.metadata.namespace = Some("shop".into());
    lamp.metadata.generation = Some(1);
    lamp
}

/// A reconciler that sends every kind of write and records events.
struct Busy(Client);

impl ReconcileKind for Busy {
    type Kind = Namespace;

    async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
        let maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), "shop");
        maps.create(&PostParams::default(), &map("new", "v")).await?;
        let mut old = maps.get("old").await?;
        old.data = map("old", "w").data;
        maps.replace("old", &PostParams::default(), &old).await?;
        maps.patch("old", &PatchParams::default(), &Patch::Merge(json!({"data": {"l": "x"}}))).await?;
        maps.patch("old", &PatchParams::apply("busy").force(), &Patch::Apply(map("old", "v"))).await?;
        maps.delete("old", &DeleteParams::default()).await?;
        maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("a=b")).await?;
        Ok(Outcome::skip().event(Event::normal("Done", "all of it")))
    }
}

fn busy(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<Namespace>(cx).reconciler(Busy(cx.client())).build())
}

fn all() -> Want {
    Want::skip()
        .create(&map("new", "v"))
        .update(&map("old", "w"))
        .patch::<ConfigMap>("shop/old", json!({"data": {"l": "x"}}))
        .apply(&map("old", "v"))
        .delete::<ConfigMap>("shop/old")
        .delete_collection::<ConfigMap>("shop", "a=b")
        .event(Event::normal("Done", "all of it"))
}

#[tokio::test]
async fn the_expected_effects_and_no_others_pass() {
    given(shop()).and(map("old", "v")).pass(busy, "shop").await.check(all());
}

#[tokio::test]
async fn missing_wrong_and_additional_effects_fail_with_a_diff() {
    let passed = given(shop()).and(map("old", "v")).pass(busy, "shop").await;
    let said = |want: Want| passed.difference(want).unwrap_or_default();
    assert!(said(all().delete::<ConfigMap>("shop/other")).contains("\n-- delete configmaps shop/other\n"));
    assert!(said(all().event(Event::warning("No", "none"))).contains("\n-- 'Warning No: none'\n"));
    assert!(said(Want::error("it failed")).starts_with("--- wanted\n+++ done\n@@ -1,3 +1,"));
    let other = Want::skip().create(&map("new", "another value"));
    let said = said(other);
    assert!(said.contains("\n-      k: another value\n+      k: v\n"), "{said}");
    assert!(said.contains("\n+- deletecollection configmaps shop/ a=b\n"), "{said}");
}

#[tokio::test]
async fn a_write_that_is_made_to_fail_is_recorded_with_its_error() {
    let given = given(shop()).and(map("old", "v")).failing(Verb::Create, "configmaps", 500);
    let said = "inducing failure for create configmaps";
    let passed = given.pass(busy, "shop").await;
    let event = passed.events().remove(0);
    assert_eq!(event.reason, "InternalError");
    let error = passed.result.as_ref().err().map(ToString::to_string).unwrap();
    assert!(error.contains(said), "{error}");
    passed.check(Want::error(&error).create(&map("new", "v")).event(event));
}

#[tokio::test]
async fn dry_runs_and_propagation_policies_are_compared() {
    struct Tries(Client);
    impl ReconcileKind for Tries {
        type Kind = Namespace;
        async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
            let maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), "shop");
            let dry = PostParams { dry_run: true, ..PostParams::default() };
            maps.create(&dry, &map("new", "v")).await?;
            maps.delete("old", &DeleteParams::foreground().dry_run()).await?;
            let named = ListParams::default().fields("metadata.name=old");
            maps.delete_collection(&DeleteParams::orphan(), &named).await?;
            Ok(Outcome::done())
        }
    }
    let controller =
        |cx: &Context| Ok(Controller::of::<Namespace>(cx).reconciler(Tries(cx.client())).build());
    let passed = given(shop()).and(map("old", "v")).pass(controller, "shop").await;
    let plain = Want::done()
        .create(&map("new", "v"))
        .delete::<ConfigMap>("shop/old")
        .delete_collection::<ConfigMap>("shop", "");
    let said = passed.difference(plain).unwrap_or_default();
    assert!(
        said.contains("\n-- create configmaps shop/new:\n+- create configmaps shop/new dryRun=All:\n"),
        "{said}"
    );
    assert_eq!(
        passed.writes(),
        [
            "create configmaps shop/new dryRun=All",
            "delete configmaps shop/old dryRun=All propagationPolicy=Foreground",
            "deletecollection configmaps shop/ fieldSelector=metadata.name=old propagationPolicy=Orphan",
        ]
    );
    passed.check(
        Want::done()
            .create(&map("new", "v"))
            .dry_run()
            .delete::<ConfigMap>("shop/old")
            .propagating(PropagationPolicy::Foreground)
            .dry_run()
            .delete_collection::<ConfigMap>("shop", "")
            .fields("metadata.name=old")
            .propagating(PropagationPolicy::Orphan),
    );
}

#[tokio::test]
async fn an_eviction_is_expected_like_other_writes() {
    struct Evicts(Client);
    impl ReconcileKind for Evicts {
        type Kind = Namespace;
        async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
            let pods: Api<Pod> = Api::namespaced(self.0.clone(), &shop.name_any());
            match pods.evict("web", &EvictParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 429 => Ok(Outcome::skip()),
                answer => answer.map(|_| Outcome::done()).map_err(Error::from),
            }
        }
    }
    let controller =
        |cx: &Context| Ok(Controller::of::<Namespace>(cx).reconciler(Evicts(cx.client())).build());
    let passed = given(shop()).failing(Verb::Create, "pods/eviction", 429).pass(controller, "shop").await;
    let body = passed.write(0).body.clone();
    assert_eq!(body["metadata"], json!({"name": "web"}));
    passed.check(Want::skip().create_subresource::<Pod>("shop/web", "eviction", body));
}

#[tokio::test]
async fn a_field_that_a_manager_no_longer_applies_is_removed() {
    struct Applies(Client);
    impl ReconcileKind for Applies {
        type Kind = Namespace;
        async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
            let maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), &shop.name_any());
            maps.patch("a", &PatchParams::apply("me"), &Patch::Apply(map("a", "v"))).await?;
            Ok(Outcome::done())
        }
    }
    let controller =
        |cx: &Context| Ok(Controller::of::<Namespace>(cx).reconciler(Applies(cx.client())).build());
    let mut before = map("a", "u");
    before.data.get_or_insert_default().insert("gone".into(), "x".into());
    let passed = given(shop()).applied(before.clone(), "me").pass(controller, "shop").await;
    passed.check(Want::done().apply(&map("a", "v")));
    assert_eq!(passed.object::<ConfigMap>("shop/a").unwrap().data, map("a", "v").data);
    let passed = given(shop()).applied(before, "another").pass(controller, "shop").await;
    let refused = passed.result.unwrap_err().to_string();
    assert!(refused.contains("conflict with \"another\""), "{refused}");
}

#[tokio::test]
async fn a_child_is_expected_as_the_reconciler_passes_it() {
    struct Greeter(Owned<ConfigMap>);
    impl ReconcileKind for Greeter {
        type Kind = Namespace;
        async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
            self.0.apply(shop, map("greeting", "hello")).await?;
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| {
        let mut build = Controller::of::<Namespace>(cx);
        let maps = build.owns();
        Ok(build.reconciler(Greeter(maps)).build())
    };
    let passed = given(shop()).pass(controller, "shop").await;
    passed.check(Want::done().child(&shop(), &map("greeting", "hello")));
    let made = passed.object::<ConfigMap>("shop/greeting").unwrap();
    given(shop()).and(made).pass(controller, "shop").await.check(Want::done());
    let taken = given(shop()).and(map("greeting", "another's")).pass(controller, "shop").await;
    assert!(taken.result.is_err() && taken.writes().is_empty());
}

#[tokio::test]
async fn the_status_and_null_fields_of_a_child_are_not_expected() {
    struct Electrician(Owned<Lamp>, Lamp);
    impl ReconcileKind for Electrician {
        type Kind = Namespace;
        async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
            self.0.apply(shop, self.1.clone()).await?;
            Ok(Outcome::done())
        }
    }
    let owner = |name: &str, controller| OwnerReference {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        controller,
        ..OwnerReference::default()
    };
    let mut child = lamp();
    child.status = Some(LampStatus { lit: Some(true), ..LampStatus::default() });
    child.metadata.annotations = Some(Default::default());
    child.metadata.owner_references = Some(vec![owner("further", None), owner("replaced", Some(true))]);
    let controller = |cx: &Context| {
        let mut build = Controller::of::<Namespace>(cx);
        let lamps = build.owns();
        Ok(build.reconciler(Electrician(lamps, child.clone())).build())
    };
    let passed = given(shop()).pass(controller, "shop").await;
    passed.check(Want::done().child(&shop(), &child));
    let owners = passed.object::<Lamp>("shop/hall").unwrap().metadata.owner_references.unwrap();
    assert_eq!(owners.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>(), ["shop", "further"]);
}

#[tokio::test]
async fn a_secret_is_expected_as_the_reconciler_passes_it() {
    struct Keeps(Owned<Secret>);
    impl ReconcileKind for Keeps {
        type Kind = Namespace;
        async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
            self.0.apply(shop, password()).await?;
            Ok(Outcome::done())
        }
    }
    fn password() -> Secret {
        let secret = json!({"metadata": {"name": "password", "namespace": "shop"}, "stringData": {"a": "b"}});
        serde_json::from_value(secret).unwrap()
    }
    let controller = |cx: &Context| {
        let mut build = Controller::of::<Namespace>(cx);
        let secrets = build.owns();
        Ok(build.reconciler(Keeps(secrets)).build())
    };
    let passed = given(shop()).pass(controller, "shop").await;
    passed.check(Want::done().child(&shop(), &password()));
    assert_eq!(passed.object::<Secret>("shop/password").unwrap().data.unwrap()["a"].0, b"b");
}

#[tokio::test]
async fn null_fields_of_an_expected_status_count_as_absent() {
    struct Breaker;
    impl ReconcileKind for Breaker {
        type Kind = Lamp;
        async fn reconcile_kind(&self, _: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
            status.lit = None;
            Lamp::CONDITIONS.manage(status).mark_true("Ready");
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| Ok(Controller::of::<Lamp>(cx).reconciler(Breaker).build());
    let mut wanted = lamp();
    let status = wanted.status.get_or_insert_default();
    Lamp::CONDITIONS.manage(status).mark_true("Ready");
    status.duck.observed_generation = Some(1);
    let mut lit = lamp();
    lit.status = Some(LampStatus { lit: Some(true), ..LampStatus::default() });
    table(controller)
        .row("there was none", "shop/hall", given(lamp()), Want::done().status(&wanted))
        .row("it was lit", "shop/hall", given(lit), Want::done().status(&wanted))
        .run()
        .await;
}

#[tokio::test]
#[should_panic(expected = "1 of 2 cases failed:\n\nthe one that fails (testing/src/table/tests.rs:")]
async fn a_table_names_each_case_that_failed() {
    table(busy)
        .row("the one that fails", "shop", given(shop()).and(map("old", "v")), Want::done())
        .row("the one that passes", "shop", given(shop()).and(map("old", "v")), all())
        .run()
        .await;
}

#[tokio::test]
#[should_panic(
    expected = "no object can have the key default/shop: a Namespace lies in none, so `name` is wanted"
)]
async fn a_namespace_in_the_key_of_a_cluster_scoped_object_fails() {
    given(shop()).pass(busy, "default/shop").await;
}

#[tokio::test]
#[should_panic(
    expected = "the reconcile of hall:\nno object can have the key /hall: a Lamp lies in a namespace"
)]
async fn a_case_whose_key_lacks_the_namespace_fails() {
    struct Dark;
    impl ReconcileKind for Dark {
        type Kind = Lamp;
        async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
            Ok(Outcome::skip())
        }
    }
    table(|cx: &Context| Ok(Controller::of::<Lamp>(cx).reconciler(Dark).build()))
        .row("the key lacks the namespace", "hall", given(lamp()), Want::skip())
        .run()
        .await;
}

#[tokio::test]
#[should_panic(expected = "-  k: v\n+  k: changed\n")]
async fn an_object_changed_in_memory_is_reported() {
    /// A reconciler that changes a cached object through the informer, because its own object is read-only.
    struct Reaches(reknit_injection::Informer<ConfigMap>, Mutex<bool>);
    impl ReconcileKind for Reaches {
        type Kind = Namespace;
        async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
            let mut map = map("old", "changed");
            map.metadata.resource_version = Some("2".into());
            self.0.insert(map);
            *self.1.lock().map_err(|_| Error::from("poisoned"))? = true;
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| {
        let reaches = Reaches(cx.get(), Mutex::default());
        Ok(Controller::of::<Namespace>(cx).reconciler(reaches).build())
    };
    given(shop()).and(map("old", "v")).pass(controller, "shop").await;
}
