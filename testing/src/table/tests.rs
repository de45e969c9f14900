mod comparison;
mod dynamic;
mod permissions;
mod recorded;

use std::sync::Mutex;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::{Api, Client, CustomResource, ResourceExt, api::*};
use reknit_apis::{DuckStatus, KRShaped, kind};
use reknit_injection::{Context, Permission};
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

fn config_map(name: &str, value: &str) -> ConfigMap {
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
#[serde(rename_all = "camelCase")]
struct LampStatus {
    #[serde(flatten)]
    duck: DuckStatus,
    lit: Option<bool>,
    last_lit: Option<String>,
}

kind!(Lamp { status: LampStatus, conditions: knative(duck) });

fn lamp() -> Lamp {
    let mut lamp = Lamp::new("hall", LampSpec { watts: None });
    lamp.metadata.namespace = Some("shop".into());
    lamp.metadata.generation = Some(1);
    lamp
}

/// A reconciler that sends a write of each verb and records an event.
struct AllWrites(Client);

impl ReconcileKind for AllWrites {
    type Kind = Namespace;

    async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
        let config_maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), "shop");
        config_maps.create(&PostParams::default(), &config_map("new", "v")).await?;
        let mut old = config_maps.get("old").await?;
        old.data = config_map("old", "w").data;
        config_maps.replace("old", &PostParams::default(), &old).await?;
        config_maps.patch("old", &PatchParams::default(), &Patch::Merge(json!({"data": {"l": "x"}}))).await?;
        config_maps
            .patch("old", &PatchParams::apply("busy").force(), &Patch::Apply(config_map("old", "v")))
            .await?;
        config_maps.delete("old", &DeleteParams::default()).await?;
        config_maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("a=b")).await?;
        Ok(Outcome::skip().event(Event::normal("Done", "sent all writes")))
    }
}

/// Every verb on these resources of this group, with their subresources.
fn everything(group: &str, resource: &str) -> Permission {
    use Verb::*;
    Permission::new(group, resource, [Get, List, Create, Update, Patch, Delete, DeleteCollection])
}

fn all_writes_controller(cx: &Context) -> Result<Controller> {
    cx.allows(everything("", "configmaps"));
    Ok(Controller::of::<Namespace>(cx).reconciler(AllWrites(cx.client())).build())
}

/// The expected effects of [`AllWrites`].
fn all_effects() -> Want {
    Want::skip()
        .create(&config_map("new", "v"))
        .update(&config_map("old", "w"))
        .patch::<ConfigMap>("shop/old", json!({"data": {"l": "x"}}))
        .apply(&config_map("old", "v"))
        .delete::<ConfigMap>("shop/old")
        .delete_collection::<ConfigMap>("shop", "a=b")
        .event(Event::normal("Done", "sent all writes"))
}

#[tokio::test]
async fn equal_effects_pass() {
    given(shop())
        .and(config_map("old", "v"))
        .reconcile(all_writes_controller, "shop")
        .await
        .check(all_effects());
}

#[tokio::test]
async fn missing_different_and_additional_effects_fail_with_a_diff() {
    let effects = given(shop()).and(config_map("old", "v")).reconcile(all_writes_controller, "shop").await;
    let diff = |want: Want| effects.difference(want).unwrap_or_default();
    assert!(
        diff(all_effects().delete::<ConfigMap>("shop/other")).contains("\n-- delete configmaps shop/other\n")
    );
    assert!(diff(all_effects().event(Event::warning("No", "none"))).contains("\n-- \"Warning No: none\"\n"));
    assert!(diff(Want::error("it failed")).starts_with("--- expected\n+++ actual\n@@ -1,3 +1,"));
    let other_value = Want::skip().create(&config_map("new", "another value"));
    let diff = diff(other_value);
    assert!(diff.contains("\n-      k: another value\n+      k: v\n"), "{diff}");
    assert!(diff.contains("\n+- deletecollection configmaps shop/ a=b\n"), "{diff}");
}

#[tokio::test]
async fn a_write_that_is_made_to_fail_is_recorded_with_its_error() {
    let given = given(shop()).and(config_map("old", "v")).failing(Verb::Create, "configmaps", 500);
    let message = "inducing failure for create configmaps";
    let effects = given.reconcile(all_writes_controller, "shop").await;
    let event = effects.events().remove(0);
    assert_eq!(event.reason, "InternalError");
    let error = effects.result.as_ref().err().map(Error::in_full).unwrap();
    assert!(error.contains(message), "{error}");
    effects.check(Want::error(&error).create(&config_map("new", "v")).event(event));
}

