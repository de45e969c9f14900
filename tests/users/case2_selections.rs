//! Informers of every selection.
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{api::DynamicObject, core::Expression, discovery::ApiResource};
use reknit::testing::InformerExt;
use reknit::{injection::Metadata, prelude::*};

#[derive(Clone)]
pub struct Everything {
    pub services: Informer<Service>,
    pub ide: Informer<Pod>,
    pub on_node: Informer<Pod>,
    pub tiers: Informer<Pod>,
    pub names: Informer<Metadata<Pod>>,
    pub anything: Informer<DynamicObject>,
}
impl Inject for Everything {
    fn inject(cx: &Context) -> Self {
        let broker = ApiResource::erase::<Service>(&());
        Self {
            services: cx.get(),
            ide: cx.informer(select().label("kind", "cloud-ide").namespace("ide")),
            on_node: cx.informer(select().field("spec.nodeName", "node-1")),
            tiers: cx
                .informer(select().labels([Expression::In("tier".into(), ["a".into(), "b".into()].into())])),
            names: cx.get(),
            anything: cx.informer_of(&broker, select().namespace("x")),
        }
    }
}

#[tokio::test]
async fn one_informer_per_kind_and_selection() {
    let cx = Context::new("test", crate::nowhere());
    let all: Informer<Pod> = cx.get();
    assert!(all.same(&cx.informer::<Pod>(select())));
    let ide = cx.informer::<Pod>(select().namespace("ide").label("a", "1").label("b", "2"));
    assert!(
        ide.same(&cx.informer(select().label("b", "2").label("a", "1").namespace("ide"))),
        "the order of labels does not matter"
    );
    assert!(!ide.same(&all));
    let everything: Everything = cx.get();
    assert!(everything.services.same(&cx.get()));
}
#[tokio::test]
async fn an_object_that_leaves_the_selection_leaves_the_store() {
    let cx = Context::new("test", crate::nowhere());
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
