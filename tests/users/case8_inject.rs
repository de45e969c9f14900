//! Injected things made of injected things.
use k8s_openapi::api::core::v1::{Pod, Service};
use reknit::prelude::*;

#[derive(Clone)]
struct Probe(Informer<Service>);
impl Inject for Probe {
    fn inject(cx: &Context) -> Self {
        Self(cx.get())
    }
}
#[derive(Clone)]
struct Deep {
    probe: Probe,
    pods: Informer<Pod>,
    number: u8,
}
impl Inject for Deep {
    fn inject(cx: &Context) -> Self {
        let number = cx.provided().unwrap_or(1);
        Self { probe: cx.get(), pods: cx.get(), number }
    }
}
#[tokio::test]
async fn injection_recurses_and_shares() {
    let cx = Context::new("test", crate::nowhere());
    cx.provide(9u8);
    let deep: Deep = cx.get();
    assert!(deep.probe.0.same(&cx.get::<Probe>().0));
    assert!(deep.probe.0.same(&cx.get()));
    assert_eq!(deep.number, 9);
}
#[derive(Clone)]
struct Egg;
#[derive(Clone)]
struct Hen;
impl Inject for Egg {
    fn inject(cx: &Context) -> Self {
        let _: Hen = cx.get();
        Egg
    }
}
impl Inject for Hen {
    fn inject(cx: &Context) -> Self {
        let _: Egg = cx.get();
        Hen
    }
}
#[tokio::test]
async fn a_circle_is_named_rather_than_overflowing_the_stack() {
    let cx = Context::new("test", crate::nowhere());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cx.get::<Hen>())).err().unwrap();
    let said = caught.downcast_ref::<String>().unwrap();
    assert!(said.contains("cyclic Inject") && said.contains("Hen") && said.contains("Egg"), "{said}");
    let _: Probe = cx.get(); // and the Context still works
}
#[tokio::test]
async fn what_nobody_provided_is_named() {
    let cx = Context::new("test", crate::nowhere());
    assert_eq!(cx.provided::<u8>().unwrap_err().to_string(), "no u8 was provided");
}
