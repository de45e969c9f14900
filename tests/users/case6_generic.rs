//! Generic reconcilers, configuration fixed for a pass, several controllers over one Kind.
use reknit::testing::InformerExt;
use std::{collections::BTreeMap, sync::Arc};

use crate::case0_addressable::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use k8s_openapi::api::core::v1::ConfigMap;
use reknit::{prelude::*, testing::given};

pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> u64;
}
#[derive(Clone)]
pub struct System;
impl Clock for System {
    fn now(&self) -> u64 {
        7
    }
}
/// Injected, and replaced in a test by `provide`.
#[derive(Clone)]
pub struct SharedClock(pub Arc<dyn Clock>);
impl Inject for SharedClock {
    fn inject(_: &Context) -> Self {
        Self(Arc::new(System))
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
struct R<C> {
    clock: C,
    domain: Config<Domain>,
    maps: Informer<ConfigMap>,
}
impl<C: Clock> ReconcileKind for R<C> {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        _: &AddressableService,
        status: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        let before = self.domain.get();
        self.maps.insert(map("later.example")); // the map changes in the middle of the pass
        tokio::task::yield_now().await;
        assert!(Arc::ptr_eq(&before, &self.domain.get()));
        status.address = Some(format!("{}.{}", self.clock.now(), before.suffix));
        Ok(Outcome::done())
    }
}
fn with<C: Clock>(clock: C) -> impl FnOnce(&Context) -> Result<Controller> {
    move |cx| {
        let mut build = Controller::of::<AddressableService>(cx);
        let domain = build.config();
        let maps = cx.informer(select().namespace("reknit-system").field("metadata.name", "config-domain"));
        Ok(build.reconciler(R { clock, domain, maps }).build())
    }
}
fn map(suffix: &str) -> ConfigMap {
    let mut map = ConfigMap { data: Some([("suffix".into(), suffix.into())].into()), ..Default::default() };
    map.metadata.name = Some("config-domain".into());
    map.metadata.namespace = Some("reknit-system".into());
    map
}
fn some() -> AddressableService {
    crate::at(
        AddressableService::new("x", AddressableServiceSpec { service_name: "web".into() }),
        Some("default"),
        1,
    )
}
#[tokio::test]
async fn the_configuration_of_a_pass_is_fixed() {
    let passed = given(some()).and(map("now.example")).pass(with(System), "default/x").await;
    passed.result.as_ref().unwrap();
    assert_eq!(passed.write(0).body["status"]["address"], "7.now.example");
}
#[tokio::test]
async fn the_queue_name_is_not_the_type_path() {
    let path = std::any::type_name::<R<System>>();
    assert!(path.contains('<') && path.contains('_'), "{path} could not name a Lease");
    let cx = Context::new("test", crate::nowhere());
    assert_eq!(with(System)(&cx).unwrap().name(), "addressableservices.samples.knative.dev");
}
#[tokio::test]
async fn two_controllers_over_one_kind_need_names() {
    let cx = Context::new("test", crate::nowhere());
    let main = sharedmain::Main::new("c").controller(with(System)).controller(with(System));
    let said = main.construct(&cx).err().unwrap().to_string();
    assert_eq!(
        said,
        "two controllers are named addressableservices.samples.knative.dev: give one of them another name by .name(..)"
    );
}
