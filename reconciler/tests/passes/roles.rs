//! Filters, classes, followers and deletion observers.

use kube::{Client, client::Body};
use reknit_injection::{Context, Filter, Informer, label, select};
use reknit_reconciler::{Event, ObserveDeletion, PerKey, ReleaseKind, internal::check_key};
use reknit_testing::{ApiServer, ControllerExt, Given, Want, given, nothing};
use serde_json::json;

use super::*;

impl<F: PassFn> ObserveDeletion for ClosureReconciler<F> {
    async fn observe_deletion(&self, key: &Key) -> Result<Outcome> {
        Err(format!("{key} is gone").into())
    }
}

fn never(_: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
    panic!("the reconciler was called")
}

#[tokio::test]
async fn only_objects_of_the_controllers_class_are_reconciled() {
    let of_class = |pass: fn(&Lamp, &mut LampStatus) -> Result<Outcome>| {
        move |cx: &Context| {
            let build = Controller::of::<Lamp>(cx).class("demo.reknit.dev/class", "desk");
            Ok(build.reconciler(ClosureReconciler(pass)).build())
        }
    };
    let mut desk = lamp();
    desk.metadata.annotations = Some([("demo.reknit.dev/class".into(), "desk".into())].into());
    let mut street = desk.clone();
    street.metadata.annotations = Some([("demo.reknit.dev/class".into(), "street".into())].into());
    assert_eq!(given(desk).reconcile(of_class(light), "default/x").await.writes().len(), 1);
    for other in [street, lamp()] {
        let effects = given(other).reconcile(of_class(never), "default/x").await;
        assert_eq!(effects.result.unwrap(), Outcome::skip());
    }
}

#[tokio::test]
async fn objects_that_the_filter_rejects_are_ignored_unless_they_have_the_finalizer() {
    let labelled = |pass: fn(&Lamp, &mut LampStatus) -> Result<Outcome>| {
        move |cx: &Context| {
            let build = Controller::of::<Lamp>(cx).filter(label("kind", "desk"));
            Ok(build.reconciler(ClosureReconciler(pass)).finalizing().build())
        }
    };
    let mut desk = lamp();
    desk.metadata.labels = Some([("kind".into(), "desk".into())].into());
    let effects = given(desk.clone()).reconcile(labelled(light), "default/x").await;
    assert_eq!(effects.writes().len(), 2, "finalizer and status");
    for other in [lamp(), terminating(&["other.io/x"])] {
        given(other).reconcile(labelled(never), "default/x").await.check(Want::skip());
    }
    let effects = given(terminating(&[FINALIZER])).reconcile(labelled(light), "default/x").await;
    assert_eq!(effects.result.as_ref().unwrap(), &Outcome::done());
    assert!(effects.object::<Lamp>("default/x").is_none(), "the finalizer was not removed");
    let panics = Filter::new(|_: &Lamp| panic!("as planned"));
    let panicking = |cx: &Context| {
        Ok(Controller::of::<Lamp>(cx).filter(panics).reconciler(ClosureReconciler(never)).build())
    };
    given(desk).reconcile(panicking, "default/x").await.check(Want::skip());
}

#[tokio::test]
async fn a_follower_only_observes_and_writes_nothing() {
    let effects = given(lamp()).following().reconcile(reconciling(never), "default/x").await;
    assert_eq!(effects.result.unwrap(), Outcome::skip());
    let observing = |cx: &Context| Ok(builder(cx, light).observing_as_follower().finalizing().build());
    let effects = given(lamp()).following().reconcile(observing, "default/x").await;
    assert_eq!(effects.result.as_ref().unwrap(), &Outcome::done());
    assert!(effects.writes().is_empty());
    let observing = |cx: &Context| Ok(builder(cx, never).observing_as_follower().finalizing().build());
    let effects = given(terminating(&[FINALIZER])).following().reconcile(observing, "default/x").await;
    assert_eq!(effects.result.unwrap(), Outcome::skip(), "a follower finalized");
}

#[tokio::test]
async fn a_reconciler_that_does_not_finalize_ignores_terminating_objects() {
    let effects = given(terminating(&["other.io/x"])).reconcile(reconciling(never), "default/x").await;
    assert_eq!(effects.result.unwrap(), Outcome::skip());
}

#[tokio::test]
async fn an_absent_object_is_passed_to_a_deletion_observer() {
    let constructor = || |cx: &Context| Ok(builder(cx, never).observing_deletion_as_leader().build());
    let effects = nothing().reconcile(constructor(), "default/x").await;
    assert_eq!(effects.result.unwrap_err().to_string(), "default/x is gone");
    assert_eq!(
        nothing().following().reconcile(constructor(), "default/x").await.result.unwrap(),
        Outcome::skip()
    );
    let observing =
        |cx: &Context| Ok(builder(cx, never).observing_as_follower().observing_deletion_as_leader().build());
    assert!(nothing().following().reconcile(observing, "default/x").await.result.is_err());
    assert_eq!(nothing().reconcile(reconciling(never), "default/x").await.result.unwrap(), Outcome::skip());
}

