mod garbage;
mod honoured;
mod lists;
mod live;
mod shadow;
mod traps;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{
    Api, Client, CustomResource, CustomResourceExt, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit_apis::kind;
use reknit_apiserver::ApiServer;
use reknit_injection::Effects;
use reknit_reconciler::{FinalizeKind, Outcome, Owned, ReconcileKind, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::*;

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "plan.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
struct LampSpec {}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct LampStatus {
    #[serde(default)]
    color: String,
}

kind!(Lamp { status: LampStatus });

/// Applies a ConfigMap with this color, and reports the color of the ConfigMap as the status.
struct Painter {
    maps: Owned<ConfigMap>,
    color: &'static str,
}

impl ReconcileKind for Painter {
    type Kind = Lamp;

    async fn reconcile_kind(&self, lamp: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        let map = json!({"metadata": {"name": lamp.name_any()}, "data": {"color": self.color}});
        let map = self.maps.apply(lamp, serde_json::from_value(map)?).await?;
        status.color = map.data.as_ref().map(|data| data["color"].clone()).unwrap_or_default();
        Ok(Outcome::done())
    }
}

impl FinalizeKind for Painter {
    async fn finalize_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

fn painter(cx: &Context, color: &'static str) -> Result<Controller> {
    let mut build = Controller::of::<Lamp>(cx);
    let maps = build.owns::<ConfigMap>();
    Ok(build.finalizer("plan.reknit.dev/paint").reconciler(Painter { maps, color }).finalizing().build())
}

type Script = fn(Client, Effects, Lamp) -> BoxFuture<'static, Result<()>>;

/// Runs a function for each Lamp.
struct Scripted(Client, Effects, Script);

impl ReconcileKind for Scripted {
    type Kind = Lamp;

    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        let Self(client, effects, script) = self;
        script(client.clone(), effects.clone(), lamp.clone()).await.map(|()| Outcome::done())
    }
}

/// A server with the Lamp `desk`.
fn server() -> ApiServer {
    let server = ApiServer::new().with_required_namespaces();
    server.insert(&Lamp::crd());
    server.insert(
        &serde_json::from_value::<Lamp>(json!({
            "apiVersion": "plan.reknit.dev/v1", "kind": "Lamp", "spec": {},
            "metadata": {"name": "desk", "namespace": "default", "uid": "0"},
        }))
        .unwrap(),
    );
    server
}

/// A plan, and what the server has and got.
struct Planned {
    status: u8,
    text: String,
    json: Value,
}

/// Plans a controller. Fails if a write was not a dry run, or if an object has changed.
async fn plan_controller(
    server: &ApiServer,
    controller: impl Fn(&Context) -> Result<Controller> + 'static,
) -> Planned {
    let (objects, _) = (server.objects(), server.take_writes());
    let main = Main::new("test").plannable().redact(["/data/token"]).controller(controller);
    let (status, text, json) = plan(main, server.client().into()).await.unwrap();
    println!("{text}");
    assert!(server.take_writes().iter().all(|write| write.dry_run));
    assert_eq!(server.objects(), objects);
    Planned { status, text, json }
}

async fn plan_script(server: &ApiServer, script: Script) -> Planned {
    plan_controller(server, move |cx| {
        let build = Controller::of::<Lamp>(cx);
        Ok(build.reconciler(Scripted(cx.client(), cx.get(), script)).build())
    })
    .await
}

/// Runs the painter for real, until nothing is queued.
async fn paint(server: &ApiServer, color: &'static str) {
    let (controller, informers) = {
        let cx = Context::new("test", server.client());
        (painter(&cx, color).unwrap(), cx.informers())
    };
    informers.start();
    for informer in controller.informers() {
        informer.synced().await;
    }
    enqueue_all(&controller);
    loop {
        let keys = take_queued(&controller);
        if keys.is_empty() {
            return;
        }
        for key in keys {
            let _ = reconcile_once(&controller, &key, true).await.unwrap();
        }
    }
}

const NOTHING: &str = "Plan: 0 to create, 0 to change, 0 to change in status only, 0 to delete; 0 failed\n";

#[tokio::test]
async fn an_unchanged_version_plans_nothing() {
    let server = server();
    paint(&server, "red").await;
    let planned = plan_controller(&server, |cx| painter(cx, "red")).await;
    assert_eq!((planned.status, &*planned.text), (0, NOTHING));
    assert_eq!(planned.json["complete"], true);
}

#[tokio::test]
async fn the_real_run_does_what_was_planned() {
    let server = server();
    for color in ["red", "blue"] {
        let planned = plan_controller(&server, move |cx| painter(cx, color)).await;
        assert_eq!(planned.status, 3);
        paint(&server, color).await;
        let objects = planned.json["objects"].as_array().unwrap();
        assert_eq!(objects.len(), 2, "{objects:?}");
        let maps: Vec<_> = objects.iter().filter(|object| object["kind"] == "ConfigMap").collect();
        let map: ConfigMap = server.object(Some("default"), "desk").unwrap();
        assert_eq!(maps[0]["after"]["data"], json!(map.data));
        assert_eq!(maps[0]["after"]["metadata"]["annotations"], json!(map.metadata.annotations));
        let lamp: Lamp = server.object(Some("default"), "desk").unwrap();
        assert_eq!(lamp.status.unwrap().color, color);
    }
}

#[tokio::test]
async fn a_changed_version_prints_its_changes_by_their_cause() {
    let server = server();
    paint(&server, "red").await;
    let planned = plan_controller(&server, |cx| painter(cx, "blue")).await;
    let lines: Vec<_> = planned.text.lines().collect();
    assert_eq!(
        lines,
        [
            "# lamps.plan.reknit.dev default/desk",
            "  ~ ConfigMap default/desk",
            "      ~ data.color: \"red\" → \"blue\"",
            "  ~ Lamp default/desk",
            "      ~ status.color: \"red\" → \"blue\"",
            "Plan: 0 to create, 1 to change, 1 to change in status only, 0 to delete; 0 failed",
        ]
    );
    let lamp = &planned.json["objects"][1];
    assert_eq!((&lamp["action"], &lamp["key"]), (&json!("changeStatus"), &json!("default/desk")));
    assert_eq!(lamp["causes"], json!([{"controller": "lamps.plan.reknit.dev", "key": "default/desk"}]));
}

#[tokio::test]
async fn equal_changes_of_many_keys_are_printed_once() {
    let server = server();
    for n in 0..9 {
        let lamp = json!({
            "apiVersion": "plan.reknit.dev/v1", "kind": "Lamp", "spec": {},
            "metadata": {"name": format!("lamp-{n}"), "namespace": "default", "uid": format!("lamp-{n}")},
        });
        server.insert(&serde_json::from_value::<Lamp>(lamp).unwrap());
    }
    paint(&server, "red").await;
    let planned = plan_controller(&server, |cx| painter(cx, "blue")).await;
    let headings: Vec<_> = planned.text.lines().filter(|line| line.starts_with('#')).collect();
    let expected = "# lamps.plan.reknit.dev default/desk, default/lamp-0, default/lamp-1 and 7 more";
    assert_eq!(headings.first(), Some(&expected), "{headings:?}");
}

#[tokio::test]
async fn a_finalizer_of_a_planned_deletion_is_followed_to_its_end() {
    let server = server();
    paint(&server, "red").await;
    let lamps: Api<Lamp> = Api::default_namespaced(server.client());
    let _ = lamps.delete("desk", &DeleteParams::default()).await.unwrap();
    let planned = plan_controller(&server, |cx| painter(cx, "red")).await;
    assert_eq!((planned.status, &planned.json["objects"][0]["action"]), (3, &json!("delete")));
    assert!(planned.text.contains("  - Lamp default/desk\n"));
}

fn map(name: &str, data: Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap()
}

fn merge(patch: Value) -> Patch<Value> {
    Patch::Merge(patch)
}

#[tokio::test]
async fn later_writes_build_on_earlier_ones() {
    let server = server();
    server.insert(&map_in_default("live"));
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let params = PatchParams::default();
            maps.patch("live", &params, &merge(json!({"data": {"a": "1"}}))).await?;
            let live = maps.patch("live", &params, &merge(json!({"data": {"b": "2"}}))).await?;
            assert_eq!(json!(live.data), json!({"a": "1", "b": "2", "live": "yes"}));
            // An apply replaces the earlier apply of its manager, and no other write.
            let mine = PatchParams::apply("mine");
            for data in [json!({"c": "3"}), json!({"d": "4"})] {
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data});
                maps.patch("live", &mine, &Patch::Apply(body)).await?;
            }
            maps.create(&PostParams::default(), &map("new", json!({"a": "1"}))).await?;
            let new = maps.patch("new", &params, &merge(json!({"data": {"a": null, "b": "2"}}))).await?;
            maps.replace("new", &PostParams::default(), &new).await?;
            let listed = maps.list(&ListParams::default()).await?;
            assert_eq!(listed.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["live", "new"]);
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.status, 3);
    let data = |index: usize| &planned.json["objects"][index]["after"]["data"];
    assert_eq!(data(0), &json!({"a": "1", "b": "2", "d": "4", "live": "yes"}));
    assert_eq!(data(1), &json!({"b": "2"}));
}

