use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    core::Expression,
    discovery::ApiResource,
};
use reknit_apis::Key;
use reknit_injection::{Context, Informer, InformerState, Metadata, select};
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{TIME_LIMIT, map};

#[tokio::test]
async fn each_selection_caches_exactly_the_objects_that_it_selects() {
    let plane = ControlPlane::shared().await.unwrap();
    let (here, there) = (plane.namespace("here").await.unwrap(), plane.namespace("there").await.unwrap());
    let cx = Context::new("test", plane.client().unwrap());
    let all: Informer<ConfigMap> = cx.get();
    let in_namespace = cx.informer::<ConfigMap>(select().namespace(&here));
    let labelled = cx.informer::<ConfigMap>(select().namespace(&here).label("tier", "web"));
    let tiers = Expression::In("tier".into(), ["web".into(), "db".into()].into());
    let in_tiers = cx.informer::<ConfigMap>(select().namespace(&here).labels([tiers]));
    let named = cx.informer::<ConfigMap>(select().namespace(&here).field("metadata.name", "two"));
    let metadata = cx.informer::<Metadata<ConfigMap>>(select().namespace(&here));
    let kind = ApiResource::erase::<ConfigMap>(&());
    let dynamic = cx.informer_of(&kind, select().namespace(&here));
    cx.informers().start();

    // Another client than the Context's, so that the changes arrive through the watches.
    let client = plane.client().unwrap();
    let create = async |namespace: &str, name, labels: &[(&str, &str)]| {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        api.create(&PostParams::default(), &map(name, labels)).await.unwrap();
    };
    create(&here, "one", &[("tier", "web")]).await;
    create(&here, "two", &[("tier", "db")]).await;
    create(&here, "three", &[]).await;
    create(&there, "one", &[("tier", "web")]).await;
    let counts = || {
        let count_in = |namespace| all.list_in(namespace).count();
        (
            count_in(&here),
            count_in(&there),
            in_namespace.len(),
            labelled.len(),
            in_tiers.len(),
            named.len(),
            metadata.len(),
            dynamic.len(),
        )
    };
    eventually("the selected objects", TIME_LIMIT, async || {
        (counts() == (3, 1, 3, 1, 2, 1, 3, 3)).then_some(()).ok_or(format!("{:?}", counts()))
    })
    .await;

    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &here);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": "none"}}}));
    api.patch("one", &PatchParams::default(), &patch).await.unwrap();
    eventually("one to leave", TIME_LIMIT, async || labelled.is_empty() && in_tiers.len() == 1).await;
    assert_eq!(in_namespace.len(), 3);

    let two = dynamic.get(&Key::new(&*here, "two")).unwrap();
    assert_eq!(
        (two.types.as_ref().unwrap().kind.as_str(), two.labels()["tier"].as_str()),
        ("ConfigMap", "db")
    );
    for (_, state) in cx.informers().states() {
        assert!(matches!(state, InformerState::Synced { .. }), "{state:?}");
    }
}

#[tokio::test]
async fn managed_fields_are_dropped_unless_the_selection_keeps_them() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("managed").await.unwrap();
    let cx = Context::new("test", plane.client().unwrap());
    let without = cx.informer::<ConfigMap>(select().namespace(&namespace));
    let with = cx.informer::<ConfigMap>(select().namespace(&namespace).keeping_managed_fields());
    cx.informers().start();
    let api: Api<ConfigMap> = Api::namespaced(cx.client(), &namespace);
    api.create(&PostParams::default(), &map("a", &[("x", "y")])).await.unwrap();
    let has_managed_fields = |informer: &Informer<ConfigMap>| {
        informer.get(&Key::new(&*namespace, "a")).map(|map| map.metadata.managed_fields.is_some())
    };
    assert_eq!(
        (has_managed_fields(&without), has_managed_fields(&with)),
        (Some(false), Some(true)),
        "before the first list, the object comes from the response to the write"
    );
    tokio::join!(without.synced(), with.synced());
    // The same after the first list, measured by the size of the caches.
    api.create(&PostParams::default(), &map("b", &[("x", "y")])).await.unwrap();
    assert!(2 * with.bytes() > 3 * without.bytes(), "{} and {}", with.bytes(), without.bytes());
}

#[tokio::test]
async fn a_list_longer_than_a_page_is_complete() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("pages").await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(plane.client().unwrap(), &namespace);
    let params = PostParams::default();
    let create = |n: usize| {
        let (api, params) = (api.clone(), params.clone());
        async move { api.create(&params, &map(&format!("m{n}"), &[])).await.map(|_| ()) }
    };
    for batch in (0..1_100).collect::<Vec<_>>().chunks(50) {
        futures::future::try_join_all(batch.iter().map(|n| create(*n))).await.unwrap();
    }
    let cx = Context::new("test", plane.client().unwrap());
    let maps = cx.informer::<ConfigMap>(select().namespace(&namespace));
    cx.informers().start();
    maps.synced().await;
    assert_eq!(maps.len(), 1_100);
}
