mod causes;
mod lead;
mod values_per_key;

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use reknit_injection::{Context, Filter, Informer, Shutdown, ShutdownTrigger, label, select};
use reknit_leadership::{Leadership, internal::elected};
use reknit_testing::{ApiServer, InformerExt};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};

use super::*;
use crate::{Error, PerKey, ReconcileKey, ReconcileKind, metrics::testing::value};

/// A reconciler that records each pass and calls a closure of the test.
struct TestReconciler<F> {
    act: F,
    passes: Passes,
}

/// The names of the keys of all passes, with the start time of each.
type Passes = Arc<watch::Sender<Vec<(String, Instant)>>>;
type PassFuture = BoxFuture<'static, Result<Outcome>>;

/// Runs a pass, given the number of earlier passes of its key.
trait Act: Fn(usize) -> PassFuture + Send + Sync + 'static {}
impl<F: Fn(usize) -> PassFuture + Send + Sync + 'static> Act for F {}

impl<F: Act> TestReconciler<F> {
    fn start_pass(&self, key: &Key) -> PassFuture {
        let earlier_passes = self.passes.borrow().iter().filter(|(name, _)| *name == key.name).count();
        self.passes.send_modify(|passes| passes.push((key.name.clone(), Instant::now())));
        (self.act)(earlier_passes)
    }
}

impl<F: Act> ReconcileKind for TestReconciler<F> {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        self.start_pass(&Key::of(map)).await
    }
}

impl<F: Act> ReconcileKey for TestReconciler<F> {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        self.start_pass(key).await
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

/// Starts a controller of ConfigMaps with two workers.
fn start<F: Act>(
    cx: &Context,
    leadership: Leadership,
    act: F,
    configure: impl FnOnce(Builder<ConfigMap>) -> Builder<ConfigMap>,
) -> Running {
    let (build, passes) = (configure(Controller::of::<ConfigMap>(cx)), Passes::default());
    let queue = build.queue();
    let controller = build.reconciler(TestReconciler { act, passes: passes.clone() }).build();
    let (stop, stopped) = Shutdown::new();
    let health = controller.health();
    let parameters = Run { leadership, stop: stopped, drain: Duration::from_secs(10), workers: None };
    let run = tokio::spawn(controller.run(parameters));
    Running { passes, queue, health, maps: cx.get(), stop, run }
}

/// Starts a controller that leads every key, with a deadline of an hour, and with these ConfigMaps in its cache.
fn run<F: Act>(maps: &[&str], act: F) -> Running {
    start(&context(maps), Leadership::always(), act, |build| build.deadline(Duration::from_secs(3600)))
}

/// A pass that ends at once.
fn at_once(result: impl Fn() -> Result<Outcome>) -> PassFuture {
    std::future::ready(result()).boxed()
}

impl Running {
    /// Waits for this number of passes, and returns the start times of all passes, relative to the first.
    async fn wait_for_passes(&self, count: usize) -> Vec<Duration> {
        let mut passes = self.passes.subscribe();
        let reached = passes.wait_for(|passes| passes.len() >= count);
        let passes = tokio::time::timeout(Duration::from_secs(1_000_000), reached).await.unwrap().unwrap();
        passes.iter().map(|(_, start)| start.duration_since(passes[0].1)).collect()
    }

