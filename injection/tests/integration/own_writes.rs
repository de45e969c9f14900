use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use reknit_apis::Key;
use reknit_injection::{Context, Informer, select};
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{TIME_LIMIT, gate::Gate, map, reported::ReportedChanges};

#[tokio::test]
async fn own_writes_are_cached_at_once_and_their_echoes_call_no_handler() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("own").await.unwrap();
    let (client, gate) = Gate::before(plane.client().unwrap());
    let cx = Context::new("test", client);
    let maps = cx.informer::<ConfigMap>(select().namespace(&namespace));
    let labelled = cx.informer::<ConfigMap>(select().namespace(&namespace).label("chosen", "yes"));
    let (reported, reported_labelled) = (ReportedChanges::by(&maps), ReportedChanges::by(&labelled));
    cx.informers().start();
    tokio::join!(maps.synced(), labelled.synced());
    gate.hold();

    let api: Api<ConfigMap> = Api::namespaced(cx.client(), &namespace);
    let key = Key::new(&*namespace, "a");
    api.create(&PostParams::default(), &map("a", &[("chosen", "yes")])).await.unwrap();
    assert!(maps.get(&key).is_some() && labelled.get(&key).is_some());
    for n in 0..20 {
        let patch = Patch::Merge(json!({"data": {"n": n.to_string()}}));
        api.patch("a", &PatchParams::default(), &patch).await.unwrap();
        assert_eq!(maps.get(&key).unwrap().data.as_ref().unwrap()["n"], n.to_string());
    }
    let no_change = Patch::Merge(json!({"data": {"n": "19"}}));
    api.patch("a", &PatchParams::default(), &no_change).await.unwrap();
    assert_eq!(reported.all().len(), 21, "a write without an effect is not reported");
    let leave = Patch::Merge(json!({"metadata": {"labels": {"chosen": "no"}}}));
    api.patch("a", &PatchParams::default(), &leave).await.unwrap();
    assert!(maps.get(&key).is_some() && labelled.get(&key).is_none());
    let join = Patch::Merge(json!({"metadata": {"labels": {"chosen": "yes"}}}));
    api.patch("a", &PatchParams::default(), &join).await.unwrap();
    assert!(labelled.get(&key).is_some());

    // A write of another process arrives through the watch alone.
    let other: Api<ConfigMap> = Api::namespaced(plane.client().unwrap(), &namespace);
    let patch = Patch::Merge(json!({"data": {"other": "yes"}}));
    other.patch("a", &PatchParams::default(), &patch).await.unwrap();
    gate.open();
    let has_other = |informer: &Informer<ConfigMap>| {
        informer.get(&key).and_then(|map| map.data.clone()).is_some_and(|data| data.contains_key("other"))
    };
    eventually("the write of the other process", TIME_LIMIT, async || {
        has_other(&maps) && has_other(&labelled)
    })
    .await;
    assert_eq!(reported.all().len(), 24, "{:?}", reported.all());
    let since_leaving: Vec<_> = reported_labelled.all().into_iter().skip(21).collect();
    assert_eq!(since_leaving, ["-a", "+a", "~a"]);
}

#[tokio::test]
async fn the_cache_converges_with_the_server_despite_many_writers_and_an_interrupted_watch() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("many").await.unwrap();
    let (client, gate) = Gate::before(plane.client().unwrap());
    let cx = Context::new("test", client);
    let maps = cx.informer::<ConfigMap>(select().namespace(&namespace));
    let reported = ReportedChanges::by(&maps);
    cx.informers().start();
    maps.synced().await;
    let own: Api<ConfigMap> = Api::namespaced(cx.client(), &namespace);
    let other: Api<ConfigMap> = Api::namespaced(plane.client().unwrap(), &namespace);
    let write = |api: Api<ConfigMap>, writer: usize| async move {
        for n in 0..40 {
            let name = format!("m{}", (n * 7 + writer) % 5);
            let patch = Patch::Merge(json!({"data": {"by": format!("{writer}/{n}")}}));
            // Any of these may fail, because another writer was faster.
            let _ = match n % 4 {
                0 => api.create(&PostParams::default(), &map(&name, &[])).await.map(drop),
                3 => api.delete(&name, &DeleteParams::default()).await.map(drop),
                _ => api.patch(&name, &PatchParams::default(), &patch).await.map(drop),
            };
        }
    };
    let interrupt = async {
        for _ in 0..5 {
            gate.hold();
            tokio::task::yield_now().await;
            gate.cut();
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
            gate.open();
            tokio::time::sleep(std::time::Duration::from_millis(60)).await;
        }
    };
    tokio::join!(
        write(own.clone(), 0),
        write(own.clone(), 1),
        write(own, 2),
        write(other.clone(), 3),
        write(other.clone(), 4),
        interrupt
    );
    let version = |map: &ConfigMap| (map.metadata.name.clone(), map.metadata.resource_version.clone());
    let agree = async || {
        let on_server = other.list(&Default::default()).await.unwrap();
        let mut on_server: Vec<_> = on_server.iter().map(version).collect();
        let mut cached: Vec<_> = maps.list().map(|map| version(&map)).collect();
        on_server.sort();
        cached.sort();
        if on_server == cached {
            Ok(())
        } else {
            Err(format!("the cache has {cached:?}, the server has {on_server:?}"))
        }
    };
    eventually("the cache to converge", TIME_LIMIT, agree).await;
    let reported = reported.all();
    println!("{} changes were reported", reported.len());
    assert!(reported.iter().all(|word| !word.contains("twice")), "{reported:?}");
}
