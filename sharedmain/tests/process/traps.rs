//! Requests that a plan cannot follow to their end, against a real API server: it lists each, and none has an effect.
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit_injection::Context;
use reknit_reconciler::{Controller, Outcome, ReconcileKind, Result};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    cluster::with_cluster,
    scenarios::{LABEL, selection},
    trials,
};

trials![requests_that_a_plan_cannot_follow_are_listed_and_have_no_effect];

pub(crate) fn controller(cx: &Context) -> Result<Controller> {
    let build = Controller::selected::<ConfigMap>(cx, selection().label(LABEL, "yes"));
    Ok(build.name("traps").reconciler(Traps(cx.client())).build())
}

/// Sends the requests that the name of a ConfigMap selects.
struct Traps(Client);

fn object<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap()
}

impl ReconcileKind for Traps {
    type Kind = ConfigMap;

    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let namespace = map.namespace().unwrap_or_default();
        let maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), &namespace);
        let (post, merge) = (PostParams::default(), PatchParams::default());
        let data = |key: &str| Patch::Merge(json!({ "data": { key: "planned" } }));
        match &*map.name_any() {
            "scale" => {
                let deployments: Api<Deployment> = Api::namespaced(self.0.clone(), &namespace);
                let scale = Patch::Merge(json!({"spec": {"replicas": 3}}));
                deployments.patch_scale("web", &merge, &scale).await?;
            }
            "evict" => {
                let pods: Api<Pod> = Api::namespaced(self.0.clone(), &namespace);
                pods.evict("web", &EvictParams::default()).await?;
            }
            "conflict" => {
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"value": "planned"}});
                maps.patch("conflict", &PatchParams::apply("traps"), &Patch::Apply(body)).await?;
            }
            "nowhere" => {
                let elsewhere: Api<ConfigMap> = Api::namespaced(self.0.clone(), "nowhere");
                elsewhere.create(&post, &object(json!({"metadata": {"name": "a"}}))).await?;
            }
            "status" => {
                maps.patch_status("status", &merge, &Patch::Merge(json!({"status": {"a": 1}}))).await?;
            }
            "immutable" => {
                maps.patch("frozen", &merge, &data("value")).await?;
            }
            "generate" => {
                let labels = json!({"traps": "generated"});
                let body = json!({"metadata": {"generateName": "made-", "labels": labels}});
                let made = maps.create(&post, &object(body)).await?;
                maps.patch(&made.name_any(), &merge, &data("second")).await?;
                let seen = maps.get(&made.name_any()).await?;
                let listed = maps.list(&ListParams::default().labels("traps=generated")).await?;
                if seen.data.is_none() || listed.items.len() != 1 {
                    return Err("it does not read its own writes".into());
                }
            }
            "collection" => {
                let selected = ListParams::default().labels("traps=collected");
                let _ = maps.delete_collection(&DeleteParams::default(), &selected).await?;
                if !maps.list(&selected).await?.items.is_empty() {
                    return Err("it still reads deleted objects".into());
                }
            }
            _ => {}
        }
        Ok(Outcome::done())
    }
}

fn requests_that_a_plan_cannot_follow_are_listed_and_have_no_effect() {
    with_cluster(async |cluster| {
        let namespace = cluster.namespace.clone();
        for name in ["scale", "evict", "conflict", "nowhere", "status", "immutable", "generate", "collection"]
        {
            cluster.apply_map(name, json!({"value": "live"})).await;
        }
        let maps = cluster.config_maps();
        let collected = |name: &str| json!({"metadata": {"name": name, "labels": {"traps": "collected"}}});
        let frozen = json!({"metadata": {"name": "frozen"}, "immutable": true, "data": {"value": "live"}});
        for map in [collected("old-1"), collected("old-2"), frozen] {
            maps.create(&PostParams::default(), &object(map)).await.unwrap();
        }
        let containers = json!({"containers": [{"name": "web", "image": "example.com/web"}]});
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": containers});
        let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template});
        let deployments: Api<Deployment> = Api::namespaced(cluster.client(), &namespace);
        let deployment = object(json!({"metadata": {"name": "web"}, "spec": spec}));
        deployments.create(&PostParams::default(), &deployment).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(cluster.client(), &namespace);
        let pod = object(json!({"metadata": {"name": "web"}, "spec": containers}));
        pods.create(&PostParams::default(), &pod).await.unwrap();
        let live = async || {
            let all = ListParams::default();
            let [maps, deployments, pods] = [
                states(&maps.list(&all).await.unwrap().items),
                states(&deployments.list(&all).await.unwrap().items),
                states(&pods.list(&all).await.unwrap().items),
            ];
            json!([maps, deployments, pods])
        };
        let before = live().await;

        let (status, lines) = cluster.command("traps").arg("--plan").spawn().wait();
        let text = lines.join("\n");
        println!("{text}");
        assert_eq!((status, live().await), (4, before));
        for expected in [
            format!(
                "# traps {namespace}/collection\n  - ConfigMap {namespace}/old-1\n  - ConfigMap {namespace}/old-2\n"
            ),
            format!("  + ConfigMap {namespace}/made-(generated)\n      + data.second: \"planned\"\n"),
            format!("traps {namespace}/scale: deployments.apps {namespace}/web: PATCH scale\n"),
            format!("traps {namespace}/evict: pods {namespace}/web: POST eviction\n"),
        ] {
            assert!(text.contains(&expected), "{expected}");
        }
        assert!(!text.contains("Dropped fields"));
        for (key, message) in [
            ("nowhere", "namespaces \"nowhere\" not found"),
            ("status", "the server could not find the requested resource"),
            ("immutable", "ConfigMap \"frozen\" is invalid: data: Forbidden"),
            ("conflict", "Apply failed with 1 conflict: conflict with \"test\": .data.value"),
        ] {
            let failed = format!("  traps {namespace}/{key}: ");
            assert!(lines.iter().any(|line| line.starts_with(&failed) && line.contains(message)), "{key}");
        }
    });
}

fn states<T: Serialize>(objects: &[T]) -> Value {
    serde_json::to_value(objects).unwrap()
}
