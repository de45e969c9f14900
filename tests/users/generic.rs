//! Generic reconcilers, configuration that stays the same during a reconcile, and several controllers of one Kind.
use reknit::testing::InformerExt;
use std::{collections::BTreeMap, sync::Arc};

use crate::addressable_service::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use k8s_openapi::api::core::v1::ConfigMap;
use reknit::{injection::Inject, prelude::*, testing::given};

pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> u64;
}
#[derive(Clone)]
pub struct FixedClock;
impl Clock for FixedClock {
    fn now(&self) -> u64 {
        7
    }
}
/// A clock that can be injected, and replaced with `provide`. It only has to compile: no test here uses it.
#[derive(Clone)]
pub struct SharedClock(pub Arc<dyn Clock>);
impl Inject for SharedClock {
    fn inject(_: &Context) -> Self {
        Self(Arc::new(FixedClock))
    }
}

#[derive(Default)]
struct Domain {
    suffix: String,
}
impl FromConfigMap for Domain {
    const NAME: &'static str = "config-domain";
    fn from_config_map(
        data: &BTreeMap<String, String>,
    ) -> std::result::Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self { suffix: data.get("suffix").ok_or("missing suffix")?.clone() })
    }
}
struct Reconciler<C> {
    clock: C,
    domain: Config<Domain>,
    config_maps: Informer<ConfigMap>,
}
impl<C: Clock> ReconcileKind for Reconciler<C> {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        _: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        let before = self.domain.get();
        self.config_maps.insert(config_map("later.example")); // the configuration changes during the reconcile
        tokio::task::yield_now().await;
        assert!(Arc::ptr_eq(&before, &self.domain.get()));
        status.address = Some(format!("{}.{}", self.clock.now(), before.suffix));
        Ok(Outcome::done())
    }
}
fn controller_with_clock<C: Clock + Clone>(clock: C) -> impl Fn(&Context) -> Result<Controller> {
    move |cx| {
        let mut build = Controller::of::<AddressableService>(cx);
        let domain = build.config();
        let config_maps =
            cx.informer(select().namespace("reknit-system").field("metadata.name", "config-domain"));
        Ok(build.reconciler(Reconciler { clock: clock.clone(), domain, config_maps }).build())
    }
}
fn config_map(suffix: &str) -> ConfigMap {
    let mut config_map =
        ConfigMap { data: Some([("suffix".into(), suffix.into())].into()), ..Default::default() };
    config_map.metadata.name = Some("config-domain".into());
    config_map.metadata.namespace = Some("reknit-system".into());
    config_map
}
fn object() -> AddressableService {
    crate::with_metadata(
        AddressableService::new("x", AddressableServiceSpec { service_name: "web".into() }),
        Some("default"),
        1,
    )
}
#[tokio::test]
async fn the_configuration_does_not_change_during_a_reconcile() {
    let effects = given(object())
        .and(config_map("now.example"))
        .reconcile(controller_with_clock(FixedClock), "default/x")
        .await;
    effects.result.as_ref().unwrap();
    assert_eq!(effects.write(0).body["status"]["address"], "7.now.example");
}
#[tokio::test]
async fn the_name_of_a_controller_is_not_its_type_path() {
    let path = std::any::type_name::<Reconciler<FixedClock>>();
    assert!(
        path.contains('<') && path.contains("::"),
        "{path} is a valid name of a Lease, so this test shows nothing"
    );
    let cx = Context::new("test", crate::unreachable_client());
    assert_eq!(
        controller_with_clock(FixedClock)(&cx).unwrap().name(),
        "addressableservices.samples.knative.dev"
    );
}
#[tokio::test]
async fn two_controllers_of_one_kind_need_different_names() {
    let cx = Context::new("test", crate::unreachable_client());
    let main = Main::new("c")
        .controller(controller_with_clock(FixedClock))
        .controller(controller_with_clock(FixedClock));
    let message = main.construct(&cx).err().unwrap().to_string();
    assert_eq!(
        message,
        "two controllers are named addressableservices.samples.knative.dev: give one of them another name by .name(..)"
    );
}
