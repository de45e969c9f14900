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
struct Deep {
    probe: Probe,
    _pods: Informer<Pod>,
    number: u8,
}

impl Inject for Deep {
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
async fn injected_things_are_made_of_injected_things_and_shared() {
    let cx = context();
    cx.provide(9u8);
    let deep: Deep = cx.get();
    assert!(deep.probe.0.same(&cx.get::<Probe>().0) && deep.probe.0.same(&cx.get()));
    assert_eq!(deep.number, 9);
}

#[tokio::test]
async fn what_is_provided_wins() {
    let cx = context();
    let pods = cx.informer::<Pod>(select().namespace("x"));
    cx.provide(pods.clone());
    assert!(cx.get::<Informer<Pod>>().same(&pods));
}

#[tokio::test]
async fn whoever_asks_for_a_value_has_asked_for_the_informers_within_it() {
    let names = |cx: &Context| {
        cx.dependencies().iter().map(|informer| informer.name().to_owned()).collect::<Vec<_>>()
    };
    let cx = context();
    let (first, second, third) = (cx.scoped(), cx.scoped(), cx.scoped());
    let _: Informer<ConfigMap> = first.get();
    let _: Deep = first.get();
    assert_eq!(names(&first), ["configmaps", "services", "pods"]);
    let _: Deep = second.get();
    assert_eq!(names(&second), ["services", "pods"], "it was made before");
    second.provide("made of services and pods");
    third.provided::<&str>().unwrap();
    assert_eq!(names(&third), ["services", "pods"]);
    assert!(names(&cx).is_empty());
}

#[tokio::test]
async fn a_circle_is_named_and_leaves_the_context_usable() {
    let cx = context();
    let said = catch_unwind(AssertUnwindSafe(|| cx.get::<Hen>())).err().unwrap();
    let said = said.downcast_ref::<String>().unwrap();
    assert!(said.contains("Hen → ") && said.contains("Egg → ") && said.ends_with("Hen"), "{said}");
    let _: Probe = cx.get();
}

#[tokio::test]
async fn what_nobody_provided_is_named() {
    assert_eq!(context().provided::<u8>().unwrap_err().to_string(), "no u8 was provided");
}

#[tokio::test]
async fn a_handler_is_there_for_whoever_asks_for_the_informer_later() {
    let (cx, (told, heard)) = (context(), std::sync::mpsc::channel());
    cx.informer::<Service>(select().namespace("x")).on(move |change| told.send(change.key()).unwrap());
    let mut service = Service::default();
    service.metadata.namespace = Some("x".into());
    cx.informer::<Service>(select().namespace("x")).insert(&service).unwrap();
    assert!(heard.try_recv().is_ok());
}

#[tokio::test]
async fn what_nobody_keeps_never_starts() {
    let informers = {
        let cx = context();
        let _: Deep = cx.get();
        cx.informers()
    };
    informers.start();
    assert!(informers.states().is_empty());
}
