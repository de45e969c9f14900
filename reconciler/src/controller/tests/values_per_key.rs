//! Values that a reconciler keeps per key.

use super::*;

/// Keeps a clone of its token per key. The reference count of the token shows the number of kept values.
struct KeepsToken {
    kept: PerKey<Arc<()>>,
    token: Arc<()>,
}

impl ReconcileKind for KeepsToken {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        self.kept.insert(Key::of(map), self.token.clone());
        Ok(Outcome::done())
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_per_key_is_dropped_when_its_object_is_deleted_or_changes_class_or_leadership_is_lost() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let (cx, token) = (context(&["a", "b", "c"]), Arc::new(()));
    let assert_kept = async |count: usize| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(
            Arc::strong_count(&token) - 2,
            count,
            "kept clones, without those of the test and the reconciler"
        );
    };
    let mut build = Controller::of::<ConfigMap>(&cx);
    let reconciler = KeepsToken { kept: build.per_key(), token: token.clone() };
    let controller = build.class("class", "ours").reconciler(reconciler).build();
    let (_stop, stopped) = Shutdown::new();
    let parameters = Run { leadership, stop: stopped, drain: Duration::ZERO, workers: None };
    let _run = tokio::spawn(controller.run(parameters));
    let maps = cx.get::<Informer<ConfigMap>>();
    let apply = |name: &str, version: &str, class: &str| {
        let mut map = map(name);
        map["metadata"]["resourceVersion"] = json!(version);
        map["metadata"]["annotations"] = json!({"class": class});
        maps.insert(serde_json::from_value(map).unwrap());
    };
    ["a", "b", "c"].into_iter().for_each(|name| apply(name, "2", "ours"));
    assert_kept(0).await;
    writers[0].lead(Instant::now() + Duration::from_secs(100_000), "test");
    assert_kept(3).await;
    maps.remove(&key("a"));
    assert_kept(2).await;
    apply("b", "3", "another's");
    assert_kept(1).await;
    writers[0].resign();
    assert_kept(0).await;
}

#[tokio::test(start_paused = true)]
async fn values_per_key_are_dropped_with_the_controller_and_when_leadership_is_lost_while_draining() {
    /// The pass of the key `slow` takes 100 s.
    struct Slow(KeepsToken);
    impl ReconcileKind for Slow {
        type Kind = ConfigMap;
        async fn reconcile_kind(&self, map: &ConfigMap, status: &mut ()) -> Result<Outcome> {
            let result = self.0.reconcile_kind(map, status).await;
            if map.metadata.name.as_deref() == Some("slow") {
                tokio::time::sleep(Duration::from_secs(100)).await;
            }
            result
        }
    }
    let buckets: [Arc<str>; 2] = ["one".into(), "other".into()];
    let (leadership, writers) = elected(buckets.to_vec());
    let term_end = Instant::now() + Duration::from_secs(100_000);
    writers.iter().for_each(|writer| writer.lead(term_end, "test"));
    let (cx, token) = (context(&["slow", "a", "b", "c", "d"]), Arc::new(()));
    let slow_bucket = buckets.iter().position(|bucket| leadership.bucket_owns(bucket, &key("slow"))).unwrap();
    let references = || Arc::strong_count(&token);
    let mut build = Controller::of::<ConfigMap>(&cx);
    let reconciler = Slow(KeepsToken { kept: build.per_key(), token: token.clone() });
    let controller = build.reconciler(reconciler).build();
    ["slow", "a", "b", "c", "d"].into_iter().for_each(|name| controller.parts.queue.add(key(name)));
    let (stop, stopped) = Shutdown::new();
    let parameters = Run { leadership, stop: stopped, drain: Duration::from_secs(1000), workers: None };
    let run = tokio::spawn(controller.run(parameters));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(references(), 5 + 2, "kept clones, with those of the test and the reconciler");
    stop.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    writers[1 - slow_bucket].resign();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!((3..7).contains(&references()) && !run.is_finished(), "{} references", references());
    run.await.unwrap();
    assert_eq!(references(), 1);
}

/// Keeps a value per key, and records the value that each pass finds.
struct RecordsKept {
    kept: PerKey<&'static str>,
    found: Arc<Mutex<Vec<Option<&'static str>>>>,
}

impl ReconcileKind for RecordsKept {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        self.found.lock().push(self.kept.insert(Key::of(map), "something"));
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_value_per_key_is_not_kept_for_a_new_object_of_the_same_name() {
    let (cx, found) = (context(&["a"]), Arc::default());
    let mut build = Controller::of::<ConfigMap>(&cx);
    let reconciler = RecordsKept { kept: build.per_key(), found: Arc::clone(&found) };
    let controller = build.reconciler(reconciler).build();
    let (maps, key) = (cx.get::<Informer<ConfigMap>>(), key("a"));
    let pass = async || {
        assert_eq!(controller.reconcile_once(&key, PassMode::Leading).await.unwrap(), Outcome::done());
    };
    pass().await;
    pass().await;
    let old = maps.get(&key).unwrap();
    maps.remove(&key);
    maps.insert(ConfigMap::clone(&old)); // before a pass of the key
    pass().await;
    pass().await;
    assert_eq!(*found.lock(), [None, Some("something"), None, Some("something")]);
}
