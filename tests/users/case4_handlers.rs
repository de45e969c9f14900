//! Every source of keys, and every option.
use reknit::testing::{ControllerExt, InformerExt};
use std::time::Duration;

use crate::case0_addressable::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::{
    ResourceExt,
    core::{Expression, Selector},
};
use reknit::{
    injection::{Filter, controlled_by, named, namespace},
    prelude::*,
};

struct R {
    pods: Owned<Pod>,
    services: Tracked<Service>,
    anything: TrackedAny,
}
impl ReconcileKind for R {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        let _mine = self.pods.of(object).filter(|p| p.metadata.deletion_timestamp.is_none()).count();
        let _one = self.services.get(object, "web");
        let _elsewhere = self.services.get_in(object, "other", "web");
        let web: Selector = Expression::Equal("app".into(), "web".into()).into();
        let _all = self.services.matching(object, &web).count();
        let sink = KReference {
            api_version: "serving.knative.dev/v1".into(),
            kind: "Service".into(),
            namespace: object.namespace(),
            name: "s".into(),
            ..KReference::default()
        };
        let _any = self.anything.get(object, &sink).await?;
        Ok(Outcome::done())
    }
}
fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<AddressableService>(cx);
    let (pods, services, anything) = (build.owns(), build.track(), build.track_any());
    build
        .watch(&cx.get::<Informer<Secret>>())
        .filter(
            label("part-of", "samples")
                & !namespace("kube-system")
                & (named("a") | Filter::new(|s: &Secret| s.data.is_some())),
        )
        .keys(|secret| {
            secret.annotations().get("for").map(|name| Key::new(secret.namespace().as_deref(), name))
        });
    build
        .watch(&cx.informer::<ConfigMap>(select().label("kind", "map")))
        .filter(!controlled_by::<AddressableService, _>())
        .keys(|map| [Key::of(map)]);
    Ok(build
        .workers(4)
        .resync(Duration::from_secs(3600))
        .reconciler(R { pods, services, anything })
        .name("addresses")
        .finalizer("samples.knative.dev/address")
        .server_side_apply("addresses")
        .class("samples.knative.dev/class", "plain")
        .promote_filter(!label("idle", "true"))
        .build())
}
fn secret(owner: &str) -> Secret {
    let mut secret = Secret::default();
    secret.metadata.name = Some("a".into());
    secret.metadata.namespace = Some("x".into());
    secret.metadata.labels = Some([("part-of".into(), "samples".into())].into());
    secret.metadata.annotations = Some([("for".into(), owner.into())].into());
    secret
}
#[tokio::test]
async fn an_object_that_moves_wakes_whom_it_left_and_whom_it_joined() {
    let cx = Context::new("test", crate::nowhere());
    let made = controller(&cx).unwrap();
    let secrets: Informer<Secret> = cx.get();
    secrets.insert(secret("one"));
    assert_eq!(made.queued(), [Key::new("x", "one")]);
    secrets.insert(secret("two"));
    assert_eq!(made.queued(), [Key::new("x", "one"), Key::new("x", "two")]);
}
#[tokio::test]
async fn reading_is_tracking_by_name_by_selector_and_by_a_reference_of_any_kind() {
    let cx = Context::preloaded("test", crate::nowhere(), vec![]);
    let made = controller(&cx).unwrap();
    let object = crate::at(
        AddressableService::new("x", AddressableServiceSpec { service_name: "web".into() }),
        Some("default"),
        1,
    );
    let mut object = object;
    object.metadata.annotations = Some([("samples.knative.dev/class".into(), "plain".into())].into());
    object.metadata.resource_version = Some("1".into());
    cx.get::<Informer<AddressableService>>().insert(object);
    assert_eq!(made.queued().len(), 1);
    let _ = made.once(&Key::new("default", "x")).await;
    let service = |ns: &str, name: &str, app: &str| {
        let mut s = Service::default();
        s.metadata.name = Some(name.into());
        s.metadata.namespace = Some(ns.into());
        s.metadata.labels = Some([("app".into(), app.into())].into());
        s
    };
    let services: Informer<Service> = cx.get();
    for (ns, name, app, woken) in [
        ("default", "web", "", 1),
        ("other", "web", "", 1),
        ("default", "b", "web", 1),
        ("other", "b", "web", 0),
    ] {
        services.insert(service(ns, name, app));
        assert_eq!(made.queued().len(), woken, "{ns}/{name} {app}");
    }
    let gvk = kube::core::GroupVersionKind::gvk("serving.knative.dev", "v1", "Service");
    let kind = kube::discovery::ApiResource::from_gvk(&gvk);
    cx.informer_of(&kind, select()).insert(kube::api::DynamicObject::new("s", &kind).within("default"));
    assert_eq!(made.queued(), [Key::new("default", "x")]);
}
