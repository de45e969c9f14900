//! Passes while this process gains and loses leadership.

use reknit_injection::select;
use reknit_leadership::internal::BucketWriter;
use reknit_testing::InformerExt;

use super::*;
use crate::{FinalizeKind, ObserveDeletion, ObserveKind, ReleaseKind};

const TERM: Duration = Duration::from_secs(100_000);

#[tokio::test(start_paused = true)]
async fn a_pass_is_dropped_when_its_key_is_no_longer_led() {
    struct CountsDrops(Arc<AtomicUsize>);
    impl Drop for CountsDrops {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let dropped = Arc::new(AtomicUsize::new(0));
    let counter = dropped.clone();
    let act = move |_| {
        let counts_drops = CountsDrops(counter.clone());
        async move {
            tokio::time::sleep(Duration::from_secs(1000)).await;
            drop(counts_drops);
            Ok(Outcome::done())
        }
        .boxed()
    };
    let cx = context(&["a"]);
    let running = start(&cx, leadership, act, |build| build.name("counted"));
    running.queue.add(key("a"));
    assert_eq!(running.count_after(Duration::from_secs(10)).await, 0, "no leader is known");
    writers[0].lead(Instant::now() + TERM, "test");
    running.wait_for_passes(1).await;
    assert_eq!(running.health.running_passes().len(), 1);
    writers[0].resign();
    assert_eq!(running.count_after(Duration::from_secs(10)).await, 1);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert!(running.health.running_passes().is_empty());
    assert_eq!(counts_of_passes(&cx), ["counted lost 1", "counted skip 1"]);
    writers[0].lead(Instant::now() + TERM, "test");
    running.wait_for_passes(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_fails_after_its_term_is_dropped_and_records_no_event() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let (server, writer) = (ApiServer::new(), writers[0].clone());
    let cx = Context::preloaded("test", server.client(), vec![map("a")]);
    let act = move |_| {
        writer.resign(); // as if the pass had blocked its thread until the deadline
        at_once(|| Err(Error::from("refused")))
    };
    writers[0].lead(Instant::now() + TERM, "test");
    let running = start(&cx, leadership, act, |build| build.name("counted"));
    running.wait_for_passes(1).await;
    assert_eq!(running.count_after(Duration::from_secs(10)).await, 1);
    assert_eq!(counts_of_passes(&cx), ["counted lost 1"]);
    assert!(server.take_writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_promotion_enqueues_the_objects_that_the_promote_filter_admits() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let cx = context(&["a", "b"]);
    let mut idle = map("idle");
    idle["metadata"]["labels"] = json!({"idle": "true"});
    cx.get::<Informer<ConfigMap>>().insert(serde_json::from_value(idle).unwrap());
    cx.get::<Informer<ConfigMap>>().insert(serde_json::from_value(map("broken")).unwrap());
    let panics_on_broken = Filter::new(|map: &ConfigMap| {
        assert_ne!(map.metadata.name.as_deref(), Some("broken"), "as planned");
        true
    });
    let act = |_| at_once(|| Ok(Outcome::done()));
    let running =
        start(&cx, leadership, act, |build| build.promote_filter(!label("idle", "true") & panics_on_broken));
    assert_eq!(running.count_after(Duration::from_secs(10)).await, 0);
    writers[0].lead(Instant::now() + TERM, "test");
    running.wait_for_passes(2).await;
    assert_eq!(running.count_after(Duration::from_secs(10)).await, 2);
    let mut names: Vec<_> = running.passes.borrow().iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_controller_without_a_kind_enqueues_the_keys_of_its_watches() {
    let cx = context(&["a", "b"]);
    let mut build = Controller::named("keys", &cx);
    build.watch(&cx.get::<Informer<ConfigMap>>()).keys(|map| [Key::of(map)]);
    let (passes, (_stop, stopped)) = (Passes::default(), Shutdown::new());
    let act = |_: usize| at_once(|| Ok(Outcome::done()));
    let controller = build
        .workers(1)
        .resync(Duration::from_secs(1000))
        .reconciler(TestReconciler { act, passes: passes.clone() });
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let parameters = Run { leadership, stop: stopped, drain: Duration::ZERO, workers: None };
    let _run = tokio::spawn(controller.run(parameters));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(passes.borrow().is_empty(), "a key is reconciled only while it is led");
    writers[0].lead(Instant::now() + TERM, "test");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(passes.borrow().len(), 2, "the promotion enqueues both keys");
    tokio::time::sleep(Duration::from_secs(1100)).await;
    assert_eq!(passes.borrow().len(), 4, "the resync enqueues both keys");
}

/// Runs a controller without a Kind and without watches, with one worker.
fn run_without_kind<F: Act>(leadership: Leadership, act: F) -> (Passes, Queue) {
    let build = Controller::named("keys", &context(&[]));
    let (passes, queue) = (Passes::default(), build.queue());
    let controller = build.workers(1).reconciler(TestReconciler { act, passes: passes.clone() });
    let (stop, stopped) = Shutdown::new();
    tokio::spawn(async move {
        let _stop = stop; // until the test ends
        controller.run(Run { leadership, stop: stopped, drain: Duration::ZERO, workers: None }).await
    });
    (passes, queue)
}

/// Waits a hundred seconds, and returns the names of the keys of all passes so far.
async fn keys_of_passes(passes: &Passes) -> Vec<String> {
    tokio::time::sleep(Duration::from_secs(100)).await;
    passes.borrow().iter().map(|(name, _)| name.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_due_without_a_leader_is_processed_when_this_process_leads() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let (passes, queue) = run_without_kind(leadership, |_| at_once(|| Ok(Outcome::done())));
    queue.add(key("early"));
    assert!(keys_of_passes(&passes).await.is_empty());
    writers[0].lead(Instant::now() + TERM, "test");
    assert_eq!(keys_of_passes(&passes).await, ["early"]);
    queue.add_after(key("timed"), Duration::from_secs(50));
    writers[0].resign();
    assert_eq!(keys_of_passes(&passes).await, ["early"]);
    writers[0].lead(Instant::now() + TERM, "test");
    assert_eq!(keys_of_passes(&passes).await, ["early", "timed"]);
    writers[0].resign();
    assert_eq!(keys_of_passes(&passes).await.len(), 2);
    writers[0].lead(Instant::now() + TERM, "test");
    assert_eq!(keys_of_passes(&passes).await.len(), 2, "a postponed key is enqueued once");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_due_while_another_process_leads_is_left_to_it() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let (passes, queue) = run_without_kind(leadership, |_| at_once(|| Ok(Outcome::done())));
    queue.add(key("early"));
    assert!(keys_of_passes(&passes).await.is_empty());
    writers[0].follow("other");
    queue.add(key("theirs"));
    assert!(keys_of_passes(&passes).await.is_empty());
    tokio::time::sleep(Duration::from_secs(700)).await; // more than eleven lease durations
    writers[0].lead(Instant::now() + TERM, "test");
    assert!(keys_of_passes(&passes).await.is_empty());
    queue.add(key("ours"));
    assert_eq!(keys_of_passes(&passes).await, ["ours"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_due_before_another_leader_died_is_processed_when_this_process_leads() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let (passes, queue) = run_without_kind(leadership, |_| at_once(|| Ok(Outcome::done())));
    writers[0].follow("other");
    queue.add(key("theirs"));
    assert!(keys_of_passes(&passes).await.is_empty());
    writers[0].lead(Instant::now() + TERM, "test");
    assert_eq!(keys_of_passes(&passes).await, ["theirs"]);
}

/// Records the keys that it observes and those whose deletion it observes. Its reconcile takes a thousand seconds.
struct Observer(Arc<Mutex<Vec<String>>>);

impl Observer {
    fn record(&self, role: &str, name: Option<&str>) -> Result<Outcome> {
        self.0.lock().push(format!("{role} {}", name.unwrap_or_default()));
        Ok(Outcome::done())
    }
}

impl ReconcileKind for Observer {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        tokio::time::sleep(Duration::from_secs(1000)).await;
        Ok(Outcome::done())
    }
}

impl ObserveKind for Observer {
    async fn observe_kind(&self, map: &ConfigMap) -> Result<Outcome> {
        self.record("observed", map.metadata.name.as_deref())
    }
}

impl ObserveDeletion for Observer {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        self.record("gone", Some(&key.name))
    }
}

/// A running controller of an [`Observer`], the bucket of its keys, and its ConfigMaps `a` to `c`.
struct Observing {
    log: Arc<Mutex<Vec<String>>>,
    bucket: BucketWriter,
    maps: Informer<ConfigMap>,
    _stop: ShutdownTrigger,
}

impl Observing {
    fn start(as_follower: bool) -> Self {
        let (leadership, mut writers) = elected(vec!["bucket".into()]);
        let (cx, log) = (context(&["a", "b", "c"]), Arc::default());
        let build = Controller::of::<ConfigMap>(&cx).reconciler(Observer(Arc::clone(&log)));
        let build = build.observing_deletion_as_leader();
        let build = if as_follower { build.observing_as_follower() } else { build };
        let ((stop, stopped), maps) = (Shutdown::new(), cx.get());
        let parameters = Run { leadership, stop: stopped, drain: Duration::ZERO, workers: None };
        tokio::spawn(build.build().run(parameters));
        Self { log, bucket: writers.remove(0), maps, _stop: stop }
    }

    async fn log(&self) -> Vec<String> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.log.lock().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_pass_dropped_with_its_lease_is_observed() {
    let observing = Observing::start(true);
    observing.bucket.lead(Instant::now() + TERM, "test");
    assert_eq!(observing.log().await, [""; 0], "the first passes reconcile");
    observing.bucket.follow("other");
    let mut log = observing.log().await;
    log.sort();
    assert_eq!(log, ["observed a", "observed b", "observed c"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_before_another_leader_died_is_observed_by_the_next_leader() {
    let observing = Observing::start(false);
    observing.bucket.follow("other");
    observing.maps.remove(&key("a"));
    assert_eq!(observing.log().await, [""; 0]);
    // The other process learns of the deletion late, fails, and dies.
    tokio::time::sleep(Duration::from_secs(500)).await;
    observing.bucket.lead(Instant::now() + TERM, "test");
    tokio::time::sleep(Duration::from_secs(2000)).await;
    assert_eq!(observing.log().await, ["gone a"]);
    observing.bucket.follow("other");
    observing.maps.remove(&key("b"));
    tokio::time::sleep(Duration::from_secs(700)).await;
    observing.bucket.lead(Instant::now() + TERM, "test");
    assert_eq!(observing.log().await, ["gone a"], "the other process has observed it long ago");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_during_a_handover_is_observed() {
    let observing = Observing::start(false);
    observing.bucket.lead(Instant::now() + TERM, "test");
    tokio::time::sleep(Duration::from_secs(3000)).await; // the passes of the promotion end
    observing.bucket.drain();
    observing.maps.remove(&key("a"));
    assert_eq!(observing.log().await, ["gone a"]);
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_was_dropped_with_leadership_runs_again_when_it_is_regained() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let act = |earlier_passes| {
        if earlier_passes == 0 { std::future::pending().boxed() } else { at_once(|| Ok(Outcome::done())) }
    };
    let (passes, queue) = run_without_kind(leadership, act);
    writers[0].lead(Instant::now() + TERM, "test");
    queue.add(key("a"));
    assert_eq!(keys_of_passes(&passes).await, ["a"]);
    writers[0].resign();
    assert_eq!(keys_of_passes(&passes).await, ["a"]);
    writers[0].lead(Instant::now() + TERM, "test");
    assert_eq!(keys_of_passes(&passes).await, ["a", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_key_is_retried_when_leadership_is_regained_even_if_the_promote_filter_excludes_it() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let act =
        |earlier_passes| at_once(|| if earlier_passes == 0 { Err("no".into()) } else { Ok(Outcome::done()) });
    let running =
        start(&context(&["a"]), leadership, act, |build| build.promote_filter(label("never", "true")));
    writers[0].lead(Instant::now() + TERM, "test");
    assert_eq!(running.count_after(Duration::from_secs(10)).await, 0, "the promote filter excludes the key");
    running.queue.add(key("a"));
    running.wait_for_passes(1).await;
    writers[0].resign();
    assert_eq!(running.count_after(Duration::from_secs(10)).await, 1);
    writers[0].lead(Instant::now() + TERM, "test");
    assert_eq!(
        running.count_after(Duration::from_secs(10)).await,
        2,
        "the postponed retry comes long before a resync"
    );
}

/// Records the names of the objects that it finalizes.
struct FinalizesMaps(Arc<Mutex<Vec<String>>>);

impl ReconcileKind for FinalizesMaps {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl FinalizeKind for FinalizesMaps {
    async fn finalize_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        self.0.lock().extend(map.metadata.name.clone());
        Ok(Outcome::skip())
    }
}

#[tokio::test(start_paused = true)]
async fn a_promotion_enqueues_deleted_objects_outside_the_selection_and_the_promote_filter() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let server = ApiServer::new();
    let maps = ["filtered", "outside"].map(|name| {
        let mut map = map(name);
        map["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        map["metadata"]["finalizers"] = json!(["example.com/maps"]);
        if name == "filtered" {
            map["metadata"]["labels"] = json!({"selected": "yes"});
        }
        let map: ConfigMap = serde_json::from_value(map).unwrap();
        server.insert(&map)
    });
    let cx = Context::preloaded("test", server.client(), maps.into());
    let finalized = Arc::default();
    let build = Controller::selected::<ConfigMap>(&cx, select().label("selected", "yes"));
    let build = build.finalizer("example.com/maps").promote_filter(label("never", "true"));
    let controller = build.reconciler(FinalizesMaps(Arc::clone(&finalized))).finalizing().build();
    let (_stop, stopped) = Shutdown::new();
    let run = Run { leadership, stop: stopped, drain: Duration::ZERO, workers: None };
    tokio::spawn(controller.run(run));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(finalized.lock().len(), 0, "only the leader finalizes");
    writers[0].lead(Instant::now() + TERM, "test");
    tokio::time::sleep(Duration::from_secs(10)).await;
    finalized.lock().sort();
    assert_eq!(*finalized.lock(), ["filtered", "outside"]);
}

impl ReleaseKind for FinalizesMaps {
    async fn release_kind(&self, map: &ConfigMap) -> Result<Outcome> {
        self.0.lock().extend(map.metadata.name.clone());
        Ok(Outcome::skip())
    }
}

#[tokio::test(start_paused = true)]
async fn a_promotion_enqueues_objects_to_be_released_in_spite_of_the_promote_filter() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let server = ApiServer::new();
    let maps = [("left", &["example.com/maps"][..]), ("foreign", &[])].map(|(name, finalizers)| {
        let mut map = map(name);
        map["metadata"]["finalizers"] = json!(finalizers);
        server.insert(&serde_json::from_value::<ConfigMap>(map).unwrap())
    });
    let cx = Context::preloaded("test", server.client(), maps.into());
    let released = Arc::default();
    let build = Controller::of::<ConfigMap>(&cx).class("example.com/class", "desk");
    let build = build.finalizer("example.com/maps").promote_filter(label("never", "true"));
    let controller = build.reconciler(FinalizesMaps(Arc::clone(&released))).releasing().build();
    let (_stop, stopped) = Shutdown::new();
    tokio::spawn(controller.run(Run { leadership, stop: stopped, drain: Duration::ZERO, workers: None }));
    writers[0].lead(Instant::now() + TERM, "test");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(*released.lock(), ["left"]);
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_the_former_leader_may_have_removed_is_not_reported_as_lost() {
    let (leadership, writers) = elected(vec!["bucket".into()]);
    let server = ApiServer::new();
    let maps = ["before", "late", "lost"].map(|name| {
        let mut map = map(name);
        map["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        map["metadata"]["finalizers"] = json!(["example.com/maps"]);
        server.insert(&serde_json::from_value::<ConfigMap>(map).unwrap())
    });
    let cx = Context::preloaded("test", server.client(), maps.into());
    let build = Controller::of::<ConfigMap>(&cx).finalizer("example.com/maps");
    let controller = build.reconciler(FinalizesMaps(Arc::default())).finalizing().build();
    let (_stop, stopped) = Shutdown::new();
    tokio::spawn(controller.run(Run { leadership, stop: stopped, drain: Duration::ZERO, workers: None }));
    let (cached, a_while) = (cx.get::<Informer<ConfigMap>>(), Duration::from_secs(200));
    tokio::time::sleep(a_while).await;
    cached.remove(&key("before"));
    writers[0].lead(Instant::now() + TERM, "test");
    tokio::time::sleep(Duration::from_secs(100)).await;
    cached.remove(&key("late"));
    tokio::time::sleep(a_while).await;
    cached.remove(&key("lost"));
    tokio::time::sleep(a_while).await;
    let events = server.take_writes().into_iter().map(|write| write.body);
    let lost = events.map(|event| [&event["reason"], &event["regarding"]["name"]].map(Value::to_string));
    assert_eq!(lost.collect::<Vec<_>>(), [["\"FinalizerLost\"", "\"lost\""]]);
}
