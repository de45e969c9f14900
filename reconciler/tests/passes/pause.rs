//! Objects that are paused by their annotation.

use reknit_injection::Informer;
use reknit_testing::{ApiServer, ControllerExt, InformerExt, given};

use super::*;

const PAUSED: &str = "reknit.dev/paused";

fn never(_: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
    panic!("a paused lamp was passed to the reconciler")
}

fn paused_by(mut lamp: Lamp, annotation: &str) -> Lamp {
    lamp.metadata.annotations = Some([(annotation.into(), String::new())].into());
    lamp
}

#[tokio::test]
async fn a_paused_object_is_neither_reconciled_nor_finalized() {
    for lamp in [lamp(), terminating(&[FINALIZER])] {
        let effects = given(paused_by(lamp, PAUSED)).reconcile(finalizing(never), "default/x").await;
        assert_eq!(effects.result.as_ref().unwrap(), &Outcome::skip());
        assert!(effects.writes().is_empty(), "{:?}", effects.writes());
        assert!(effects.object::<Lamp>("default/x").is_some());
    }
}

#[tokio::test]
async fn another_annotation_can_be_set_and_the_default_then_does_not_pause() {
    let by_other = |pass: fn(&Lamp, &mut LampStatus) -> Result<Outcome>| {
        move |cx: &Context| {
            let build = Controller::of::<Lamp>(cx).paused_by("example.com/hold");
            Ok(build.reconciler(ClosureReconciler(pass)).build())
        }
    };
    let held = paused_by(lamp(), "example.com/hold");
    assert!(given(held).reconcile(by_other(never), "default/x").await.writes().is_empty());
    let effects = given(paused_by(lamp(), PAUSED)).reconcile(by_other(light), "default/x").await;
    assert_eq!(effects.writes(), ["patch lamps/status default/x"]);
}

#[tokio::test]
async fn paused_objects_are_counted_until_they_are_resumed_or_gone() {
    let server = ApiServer::new();
    let paused = server.insert(&paused_by(lamp(), PAUSED));
    let cx = Context::preloaded("test", server.client(), vec![paused]);
    let controller = reconciling(light)(&cx).unwrap();
    let lamps = cx.get::<Informer<Lamp>>();
    let count = || {
        let families = cx.metrics().gather();
        let family = families.iter().find(|family| family.name() == "reknit_paused_keys").unwrap();
        family.get_metric()[0].get_gauge().get_value()
    };
    let run_pass = async || assert!(controller.once(&key()).await.is_ok());
    for _ in 0..2 {
        run_pass().await;
        assert_eq!(count(), 1.0);
    }
    lamps.insert(lamp());
    run_pass().await;
    assert_eq!((count(), server.take_writes().len()), (0.0, 1), "resumed");
    let pause = async || {
        lamps.insert(paused_by(lamp(), PAUSED));
        run_pass().await;
        assert_eq!(count(), 1.0);
    };
    pause().await;
    lamps.remove(&key());
    run_pass().await;
    assert_eq!(count(), 0.0, "gone");
    pause().await;
    lamps.insert(terminating(&["other.io/x"]));
    run_pass().await;
    assert_eq!(count(), 0.0, "resumed, and left to the finalizer of another controller");
}

#[tokio::test]
async fn an_object_of_a_controller_that_is_never_paused_is_reconciled() {
    let unpausable = |cx: &Context| {
        let build = Controller::of::<Lamp>(cx).never_paused();
        Ok(build.reconciler(ClosureReconciler(light)).build())
    };
    let effects = given(paused_by(lamp(), PAUSED)).reconcile(unpausable, "default/x").await;
    assert_eq!(effects.writes(), ["patch lamps/status default/x"]);
}