#[tokio::test]
async fn dry_runs_and_propagation_policies_are_compared() {
    struct DryRunner(Client);
    impl ReconcileKind for DryRunner {
        type Kind = Namespace;
        async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
            let config_maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), "shop");
            let dry = PostParams { dry_run: true, ..PostParams::default() };
            config_maps.create(&dry, &config_map("new", "v")).await?;
            config_maps.delete("old", &DeleteParams::foreground().dry_run()).await?;
            let named = ListParams::default().fields("metadata.name=old");
            config_maps.delete_collection(&DeleteParams::orphan(), &named).await?;
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| {
        cx.allows(everything("", "configmaps"));
        Ok(Controller::of::<Namespace>(cx).reconciler(DryRunner(cx.client())).build())
    };
    let effects = given(shop()).and(config_map("old", "v")).reconcile(controller, "shop").await;
    let without_options = Want::done()
        .create(&config_map("new", "v"))
        .delete::<ConfigMap>("shop/old")
        .delete_collection::<ConfigMap>("shop", "");
    let diff = effects.difference(without_options).unwrap_or_default();
    assert!(
        diff.contains("\n-- create configmaps shop/new:\n+- create configmaps shop/new dryRun=All:\n"),
        "{diff}"
    );
    assert_eq!(
        effects.writes(),
        [
            "create configmaps shop/new dryRun=All",
            "delete configmaps shop/old dryRun=All propagationPolicy=Foreground",
            "deletecollection configmaps shop/ fieldSelector=metadata.name=old propagationPolicy=Orphan",
        ]
    );
    effects.check(
        Want::done()
            .create(&config_map("new", "v"))
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
async fn an_eviction_is_a_created_subresource() {
    struct Evictor(Client);
    impl ReconcileKind for Evictor {
        type Kind = Namespace;
        async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
            let pods: Api<Pod> = Api::namespaced(self.0.clone(), &shop.name_any());
            match pods.evict("web", &EvictParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 429 => Ok(Outcome::skip()),
                response => response.map(|_| Outcome::done()).map_err(Error::from),
            }
        }
    }
    let controller = |cx: &Context| {
        cx.allows(everything("", "pods/eviction"));
        Ok(Controller::of::<Namespace>(cx).reconciler(Evictor(cx.client())).build())
    };
    let effects =
        given(shop()).failing(Verb::Create, "pods/eviction", 429).reconcile(controller, "shop").await;
    let body = effects.write(0).body.clone();
    assert_eq!(body["metadata"], json!({"name": "web"}));
    effects.check(Want::skip().create_subresource::<Pod>("shop/web", "eviction", body));
}

#[tokio::test]
async fn a_field_that_a_manager_no_longer_applies_is_removed() {
    struct Applier(Client);
    impl ReconcileKind for Applier {
        type Kind = Namespace;
        async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
            let config_maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), &shop.name_any());
            config_maps.patch("a", &PatchParams::apply("me"), &Patch::Apply(config_map("a", "v"))).await?;
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| {
        cx.allows(everything("", "configmaps"));
        Ok(Controller::of::<Namespace>(cx).reconciler(Applier(cx.client())).build())
    };
    let mut before = config_map("a", "u");
    before.data.get_or_insert_default().insert("gone".into(), "x".into());
    let effects = given(shop()).applied(before.clone(), "me").reconcile(controller, "shop").await;
    effects.check(Want::done().apply(&config_map("a", "v")));
    assert_eq!(effects.object::<ConfigMap>("shop/a").unwrap().data, config_map("a", "v").data);
    let effects = given(shop()).applied(before, "another").reconcile(controller, "shop").await;
    let error = effects.result.unwrap_err().to_string();
    assert!(error.contains("conflict with \"another\""), "{error}");
}

