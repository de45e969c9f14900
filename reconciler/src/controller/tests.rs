mod lead;

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use reknit_injection::{Context, Filter, Informer, Shutdown, ShutdownTrigger, label};
use reknit_testing::{ApiServer, InformerExt};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use super::*;
use crate::{Error, PerKey, ReconcileKey, ReconcileKind, leader::Leadership};

/// Runs a closure of the test with the number of earlier passes of the key.
struct Does<F> {
    act: F,
    passes: Passes,
}

/// The keys of all passes, with the time of each start.
type Passes = Arc<watch::Sender<Vec<(String, Instant)>>>;
type Pending = BoxFuture<'static, Result<Outcome>>;

trait Act: Fn(usize) -> Pending + Send + Sync + 'static {}
impl<F: Fn(usize) -> Pending + Send + Sync + 'static> Act for F {}

impl<F: Act> Does<F> {
    fn begin(&self, key: &Key) -> Pending {
        let before = self.passes.borrow().iter().filter(|(name, _)| *name == key.name).count();
        self.passes.send_modify(|passes| passes.push((key.name.clone(), Instant::now())));
        (self.act)(before)
    }
}

impl<F: Act> ReconcileKind for Does<F> {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        self.begin(&Key::of(map)).await
    }
}

impl<F: Act> ReconcileKey for Does<F> {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        self.begin(key).await
    }
}

/// A running controller.
struct Running {
    passes: Passes,
    queue: Queue,
    health: Health,
    maps: Informer<ConfigMap>,
    stop: ShutdownTrigger,
    run: JoinHandle<Drained>,
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default", "resourceVersion": "1"}})
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn context(maps: &[&str]) -> Context {
    Context::preloaded("test", ApiServer::new().client(), maps.iter().map(|name| map(name)).collect())
}

type Made<F> = crate::ControllerBuilder<Does<F>>;

fn start<F: Act>(
    cx: &Context,
    leadership: Leadership,
    act: F,
    options: impl FnOnce(Builder<ConfigMap>) -> Builder<ConfigMap>,
    roles: impl FnOnce(Made<F>) -> Made<F>,
) -> Running {
    let (build, passes) = (options(Controller::of::<ConfigMap>(cx)), Passes::default());
    let queue = build.queue();
    let made = roles(build.reconciler(Does { act, passes: passes.clone() })).build();
    let (stop, stopped) = Shutdown::new();
    let health = made.health();
    let run = Run { leadership, stop: stopped, drain: Duration::from_secs(10), workers: None };
    let run = tokio::spawn(made.run(run));
    Running { passes, queue, health, maps: cx.get(), stop, run }
}

fn run<F: Act>(maps: &[&str], act: F) -> Running {
    start(
        &context(maps),
        Leadership::always(),
        act,
        |build| build.deadline(Duration::from_secs(3600)),
        |made| made,
    )
}

fn at_once(result: impl Fn() -> Result<Outcome>) -> Pending {
    std::future::ready(result()).boxed()
}

impl Running {
    /// Waits for this number of passes, and returns the start of each, relative to the first.
    async fn passes(&self, count: usize) -> Vec<Duration> {
        let mut passes = self.passes.subscribe();
        let enough = passes.wait_for(|passes| passes.len() >= count);
        let passes = tokio::time::timeout(Duration::from_secs(1_000_000), enough).await.unwrap().unwrap();
        passes.iter().map(|(_, began)| began.duration_since(passes[0].1)).collect()
    }