#[tokio::test]
async fn removing_the_finalizer_enqueues_the_key_only_for_a_deletion_observer() {
    let done = |_: &Lamp, _: &mut LampStatus| Ok(Outcome::done());
    let constructor =
        move |cx: &Context| Ok(builder(cx, done).finalizing().observing_deletion_as_leader().build());
    assert_eq!(given(terminating(&[FINALIZER])).reconcile(constructor, "default/x").await.enqueued, [key()]);
    assert!(
        given(terminating(&[FINALIZER])).reconcile(finalizing(done), "default/x").await.enqueued.is_empty()
    );
}

#[tokio::test]
async fn a_malformed_key_is_dropped() {
    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![server.insert(&lamp())]);
    let controller = builder(&cx, never).build();
    for key in ["", "default/", "x"].map(Key::from) {
        assert!(check_key(&controller, &key).unwrap_err().is_permanent());
        assert_eq!(controller.once(&key).await.unwrap(), Outcome::skip(), "{key:?}");
    }
    check_key(&controller, &key()).unwrap();
}

#[tokio::test]
async fn an_object_of_another_scope_than_the_kind_fails_permanently() {
    let mut cluster_scoped = lamp();
    cluster_scoped.metadata.namespace = None;
    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![server.insert(&cluster_scoped)]);
    let error = builder(&cx, never).build().once(&Key::new(None, "x")).await.unwrap_err();
    assert!(error.is_permanent());
    assert!(error.to_string().contains("CustomResourceDefinition has another scope"), "{error}");
}

#[tokio::test]
async fn a_selected_controller_sees_only_its_selection() {
    let of_desks = |pass: fn(&Lamp, &mut LampStatus) -> Result<Outcome>| {
        move |cx: &Context| {
            let build = Controller::selected::<Lamp>(cx, select().label("kind", "desk").namespace("default"));
            Ok(build.promote_filter(label("kind", "desk")).reconciler(ClosureReconciler(pass)).build())
        }
    };
    let mut desk = lamp();
    desk.metadata.labels = Some([("kind".into(), "desk".into())].into());
    assert_eq!(given(desk).reconcile(of_desks(light), "default/x").await.writes().len(), 1);
    assert_eq!(given(lamp()).reconcile(of_desks(never), "default/x").await.result.unwrap(), Outcome::skip());
}

#[tokio::test]
async fn the_default_names_derive_from_the_kind() {
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    assert_eq!(builder(&cx, never).build().name(), "lamps.demo.reknit.dev");
    let named = Controller::of::<Lamp>(&cx).name("desk-lamps").reconciler(ClosureReconciler(never)).build();
    assert_eq!(named.name(), "desk-lamps");
    assert_eq!(builder(&cx, never).finalizing().build().finalizer(), Some(FINALIZER));
    assert_eq!(builder(&cx, never).build().finalizer(), None);
}

#[tokio::test]
async fn an_event_about_an_absent_object_is_recorded_by_its_key() {
    struct DeletionObserver;
    impl ReconcileKind for DeletionObserver {
        type Kind = Lamp;
        async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
            Ok(Outcome::done())
        }
    }
    impl ObserveDeletion for DeletionObserver {
        async fn observe_deletion(&self, _: &Key) -> Result<Outcome> {
            Ok(Outcome::done().event(Event::normal("Gone", "it is dark")))
        }
    }
    let constructor = |cx: &Context| {
        Ok(Controller::of::<Lamp>(cx).reconciler(DeletionObserver).observing_deletion_as_leader().build())
    };
    let server = ApiServer::new();
    let controller: Result<Controller> = constructor(&Context::preloaded("test", server.client(), vec![]));
    let _ = controller.unwrap().once(&key()).await.unwrap();
    let event = &server.take_writes()[0].body;
    assert_eq!([&event["reason"], &event["metadata"]["namespace"]], ["Gone", "default"]);
    assert_eq!([&event["regarding"]["kind"], &event["regarding"]["name"]], ["Lamp", "x"]);
}

