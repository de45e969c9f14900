//! A cluster-scoped Kind: owns a Namespace (cluster-scoped) and Secrets (namespaced), reads Services by namespace.
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
struct R {
    namespaces: Tracked<Namespace>,
    services: Tracked<Service>,
    secrets: Owned<Secret>,
}
impl ReconcileKind for R {
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
    Ok(build.reconciler(R { namespaces, services, secrets }).build())
}

#[tokio::test]
async fn a_cluster_scoped_kind_has_its_status_written_at_its_own_path_and_is_woken_by_a_namespaced_child() {
    let realm = crate::at(Realm::new("north", RealmSpec {}), None, 1);
    let child = owned_by(&realm);
    let passed = given(realm).and(child).pass(controller, "north").await;
    assert_eq!(passed.writes(), ["patch realms/status /north"]);
    assert_eq!(passed.write(0).body["status"]["secrets"], 1);
}
fn owned_by(realm: &Realm) -> Secret {
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
async fn the_key_of_a_cluster_scoped_owner_has_no_namespace() {
    let cx = Context::new("test", crate::nowhere());
    let made = controller(&cx).unwrap();
    cx.get::<Informer<Secret>>().insert(owned_by(&Realm::new("north", RealmSpec {})));
    assert_eq!(made.queued(), [Key::new(None, "north")]);
}
