//! Panics, slow passes and deadlines.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{Api, Client, client::Body};
use reknit_injection::{Informer, Shutdown, internal::CurrentPass};
use reknit_leadership::Leadership;
use reknit_reconciler::{Event, ReconcileKey, Run, internal::PassLog};
use reknit_testing::{ApiServer, ControllerExt, InformerExt, given};
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

use super::*;

#[tokio::test]
async fn a_panic_is_an_error_of_its_key_and_no_status_is_written() {
    let panicking = |_: &Lamp, status: &mut LampStatus| {
        status.light();
        panic!("the bulb is {}", "broken")
    };
    let effects = given(lamp()).reconcile(reconciling(panicking), "default/x").await;
    let error = effects.result.as_ref().unwrap_err();
    assert_eq!(error.to_string(), "the reconciler panicked: the bulb is broken");
    assert!(!error.is_permanent());
    assert!(effects.writes().is_empty());
    let event = Event::warning("InternalError", "the reconciler panicked: the bulb is broken");
    assert_eq!(effects.events(), [event]);

    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![server.insert(&lamp())]);
    assert!(reconciling(panicking)(&cx).unwrap().once(&key()).await.is_err());
    assert_eq!(
        server.take_writes()[0].body["regarding"]["uid"],
        "uid-x",
        "kubectl describe selects Events by the uid of the lamp"
    );
}

/// A reconciler whose passes take this time.
struct SlowReconciler(Duration);

impl ReconcileKind for SlowReconciler {
    type Kind = Lamp;
    async fn reconcile_kind(&self, _: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
        status.light();
        tokio::time::sleep(self.0).await;
        Ok(Outcome::done())
    }
}

