//! A controller of two namespaces, with a Role in each and no ClusterRole.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use reknit_apis::KReference;
use reknit_injection::{Context, Informer, InformerState, Informers, Shutdown, select};
use reknit_leadership::Leadership;
use reknit_reconciler::{Controller, Key, Kinds, Outcome, Owned, ReconcileKind, Result, Run, TrackedAny};
use reknit_testing::{ControlPlane, eventually};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::TIMEOUT;

/// Copies each ConfigMap into a Secret once the PodTemplate `t` exists in the namespace `templates`.
struct Copier {
    secrets: Owned<Secret>,
    anything: TrackedAny,
    templates: String,
}

impl ReconcileKind for Copier {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let template = KReference {
            api_version: "v1".into(),
            kind: "PodTemplate".into(),
            namespace: Some(self.templates.clone()),
            name: "t".into(),
            ..KReference::default()
        };
        if self.anything.get(map, &template).await?.is_none() {
            return Ok(Outcome::done());
        }
        let metadata = ObjectMeta { name: map.metadata.name.clone(), ..ObjectMeta::default() };
        self.secrets.apply(map, Secret { metadata, ..Secret::default() }).await?;
        Ok(Outcome::done())
    }
}

/// The running controller of two namespaces.
struct Running {
    maps: Informer<ConfigMap>,
    informers: Informers,
    task: JoinHandle<()>,
}

impl Running {
    fn start(client: Client, namespaces: [&str; 2]) -> Self {
        let (controller, maps, informers) = {
            let cx = Context::new("copier", client);
            let selection = select().namespaces(namespaces).label("copy", "yes");
            let mut build = Controller::selected::<ConfigMap>(&cx, selection.clone());
            let secrets = build.owns();
            let copier = Copier {
                secrets,
                anything: build.track_any(Kinds::any()).across_namespaces(),
                templates: namespaces[1].to_owned(),
            };
            (build.reconciler(copier).build(), cx.informer(selection), cx.informers())
        };
        informers.start();
        let leadership = Leadership::always();
        let run = Run { leadership, stop: Shutdown::never(), drain: Duration::ZERO, workers: None };
        let task = tokio::spawn(async move {
            let _ = controller.run(run).await;
        });
        Self { maps, informers, task }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A Role in `namespace`, bound to the service account `copier` in `account_namespace`.
fn role(namespace: &str, account_namespace: &str) -> [Value; 2] {
    let all = ["get", "list", "watch", "create", "patch", "update"];
    [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "copier", "namespace": namespace},
            "rules": [{"apiGroups": [""], "resources": ["configmaps", "secrets", "podtemplates"], "verbs": all}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "copier", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "copier"},
            "subjects": [{"kind": "ServiceAccount", "name": "copier", "namespace": account_namespace}]}),
    ]
}

fn map(name: &str) -> ConfigMap {
    let labels = Some([("copy".to_owned(), "yes".to_owned())].into());
    let metadata = ObjectMeta { name: Some(name.into()), labels, ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_in_each_of_two_namespaces_is_enough_and_a_third_namespace_stays_unseen() {
    let plane = ControlPlane::shared().await.unwrap();
    let (a, b) = (plane.namespace("two-a").await.unwrap(), plane.namespace("two-b").await.unwrap());
    let third = plane.namespace("two-c").await.unwrap();
    let client = plane.client_as(&a, "copier").await.unwrap();
    for object in role(&a, &a) {
        plane.apply_yaml(&object.to_string()).await.unwrap();
    }
    let admin = plane.client().unwrap();
    for namespace in [&a, &b, &third] {
        let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), namespace);
        maps.create(&PostParams::default(), &map("one")).await.unwrap();
    }

    let running = Running::start(client, [&b, &a]);
    eventually("the first namespace in the cache", TIMEOUT, async || running.maps.len() == 1).await;
    eventually("a reason that names the other namespace", TIMEOUT, async || match running.maps.state() {
        InformerState::Unavailable { reason: why, .. } if why.contains(&b) => Ok(()),
        state => Err(format!("{state:?}")),
    })
    .await;

    let template = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t", "namespace": a},
        "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    plane.apply_yaml(&template.to_string()).await.unwrap();
    let secrets = |namespace: &str| Api::<Secret>::namespaced(admin.clone(), namespace);
    let copy = async || secrets(&a).get_opt("one").await.unwrap();
    eventually("the copy in a, although b cannot be listed", TIMEOUT, copy).await;
    for object in role(&b, &a) {
        plane.apply_yaml(&object.to_string()).await.unwrap();
    }
    let is_listed = async || matches!(running.maps.state(), InformerState::Synced { .. });
    eventually("the list of b", Duration::from_secs(60), is_listed).await;
    for namespace in [&a, &b] {
        let copy = async || secrets(namespace).get_opt("one").await.unwrap();
        eventually("the copy of each map", Duration::from_secs(60), copy).await;
    }
    secrets(&b).delete("one", &DeleteParams::default()).await.unwrap();
    eventually("the deleted copy again", TIMEOUT, async || secrets(&b).get_opt("one").await.unwrap()).await;

    assert_eq!(running.maps.len(), 2);
    assert!(!running.maps.contains(&Key::new(third.as_str(), "one")));
    assert!(secrets(&third).get_opt("one").await.unwrap().is_none());
    let [first, second] = if a < b { [&a, &b] } else { [&b, &a] };
    for (name, state) in running.informers.states() {
        assert!(name.contains(&format!("[namespace={first},{second}")), "{name}");
        assert!(matches!(state, InformerState::Synced { .. }), "{name}: {state:?}");
    }
}
