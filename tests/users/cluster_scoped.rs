//! A cluster-scoped Kind that tracks Namespaces (cluster-scoped) and Services (namespaced), and owns Secrets
//! (namespaced).
use k8s_openapi::api::core::v1::{Namespace, Secret, Service};
use kube::CustomResource;
use reknit::testing::{ControllerExt, InformerExt};
use reknit::{prelude::*, testing::given};
use serde::{Deserialize, Serialize};

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "demo.reknit.dev", version = "v1", kind = "Realm", status = "RealmStatus")]
pub struct RealmSpec {}
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
pub struct RealmStatus {
    #[serde(flatten)]
    pub duck: DuckStatus,
    #[serde(default)]
    pub secrets: usize,
}
kind!(Realm { status: RealmStatus, conditions: knative(duck) });
struct Reconciler {
    namespaces: Tracked<Namespace>,
    services: Tracked<Service>,
    secrets: Owned<Secret>,
}
impl ReconcileKind for Reconciler {
    type Kind = Realm;
    async fn reconcile_kind(&self, object: &Realm, status: &mut RealmStatus) -> Result<Outcome> {
        let _ = self.namespaces.get(object, "x"); // a cluster-scoped object by name
        let _ = self.services.get_in(object, "x", "web"); // a namespaced object needs its namespace
        status.secrets = self.secrets.of(object).count();
        Ok(Outcome::done())
    }
}
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Realm>(cx);
    let (namespaces, services, secrets) = (build.track(), build.track(), build.owns());
    Ok(build.reconciler(Reconciler { namespaces, services, secrets }).build())
}

#[tokio::test]
async fn the_status_of_a_cluster_scoped_object_is_written_and_counts_its_namespaced_children() {
    let realm = crate::with_metadata(Realm::new("north", RealmSpec {}), None, 1);
    let child = secret_of(&realm);
    let effects = given(realm).and(child).reconcile(controller, "north").await;
    assert_eq!(effects.writes(), ["patch realms/status north"]);
    assert_eq!(effects.write(0).body["status"]["secrets"], 1);
}
fn secret_of(realm: &Realm) -> Secret {
    let mut realm = realm.clone();
    realm.metadata.uid = Some("u".into());
    let mut child = Secret::default();
    child.metadata.name = Some("s".into());
    child.metadata.namespace = Some("x".into());
    child.metadata.owner_references =
        Some(kube::Resource::controller_owner_ref(&realm, &()).into_iter().collect());
    child
}
#[tokio::test]
async fn a_namespaced_child_enqueues_its_owner_by_a_key_without_namespace() {
    let cx = Context::new("test", crate::unreachable_client());
    let controller = controller(&cx).unwrap();
    cx.get::<Informer<Secret>>().insert(secret_of(&Realm::new("north", RealmSpec {})));
    assert_eq!(controller.take_queued(), [Key::new(None, "north")]);
}
