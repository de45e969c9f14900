//! A controller with every source of keys and every option of the builder.
use reknit::testing::{ControllerExt, InformerExt};
use std::time::Duration;

use crate::addressable_service::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service};
use kube::{
    ResourceExt,
    core::{Expression, Selector},
};
use reknit::{
    injection::{Filter, controlled_by, label, named, namespace},
    prelude::*,
    reconciler::{Kinds, TrackedAny},
};

struct Reconciler {
    pods: Owned<Pod>,
    services: Tracked<Service>,
    anything: TrackedAny,
}
impl ReconcileKind for Reconciler {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        let _ = self.pods.of(object).filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
        let _ = self.services.get(object, "web");
        let _ = self.services.get_in(object, "other", "web");
        let web: Selector = Expression::Equal("app".into(), "web".into()).into();
        let _ = self.services.matching(object, &web).count();
        let reference = KReference {
            api_version: "serving.knative.dev/v1".into(),
            kind: "Service".into(),
            namespace: object.namespace(),
            name: "s".into(),
            ..KReference::default()
        };
        let _ = self.anything.get(object, &reference).await?;
        Ok(Outcome::done())
    }
}
fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<AddressableService>(cx);
    let (pods, services, anything) = (build.owns(), build.track(), build.track_any(Kinds::any()));
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
        .keys(|config_map| [Key::of(config_map)]);
    Ok(build
        .workers(4)
        .resync(Duration::from_secs(3600))
        .name("addresses")
        .finalizer("samples.knative.dev/address")
        .apply_finalizer_as("addresses")
        .class("samples.knative.dev/class", "plain")
        .promote_filter(!label("idle", "true"))
        .reconciler(Reconciler { pods, services, anything })
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
async fn a_change_enqueues_the_keys_of_the_old_and_of_the_new_object() {
    let cx = Context::new("test", crate::unreachable_client());
    let controller = controller(&cx).unwrap();
    let secrets: Informer<Secret> = cx.get();
    secrets.insert(secret("one"));
    assert_eq!(controller.take_queued(), [Key::new("x", "one")]);
    secrets.insert(secret("two"));
    assert_eq!(controller.take_queued(), [Key::new("x", "one"), Key::new("x", "two")]);
}
#[tokio::test]
async fn objects_read_by_name_by_selector_or_by_reference_are_tracked() {
    let cx = Context::preloaded("test", crate::unreachable_client(), vec![]);
    let controller = controller(&cx).unwrap();
    let mut object = crate::with_metadata(
        AddressableService::new("x", AddressableServiceSpec { service_name: "web".into() }),
        Some("default"),
        1,
    );
    object.metadata.annotations = Some([("samples.knative.dev/class".into(), "plain".into())].into());
    object.metadata.resource_version = Some("1".into());
    cx.get::<Informer<AddressableService>>().insert(object);
    assert_eq!(controller.take_queued().len(), 1);
    let _ = controller.once(&Key::new("default", "x")).await;
    let service = |namespace: &str, name: &str, app: &str| {
        let mut service = Service::default();
        service.metadata.name = Some(name.into());
        service.metadata.namespace = Some(namespace.into());
        service.metadata.labels = Some([("app".into(), app.into())].into());
        service
    };
    let services: Informer<Service> = cx.get();
    for (namespace, name, app, enqueued) in [
        ("default", "web", "", 1),
        ("other", "web", "", 1),
        ("default", "b", "web", 1),
        ("other", "b", "web", 0),
    ] {
        services.insert(service(namespace, name, app));
        assert_eq!(controller.take_queued().len(), enqueued, "{namespace}/{name} {app}");
    }
    let gvk = kube::core::GroupVersionKind::gvk("serving.knative.dev", "v1", "Service");
    let kind = kube::discovery::ApiResource::from_gvk(&gvk);
    cx.informer_of(&kind, select()).insert(kube::api::DynamicObject::new("s", &kind).within("default"));
    assert_eq!(controller.take_queued(), [Key::new("default", "x")]);
}
