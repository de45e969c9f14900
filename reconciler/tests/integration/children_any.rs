//! Children of Kinds that are known only at run time, on a real API server.

use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ObjectMeta},
};
use reknit_injection::{Context, Informer};
use reknit_reconciler::{Controller, Key, Kinds, Outcome, OwnedAny, OwnedOptions, ReconcileKind, Result};
use reknit_testing::{ControllerExt, eventually};
use serde_json::json;

use crate::{Fixture, TIMEOUT};

/// Applies a ServiceAccount named `child` while the flag is set.
struct Templater {
    children: OwnedAny,
    has_template: Arc<Mutex<bool>>,
}

impl ReconcileKind for Templater {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, owner: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        if *self.has_template.lock().unwrap() {
            let accounts = self.children.kind(owner, "v1", "ServiceAccount").await?;
            let metadata = ObjectMeta { name: Some("child".into()), ..ObjectMeta::default() };
            let data = json!({"automountServiceAccountToken": false});
            accounts.apply(owner, DynamicObject { types: None, metadata, data }).await?;
        }
        Ok(Outcome::done())
    }
}

#[tokio::test] // One thread: with more, the list may end before the pass asks for it.
async fn a_child_from_a_template_is_restored_and_the_informer_of_its_kind_closes_with_the_template() {
    let fixture = Fixture::new("templates").await;
    fixture.create("owner", &[]).await;
    let has_template = Arc::new(Mutex::new(true));
    let (controller, owners, informers) = {
        let cx = Context::new("test", fixture.client.clone());
        let mut build = Controller::of::<ConfigMap>(&cx);
        let templater = Templater {
            children: build.owns_any(Kinds::any(), OwnedOptions::default()),
            has_template: has_template.clone(),
        };
        (build.reconciler(templater).build(), cx.get::<Informer<ConfigMap>>(), cx.informers())
    };
    informers.start();
    let key = Key::new(fixture.namespace.as_str(), "owner");
    eventually("the owner in the cache", TIMEOUT, async || owners.contains(&key)).await;
    let has_informer = || informers.states().iter().any(|(name, _)| name == "serviceaccounts");
    assert!(!has_informer());

    controller.take_queued();
    assert!(controller.once(&key).await.unwrap_err().is_waiting());
    eventually("the list enqueues the owner", TIMEOUT, async || controller.take_queued().contains(&key))
        .await;
    let _ = controller.once(&key).await.unwrap();
    assert!(has_informer());
    let accounts: Api<ServiceAccount> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let created = accounts.get("child").await.unwrap();
    assert_eq!(created.automount_service_account_token, Some(false));
    assert_eq!(created.metadata.owner_references.as_ref().unwrap()[0].name, "owner");

    controller.take_queued();
    accounts.delete("child", &DeleteParams::default()).await.unwrap();
    eventually("the owner to be enqueued", TIMEOUT, async || controller.take_queued().contains(&key)).await;
    let _ = controller.once(&key).await.unwrap();
    assert_ne!(accounts.get("child").await.unwrap().metadata.uid, created.metadata.uid);

    *has_template.lock().unwrap() = false;
    let _ = controller.once(&key).await.unwrap();
    assert!(!has_informer());
}