/// Returns the constructor of a controller whose passes take `seconds`. The controller reports a pass after 5 s and
/// drops it after 30 s.
fn slow(seconds: u64) -> impl FnOnce(&Context) -> Result<Controller> {
    move |cx| {
        let build =
            Controller::of::<Lamp>(cx).slow_after(Duration::from_secs(5)).deadline(Duration::from_secs(30));
        Ok(build.reconciler(SlowReconciler(Duration::from_secs(seconds))).build())
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_pass_is_reported_with_growing_gaps_and_its_place_and_continues() {
    let effects = given(lamp()).reconcile(slow(20), "default/x").await;
    assert_eq!(effects.result.as_ref().unwrap(), &Outcome::done());
    let events = effects.events();
    assert_eq!(events.len(), 2);
    for (event, age) in events.iter().zip([5, 15]) {
        assert_eq!(event.reason, "SlowReconcile");
        let start = format!("the pass has been running for {age} s and waits in ");
        assert!(event.message.starts_with(&start), "{}", event.message);
        assert!(event.message.contains("limits.rs:"), "{}", event.message);
    }
    assert_eq!(effects.writes(), ["patch lamps/status default/x"]);
}

/// A reconciler whose passes never end.
struct EndlessReconciler;

impl ReconcileKind for EndlessReconciler {
    type Kind = Lamp;
    async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_nothing_can_wake_says_that_it_may_never_end() {
    let endless = |cx: &Context| {
        let build =
            Controller::of::<Lamp>(cx).slow_after(Duration::from_secs(5)).deadline(Duration::from_secs(8));
        Ok(build.reconciler(EndlessReconciler).build())
    };
    let effects = given(lamp()).reconcile(endless, "default/x").await;
    let waits = "for something that keeps no waker, such as future::pending, and may never end";
    let expected = format!("the pass has been running for 5 s and waits {waits}");
    assert_eq!(effects.events()[0].message, expected);
    let error = effects.result.unwrap_err().to_string();
    assert_eq!(error, format!("the pass took longer than 8 s and was dropped while it waited {waits}"));
}

/// A reconciler that reads a Pod from the API server.
struct PodReader(Client);

impl ReconcileKind for PodReader {
    type Kind = Lamp;
    async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        Api::<Pod>::namespaced(self.0.clone(), "shop").get("web").await?;
        Ok(Outcome::done())
    }
}

#[tokio::test(start_paused = true)]
async fn a_missed_deadline_and_the_log_of_passes_name_the_request_that_is_waited_for() {
    let server = ApiServer::new();
    let answering = server.client();
    let respond = move |request: http::Request<Body>| {
        let answering = answering.clone();
        async move {
            match request.uri().path().contains("/pods/") {
                true => std::future::pending().await,
                false => answering.send(request).await,
            }
        }
    };
    let client = Client::new(tower::service_fn(respond), "default");
    let cx = Context::preloaded("test", client, vec![server.insert(&lamp())]);
    let build = Controller::of::<Lamp>(&cx).deadline(Duration::from_secs(30));
    let client = build.client();
    let controller = build.reconciler(PodReader(client)).build();
    let error = controller.once(&key()).await.unwrap_err().to_string();
    let expected = "the pass took longer than 30 s and was dropped while it waited for the answer to get pods shop/web (30 s)";
    assert!(error.starts_with(expected), "{error}");
    let finished = cx.get::<PassLog>().finished(9, |controller, _| controller == "lamps.demo.reknit.dev");
    let request = &finished[0].requests[0];
    assert_eq!((finished[0].result, request.verb, request.state), (Some("deadline"), "get", "dropped"));
    assert_eq!((&*request.resource, &*request.object), ("pods", "shop/web"));
}

#[tokio::test(start_paused = true)]
async fn a_read_that_finds_the_object_of_a_pass_is_within_the_limits_too() {
    let server = ApiServer::new();
    let cached = server.insert(&terminating(&[FINALIZER]));
    let answering = server.client();
    let respond = move |request: http::Request<Body>| {
        let answering = answering.clone();
        async move {
            match *request.method() {
                http::Method::GET => std::future::pending().await,
                _ => answering.send(request).await,
            }
        }
    };
    let cx = Context::preloaded("test", Client::new(tower::service_fn(respond), "default"), vec![cached]);
    let outside = reknit_injection::select().label("kind", "desk");
    let build = Controller::selected::<Lamp>(&cx, outside).slow_after(Duration::from_secs(5));
    let build = build.deadline(Duration::from_secs(8)).reconciler(ClosureReconciler(light));
    let error = build.finalizing().build().once(&key()).await.unwrap_err().to_string();
    let expected =
        "the pass took longer than 8 s and was dropped while it waited for the answer to get lamps";
    assert!(error.starts_with(expected), "{error}");
    let events = server.take_writes().into_iter().map(|write| (write.body["reason"].clone(), write.body));
    let events: Vec<_> = events.map(|(reason, event)| (reason, event["regarding"]["uid"].clone())).collect();
    assert_eq!(
        events,
        [("SlowReconcile", "uid-x"), ("DeadlineExceeded", "uid-x")].map(|(a, b)| (a.into(), b.into()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_pass_is_dropped_at_its_deadline_and_no_status_is_written() {
    let effects = given(lamp()).reconcile(slow(40), "default/x").await;
    let message = "the pass took longer than 30 s and was dropped";
    let error = effects.result.as_ref().unwrap_err().to_string();
    assert!(error.starts_with(message) && error.contains(" while it waited in "), "{error}");
    assert_eq!(effects.events().last().unwrap(), &Event::warning("DeadlineExceeded", error));
    assert!(effects.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_fast_pass_is_not_reported() {
    let effects = given(lamp()).reconcile(slow(4), "default/x").await;
    assert!(effects.events().is_empty());
}

/// Sends each reconciled key to the test.
struct KeyRecorder(mpsc::UnboundedSender<Key>);

impl ReconcileKey for KeyRecorder {
    async fn reconcile_key(&self, key: &Key) -> Result<Outcome> {
        self.0.send(key.clone()).unwrap();
        Ok(Outcome::done())
    }
}

fn run_as_leader() -> Run {
    Run { leadership: Leadership::always(), stop: Shutdown::never(), drain: Duration::ZERO, workers: None }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_reported_once_the_key_has_failed_ten_times_in_a_row() {
    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![server.insert(&lamp())]);
    let (sender, mut passes) = mpsc::unbounded_channel();
    let conflicting = move |_: &Lamp, _: &mut LampStatus| {
        sender.send(()).unwrap();
        let status = kube::core::Status::failure("stale", "Conflict").with_code(409);
        Err(kube::Error::Api(Box::new(status)).into())
    };
    let controller = builder(&cx, conflicting).build();
    tokio::spawn(controller.run(run_as_leader()));
    let events = || {
        let writes = server.take_writes().into_iter().filter(|write| write.resource == "events");
        writes.map(|write| write.body["note"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for _ in 0..9 {
        passes.recv().await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(events(), [""; 0], "a conflict usually resolves itself");
    passes.recv().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(events(), ["the conflict does not resolve itself: stale (409 Conflict)"]);
    let families = cx.metrics().gather();
    let failing = families.iter().find(|family| family.name() == "reknit_failing_keys").unwrap();
    assert_eq!(failing.get_metric()[0].get_gauge().get_value(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_resync_is_prompted_and_not_paced_only_for_new_generations_and_objects_that_are_being_deleted() {
    for brake in [None, Some(1)] {
        let server = ApiServer::new();
        let stored = |mut lamp: Lamp, name: &str, [generation, observed]: [Option<i64>; 2]| {
            lamp.metadata.name = Some(name.into());
            lamp.metadata.generation = generation;
            lamp.metadata.finalizers = Some(vec![FINALIZER.into()]);
            lamp.status.get_or_insert_default().duck.observed_generation = observed;
            server.insert(&lamp)
        };
        // The status of a version that stored another type in a field.
        let unreadable = |mut lamp: Value| {
            lamp["status"] = json!({"lit": "bright"});
            lamp
        };
        let without_status = |mut lamp: Value| {
            lamp.as_object_mut().unwrap().remove("status");
            lamp
        };
        let lamps = vec![
            stored(lamp(), "a", [None, None]), // as of a ConfigMap
            stored(lamp(), "b", [Some(2), Some(2)]),
            stored(terminating(&[]), "c", [None, None]),
            stored(lamp(), "d", [Some(2), Some(1)]),
            stored(lamp(), "e", [Some(2), None]), // as of a version that wrote no observedGeneration
            unreadable(stored(lamp(), "f", [Some(2), None])),
            unreadable(stored(terminating(&[]), "g", [Some(2), None])),
            without_status(stored(lamp(), "h", [Some(2), None])),
        ];
        let cx = Context::preloaded("test", server.client(), lamps);
        let (sender, mut passes) = mpsc::unbounded_channel();
        let changing = move |lamp: &Lamp, _: &mut LampStatus| {
            let pass = CurrentPass::get().unwrap();
            pass.count_change();
            sender.send((Key::of(lamp).name, pass.is_prompted())).unwrap();
            Ok(Outcome::done())
        };
        let build = Controller::of::<Lamp>(&cx).resync(Duration::from_secs(600));
        let controller = build.reconciler(ClosureReconciler(changing)).finalizing().build();
        brake.inspect(|per_minute| controller.limit_unprompted_changes(*per_minute));
        tokio::spawn(controller.run(Run { workers: Some(1), ..run_as_leader() }));
        let (mut seen, mut first) = (BTreeMap::new(), None);
        while seen.len() < 8 {
            let (name, is_prompted) = passes.recv().await.unwrap();
            let waited = first.get_or_insert_with(Instant::now).elapsed().as_secs();
            seen.entry(name).or_insert((is_prompted, waited));
        }
        let paced = |seconds| (false, if brake.is_some() { seconds } else { 0 });
        let expected = [
            ("a", paced(0)),
            ("b", paced(60)),
            ("c", (true, 0)),
            ("d", (true, 0)),
            ("e", paced(120)),
            ("f", paced(180)),
            ("g", (true, 0)),
            ("h", (true, 0)),
        ];
        assert_eq!(seen, expected.map(|(name, pass)| (name.to_owned(), pass)).into());
    }
}

#[tokio::test(start_paused = true)]
async fn at_each_resync_a_mapping_that_panics_at_one_object_still_maps_the_others() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let maps: Informer<ConfigMap> = cx.get();
    for name in ["a", "b"] {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        maps.insert(map);
    }
    let mut build = Controller::named("notes", &cx);
    build.watch(&maps).keys(|map| {
        assert_ne!(map.metadata.name.as_deref(), Some("a"), "as planned");
        [Key::of(map)]
    });
    let (sender, mut recorded) = mpsc::unbounded_channel();
    tokio::spawn(build.resync(Duration::from_secs(60)).reconciler(KeyRecorder(sender)).run(run_as_leader()));
    assert_eq!(recorded.recv().await.unwrap().name, "b"); // first resync
    assert_eq!(recorded.recv().await.unwrap().name, "b"); // second resync
}

#[tokio::test]
async fn dropping_a_controller_that_never_ran_empties_its_queue_and_keeps_it_empty() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let build = Controller::of::<Lamp>(&cx);
    let queue = build.queue();
    let disabled = build.name("disabled").reconciler(ClosureReconciler(light)).build();
    let other = builder(&cx, light).build();
    let depth = || {
        let families = cx.metrics().gather();
        let depth = families.iter().find(|family| family.name() == "workqueue_depth").unwrap();
        let lanes = depth.get_metric().iter().filter(|metric| metric.get_label()[0].value() == "disabled");
        lanes.map(|metric| metric.get_gauge().get_value()).sum::<f64>()
    };
    queue.add(Key::new("default", "early"));
    assert_eq!(depth(), 1.0);
    drop(disabled);
    assert_eq!(depth(), 0.0);
    cx.get::<Informer<Lamp>>().insert(lamp());
    queue.add_after(key(), Duration::ZERO);
    assert_eq!((depth(), other.take_queued()), (0.0, vec![key()]));
}
