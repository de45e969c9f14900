//! Passes that add, keep and remove a finalizer.

use http::{Method, Request, Response};
use kube::{
    Client,
    api::{Api, DeleteParams, Patch, PatchParams},
    client::Body,
};
use reknit_injection::{Context, Informer};
use reknit_reconciler::{Error, Event};
use reknit_testing::{ApiServer, ControllerExt, InformerExt, Verb, Want, given};
use serde_json::json;

use super::*;

fn done(_: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
    Ok(Outcome::done())
}

fn unplug(_: &Lamp, status: &mut LampStatus) -> Result<Outcome> {
    status.lit = Some(false);
    Ok(Outcome::done().event(Event::normal("Unplugged", "out")))
}

#[tokio::test]
async fn the_finalizer_is_added_before_the_first_pass() {
    let mut lamp = lamp();
    lamp.metadata.finalizers = Some(vec!["other.io/x".into()]);
    let effects = given(lamp).reconcile(finalizing(light), "default/x").await;
    assert_eq!(effects.writes(), ["patch lamps default/x", "patch lamps/status default/x"]);
    let patch = json!({"metadata": {"finalizers": ["other.io/x", FINALIZER], "resourceVersion": "1"}});
    assert_eq!(effects.write(0).body, patch);
    let version = &effects.write(1).body["metadata"]["resourceVersion"];
    assert_eq!(version, "1001", "the pass does not continue with the patched object");
    assert_eq!(effects.events(), [Event::normal("FinalizerUpdate", "Updated \"x\" finalizers")]);
    assert!(effects.enqueued.is_empty());
}

#[tokio::test]
async fn the_reconciler_does_not_run_if_the_finalizer_cannot_be_added() {
    let never = |_: &Lamp, _: &mut LampStatus| panic!("reconciled without a finalizer");
    let effects =
        given(lamp()).failing(Verb::Patch, "lamps", 403).reconcile(finalizing(never), "default/x").await;
    let message = effects.result.as_ref().unwrap_err().to_string();
    assert_eq!(message, "failed to update finalizers for \"x\"");
    let event = "Failed to update finalizers for \"x\": inducing failure for patch lamps (403 Forbidden)";
    assert_eq!(effects.events(), [Event::warning("FinalizerUpdateFailed", event)]);
}

#[tokio::test]
async fn the_status_is_written_before_the_finalizer_is_removed() {
    let effects =
        given(terminating(&[FINALIZER, "other.io/x"])).reconcile(finalizing(unplug), "default/x").await;
    assert_eq!(effects.writes(), ["patch lamps/status default/x", "patch lamps default/x"]);
    let version = &effects.write(0).result.as_ref().unwrap()["metadata"]["resourceVersion"];
    let patch = json!({"metadata": {"finalizers": ["other.io/x"], "resourceVersion": version}});
    assert_eq!(effects.write(1).body, patch);
    let unplugged = Event::normal("Unplugged", "out");
    assert_eq!(effects.events(), [unplugged, Event::normal("FinalizerUpdate", "Updated \"x\" finalizers")]);
    assert!(effects.enqueued.is_empty());
}

#[tokio::test]
async fn no_status_is_written_before_the_last_finalizer_is_removed() {
    let effects = given(terminating(&[FINALIZER])).reconcile(finalizing(unplug), "default/x").await;
    assert_eq!(effects.writes(), ["patch lamps default/x"]);
    assert!(effects.object::<Lamp>("default/x").is_none());
}

#[tokio::test]
async fn any_result_other_than_done_keeps_the_finalizer_and_writes_the_status() {
    let outcomes: [fn() -> Result<Outcome>; 3] = [
        || Ok(Outcome::after(std::time::Duration::from_secs(1))),
        || Ok(Outcome::skip()),
        || Err(Error::permanent("stuck")),
    ];
    for outcome in outcomes {
        let waiting = move |_: &Lamp, status: &mut LampStatus| {
            status.lit = Some(false);
            outcome()
        };
        let effects = given(terminating(&[FINALIZER])).reconcile(finalizing(waiting), "default/x").await;
        assert_eq!(effects.writes(), ["patch lamps/status default/x"]);
        assert!(effects.object::<Lamp>("default/x").is_some());
    }
}

