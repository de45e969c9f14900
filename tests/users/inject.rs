//! Types that are injected and contain injected types.
use k8s_openapi::api::core::v1::{Pod, Service};
use reknit::{injection::Inject, prelude::*};

#[derive(Clone)]
struct Probe(Informer<Service>);
impl Inject for Probe {
    fn inject(cx: &Context) -> Self {
        Self(cx.get())
    }
}
#[derive(Clone)]
struct Nested {
    probe: Probe,
    pods: Informer<Pod>,
    number: u8,
}
impl Inject for Nested {
    fn inject(cx: &Context) -> Self {
        let number = cx.provided().unwrap_or(1);
        Self { probe: cx.get(), pods: cx.get(), number }
    }
}
#[tokio::test]
async fn injected_types_can_be_nested_and_are_created_once() {
    let cx = Context::new("test", crate::unreachable_client());
    cx.provide(9u8);
    let nested: Nested = cx.get();
    assert!(nested.probe.0.is_same_as(&cx.get::<Probe>().0));
    assert!(nested.probe.0.is_same_as(&cx.get()));
    assert_eq!(nested.number, 9);
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
async fn a_cyclic_inject_panics_with_the_types_of_the_cycle() {
    let cx = Context::new("test", crate::unreachable_client());
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cx.get::<Hen>())).err().unwrap();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(
        message.contains("cyclic Inject") && message.contains("Hen") && message.contains("Egg"),
        "{message}"
    );
    let _: Probe = cx.get(); // the Context still works
}
#[tokio::test]
async fn the_error_for_a_missing_value_names_its_type() {
    let cx = Context::new("test", crate::unreachable_client());
    assert_eq!(cx.provided::<u8>().unwrap_err().to_string(), "no u8 was provided");
}