fn map_in_default(name: &str) -> ConfigMap {
    let mut map = map(name, json!({"live": "yes"}));
    map.metadata.namespace = Some("default".into());
    map
}

#[tokio::test]
async fn an_object_that_is_deleted_and_created_again_is_replaced() {
    let server = server();
    server.insert(&map_in_default("a"));
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let old = maps.get("a").await?;
            if old.data.as_ref().is_some_and(|data| data.contains_key("live")) {
                let _ = maps.delete("a", &DeleteParams::default()).await?;
                assert!(maps.get_opt("a").await?.is_none());
                maps.create(&PostParams::default(), &map("a", json!({"new": "yes"}))).await?;
            }
            Ok(())
        }
        .boxed()
    })
    .await;
    assert!(
        planned
            .text
            .contains("  -/+ ConfigMap default/a\n      - data.live: \"yes\"\n      + data.new: \"yes\"\n")
    );
    assert!(planned.text.contains("Plan: 1 to create, 0 to change, 0 to change in status only, 1 to delete"));
}

#[tokio::test]
async fn planned_objects_have_a_status_and_generated_values_are_not_printed() {
    let server = server();
    let planned = plan_script(&server, |client, _, lamp| {
        async move {
            let (lamps, maps): (Api<Lamp>, Api<ConfigMap>) =
                (Api::default_namespaced(client.clone()), Api::default_namespaced(client));
            if lamp.name_any() != "desk" || lamps.get_opt("child").await?.is_some() {
                return Ok(());
            }
            let child = lamps.create(&PostParams::default(), &Lamp::new("child", LampSpec {})).await?;
            let status = merge(json!({"status": {"color": "red"}}));
            let child_status = lamps.patch_status("child", &PatchParams::default(), &status).await?.status;
            assert_eq!(child_status.unwrap().color, "red");
            let mut map = map("", json!({"owner": child.uid()}));
            map.metadata.generate_name = Some("map-".into());
            (map.metadata.name, map.metadata.owner_references) =
                (None, kube::Resource::controller_owner_ref(&child, &()).map(|owner| vec![owner]));
            let map = maps.create(&PostParams::default(), &map).await?;
            let _ = maps.get(&map.name_any()).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    let text = &planned.text;
    assert!(text.contains(
        "  + ConfigMap default/map-(generated)\n      + data.owner: \"(uid of Lamp default/child)\"\n"
    ));
    assert!(text.contains("  + Lamp default/child\n"), "{text}");
    assert!(text.contains("Lamp default/child: its status, since the object does not exist yet"), "{text}");
}

#[tokio::test]
async fn an_object_in_a_planned_namespace_is_planned_and_not_validated() {
    let server = server();
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            let params = PatchParams::apply("test");
            let body = json!({"apiVersion": "v1", "kind": "Namespace"});
            namespaces.patch("new", &params, &Patch::Apply(body)).await?;
            let maps: Api<ConfigMap> = Api::namespaced(client, "new");
            for _ in 0..2 {
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}});
                maps.patch("a", &params, &Patch::Apply(body)).await?;
            }
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.status, 3);
    assert!(planned.text.contains("  + Namespace new\n") && planned.text.contains("  + ConfigMap new/a\n"));
    assert!(planned.text.contains("ConfigMap new/a: the object, since its namespace does not exist yet"));
}