/// Returns a client whose list has one lamp, which cannot be decoded.
fn client_with_undecodable_lamp() -> Client {
    let respond = |request: http::Request<Body>| async move {
        if request.uri().query().is_some_and(|query| query.contains("watch=")) {
            std::future::pending::<()>().await;
        }
        let list = json!({"apiVersion": "demo.reknit.dev/v1", "kind": "LampList", "metadata": {"resourceVersion": "5"},
            "items": [{"apiVersion": "demo.reknit.dev/v1", "kind": "Lamp", "spec": {"watts": "many"},
                "metadata": {"name": "x", "namespace": "default", "uid": "uid-x", "resourceVersion": "4"}}]});
        http::Response::builder().body(Body::from(list.to_string().into_bytes()))
    };
    Client::new(tower::service_fn(respond), "default")
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_is_skipped_and_does_not_count_as_deleted() {
    let cx = Context::new("test", client_with_undecodable_lamp());
    let controller = builder(&cx, never).observing_deletion_as_leader().build();
    cx.informers().start();
    cx.informer::<Lamp>(select()).synced().await;
    assert_eq!(controller.once(&key()).await.unwrap(), Outcome::skip());
    assert!(
        controller.once(&Key::new("default", "y")).await.is_err(),
        "the absent object was not passed to the deletion observer"
    );
}

/// An object of the Kind Lamp that cannot be decoded as a [`Lamp`].
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", root = "Garbled", namespaced)]
struct GarbledSpec {
    watts: String,
}

#[tokio::test]
async fn only_the_leader_records_an_event_for_an_undecodable_object() {
    let garbled = {
        let mut garbled = Garbled::new("x", GarbledSpec { watts: "many".into() });
        garbled.metadata.namespace = Some("default".into());
        garbled.metadata.uid = Some("uid-x".into());
        garbled
    };
    let effects = given(garbled.clone()).reconcile(reconciling(never), "default/x").await;
    assert_eq!(effects.result.as_ref().unwrap(), &Outcome::skip());
    let [event] = &effects.events()[..] else { panic!("{:?}", effects.events()) };
    assert_eq!(event.reason, "DecodeFailed");
    let effects = given(garbled.clone()).following().reconcile(reconciling(never), "default/x").await;
    assert_eq!((effects.events().len(), effects.result.unwrap()), (0, Outcome::skip()));

    // The program of another class may be able to decode it.
    let of_class = |cx: &Context| {
        let build = Controller::of::<Lamp>(cx).class("demo.reknit.dev/class", "desk");
        Ok(build.reconciler(ClosureReconciler(never)).build())
    };
    for (class, events) in [("desk", 1), ("street", 0)] {
        let mut garbled = garbled.clone();
        garbled.metadata.annotations = Some([("demo.reknit.dev/class".into(), class.into())].into());
        let effects = given(garbled).reconcile(of_class, "default/x").await;
        assert_eq!((effects.events().len(), effects.result.unwrap()), (events, Outcome::skip()), "{class}");
    }

    let server = ApiServer::new();
    let controller =
        builder(&Context::preloaded("test", server.client(), vec![server.insert(&garbled)]), never).build();
    let _ = controller.once(&key()).await.unwrap();
    assert_eq!(
        server.take_writes()[0].body["regarding"]["uid"],
        "uid-x",
        "kubectl describe selects Events by this uid"
    );
}

impl<F: PassFn> ReleaseKind for ClosureReconciler<F> {
    async fn release_kind(&self, _: &Lamp) -> Result<Outcome> {
        Ok(Outcome::done().event(Event::normal("Released", "it has left")))
    }
}

const OWN_FINALIZER: &str = "demo.reknit.dev/desk";

/// A controller of the class `desk` that releases objects which have left it.
fn releasing(cx: &Context) -> Result<Controller> {
    let build = Controller::of::<Lamp>(cx).class("demo.reknit.dev/class", "desk").finalizer(OWN_FINALIZER);
    Ok(build.reconciler(ClosureReconciler(never)).releasing().build())
}

#[tokio::test]
async fn an_object_that_has_left_the_class_is_released_and_loses_the_finalizer() {
    for class in [Some("street"), None] {
        let mut left = lamp();
        left.metadata.annotations =
            class.map(|class| [("demo.reknit.dev/class".into(), class.into())].into());
        let untouched = given(left.clone()).reconcile(releasing, "default/x").await;
        assert_eq!(untouched.result.as_ref().unwrap(), &Outcome::skip(), "it was never reconciled");
        left.metadata.finalizers = Some(vec!["other.io/x".into(), OWN_FINALIZER.into()]);
        let effects = given(left.clone()).reconcile(releasing, "default/x").await;
        assert!(effects.result.is_ok(), "{:?}", effects.result);
        assert_eq!(effects.events()[0], Event::normal("Released", "it has left"));
        let finalizers = effects.object::<Lamp>("default/x").unwrap().metadata.finalizers;
        assert_eq!(finalizers, Some(vec!["other.io/x".into()]));
        let follower = given(left).following().reconcile(releasing, "default/x").await;
        assert!(follower.writes().is_empty(), "a follower released");
    }
}

#[tokio::test]
async fn an_object_that_has_left_the_selection_is_released() {
    let controller = |cx: &Context| {
        let build = Controller::selected::<Lamp>(cx, select().label("kind", "desk")).finalizer(OWN_FINALIZER);
        Ok(build.reconciler(ClosureReconciler(never)).releasing().build())
    };
    let mut left = lamp();
    left.metadata.finalizers = Some(vec![OWN_FINALIZER.into()]);
    let effects = given(left).reconcile(controller, "default/x").await;
    assert!(effects.result.is_ok(), "{:?}", effects.result);
    assert_eq!(effects.object::<Lamp>("default/x").unwrap().metadata.finalizers.unwrap_or_default(), [""; 0]);
}

#[tokio::test]
async fn a_releasing_controller_needs_a_finalizer_of_its_own() {
    let default = |cx: &Context| Ok(builder(cx, never).releasing().build());
    let error = given(lamp()).reconcile(default, "default/x").await.result.unwrap_err().to_string();
    assert!(error.contains("a name that no other program uses"), "{error}");
}

#[tokio::test]
async fn what_waits_for_the_caches_runs_before_the_first_pass() {
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let primed = seen.clone();
    let controller = move |cx: &Context| {
        let mut build = Controller::of::<Lamp>(cx);
        let (lamps, primed) = (cx.get::<Informer<Lamp>>(), primed.clone());
        build.on_synced(async move { primed.store(lamps.keys().len(), std::sync::atomic::Ordering::SeqCst) });
        Ok(build.reconciler(ClosureReconciler(light)).build())
    };
    given(lamp()).reconcile(controller, "default/x").await;
    assert_eq!(seen.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// Reports absent objects as errors.
struct Absences;

impl ReconcileKind for Absences {
    type Kind = Lamp;

    async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl ObserveKind for Absences {
    async fn observe_kind(&self, _: &Lamp) -> Result<Outcome> {
        Ok(Outcome::done())
    }

    async fn observe_absence(&self, key: &Key) -> Result<Outcome> {
        Err(format!("{key} is absent").into())
    }
}

#[tokio::test]
async fn every_replica_observes_that_an_object_is_gone_or_terminating_or_has_left() {
    let of_class = |cx: &Context| {
        let build = Controller::of::<Lamp>(cx).class("demo.reknit.dev/class", "desk");
        Ok(build.reconciler(Absences).observing_as_follower().build())
    };
    let of_selection = |cx: &Context| {
        let build = Controller::selected::<Lamp>(cx, select().label("kind", "desk"));
        Ok(build.reconciler(Absences).observing_as_follower().build())
    };
    let mut desk = terminating(&["other.io/x"]);
    desk.metadata.annotations = Some([("demo.reknit.dev/class".into(), "desk".into())].into());
    for following in [false, true] {
        let mode = |given: Given| if following { given.following() } else { given };
        for absent in [nothing(), given(lamp()), given(desk.clone())] {
            let effects = mode(absent).reconcile(of_class, "default/x").await;
            assert_eq!(effects.result.unwrap_err().to_string(), "default/x is absent");
        }
        let effects = mode(given(lamp())).reconcile(of_selection, "default/x").await;
        assert_eq!(effects.result.unwrap_err().to_string(), "default/x is absent");
        desk.metadata.deletion_timestamp = None;
        let effects = mode(given(desk.clone())).reconcile(of_class, "default/x").await;
        assert_eq!(effects.result.unwrap(), Outcome::done());
        desk.metadata.deletion_timestamp = terminating(&[]).metadata.deletion_timestamp;
    }
}

/// Releases an object in its second pass.
struct SlowRelease(PerKey<()>);

impl ReconcileKind for SlowRelease {
    type Kind = Lamp;

    async fn reconcile_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl FinalizeKind for SlowRelease {
    async fn finalize_kind(&self, _: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

impl ReleaseKind for SlowRelease {
    async fn release_kind(&self, lamp: &Lamp) -> Result<Outcome> {
        let has_begun = self.0.insert(Key::of(lamp), ()).is_some();
        Ok(if has_begun { Outcome::done() } else { Outcome::skip() })
    }
}

#[tokio::test]
async fn a_value_of_a_key_is_kept_until_the_object_is_released() {
    let mut left = lamp();
    left.metadata.finalizers = Some(vec![OWN_FINALIZER.into()]);
    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![server.insert(&left)]);
    let mut build =
        Controller::of::<Lamp>(&cx).class("demo.reknit.dev/class", "desk").finalizer(OWN_FINALIZER);
    let begun = build.per_key();
    let controller = build.reconciler(SlowRelease(begun.clone())).releasing().build();
    assert_eq!(controller.once(&key()).await.unwrap(), Outcome::skip());
    assert_eq!(begun.get(&key()), Some(()));
    assert_eq!(controller.once(&key()).await.unwrap(), Outcome::done());
    assert_eq!(begun.get(&key()), None);
}