    /// The number of passes after this time.
    async fn passes_within(&self, time: Duration) -> usize {
        tokio::time::sleep(time).await;
        self.passes.borrow().len()
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_retried_with_backoff_and_a_success_resets_it() {
    let running = run(&["a"], |n| at_once(|| if n % 4 < 3 { Err("no".into()) } else { Ok(Outcome::done()) }));
    running.queue.add(key("a"));
    let began: Vec<_> = running.passes(4).await.iter().map(Duration::as_millis).collect();
    assert_eq!(began, [0, 5, 15, 35]);
    assert_eq!(running.passes_within(Duration::from_secs(5000)).await, 4, "it succeeded");
    running.queue.add(key("a"));
    let began = running.passes(6).await;
    assert_eq!(began[5] - began[4], Duration::from_millis(5), "the backoff starts again");
}

fn conflict() -> Error {
    let status = kube::core::Status::failure("stale", "Conflict").with_code(409);
    Error::from(kube::Error::Api(Box::new(status)))
}

#[tokio::test(start_paused = true)]
async fn the_result_of_a_pass_decides_the_next_one() {
    let runs_again = async |result: fn(fn() -> Error) -> Result<Outcome>, conflict: fn() -> Error| {
        let running =
            run(&["a"], move |n| at_once(|| if n == 0 { result(conflict) } else { Ok(Outcome::skip()) }));
        running.queue.add(key("a"));
        running.passes_within(Duration::from_secs(3000)).await > 1
    };
    assert!(!runs_again(|_| Ok(Outcome::done()), conflict).await);
    assert!(!runs_again(|_| Ok(Outcome::skip()), conflict).await);
    assert!(runs_again(|_| Ok(Outcome::after(Duration::from_secs(2000))), conflict).await);
    assert!(runs_again(|_| Err("no".into()), conflict).await);
    assert!(!runs_again(|_| Err(Error::permanent("no")), conflict).await);
    assert!(runs_again(|conflict| Err(conflict()), conflict).await);
    assert!(
        runs_again(|conflict| Err(Error::permanent(conflict())), conflict).await,
        "a conflict is always retried"
    );
    assert!(runs_again(|_| panic!("once"), conflict).await);
}

#[tokio::test(start_paused = true)]
async fn a_requeue_resets_the_backoff() {
    let act =
        |n| at_once(|| if n == 1 { Ok(Outcome::after(Duration::from_secs(7))) } else { Err("no".into()) });
    let running = run(&["a"], act);
    running.queue.add(key("a"));
    let began = running.passes(4).await;
    assert_eq!(began[2] - began[1], Duration::from_secs(7));
    assert_eq!(began[3] - began[2], Duration::from_millis(5), "it counts as a first failure");
}

#[tokio::test(start_paused = true)]
async fn an_error_with_a_retry_limit_is_retried_within_it() {
    let limit = Duration::from_secs(30);
    for error in [|| Error::from("as planned"), conflict] {
        let running = run(&["a"], move |_| at_once(|| Err(error().retry_within(limit))));
        running.queue.add(key("a"));
        let began = running.passes(20).await;
        assert_eq!(began[1] - began[0], Duration::from_millis(5), "the backoff applies");
        assert_eq!(began[19] - began[18], limit);
    }
}

#[tokio::test(start_paused = true)]
async fn no_pass_starts_before_the_first_list_of_each_informer() {
    let cx = Context::new("test", ApiServer::new().client());
    let running =
        start(&cx, Leadership::always(), |_| at_once(|| Ok(Outcome::done())), |build| build, |made| made);
    running.queue.add(key("a"));
    assert_eq!(running.passes_within(Duration::from_secs(60)).await, 0);
    assert!(!running.health.is_synced());
    running.stop.pull();
    assert_eq!(running.run.await.unwrap(), Drained { dropped: 0 });
}

/// A client whose list of one ConfigMap takes a minute.
fn slow() -> kube::Client {
    let answer = |request: http::Request<kube::client::Body>| async move {
        let watches = request.uri().query().is_some_and(|query| query.contains("watch="));
        tokio::time::sleep(Duration::from_secs(if watches { 1_000_000 } else { 60 })).await;
        let list = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": [map("a")]});
        http::Response::builder().body(kube::client::Body::from(list.to_string().into_bytes()))
    };
    kube::Client::new(tower::service_fn(answer), "default")
}

#[tokio::test(start_paused = true)]
async fn no_pass_starts_before_the_first_list_of_informers_from_the_context() {
    let cx = Context::new("test", slow());
    let (maps, mut build) = (cx.get::<Informer<ConfigMap>>(), Controller::named("reading", &cx));
    build.always(key("a"));
    let (found, passes) = (Arc::new(Mutex::new(Vec::new())), Passes::default());
    let finds = found.clone();
    let act = move |_| {
        finds.lock().push(maps.len());
        at_once(|| Ok(Outcome::done()))
    };
    let made = build.reconciler(Does { act, passes });
    let (health, (_stop, stopped)) = (made.health(), Shutdown::new());
    let run = Run { leadership: Leadership::always(), stop: stopped, drain: Duration::ZERO, workers: None };
    let _run = tokio::spawn(made.run(run));
    cx.informers().start();
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!((health.is_synced(), found.lock().len()), (false, 0));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((health.is_synced(), &found.lock()[..]), (true, &[1][..]));
}

#[tokio::test(start_paused = true)]
async fn after_the_stop_running_passes_end_and_no_other_starts() {
    let act = |_| tokio::time::sleep(Duration::from_secs(5)).map(|()| Ok(Outcome::done())).boxed();
    let running = run(&["a", "b", "c"], act);
    ["a", "b", "c"].iter().for_each(|name| running.queue.add(key(name)));
    running.passes(2).await;
    running.stop.pull();
    assert_eq!(running.run.await.unwrap(), Drained { dropped: 0 });
    assert_eq!(running.passes.borrow().len(), 2, "there are two workers, so the third key is not processed");
}

#[tokio::test(start_paused = true)]
async fn passes_that_exceed_the_drain_time_are_dropped_and_counted() {
    let running = run(&["a", "b"], |n| {
        assert_eq!(n, 0);
        std::future::pending().boxed()
    });
    ["a", "b"].iter().for_each(|name| running.queue.add(key(name)));
    running.passes(2).await;
    let pulled = Instant::now();
    running.stop.pull();
    assert_eq!(running.run.await.unwrap(), Drained { dropped: 2 });
    assert_eq!(pulled.elapsed().as_secs(), 10);
}

/// Keeps a clone of its mark per key.
struct Keeps {
    kept: PerKey<Arc<()>>,
    mark: Arc<()>,
}

impl ReconcileKind for Keeps {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        self.kept.insert(Key::of(map), self.mark.clone());
        Ok(Outcome::done())
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_per_key_is_dropped_with_its_object_its_class_and_its_leadership() {
    let (leadership, writers) = Leadership::elected(vec!["bucket".into()]);
    let (cx, mark) = (context(&["a", "b", "c"]), Arc::new(()));
    let held = async |count: usize| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(Arc::strong_count(&mark) - 2, count, "besides those of the test and the reconciler");
    };
    let mut build = Controller::of::<ConfigMap>(&cx);
    let keeps = Keeps { kept: build.per_key(), mark: mark.clone() };
    let made = build.reconciler(keeps).class("class", "ours").build();
    let (_stop, stopped) = Shutdown::new();
    let run = Run { leadership, stop: stopped, drain: Duration::ZERO, workers: None };
    let _run = tokio::spawn(made.run(run));
    let maps = cx.get::<Informer<ConfigMap>>();
    let apply = |name: &str, version: &str, class: &str| {
        let mut map = map(name);
        map["metadata"]["resourceVersion"] = json!(version);
        map["metadata"]["annotations"] = json!({"class": class});
        maps.insert(serde_json::from_value(map).unwrap());
    };
    ["a", "b", "c"].into_iter().for_each(|name| apply(name, "2", "ours"));
    held(0).await;
    writers[0].set_leading(Instant::now() + Duration::from_secs(100_000));
    held(3).await;
    maps.remove(&key("a"));
    held(2).await;
    apply("b", "3", "another's");
    held(1).await;
    writers[0].set_unknown();
    held(0).await;
}

#[tokio::test(start_paused = true)]
async fn values_per_key_are_dropped_with_the_controller_and_when_leadership_is_lost_while_draining() {
    struct Slow(Keeps);
    impl ReconcileKind for Slow {
        type Kind = ConfigMap;
        async fn reconcile_kind(&self, map: &ConfigMap, status: &mut ()) -> Result<Outcome> {
            let kept = self.0.reconcile_kind(map, status).await;
            if map.metadata.name.as_deref() == Some("slow") {
                tokio::time::sleep(Duration::from_secs(100)).await;
            }
            kept
        }
    }
    let buckets: [Arc<str>; 2] = ["one".into(), "other".into()];
    let (leadership, writers) = Leadership::elected(buckets.to_vec());
    let far = Instant::now() + Duration::from_secs(100_000);
    writers.iter().for_each(|writer| assert!(writer.set_leading(far)));
    let (cx, mark) = (context(&["slow", "a", "b", "c", "d"]), Arc::new(()));
    let slow = buckets.iter().position(|bucket| leadership.owns(bucket, &key("slow"))).unwrap();
    let held = || Arc::strong_count(&mark);
    let mut build = Controller::of::<ConfigMap>(&cx);
    let keeps = Slow(Keeps { kept: build.per_key(), mark: mark.clone() });
    let made = build.reconciler(keeps).build();
    ["slow", "a", "b", "c", "d"].into_iter().for_each(|name| made.parts.queue.add(key(name)));
    let (stop, stopped) = Shutdown::new();
    let run = Run { leadership, stop: stopped, drain: Duration::from_secs(1000), workers: None };
    let run = tokio::spawn(made.run(run));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(held(), 5 + 2, "besides those of the test and the reconciler");
    stop.pull();
    tokio::time::sleep(Duration::from_secs(1)).await;
    writers[1 - slow].set_unknown();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!((3..7).contains(&held()) && !run.is_finished(), "{} are kept", held());
    run.await.unwrap();
    assert_eq!(held(), 1);
}

/// Records the kept value at the start of each pass.
struct Finds {
    kept: PerKey<&'static str>,
    found: Arc<Mutex<Vec<Option<&'static str>>>>,
}

impl ReconcileKind for Finds {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        self.found.lock().push(self.kept.insert(Key::of(map), "something"));
        Ok(Outcome::done())
    }
}

#[tokio::test]
async fn a_new_object_of_the_same_name_does_not_see_the_old_value() {
    let (cx, found) = (context(&["a"]), Arc::default());
    let mut build = Controller::of::<ConfigMap>(&cx);
    let finds = Finds { kept: build.per_key(), found: Arc::clone(&found) };
    let made = build.reconciler(finds).build();
    let (maps, key) = (cx.get::<Informer<ConfigMap>>(), key("a"));
    let pass = async || assert_eq!(made.once(&key, true).await.unwrap(), Outcome::done());
    pass().await;
    pass().await;
    let old = maps.get(&key).unwrap();
    maps.remove(&key);
    maps.insert(ConfigMap::clone(&old)); // before a pass of the key
    pass().await;
    pass().await;
    assert_eq!(*found.lock(), [None, Some("something"), None, Some("something")]);
}

#[tokio::test(start_paused = true)]
async fn every_key_is_enqueued_at_each_resync() {
    let act = |_| at_once(|| Ok(Outcome::done()));
    let every = Duration::from_secs(1000);
    let running =
        start(&context(&["a", "b"]), Leadership::always(), act, |build| build.resync(every), |made| made);
    let start = Instant::now();
    running.passes(6).await;
    let began: Vec<_> = running.passes.borrow().iter().map(|(_, at)| at.duration_since(start)).collect();
    for pair in [0, 2, 4].map(|at| began[at]).windows(2) {
        let pause = (pair[1] - pair[0]).as_secs();
        assert!((900..=1100).contains(&pause), "{pause}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_an_object_enqueues_its_key() {
    let running = run(&[], |_| at_once(|| Ok(Outcome::done())));
    running.maps.insert(serde_json::from_value(map("new")).unwrap());
    running.passes(1).await;
    assert_eq!(running.passes.borrow()[0].0, "new");
}

#[tokio::test(start_paused = true)]
async fn health_reports_the_keys_of_long_passes() {
    let running = run(&["a"], |_| std::future::pending().boxed());
    running.queue.add(key("a"));
    running.passes(1).await;
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(running.health.stuck(Duration::from_secs(80))[0].key, key("a"));
    assert!(running.health.stuck(Duration::from_secs(100)).is_empty());
    assert!(running.health.is_synced());
    assert_eq!(running.health.name(), "configmaps");
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_pass_is_dropped_loses_neither_worker_nor_key() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    let running = run(&["a"], |before| {
        let panics = (before < 3).then(|| Panics);
        async move {
            if panics.is_some() {
                std::future::pending::<()>().await;
            }
            Ok(Outcome::done())
        }
        .boxed()
    });
    running.queue.add(key("a"));
    let began: Vec<_> = running.passes(4).await.iter().map(Duration::as_millis).collect();
    assert_eq!(
        began,
        [0, 3_600_005, 7_200_015, 10_800_035],
        "there are two workers, and each lost pass counts"
    );
    assert_eq!(running.passes_within(Duration::from_secs(4000)).await, 4);
}

#[tokio::test(start_paused = true)]
async fn passes_are_counted_by_result() {
    let cx = context(&["a"]);
    let act = |n| {
        at_once(|| match n {
            0 => Err("no".into()),
            1 => panic!("no"),
            2 => Ok(Outcome::after(Duration::from_secs(1))),
            _ => Ok(Outcome::done()),
        })
    };
    let running = start(&cx, Leadership::always(), act, |build| build, |made| made.name("counted"));
    running.queue.add(key("a"));
    running.passes(4).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let counts = counts_of_passes(&cx);
    assert_eq!(counts, ["counted error 1", "counted panic 1", "counted requeue 1", "counted success 1"]);
    let families = cx.metrics().gather();
    let depth = families.iter().find(|family| family.name() == "workqueue_depth").unwrap();
    assert_eq!(depth.get_metric()[0].get_label()[0].value(), "counted");
}

/// The controller, result and number of passes.
fn counts_of_passes(cx: &Context) -> Vec<String> {
    let families = cx.metrics().gather();
    let passes = families.iter().find(|family| family.name() == "reknit_reconcile_total").unwrap();
    let mut counts: Vec<_> = passes
        .get_metric()
        .iter()
        .map(|metric| {
            let labels: Vec<_> = metric.get_label().iter().map(|label| label.value()).collect();
            format!("{} {}", labels.join(" "), metric.get_counter().get_value())
        })
        .collect();
    counts.sort();
    counts
}