#[tokio::test]
async fn a_child_is_compared_as_owned_apply_sends_it() {
    struct ConfigMapOwner(Owned<ConfigMap>);
    impl ReconcileKind for ConfigMapOwner {
        type Kind = Namespace;
        async fn reconcile_kind(&self, shop: &Namespace, _: &mut ()) -> Result<Outcome> {
            self.0.apply(shop, config_map("greeting", "hello")).await?;
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| {
        let mut build = Controller::of::<Namespace>(cx);
        let config_maps = build.owns();
        Ok(build.reconciler(ConfigMapOwner(config_maps)).build())
    };
    let effects = given(shop()).reconcile(controller, "shop").await;
    effects.check(Want::done().child(&shop(), &config_map("greeting", "hello")));
    let applied = effects.object::<ConfigMap>("shop/greeting").unwrap();
    let version = applied.resource_version().unwrap();
    let causes = format!("configmaps shop/greeting added ({version}) by namespaces shop, owned");
    assert_eq!([effects.causes_of("shop"), effects.causes_of("other")], [&causes, ""]);
    given(shop()).and(applied).reconcile(controller, "shop").await.check(Want::done());
    let uncontrolled =
        given(shop()).and(config_map("greeting", "another's")).reconcile(controller, "shop").await;
    assert!(uncontrolled.result.is_err() && uncontrolled.writes().is_empty());
}

#[tokio::test]
async fn the_status_and_null_fields_of_a_child_are_not_compared() {
    struct LampOwner(Owned<Lamp>, Lamp);
    impl ReconcileKind for LampOwner {
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
        Ok(build.reconciler(LampOwner(lamps, child.clone())).build())
    };
    let effects = given(shop()).reconcile(controller, "shop").await;
    effects.check(Want::done().child(&shop(), &child));
    let owners = effects.object::<Lamp>("shop/hall").unwrap().metadata.owner_references.unwrap();
    assert_eq!(owners.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>(), ["shop", "further"]);
}

#[tokio::test]
async fn the_string_data_of_a_secret_is_compared_as_data() {
    struct SecretOwner(Owned<Secret>);
    impl ReconcileKind for SecretOwner {
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
        Ok(build.reconciler(SecretOwner(secrets)).build())
    };
    let effects = given(shop()).reconcile(controller, "shop").await;
    effects.check(Want::done().child(&shop(), &password()));
    assert_eq!(effects.object::<Secret>("shop/password").unwrap().data.unwrap()["a"].0, b"b");
}

#[tokio::test]
async fn null_fields_of_an_expected_status_count_as_absent() {
    struct LampReconciler;
    impl ReconcileKind for LampReconciler {
        type Kind = Lamp;
        async fn reconcile_kind(&self, _: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
            status.lit = None;
            Lamp::CONDITIONS.manage(status).mark_true("Ready");
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| Ok(Controller::of::<Lamp>(cx).reconciler(LampReconciler).build());
    let mut expected = lamp();
    let status = expected.status.get_or_insert_default();
    Lamp::CONDITIONS.manage(status).mark_true("Ready");
    status.duck.observed_generation = Some(1);
    let mut lit = lamp();
    lit.status = Some(LampStatus { lit: Some(true), ..LampStatus::default() });
    table(controller)
        .row("the status was unset", "shop/hall", given(lamp()), Want::done().status(&expected))
        .row("lit was true", "shop/hall", given(lit), Want::done().status(&expected))
        .run()
        .await;
}

#[tokio::test]
#[should_panic(expected = "1 of 2 cases failed:\n\na case that fails (testing/src/table/tests.rs:")]
async fn a_table_names_each_case_that_fails() {
    table(all_writes_controller)
        .row("a case that fails", "shop", given(shop()).and(config_map("old", "v")), Want::done())
        .row("a case that passes", "shop", given(shop()).and(config_map("old", "v")), all_effects())
        .run()
        .await;
}

#[tokio::test]
#[should_panic(
    expected = "no object can have the key default/shop: a Namespace is cluster-scoped, so its key is only a name"
)]
async fn a_namespace_in_the_key_of_a_cluster_scoped_object_fails() {
    given(shop()).reconcile(all_writes_controller, "default/shop").await;
}

#[tokio::test]
#[should_panic(expected = "the reconcile of hall:\nno object can have the key hall: a Lamp is namespaced")]
async fn a_case_whose_key_lacks_the_namespace_fails() {
    struct NoOp;
    impl ReconcileKind for NoOp {
        type Kind = Lamp;
        async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
            Ok(Outcome::skip())
        }
    }
    table(|cx: &Context| Ok(Controller::of::<Lamp>(cx).reconciler(NoOp).build()))
        .row("the key lacks the namespace", "hall", given(lamp()), Want::skip())
        .run()
        .await;
}

#[tokio::test]
#[should_panic(expected = "-  k: v\n+  k: changed\n")]
async fn an_object_changed_in_memory_is_reported() {
    /// A reconciler that changes a cached object through the informer, because its own object is read-only.
    struct CacheMutator(reknit_injection::Informer<ConfigMap>, Mutex<bool>);
    impl ReconcileKind for CacheMutator {
        type Kind = Namespace;
        async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
            let mut changed = config_map("old", "changed");
            changed.metadata.resource_version = Some("2".into());
            self.0.insert(changed);
            *self.1.lock().map_err(|_| Error::from("poisoned"))? = true;
            Ok(Outcome::done())
        }
    }
    let controller = |cx: &Context| {
        let mutator = CacheMutator(cx.get(), Mutex::default());
        Ok(Controller::of::<Namespace>(cx).reconciler(mutator).build())
    };
    given(shop()).and(config_map("old", "v")).reconcile(controller, "shop").await;
}
