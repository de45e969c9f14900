use std::panic::{AssertUnwindSafe, catch_unwind};

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};

use super::*;
use crate::{select, testing::server};

#[derive(Clone)]
struct Probe(Informer<Service>);

impl Inject for Probe {
    fn inject(cx: &Context) -> Self {
        Self(cx.get())
    }
}

#[derive(Clone)]
struct Aggregate {
    probe: Probe,
    _pods: Informer<Pod>,
    number: u8,
}

impl Inject for Aggregate {
    fn inject(cx: &Context) -> Self {
        Self { probe: cx.get(), _pods: cx.get(), number: cx.provided().unwrap_or(1) }
    }
}

#[derive(Clone)]
struct Egg;

#[derive(Clone)]
struct Hen;

impl Inject for Egg {
    fn inject(cx: &Context) -> Self {
        let _: Hen = cx.get();
        Self
    }
}

impl Inject for Hen {
    fn inject(cx: &Context) -> Self {
        let _: Egg = cx.get();
        Self
    }
}

fn context() -> Context {
    Context::new("test", server().0)
}

#[tokio::test]
async fn an_injected_value_shares_the_values_that_it_requests() {
    let cx = context();
    cx.provide(9u8);
    let aggregate: Aggregate = cx.get();
    assert!(aggregate.probe.0.is_same_as(&cx.get::<Probe>().0) && aggregate.probe.0.is_same_as(&cx.get()));
    assert_eq!(aggregate.number, 9);
}

#[tokio::test]
async fn a_provided_value_takes_precedence_over_inject() {
    let cx = context();
    let pods = cx.informer::<Pod>(select().namespace("x"));
    cx.provide(pods.clone());
    assert!(cx.get::<Informer<Pod>>().is_same_as(&pods));
}

#[tokio::test]
async fn requesting_a_value_makes_its_informers_dependencies() {
    let names = |cx: &Context| {
        cx.dependencies().iter().map(|informer| informer.name().to_owned()).collect::<Vec<_>>()
    };
    let cx = context();
    let (first, second, third) = (cx.scoped(), cx.scoped(), cx.scoped());
    let _: Informer<ConfigMap> = first.get();
    let _: Aggregate = first.get();
    assert_eq!(names(&first), ["configmaps", "services", "pods"]);
    let _: Aggregate = second.get();
    assert_eq!(names(&second), ["services", "pods"], "the value was created by the first request");
    second.provide("depends on services and pods");
    third.provided::<&str>().unwrap();
    assert_eq!(names(&third), ["services", "pods"]);
    assert!(names(&cx).is_empty());
}

#[tokio::test]
async fn a_cyclic_inject_panics_with_the_cycle_and_leaves_the_context_usable() {
    let cx = context();
    let panic = catch_unwind(AssertUnwindSafe(|| cx.get::<Hen>())).err().unwrap();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(
        message.contains("Hen → ") && message.contains("Egg → ") && message.ends_with("Hen"),
        "{message}"
    );
    let _: Probe = cx.get();
}

#[tokio::test]
async fn the_error_names_the_type_that_was_not_provided() {
    assert_eq!(context().provided::<u8>().unwrap_err().to_string(), "no u8 was provided");
}

#[tokio::test]
async fn a_later_request_returns_the_informer_with_its_handlers() {
    let (cx, (sender, receiver)) = (context(), std::sync::mpsc::channel());
    cx.informer::<Service>(select().namespace("x")).on(move |change| sender.send(change.key()).unwrap());
    let mut service = Service::default();
    service.metadata.namespace = Some("x".into());
    cx.informer::<Service>(select().namespace("x")).insert(&service).unwrap();
    assert!(receiver.try_recv().is_ok());
}

#[tokio::test]
async fn informers_that_nothing_holds_at_the_start_are_not_started() {
    let informers = {
        let cx = context();
        let _: Aggregate = cx.get();
        cx.informers()
    };
    informers.start();
    assert!(informers.states().is_empty());
}
