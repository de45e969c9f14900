//! The live states with which planned writes compare.

use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::rbac::v1::Role;
use kube::core::PartialObjectMeta;
use reknit_injection::{Informer, select};

use super::*;

/// Patches the ConfigMap `a`, which it also caches.
struct Patching<C> {
    api: Api<ConfigMap>,
    /// Changes the live object before the first patch.
    writer: Option<ApiServer>,
    _cache: C,
}

impl<C: Send + Sync + 'static> ReconcileKind for Patching<C> {
    type Kind = Lamp;

    async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        if let Some(writer) = &self.writer {
            let live: Api<ConfigMap> = Api::default_namespaced(writer.client());
            if live.get_opt("a").await?.is_some() {
                let _ = live.delete("a", &DeleteParams::default()).await?;
            }
        }
        let found = self.api.patch("a", &PatchParams::default(), &merge(json!({"data": {"a": "1"}}))).await;
        match found {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Outcome::done()),
            found => Ok(found.map(|_| Outcome::done())?),
        }
    }
}

#[tokio::test]
async fn a_cached_object_is_not_read_again() {
    for is_metadata in [false, true] {
        let server = server();
        server.insert(&map_in_default("a"));
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = reads.clone();
        server.authorize(move |request| {
            // The informer lists all namespaces.
            let is_read =
                request.verb == "list" && request.resource == "configmaps" && request.namespace.is_some();
            counted.fetch_add(usize::from(is_read), Ordering::Relaxed);
            Ok(())
        });
        let planned = plan_controller(&server, move |cx| {
            let (build, api) = (Controller::of::<Lamp>(cx), Api::default_namespaced(cx.client()));
            Ok(match is_metadata {
                true => {
                    let _cache = cx.informer::<PartialObjectMeta<ConfigMap>>(select());
                    build.reconciler(Patching { api, writer: None, _cache }).build()
                }
                false => {
                    let _cache = cx.get::<Informer<ConfigMap>>();
                    build.reconciler(Patching { api, writer: None, _cache }).build()
                }
            })
        })
        .await;
        assert_eq!(planned.json["objects"][0]["before"]["data"], json!({"live": "yes"}));
        assert_eq!(planned.json["objects"][0]["after"]["data"], json!({"live": "yes", "a": "1"}));
        assert_eq!(reads.load(Ordering::Relaxed), usize::from(is_metadata));
    }
}

#[tokio::test]
async fn an_object_that_the_account_may_only_patch_is_read_by_a_patch_that_changes_nothing() {
    let server = server();
    server.insert(&map_in_default("a"));
    server.authorize(|request| match (request.verb, &*request.resource) {
        ("list" | "get", "configmaps") => Err("cannot read configmaps".into()),
        _ => Ok(()),
    });
    let controller = |cx: &Context| {
        let (build, api) = (Controller::of::<Lamp>(cx), Api::default_namespaced(cx.client()));
        Ok(build.reconciler(Patching { api, writer: None, _cache: () }).build())
    };
    let planned = plan_controller(&server, controller).await;
    assert_eq!(planned.status, 3, "{}", planned.text);
    assert_eq!(planned.json["objects"][0]["before"]["data"], json!({"live": "yes"}));
    assert_eq!(planned.json["objects"][0]["after"]["data"], json!({"live": "yes", "a": "1"}));

    server.authorize(|request| match &*request.resource {
        "configmaps" => Err(format!("cannot {} configmaps", request.verb)),
        _ => Ok(()),
    });
    let planned = plan_controller(&server, controller).await;
    assert_eq!(planned.status, 4, "{}", planned.text);
    assert!(planned.text.contains("cannot list configmaps"), "{}", planned.text);
}

#[tokio::test]
async fn a_cached_object_that_is_deleted_meanwhile_is_gone_for_the_plan_too() {
    let server = server();
    server.insert(&map_in_default("a"));
    let writer = server.clone();
    let main = Main::new("test").plannable().controller(move |cx| {
        let (build, api) = (Controller::of::<Lamp>(cx), Api::default_namespaced(cx.client()));
        let (writer, _cache) = (Some(writer.clone()), cx.get::<Informer<ConfigMap>>());
        Ok(build.reconciler(Patching { api, writer, _cache }).build())
    });
    let (status, text, json) = plan(main, server.client().into()).await.unwrap();
    assert_eq!((status, &json["keys"][0]["passes"]), (0, &json!(2)), "{text}");
}

#[tokio::test]
async fn a_list_shows_an_object_whose_labels_the_plan_has_changed() {
    let server = server();
    server.insert(&map_in_default("a"));
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let (params, selected) = (PatchParams::default(), ListParams::default().labels("team=shop"));
            let label = |team: &str| merge(json!({"metadata": {"labels": {"team": team}}}));
            maps.patch("a", &params, &label("shop")).await?;
            assert_eq!(maps.list(&selected).await?.items.len(), 1);
            maps.patch("a", &params, &label("other")).await?;
            assert_eq!(maps.list(&selected).await?.items.len(), 0);
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.status, 3, "the pass has not failed");
}

#[tokio::test]
async fn a_changed_object_stays_in_each_list_that_selects_it() {
    let server = server();
    server.insert(&map_in_default("a"));
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let label = merge(json!({"metadata": {"labels": {"team": "shop"}}}));
            maps.patch("a", &PatchParams::default(), &label).await?;
            let all = ListParams::default();
            let sets = ["team in (shop,other)", "team notin (web,db)"].map(|set| all.clone().labels(set));
            for selected in sets.into_iter().chain([all.fields("data.live=yes")]) {
                assert_eq!(maps.list(&selected).await?.items.len(), 1, "{selected:?}");
            }
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.status, 3, "the pass has not failed");
}

#[tokio::test]
async fn objects_whose_names_a_path_has_encoded_are_planned_under_their_names() {
    let server = server();
    for name in ["changed role", "old role"] {
        let role = json!({"metadata": {"name": name, "namespace": "default"}});
        server.insert(&serde_json::from_value::<Role>(role).unwrap());
    }
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let roles: Api<Role> = Api::default_namespaced(client);
            let change = merge(json!({"metadata": {"labels": {"a": "b"}}}));
            roles.patch("changed%20role", &PatchParams::default(), &change).await?;
            assert_eq!(roles.get("changed%20role").await?.labels()["a"], "b");
            let _ = roles.delete("old%20role", &DeleteParams::default()).await?;
            assert!(roles.get_opt("old%20role").await?.is_none());
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.status, 3);
    let text = &planned.text;
    assert!(
        text.contains("  ~ Role default/changed role\n") && text.contains("  - Role default/old role\n"),
        "{text}"
    );
    assert!(
        text.ends_with("Plan: 0 to create, 1 to change, 0 to change in status only, 1 to delete; 0 failed\n")
    );
}

#[tokio::test]
async fn a_deleted_collection_is_planned_with_the_permission_to_delete_collections_alone() {
    let server = server();
    server.insert(&map_in_default("a"));
    server.insert(&map_in_default("b"));
    server.authorize(|request| match request.verb {
        "delete" => Err("deletes no single object".into()),
        _ => Ok(()),
    });
    let planned = plan_script(&server, |client, _, _| {
        async move {
            let maps: Api<ConfigMap> = Api::default_namespaced(client);
            let _ = maps.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
            assert!(maps.list(&ListParams::default()).await?.items.is_empty());
            Ok(())
        }
        .boxed()
    })
    .await;
    assert_eq!(planned.status, 3, "the pass has not failed");
    assert!(planned.text.contains("  - ConfigMap default/a\n  - ConfigMap default/b\n"));
}