#[tokio::test]
async fn an_object_that_changes_meanwhile_is_read_again() {
    let server = server();
    let writer = server.clone();
    server.insert(&map_in_default("a"));
    let main = Main::new("test").plannable().controller(move |cx| {
        let (build, maps) = (Controller::of::<Lamp>(cx), cx.get());
        let (writer, api) = (writer.clone(), Api::default_namespaced(cx.client()));
        Ok(build.reconciler(Racing { maps, writer, api }).build())
    });
    let (status, _, json) = plan(main, server.client().into()).await.unwrap();
    assert_eq!((status, &json["keys"][0]["passes"]), (3, &json!(2)));
    assert_eq!(json["objects"][0]["after"]["data"], json!({"live": "changed", "seen": "yes"}));
    let map: ConfigMap = server.object(Some("default"), "a").unwrap();
    assert_eq!(json!(map.data), json!({"live": "changed"}));
}

struct Racing {
    maps: reknit_injection::Informer<ConfigMap>,
    writer: ApiServer,
    api: Api<ConfigMap>,
}

impl ReconcileKind for Racing {
    type Kind = Lamp;

    async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        let mut map = ConfigMap::clone(&self.maps.get(&Key::new("default", "a")).unwrap());
        if map.data.as_ref().unwrap()["live"] == "yes" {
            let live: Api<ConfigMap> = Api::default_namespaced(self.writer.client());
            let change = merge(json!({"data": {"live": "changed"}}));
            live.patch("a", &PatchParams::default(), &change).await?;
        }
        map.data.get_or_insert_default().insert("seen".into(), "yes".into());
        self.api.replace("a", &PostParams::default(), &map).await?;
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_key_that_never_settles_is_stopped_with_its_last_step() {
    let server = server();
    let planned = plan_script(&server, |client, _, lamp| {
        async move {
            let color = lamp.annotations().get("n").map_or(1, |n| n.parse::<u32>().unwrap() + 1);
            let change = merge(json!({"metadata": {"annotations": {"n": color.to_string()}}}));
            Api::<Lamp>::default_namespaced(client).patch("desk", &PatchParams::default(), &change).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.status, 4);
    assert!(planned.text.contains("still has changes after 10 passes"));
    assert!(planned.text.contains("~ metadata.annotations.n: \"9\" → \"10\""));
}

#[tokio::test]
async fn a_failed_pass_makes_the_plan_incomplete() {
    let server = server();
    let planned = plan_script(&server, |_, _, _| async { Err("no luck".into()) }.boxed()).await;
    assert_eq!(planned.status, 4);
    assert!(planned.text.starts_with("Failed:\n  lamps.plan.reknit.dev default/desk: no luck\n"));
    server.fail("create", "configmaps", 403);
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let _ = maps.create(&PostParams::default(), &map("a", json!({}))).await;
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.status, 4);
    assert!(planned.text.contains(
        "Refused:\n  lamps.plan.reknit.dev default/desk: POST /api/v1/namespaces/default/configmaps"
    ));
}

#[tokio::test]
async fn informers_that_cannot_list_make_the_plan_incomplete() {
    let server = server();
    server.fail("list", "lamps", 403);
    let planned = plan_controller(&server, |cx| painter(cx, "red")).await;
    assert_eq!(planned.status, 4);
    assert!(planned.text.starts_with("Not synced:\n  lamps.plan.reknit.dev: "), "{}", planned.text);
}

#[tokio::test]
async fn effects_outside_the_api_server_are_listed_and_do_not_happen() {
    let planned = plan_script(&server(), |_, effects, lamp| {
        async move {
            assert!(!effects.allowed(&lamp, || "create bucket photos"));
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.status, 3);
    assert!(
        planned
            .text
            .contains("lamps.plan.reknit.dev default/desk: Lamp default/desk: create bucket photos\n")
    );
    assert!(planned.text.ends_with("0 to delete, 1 other; 0 failed\n"), "{}", planned.text);
}

#[tokio::test]
async fn secrets_are_masked() {
    let server = server();
    let secret =
        json!({"metadata": {"name": "a", "namespace": "default"}, "data": {"a": "b2xk", "same": "c2FtZQ=="}});
    server.insert(&serde_json::from_value::<Secret>(secret).unwrap());
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let secrets: Api<Secret> = Api::default_namespaced(client);
            let change = merge(json!({"data": {"a": "bmV3"}}));
            secrets.patch("a", &PatchParams::default(), &change).await?;
            Ok(())
        }
        .boxed()
    })
    .await;
    assert!(
        planned.text.contains("~ data.a: \"(masked value 1)\" → \"(masked value 3)\""),
        "{}",
        planned.text
    );
    for value in ["b2xk", "bmV3", "c2FtZQ"] {
        assert!(!planned.text.contains(value) && !planned.json.to_string().contains(value));
    }
}
