//! Informers with each kind of selection.
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{api::DynamicObject, core::Expression, discovery::ApiResource};
use reknit::testing::InformerExt;
use reknit::{
    injection::{Inject, Metadata},
    prelude::*,
};

#[derive(Clone)]
pub struct Informers {
    pub services: Informer<Service>,
    pub by_label_in_namespace: Informer<Pod>,
    pub by_field: Informer<Pod>,
    pub by_label_expression: Informer<Pod>,
    pub metadata: Informer<Metadata<Pod>>,
    pub dynamic: Informer<DynamicObject>,
}
impl Inject for Informers {
    fn inject(cx: &Context) -> Self {
        let service_kind = ApiResource::erase::<Service>(&());
        Self {
            services: cx.get(),
            by_label_in_namespace: cx.informer(select().label("kind", "cloud-ide").namespace("ide")),
            by_field: cx.informer(select().field("spec.nodeName", "node-1")),
            by_label_expression: cx
                .informer(select().labels([Expression::In("tier".into(), ["a".into(), "b".into()].into())])),
            metadata: cx.get(),
            dynamic: cx.informer_of(&service_kind, select().namespace("x")),
        }
    }
}

#[tokio::test]
async fn there_is_one_informer_for_each_kind_and_selection() {
    let cx = Context::new("test", crate::unreachable_client());
    let all: Informer<Pod> = cx.get();
    assert!(all.is_same_as(&cx.informer::<Pod>(select())));
    let ide = cx.informer::<Pod>(select().namespace("ide").label("a", "1").label("b", "2"));
    assert!(
        ide.is_same_as(&cx.informer(select().label("b", "2").label("a", "1").namespace("ide"))),
        "the order of labels matters"
    );
    assert!(!ide.is_same_as(&all));
    let informers: Informers = cx.get();
    assert!(informers.services.is_same_as(&cx.get()));
}
#[tokio::test]
async fn an_object_that_leaves_the_selection_leaves_the_cache() {
    let cx = Context::new("test", crate::unreachable_client());
    let ide = cx.informer::<Pod>(select().label("kind", "cloud-ide"));
    let mut pod = Pod::default();
    pod.metadata.name = Some("p".into());
    pod.metadata.labels = Some([("kind".into(), "cloud-ide".into())].into());
    ide.insert(pod.clone());
    assert_eq!(ide.list().count(), 1);
    pod.metadata.labels = None;
    ide.insert(pod);
    assert_eq!(ide.list().count(), 0);
}
