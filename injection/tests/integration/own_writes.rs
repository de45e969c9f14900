use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use reknit_apis::Key;
use reknit_injection::{Context, Informer, select};
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;

use crate::{SOON, gate::Gate, map, reported::ReportedChanges};

#[tokio::test]
async fn own_writes_are_read_at_once_and_their_echoes_tell_nobody() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("own").await.unwrap();
    let (client, gate) = Gate::before(plane.client().unwrap());
    let cx = Context::new("test", client);
    let maps = cx.informer::<ConfigMap>(select().namespace(&namespace));
    let chosen = cx.informer::<ConfigMap>(select().namespace(&namespace).label("chosen", "yes"));
    let (reported, reported_chosen) = (ReportedChanges::by(&maps), ReportedChanges::by(&chosen));
    cx.informers().start();
    tokio::join!(maps.synced(), chosen.synced());
    gate.hold();

    let api: Api<ConfigMap> = Api::namespaced(cx.client(), &namespace);
    let key = Key::new(&*namespace, "a");
    api.create(&PostParams::default(), &map("a", &[("chosen", "yes")])).await.unwrap();
    assert!(maps.get(&key).is_some() && chosen.get(&key).is_some());
    for n in 0..20 {
        let patch = Patch::Merge(json!({"data": {"n": n.to_string()}}));
        api.patch("a", &PatchParams::default(), &patch).await.unwrap();
        assert_eq!(maps.get(&key).unwrap().data.as_ref().unwrap()["n"], n.to_string());
    }
    let nothing = Patch::Merge(json!({"data": {"n": "19"}}));
    api.patch("a", &PatchParams::default(), &nothing).await.unwrap();
    assert_eq!(reported.all().len(), 21, "a write that changed nothing is no news");
    let leave = Patch::Merge(json!({"metadata": {"labels": {"chosen": "no"}}}));
    api.patch("a", &PatchParams::default(), &leave).await.unwrap();
    assert!(maps.get(&key).is_some() && chosen.get(&key).is_none());
    let back = Patch::Merge(json!({"metadata": {"labels": {"chosen": "yes"}}}));
    api.patch("a", &PatchParams::default(), &back).await.unwrap();
    assert!(chosen.get(&key).is_some());

    // A write of another process arrives through the watch alone.
    let other: Api<ConfigMap> = Api::namespaced(plane.client().unwrap(), &namespace);
    let theirs = Patch::Merge(json!({"data": {"theirs": "yes"}}));
    other.patch("a", &PatchParams::default(), &theirs).await.unwrap();
    gate.open();
    let theirs = |informer: &Informer<ConfigMap>| {
        informer.get(&key).and_then(|map| map.data.clone()).is_some_and(|data| data.contains_key("theirs"))
    };
    eventually("their write", SOON, async || theirs(&maps) && theirs(&chosen)).await;
    assert_eq!(reported.all().len(), 24, "{:?}", reported.all());
    let chosen: Vec<_> = reported_chosen.all().into_iter().skip(21).collect();
    assert_eq!(chosen, ["-a", "+a", "~a"]);
}

#[tokio::test]
async fn many_writers_and_a_watch_that_comes_and_goes_agree_in_the_end() {
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
    let writer = |api: Api<ConfigMap>, writer: usize| async move {
        for n in 0..40 {
            let name = format!("m{}", (n * 7 + writer) % 5);
            let patch = Patch::Merge(json!({"data": {"by": format!("{writer}/{n}")}}));
            // Any of them may come too late.
            let _ = match n % 4 {
                0 => api.create(&PostParams::default(), &map(&name, &[])).await.map(drop),
                3 => api.delete(&name, &DeleteParams::default()).await.map(drop),
                _ => api.patch(&name, &PatchParams::default(), &patch).await.map(drop),
            };
        }
    };
    let disturb = async {
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
        writer(own.clone(), 0),
        writer(own.clone(), 1),
        writer(own, 2),
        writer(other.clone(), 3),
        writer(other.clone(), 4),
        disturb
    );
    let version = |map: &ConfigMap| (map.metadata.name.clone(), map.metadata.resource_version.clone());
    let agree = async || {
        let mut truth: Vec<_> = other.list(&Default::default()).await.unwrap().iter().map(version).collect();
        let mut held: Vec<_> = maps.list().map(|map| version(&map)).collect();
        truth.sort();
        held.sort();
        if truth == held { Ok(()) } else { Err(format!("{held:?} is held of {truth:?}")) }
    };
    eventually("both to agree", SOON, agree).await;
    let reported = reported.all();
    println!("{} changes were reported", reported.len());
    assert!(reported.iter().all(|word| !word.contains("twice")), "{reported:?}");
}