#[tokio::test]
async fn a_finalizer_is_kept_if_the_status_cannot_be_written() {
    let effects = given(terminating(&[FINALIZER, "other.io/x"]))
        .failing(Verb::Patch, "lamps/status", 500)
        .reconcile(finalizing(unplug), "default/x")
        .await;
    assert_eq!(effects.writes(), ["patch lamps/status default/x"]);
    assert!(effects.result.is_err());
}

#[tokio::test]
async fn a_status_that_the_api_server_refuses_does_not_keep_the_finalizer() {
    for code in [403, 413, 422] {
        let effects = given(terminating(&[FINALIZER, "other.io/x"]))
            .failing(Verb::Patch, "lamps/status", code)
            .reconcile(finalizing(unplug), "default/x")
            .await;
        assert_eq!(effects.writes(), ["patch lamps/status default/x", "patch lamps default/x"]);
        let patch = json!({"metadata": {"finalizers": ["other.io/x"], "resourceVersion": "1"}});
        assert_eq!(effects.write(1).body, patch);
        assert!(effects.result.is_ok(), "{:?}", effects.result);
        let events = format!("{:?}", effects.events());
        assert!(events.contains("UpdateFailed") && events.contains("FinalizerUpdate"), "{events}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_of_the_status_does_not_keep_the_finalizer() {
    let effects = given(terminating(&[FINALIZER, "other.io/x"]))
        .failing_times(Verb::Patch, "lamps/status", 409, 1)
        .reconcile(finalizing(unplug), "default/x")
        .await;
    let (status, finalizers) = ("patch lamps/status default/x", "patch lamps default/x");
    assert_eq!(effects.writes(), [status, status, finalizers, finalizers]);
    assert_eq!(effects.object::<Lamp>("default/x").unwrap().metadata.finalizers.unwrap(), ["other.io/x"]);
    assert_eq!(effects.enqueued, [key()], "no further pass sees the change");
}

#[tokio::test]
async fn a_terminating_object_without_the_finalizer_is_ignored() {
    let never = |_: &Lamp, _: &mut LampStatus| panic!("reconciled without our finalizer");
    let effects = given(terminating(&["other.io/x"])).reconcile(finalizing(never), "default/x").await;
    assert_eq!(effects.result.as_ref().unwrap(), &Outcome::skip());
    assert!(effects.writes().is_empty());
}

#[tokio::test]
async fn removing_the_finalizer_of_a_deleted_object_succeeds() {
    let server = ApiServer::new();
    let cached = serde_json::to_value(terminating(&[FINALIZER])).unwrap();
    let controller = finalizing(done)(&Context::preloaded("test", server.client(), vec![cached])).unwrap();
    assert_eq!(controller.once(&key()).await.unwrap(), Outcome::done());
    let writes: Vec<_> = server.take_writes().iter().map(ToString::to_string).collect();
    assert_eq!(writes[0], "patch lamps default/x");
}

#[tokio::test]
async fn an_object_deleted_before_its_finalizer_is_added_is_ignored() {
    let never = |_: &Lamp, _: &mut LampStatus| panic!("reconciled without a finalizer");
    let server = ApiServer::new();
    let cached = serde_json::to_value(lamp()).unwrap();
    let controller = finalizing(never)(&Context::preloaded("test", server.client(), vec![cached])).unwrap();
    assert_eq!(controller.once(&key()).await.unwrap(), Outcome::skip());
    let writes: Vec<_> = server.take_writes().iter().map(ToString::to_string).collect();
    assert_eq!(writes, ["patch lamps default/x"], "an event was recorded");
}

#[tokio::test]
async fn a_conflict_on_the_finalizer_has_no_event() {
    for object in [lamp(), terminating(&[FINALIZER])] {
        let effects =
            given(object).failing(Verb::Patch, "lamps", 409).reconcile(finalizing(done), "default/x").await;
        assert!(effects.result.as_ref().unwrap_err().is_conflict());
        assert!(effects.events().is_empty());
    }
}

#[tokio::test]
async fn a_conflict_on_removal_is_retried() {
    let effects = given(terminating(&[FINALIZER]))
        .failing(Verb::Patch, "lamps", 409)
        .reconcile(finalizing(done), "default/x")
        .await;
    let error = effects.result.as_ref().unwrap_err();
    assert!(error.is_conflict() && !error.is_permanent());
}

#[tokio::test]
async fn server_side_apply_keeps_the_finalizers_of_other_managers() {
    let server = ApiServer::new();
    let mut lamp = lamp();
    lamp.metadata.finalizers = Some(vec!["other.io/x".into()]);
    let cached = server.insert(&lamp);
    let controller = {
        let cx = Context::preloaded("test", server.client(), vec![cached]);
        let build = Controller::of::<Lamp>(&cx).finalizer("demo.reknit.dev/lamp").apply_finalizer_as("lamps");
        build.reconciler(ClosureReconciler(light)).finalizing().build()
    };
    let finalizers =
        || server.object::<Lamp>(Some("default"), "x").unwrap().metadata.finalizers.unwrap_or_default();
    let _ = controller.once(&key()).await.unwrap();
    let applied = &server.take_writes()[0].body;
    assert_eq!(applied["metadata"]["finalizers"], json!(["demo.reknit.dev/lamp"]));
    assert_eq!(applied["metadata"]["uid"], "uid-x", "a deleted object would be created again");
    assert_eq!(finalizers(), ["other.io/x", "demo.reknit.dev/lamp"]);
    assert_eq!(
        controller.take_queued(),
        [key()],
        "not enqueued, although the response may contain changes of other clients"
    );
    Api::<Lamp>::namespaced(server.client(), "default").delete("x", &DeleteParams::default()).await.unwrap();
    let _ = controller.once(&key()).await.unwrap();
    let current = serde_json::to_value(server.object::<Lamp>(Some("default"), "x").unwrap()).unwrap();
    let again = {
        let cx = Context::preloaded("test", server.client(), vec![current]);
        let build = Controller::of::<Lamp>(&cx).finalizer("demo.reknit.dev/lamp").apply_finalizer_as("lamps");
        build.reconciler(ClosureReconciler(done)).finalizing().build()
    };
    let _ = again.once(&key()).await.unwrap();
    assert_eq!(finalizers(), ["other.io/x"]);
}

#[tokio::test]
async fn server_side_apply_removes_a_finalizer_added_by_a_merge_patch() {
    let server = ApiServer::new();
    let cached = server.insert(&terminating(&[FINALIZER]));
    let controller = {
        let cx = Context::preloaded("test", server.client(), vec![cached]);
        let build = Controller::of::<Lamp>(&cx).apply_finalizer_as("lamps");
        build.reconciler(ClosureReconciler(done)).finalizing().build()
    };
    let _ = controller.once(&key()).await.unwrap();
    assert!(server.object::<Lamp>(Some("default"), "x").is_none());
}

#[tokio::test]
async fn the_finalizer_of_a_built_in_kind_needs_a_slash() {
    use k8s_openapi::api::core::v1::ConfigMap;

    struct Idle;
    impl ReconcileKind for Idle {
        type Kind = ConfigMap;
        async fn reconcile_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
            Ok(Outcome::done())
        }
    }
    impl FinalizeKind for Idle {
        async fn finalize_kind(&self, _: &ConfigMap, _: &mut ()) -> Result<Outcome> {
            Ok(Outcome::done())
        }
    }
    let mut map = ConfigMap::default();
    map.metadata.name = Some("x".into());
    map.metadata.namespace = Some("default".into());
    let bare = |cx: &Context| Ok(Controller::of::<ConfigMap>(cx).reconciler(Idle).finalizing().build());
    let cx = Context::preloaded("test", ApiServer::new().client(), vec![]);
    let unnamed = bare(&cx).unwrap();
    assert!(unnamed.check().unwrap_err().to_string().contains("invalid finalizer"));
    let check = |name: &str| {
        Controller::of::<ConfigMap>(&cx).finalizer(name).reconciler(Idle).finalizing().build().check()
    };
    for refused in ["map.demo.reknit.dev", "Demo.reknit.dev/map", "/map", "demo.reknit.dev/-map", "a/b/c"] {
        assert!(check(refused).is_err(), "{refused}");
    }
    assert!(check("demo.reknit.dev/map").is_ok());
    let effects = given(map.clone()).reconcile(bare, "default/x").await;
    let error = effects.result.as_ref().unwrap_err();
    assert!(error.is_permanent());
    assert!(error.to_string().contains("invalid finalizer \"configmaps\""), "{error}");
    let named = |cx: &Context| {
        let controller = Controller::of::<ConfigMap>(cx)
            .finalizer("demo.reknit.dev/map")
            .reconciler(Idle)
            .finalizing()
            .build();
        assert_eq!(controller.finalizer(), Some("demo.reknit.dev/map"));
        assert!(controller.check().is_ok());
        Ok(controller)
    };
    let effects = given(map).reconcile(named, "default/x").await;
    assert_eq!(effects.writes(), ["patch configmaps default/x"]);
}

fn annotated(mut lamp: Lamp, class: Option<&str>) -> Lamp {
    lamp.metadata.annotations = class.map(|class| [("demo.reknit.dev/class".into(), class.into())].into());
    lamp
}

/// The constructor of a finalizing controller of a class, which finalizes under this name or the default one.
fn of_class<F: PassFn>(
    pass: F,
    finalizer: Option<&'static str>,
) -> impl FnOnce(&Context) -> Result<Controller> {
    move |cx| {
        let build = Controller::of::<Lamp>(cx).class("demo.reknit.dev/class", "desk");
        let build = if let Some(name) = finalizer { build.finalizer(name) } else { build };
        Ok(build.reconciler(ClosureReconciler(pass)).finalizing().build())
    }
}

#[tokio::test]
async fn a_deleted_object_is_finalized_whatever_its_class_is() {
    for class in [None, Some("desk"), Some("street")] {
        let lamp = annotated(terminating(&[FINALIZER]), class);
        let effects = given(lamp).reconcile(of_class(unplug, None), "default/x").await;
        assert_eq!(effects.writes(), ["patch lamps default/x"], "{class:?}");
        assert!(effects.object::<Lamp>("default/x").is_none());
    }
}

#[tokio::test]
async fn a_finalizer_of_the_default_name_that_the_program_of_another_class_has_placed_is_left_to_it() {
    let never = |_: &Lamp, _: &mut LampStatus| panic!("finalized");
    let finalized_by = |manager: &str, name: &str| {
        let mut lamp = annotated(terminating(&[name]), Some("street"));
        let fields = json!({"f:metadata": {"f:finalizers": {".": {}, format!("v:\"{name}\""): {}}}});
        let managed = json!([{"manager": manager, "operation": "Update", "fieldsV1": fields}]);
        lamp.metadata.managed_fields = Some(serde_json::from_value(managed).unwrap());
        lamp
    };
    let theirs = given(finalized_by("street-lights", FINALIZER));
    theirs.reconcile(of_class(never, None), "default/x").await.check(Want::skip());
    let name = "demo.reknit.dev/desk-lights";
    for (ours, finalizer) in
        [(finalized_by("test", FINALIZER), None), (finalized_by("kubectl", name), Some(name))]
    {
        let effects = given(ours).reconcile(of_class(done, finalizer), "default/x").await;
        assert!(effects.object::<Lamp>("default/x").is_none(), "{finalizer:?}");
    }
}

/// The former finalizer of renamed controllers.
const FORMER: &str = "demo.reknit.dev/former";

fn renamed(cx: &Context) -> Result<Controller> {
    let build = Controller::of::<Lamp>(cx).former_finalizers([FORMER]);
    Ok(build.reconciler(ClosureReconciler(done)).finalizing().build())
}

#[tokio::test]
async fn a_former_finalizer_is_replaced_before_the_next_pass() {
    let mut lamp = lamp();
    lamp.metadata.finalizers = Some([FORMER, "other.io/x"].map(Into::into).into());
    let effects = given(lamp).reconcile(renamed, "default/x").await;
    let patch = json!({"metadata": {"finalizers": ["other.io/x", FINALIZER], "resourceVersion": "1"}});
    assert_eq!(effects.write(0).body, patch);
}

#[tokio::test]
async fn a_deleted_object_with_a_former_finalizer_is_finalized() {
    for finalizers in [&[FORMER][..], &[FINALIZER, FORMER], &[FORMER, "other.io/x"]] {
        let effects = given(terminating(finalizers)).reconcile(renamed, "default/x").await;
        assert_eq!(effects.result.as_ref().unwrap(), &Outcome::done());
        let left = effects.object::<Lamp>("default/x").and_then(|lamp| lamp.metadata.finalizers);
        assert_eq!(
            left.unwrap_or_default().contains(&"other.io/x".into()),
            finalizers.contains(&"other.io/x")
        );
    }
}

#[tokio::test]
async fn a_controller_that_does_not_finalize_any_more_releases_its_former_finalizer() {
    let constructor = |pass: fn(&Lamp, &mut LampStatus) -> Result<Outcome>| {
        move |cx: &Context| {
            let build = Controller::of::<Lamp>(cx).former_finalizers([FINALIZER]);
            let controller = build.reconciler(ClosureReconciler(pass)).build();
            assert_eq!(
                (controller.finalizer(), controller.former_finalizers()),
                (None, &[FINALIZER.into()][..])
            );
            Ok(controller)
        }
    };
    let mut stored = lamp();
    stored.metadata.finalizers = Some(vec![FINALIZER.into()]);
    let effects = given(stored).reconcile(constructor(done), "default/x").await;
    assert_eq!(effects.object::<Lamp>("default/x").unwrap().metadata.finalizers, None);
    let never = |_: &Lamp, _: &mut LampStatus| panic!("reconciled a terminating object");
    let effects = given(terminating(&[FINALIZER])).reconcile(constructor(never), "default/x").await;
    assert!(effects.object::<Lamp>("default/x").is_none());
}

#[tokio::test]
async fn a_finalizer_that_another_client_removes_is_reported() {
    for others in [&[][..], &["other.io/x"]] {
        let server = ApiServer::new();
        let cached = server.insert(&terminating(&[&[FINALIZER], others].concat()));
        let cx = Context::preloaded("test", server.client(), vec![cached]);
        let controller = finalizing(done)(&cx).unwrap();
        // Another process in the place of this one: only the client is shared.
        let lamps: Api<Lamp> = Api::namespaced(cx.client(), "default");
        let removal = Patch::Merge(json!({"metadata": {"finalizers": others}}));
        lamps.patch("x", &PatchParams::default(), &removal).await.unwrap();
        server.take_writes();
        let _ = controller.once(&key()).await.unwrap();
        let events: Vec<_> = server.take_writes().iter().map(|write| write.body["reason"].clone()).collect();
        assert_eq!(events, ["FinalizerLost"], "{others:?}");
        let _ = controller.once(&key()).await.unwrap();
        assert!(server.take_writes().is_empty(), "reported once");
    }
}

/// As after a deletion that reached the API server at the same moment as the finalizer.
#[tokio::test]
async fn an_object_that_is_deleted_with_its_finalizer_is_reported_without_another_client_to_blame() {
    let server = ApiServer::new();
    let mut lamp = lamp();
    lamp.metadata.finalizers = Some(vec![FINALIZER.into()]);
    let cx = Context::preloaded("test", server.client(), vec![serde_json::to_value(lamp).unwrap()]);
    let controller = finalizing(done)(&cx).unwrap();
    cx.get::<Informer<Lamp>>().remove(&key());
    let _ = controller.once(&key()).await.unwrap();
    let events = server.take_writes();
    let [event] = &events[..] else { panic!("not one event: {events:?}") };
    let note = event.body["note"].as_str().unwrap();
    assert_eq!(event.body["reason"], "FinalizerLost");
    assert!(note.starts_with("the object was deleted although it carried the finalizer"), "{note}");
}

#[tokio::test]
async fn the_event_about_an_undecodable_object_says_that_its_deletion_waits() {
    let mut garbled = serde_json::to_value(terminating(&[FINALIZER])).unwrap();
    garbled["spec"]["watts"] = json!("many");
    let server = ApiServer::new();
    let cx = Context::preloaded("test", server.client(), vec![garbled]);
    let controller = finalizing(|_, _| panic!("finalized without its spec"))(&cx).unwrap();
    assert_eq!(controller.once(&key()).await.unwrap(), Outcome::skip());
    let event = server.take_writes()[0].body.clone();
    assert_eq!(event["reason"], "DecodeFailed");
    assert!(event["note"].as_str().unwrap().contains("its deletion waits"), "{event}");
}

#[tokio::test]
async fn an_object_that_left_the_selection_is_finalized_but_its_leaving_is_no_deletion() {
    let constructor = |pass: fn(&Lamp, &mut LampStatus) -> Result<Outcome>| {
        move |cx: &Context| {
            let build = Controller::selected::<Lamp>(cx, reknit_injection::select().label("kind", "desk"));
            Ok(build.reconciler(ClosureReconciler(pass)).finalizing().observing_deletion_as_leader().build())
        }
    };
    let never = |_: &Lamp, _: &mut LampStatus| panic!("called for an object outside the selection");
    given(lamp()).reconcile(constructor(never), "default/x").await.check(Want::skip());
    let mut carrying = lamp();
    carrying.metadata.finalizers = Some(vec![FINALIZER.into()]);
    given(carrying).reconcile(constructor(never), "default/x").await.check(Want::skip());
    given(terminating(&["other.io/x"])).reconcile(constructor(never), "default/x").await.check(Want::skip());
    let terminating = || given(terminating(&[FINALIZER]));
    terminating().following().reconcile(constructor(never), "default/x").await.check(Want::skip());
    let effects = terminating().reconcile(constructor(done), "default/x").await;
    assert!(effects.object::<Lamp>("default/x").is_none());
    assert_eq!(effects.enqueued, [key()], "the deletion observer is called next");
}

#[tokio::test]
async fn a_deleted_object_outside_the_selection_whose_spec_cannot_be_decoded_is_reported() {
    let server = ApiServer::new();
    let cached = server.insert(&terminating(&[FINALIZER]));
    let cx = Context::preloaded("test", server.client(), vec![cached]);
    let gvk = kube::core::GroupVersionKind::gvk("demo.reknit.dev", "v1", "Lamp");
    let resource = kube::api::ApiResource::from_gvk(&gvk);
    let lamps: Api<kube::api::DynamicObject> = Api::namespaced_with(server.client(), "default", &resource);
    let spec = Patch::Merge(json!({"spec": {"watts": "many"}}));
    lamps.patch("x", &PatchParams::default(), &spec).await.unwrap();
    server.take_writes();
    let build = Controller::selected::<Lamp>(&cx, reknit_injection::select().label("kind", "desk"));
    let controller = build.reconciler(ClosureReconciler(done)).finalizing().build();
    let error = controller.once(&key()).await.unwrap_err();
    assert!(error.is_permanent(), "{error}");
    let [event] = &server.take_writes()[..] else { panic!("not one event") };
    assert!(event.body["note"].as_str().unwrap().contains("waits for its finalizer"), "{}", event.body);
}

/// The page may come from a proxy in front of the API server.
#[tokio::test]
async fn an_answer_that_is_no_object_does_not_end_the_retries_of_a_deleted_object_outside_the_selection() {
    let server = ApiServer::new();
    let cached = server.insert(&terminating(&[FINALIZER]));
    let server_client = server.client();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = server_client.clone();
        async move {
            match *request.method() {
                Method::GET => Ok(Response::new(Body::from(b"<html>".to_vec()))),
                _ => client.send(request).await,
            }
        }
    });
    let cx = Context::preloaded("test", Client::new(service, "default"), vec![cached]);
    let build = Controller::selected::<Lamp>(&cx, reknit_injection::select().label("kind", "desk"));
    let error =
        build.reconciler(ClosureReconciler(done)).finalizing().build().once(&key()).await.unwrap_err();
    assert!(!error.is_permanent(), "{}", error.in_full());
}