    /// Returns the number of all passes after this time.
    async fn count_after(&self, time: Duration) -> usize {
        tokio::time::sleep(time).await;
        self.passes.borrow().len()
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_retried_with_backoff_and_a_success_resets_it() {
    let running = run(&["a"], |n| at_once(|| if n % 4 < 3 { Err("no".into()) } else { Ok(Outcome::done()) }));
    running.queue.add(key("a"));
    let starts: Vec<_> = running.wait_for_passes(4).await.iter().map(Duration::as_millis).collect();
    assert_eq!(starts, [0, 5, 15, 35]);
    assert_eq!(running.count_after(Duration::from_secs(5000)).await, 4, "a successful pass is not retried");
    running.queue.add(key("a"));
    let starts = running.wait_for_passes(6).await;
    assert_eq!(starts[5] - starts[4], Duration::from_millis(5), "the success has reset the backoff");
}

fn conflict() -> Error {
    let status = kube::core::Status::failure("stale", "Conflict").with_code(409);
    Error::from(kube::Error::Api(Box::new(status)))
}

#[tokio::test(start_paused = true)]
async fn the_result_of_a_pass_decides_whether_another_one_follows() {
    let runs_again = async |first_result: fn() -> Result<Outcome>| {
        let running =
            run(&["a"], move |n| at_once(|| if n == 0 { first_result() } else { Ok(Outcome::skip()) }));
        running.queue.add(key("a"));
        running.count_after(Duration::from_secs(3000)).await > 1
    };
    assert!(!runs_again(|| Ok(Outcome::done())).await);
    assert!(!runs_again(|| Ok(Outcome::skip())).await);
    assert!(runs_again(|| Ok(Outcome::after(Duration::from_secs(2000)))).await);
    assert!(runs_again(|| Err("no".into())).await);
    assert!(!runs_again(|| Err(Error::permanent("no"))).await);
    assert!(runs_again(|| Err(conflict())).await);
    assert!(runs_again(|| Err(Error::permanent(conflict()))).await, "a conflict is always retried");
    assert!(runs_again(|| panic!("once")).await);
}

#[tokio::test(start_paused = true)]
async fn a_requeue_resets_the_backoff() {
    let act =
        |n| at_once(|| if n == 1 { Ok(Outcome::after(Duration::from_secs(7))) } else { Err("no".into()) });
    let running = run(&["a"], act);
    running.queue.add(key("a"));
    let starts = running.wait_for_passes(4).await;
    assert_eq!(starts[2] - starts[1], Duration::from_secs(7));
    assert_eq!(starts[3] - starts[2], Duration::from_millis(5), "the requeue has reset the backoff");
}

#[tokio::test(start_paused = true)]
async fn a_key_waits_as_long_as_the_server_asked_and_its_worker_takes_other_keys() {
    let refused = || {
        let status = r#"{"message": "slow down", "code": 429, "details": {"retryAfterSeconds": 60}}"#;
        Err(kube::Error::Api(Box::new(serde_json::from_str(status).unwrap())).into())
    };
    let act = move |n| at_once(move || if n == 0 { refused() } else { Ok(Outcome::done()) });
    let running = start(&context(&["a", "b"]), Leadership::always(), act, |build| build.workers(1));
    ["a", "b"].iter().for_each(|name| running.queue.add(key(name)));
    let starts: Vec<_> = running.wait_for_passes(4).await.iter().map(Duration::as_secs).collect();
    assert_eq!(starts, [0, 0, 60, 60]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_pass_delays_other_namespaces_only_if_there_is_one_worker() {
    for (workers, seconds) in [(1, 60), (2, 0)] {
        let maps = ["a", "b"].iter().map(|name| map(name));
        let mut of_another_namespace = map("other");
        of_another_namespace["metadata"]["namespace"] = json!("other");
        let objects = maps.chain([of_another_namespace]).collect();
        let cx = Context::preloaded("test", ApiServer::new().client(), objects);
        let act =
            |_: usize| -> PassFuture { sleep(Duration::from_secs(60)).map(|()| Ok(Outcome::done())).boxed() };
        let running = start(&cx, Leadership::always(), act, |build| build.workers(workers));
        ["a", "b"].iter().take(workers).for_each(|name| running.queue.add(key(name)));
        running.wait_for_passes(workers).await; // all workers are busy
        running.queue.add(Key::new("other", "other"));
        let starts = running.wait_for_passes(workers + 1).await;
        assert_eq!(starts[workers], Duration::from_secs(seconds), "{workers} workers");
        assert_eq!(running.passes.borrow()[workers].0, "other", "{workers} workers");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_with_a_retry_limit_is_retried_within_it() {
    let limit = Duration::from_secs(30);
    for error in [|| Error::from("as planned"), conflict] {
        let running = run(&["a"], move |_| at_once(|| Err(error().retry_within(limit))));
        running.queue.add(key("a"));
        let starts = running.wait_for_passes(20).await;
        assert_eq!(starts[1] - starts[0], Duration::from_millis(5), "the backoff is shorter than the limit");
        assert_eq!(starts[19] - starts[18], limit);
    }
}

#[tokio::test(start_paused = true)]
async fn no_pass_starts_before_the_first_list_of_each_informer() {
    let cx = Context::new("test", ApiServer::new().client());
    let running = start(&cx, Leadership::always(), |_| at_once(|| Ok(Outcome::done())), |build| build);
    running.queue.add(key("a"));
    assert_eq!(running.count_after(Duration::from_secs(60)).await, 0);
    assert!(!running.health.is_synced());
    running.stop.start();
    assert_eq!(running.run.await.unwrap(), Drained { dropped: 0 });
}

/// A client that answers a list with one ConfigMap after a minute, and never answers a watch.
fn client_with_slow_list() -> kube::Client {
    let answer = |request: http::Request<kube::client::Body>| async move {
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        tokio::time::sleep(Duration::from_secs(if is_watch { 1_000_000 } else { 60 })).await;
        let list = json!({"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "1"}, "items": [map("a")]});
        http::Response::builder().body(kube::client::Body::from(list.to_string().into_bytes()))
    };
    kube::Client::new(tower::service_fn(answer), "default")
}

#[tokio::test]
async fn a_controller_describes_what_it_selects_by_namespaces_labels_class_and_keys() {
    struct Idle;
    impl ReconcileKind for Idle {
        type Kind = ConfigMap;
        async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
            Ok(Outcome::done())
        }
    }
    let cx = context(&[]);
    let all = Controller::selected::<ConfigMap>(&cx, select().keeping_managed_fields()).name("all");
    assert_eq!(all.reconciler(Idle).build().selects(), "all objects");
    let some =
        Controller::selected::<ConfigMap>(&cx, select().namespace("a").label("tier", "web")).name("some");
    let some = some.class("example.com/class", "desk").reconciler(Idle).build();
    assert_eq!(some.selects(), "namespace=a labels=tier=web class example.com/class=desk");
    let mut keys = Controller::named("keys", &cx);
    keys.add_key(key("a"));
    keys.add_key(key("b"));
    let act = |_| at_once(|| Ok(Outcome::done()));
    let keys = keys.reconciler(TestReconciler { act, passes: Passes::default() });
    assert_eq!(keys.selects(), format!("{} {}", key("a"), key("b")));
}

#[tokio::test(start_paused = true)]
async fn no_pass_starts_before_the_first_list_of_informers_from_the_context() {
    let cx = Context::new("test", client_with_slow_list());
    let (maps, mut build) = (cx.get::<Informer<ConfigMap>>(), Controller::named("reading", &cx));
    build.add_key(key("a"));
    let (map_counts, passes) = (Arc::new(Mutex::new(Vec::new())), Passes::default());
    let counts = map_counts.clone();
    let act = move |_| {
        counts.lock().push(maps.len());
        at_once(|| Ok(Outcome::done()))
    };
    let controller = build.reconciler(TestReconciler { act, passes });
    let (health, (_stop, stopped)) = (controller.health(), Shutdown::new());
    let parameters =
        Run { leadership: Leadership::always(), stop: stopped, drain: Duration::ZERO, workers: None };
    let _run = tokio::spawn(controller.run(parameters));
    cx.informers().start();
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!((health.is_synced(), map_counts.lock().len()), (false, 0));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((health.is_synced(), &map_counts.lock()[..]), (true, &[1][..]));
}

#[tokio::test(start_paused = true)]
async fn after_the_shutdown_running_passes_end_and_no_other_starts() {
    let act = |_| tokio::time::sleep(Duration::from_secs(5)).map(|()| Ok(Outcome::done())).boxed();
    let running = run(&["a", "b", "c"], act);
    ["a", "b", "c"].iter().for_each(|name| running.queue.add(key(name)));
    running.wait_for_passes(2).await;
    running.stop.start();
    assert_eq!(running.run.await.unwrap(), Drained { dropped: 0 });
    assert_eq!(running.passes.borrow().len(), 2, "the two workers process two of the three keys");
}

#[tokio::test(start_paused = true)]
async fn passes_that_exceed_the_drain_time_are_dropped_and_counted() {
    let running = run(&["a", "b"], |n| {
        assert_eq!(n, 0);
        std::future::pending().boxed()
    });
    ["a", "b"].iter().for_each(|name| running.queue.add(key(name)));
    running.wait_for_passes(2).await;
    let shutdown = Instant::now();
    running.stop.start();
    assert_eq!(running.run.await.unwrap(), Drained { dropped: 2 });
    assert_eq!(shutdown.elapsed().as_secs(), 10);
}

#[tokio::test]
async fn an_error_about_unnamed_kinds_has_the_name_that_is_set_last() {
    let cx = context(&[]);
    let mut build = Controller::of::<ConfigMap>(&cx);
    let _handle = build.track_any(crate::Kinds::any());
    let reconciler = TestReconciler { act: |_| at_once(|| Ok(Outcome::done())), passes: Passes::default() };
    let _controller = build.name("renamed").reconciler(reconciler).build();
    let error = cx.permissions().all().unwrap_err();
    assert!(error.to_string().starts_with("the controller renamed uses"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn every_key_is_enqueued_at_each_resync() {
    let act = |_| at_once(|| Ok(Outcome::done()));
    let every = Duration::from_secs(1000);
    let running = start(&context(&["a", "b"]), Leadership::always(), act, |build| build.resync(every));
    let starts = running.wait_for_passes(6).await;
    for pair in [0, 2, 4].map(|pass| starts[pass]).windows(2) {
        let pause = (pair[1] - pair[0]).as_secs();
        assert!((900..=1100).contains(&pause), "{pause}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_an_object_enqueues_its_key() {
    let running = run(&[], |_| at_once(|| Ok(Outcome::done())));
    running.maps.insert(serde_json::from_value(map("new")).unwrap());
    running.wait_for_passes(1).await;
    assert_eq!(running.passes.borrow()[0].0, "new");
}

#[tokio::test(start_paused = true)]
async fn health_reports_the_keys_of_long_passes() {
    let running = run(&["a"], |_| std::future::pending().boxed());
    running.queue.add(key("a"));
    running.wait_for_passes(1).await;
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(running.health.stuck_passes(Duration::from_secs(80))[0].key, key("a"));
    assert!(running.health.stuck_passes(Duration::from_secs(100)).is_empty());
    assert!(running.health.is_synced());
    assert_eq!(running.health.name(), "configmaps");
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_pass_is_dropped_loses_neither_worker_nor_key() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    // Each of the first three passes exceeds its deadline and panics when it is dropped.
    let running = run(&["a"], |earlier_passes| {
        let panics = (earlier_passes < 3).then(|| PanicsOnDrop);
        async move {
            if panics.is_some() {
                std::future::pending::<()>().await;
            }
            Ok(Outcome::done())
        }
        .boxed()
    });
    running.queue.add(key("a"));
    let starts: Vec<_> = running.wait_for_passes(4).await.iter().map(Duration::as_millis).collect();
    assert_eq!(
        starts,
        [0, 3_600_005, 7_200_015, 10_800_035],
        "two workers survive three panics, and each dropped pass counts as a failure"
    );
    assert_eq!(running.count_after(Duration::from_secs(4000)).await, 4);
}

#[tokio::test(start_paused = true)]
async fn slow_passes_missed_deadlines_and_permanent_errors_are_counted() {
    let cx = context(&["a"]);
    let act = |n| match n {
        0 => std::future::pending().boxed(),
        _ => at_once(|| Err(Error::permanent("no"))),
    };
    let limit = Duration::from_secs(100);
    let running = start(&cx, Leadership::always(), act, |build| build.name("limited").deadline(limit));
    let count = |name| value(cx.metrics(), name, &[("controller", "limited")]).unwrap_or_default();
    running.queue.add(key("a"));
    running.wait_for_passes(1).await;
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!(count("reknit_slow_reconciles"), 1.0);
    running.wait_for_passes(2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count("reknit_slow_reconciles"), 0.0);
    assert_eq!(count("controller_runtime_reconcile_timeouts_total"), 1.0);
    assert_eq!(count("controller_runtime_terminal_reconcile_errors_total"), 1.0);
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
    let running = start(&cx, Leadership::always(), act, |build| build.name("counted"));
    running.queue.add(key("a"));
    running.wait_for_passes(4).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let counts = counts_of_passes(&cx);
    assert_eq!(counts, ["counted error 2", "counted requeue_after 1", "counted success 1"]);
    let gauge = |name| value(cx.metrics(), name, &[("controller", "counted")]);
    assert_eq!(gauge("controller_runtime_reconcile_panics_total"), Some(1.0));
    assert_eq!(
        gauge("controller_runtime_max_concurrent_reconciles"),
        Some(3.0),
        "two, and one for other namespaces"
    );
    assert_eq!(gauge("workqueue_depth"), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn a_key_is_failing_until_it_succeeds_whether_or_not_it_is_retried() {
    let cx = context(&["a"]);
    let act = |n| {
        at_once(|| match n {
            0 => Err(Error::permanent("no")),
            1 => Ok(Outcome::done()),
            2 => Err(Error::from("no")),
            _ => Ok(Outcome::done()),
        })
    };
    let running = start(&cx, Leadership::always(), act, |build| build);
    let failing_after = async |passes| {
        running.wait_for_passes(passes).await;
        tokio::task::yield_now().await;
        value(cx.metrics(), "reknit_failing_keys", &[])
    };
    running.queue.add(key("a"));
    assert_eq!(failing_after(1).await, Some(1.0), "not retried");
    running.queue.add(key("a"));
    assert_eq!(failing_after(2).await, Some(0.0));
    running.queue.add(key("a"));
    assert_eq!(failing_after(3).await, Some(1.0), "waits for its retry");
    assert_eq!(failing_after(4).await, Some(0.0));
}

/// The controller, result and number of passes.
fn counts_of_passes(cx: &Context) -> Vec<String> {
    let families = cx.metrics().gather();
    let passes =
        families.iter().find(|family| family.name() == "controller_runtime_reconcile_total").unwrap();
    let mut counts: Vec<_> = passes
        .get_metric()
        .iter()
        .filter(|metric| metric.get_counter().get_value() > 0.0)
        .map(|metric| {
            let labels: Vec<_> = metric.get_label().iter().map(|label| label.value()).collect();
            format!("{} {}", labels.join(" "), metric.get_counter().get_value())
        })
        .collect();
    counts.sort();
    counts
}
