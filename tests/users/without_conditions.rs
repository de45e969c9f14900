//! A Kind without conditions (Foo), a Kind without a status (Mydemo), and a built-in Kind (Namespace).
use k8s_openapi::api::core::v1::Namespace;
use kube::CustomResource;
use reknit::{prelude::*, testing::given};
use serde::{Deserialize, Serialize};

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "crddemo.k8s.io", version = "v1", kind = "Mydemo", namespaced)]
pub struct MydemoSpec {
    pub ip: String,
    pub port: u16,
}
kind!(Mydemo {});
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(
    group = "samplecontroller.k8s.io",
    version = "v1alpha1",
    kind = "Foo",
    namespaced,
    status = "FooStatus"
)]
#[serde(rename_all = "camelCase")]
pub struct FooSpec {
    pub deployment_name: String,
}
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FooStatus {
    pub available_replicas: i32,
}
kind!(Foo { status: FooStatus });

struct MydemoReconciler;
impl ReconcileKind for MydemoReconciler {
    type Kind = Mydemo;
    async fn reconcile_kind(&self, _: &Mydemo, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done().event(Event::normal("Synced", "Mydemo synced successfully")))
    }
}
struct FooReconciler;
impl ReconcileKind for FooReconciler {
    type Kind = Foo;
    async fn reconcile_kind(&self, _: &Foo, status: &mut FooStatus) -> Result<Outcome> {
        status.available_replicas = 2;
        Ok(Outcome::done())
    }
}
struct NamespaceReconciler;
impl ReconcileKind for NamespaceReconciler {
    type Kind = Namespace;
    async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}
#[tokio::test]
async fn a_status_without_conditions_is_written_and_a_kind_without_status_writes_nothing() {
    let demo = crate::with_metadata(
        Mydemo::new("d", MydemoSpec { ip: "1.1.1.1".into(), port: 8080 }),
        Some("default"),
        1,
    );
    let effects = given(demo)
        .reconcile(|cx| Ok(Controller::of::<Mydemo>(cx).reconciler(MydemoReconciler).build()), "default/d")
        .await;
    assert!(effects.writes().is_empty());
    assert_eq!(effects.events()[0].reason, "Synced");
    let foo =
        crate::with_metadata(Foo::new("f", FooSpec { deployment_name: "d".into() }), Some("default"), 1);
    let effects = given(foo)
        .reconcile(|cx| Ok(Controller::of::<Foo>(cx).reconciler(FooReconciler).build()), "default/f")
        .await;
    assert_eq!(effects.write(0).body["status"], serde_json::json!({"availableReplicas": 2}));
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some("n".into());
    let effects = given(namespace)
        .reconcile(|cx| Ok(Controller::of::<Namespace>(cx).reconciler(NamespaceReconciler).build()), "n")
        .await;
    assert_eq!(effects.result.unwrap(), Outcome::done());
}
