//! Plans of objects that the API server cannot validate as long as others are only planned, or still live.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Service},
    rbac::v1::{Role, RoleBinding},
    scheduling::v1::PriorityClass,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use reknit::prelude::*;
use reknit_samples::{SimpleDeployment, SimpleDeploymentSpec};
use serde_json::{Value, json};

use super::{Planned, plan, run_once, server};

/// The account of the program. It holds what its Role grants, and may neither bind Roles nor delete single ConfigMaps.
const RULES: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: referring}
rules:
  - {apiGroups: [samples.knative.dev], resources: ['*'], verbs: ['*']}
  - {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [get, list, create]}
  - {apiGroups: [scheduling.k8s.io], resources: [priorityclasses], verbs: [get, list, create]}
  - {apiGroups: [''], resources: [services], verbs: [get, list, create, delete]}
  - {apiGroups: [''], resources: [configmaps], verbs: [list, deletecollection]}
  - {apiGroups: [''], resources: [pods], verbs: [get, list, create]}
  - {apiGroups: [events.k8s.io, ''], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: referring}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: referring}
subjects: [{kind: ServiceAccount, name: referring, namespace: NAMESPACE}]
";

/// Creates objects that refer to each other, and replaces the Service `web`.
struct Referring(Client);

impl ReconcileKind for Referring {
    type Kind = SimpleDeployment;

    async fn reconcile_kind(
        &self,
        object: &SimpleDeployment,
        _: &mut reknit_samples::SimpleDeploymentStatus,
    ) -> Result<Outcome> {
        let namespace = object.namespace().unwrap_or_default();
        let roles: Api<Role> = Api::namespaced(self.0.clone(), &namespace);
        if roles.get_opt("reader").await?.is_some() {
            return Ok(Outcome::done());
        }
        let post = PostParams::default();
        let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
        let role = json!({"metadata": {"name": "reader"}, "rules": [rule]});
        roles.create(&post, &serde_json::from_value(role)?).await?;
        let bindings: Api<RoleBinding> = Api::namespaced(self.0.clone(), &namespace);
        let binding = json!({
            "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "app"}],
        });
        bindings.create(&post, &serde_json::from_value(binding)?).await?;
        let classes: Api<PriorityClass> = Api::all(self.0.clone());
        let class = json!({"metadata": {"name": "urgent"}, "value": 1000});
        classes.create(&post, &serde_json::from_value(class)?).await?;
        let pods: Api<Pod> = Api::namespaced(self.0.clone(), &namespace);
        let spec = json!({"priorityClassName": "urgent", "containers": [{"name": "a", "image": "a"}]});
        pods.create(&post, &serde_json::from_value(json!({"metadata": {"name": "app"}, "spec": spec}))?)
            .await?;
        let services: Api<Service> = Api::namespaced(self.0.clone(), &namespace);
        let _ = services.delete("web", &DeleteParams::default()).await?;
        services.create(&post, &service("b")).await?;
        let maps: Api<ConfigMap> = Api::namespaced(self.0.clone(), &namespace);
        let old = ListParams::default().labels("generation=old");
        let _ = maps.delete_collection(&DeleteParams::default(), &old).await?;
        Ok(Outcome::done())
    }
}

fn service(app: &str) -> Service {
    let ports = json!([{"port": 80, "nodePort": 31_111}]);
    let spec = json!({"type": "NodePort", "selector": {"app": app}, "ports": ports});
    serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).expect("a Service")
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_refer_to_planned_ones_and_replacements_are_planned_as_the_real_run_makes_them() {
    let server = server().await;
    let mut objects = server.objects_in_new_namespace("plan").await;
    let namespace = objects.namespace.clone();
    objects.services().create(&PostParams::default(), &service("a")).await.expect("the Service");
    let maps: Api<ConfigMap> = Api::namespaced(objects.client.clone(), &namespace);
    for (name, generation) in [("one", "old"), ("two", "new")] {
        let map = json!({"metadata": {"name": name, "labels": {"generation": generation}}});
        let map = serde_json::from_value(map).expect("a ConfigMap");
        maps.create(&PostParams::default(), &map).await.expect("the ConfigMap");
    }
    let object = SimpleDeployment::new("web", SimpleDeploymentSpec { image: "a".into(), replicas: 0 });
    objects.deployments().create(&PostParams::default(), &object).await.expect("the object");
    server.apply_yaml(&RULES.replace("NAMESPACE", &namespace)).await.expect("the rules");
    let account = server.client_as(&namespace, "referring").await.expect("the account");

    let controller =
        |cx: &Context| Ok(Controller::of::<SimpleDeployment>(cx).reconciler(Referring(cx.client())).build());
    objects.client = account.clone();
    let main = Main::new("referring").controller(controller).plannable();
    let Planned(status, text, planned) = plan(&server, &objects, main).await;
    assert_eq!(status, 3, "{text}");
    for not_validated in [
        format!(
            "RoleBinding {namespace}/reader: the object, since roles.rbac.authorization.k8s.io {namespace}/reader does not exist yet"
        ),
        format!(
            "Pod {namespace}/app: the object, since priorityclasses.scheduling.k8s.io urgent does not exist yet"
        ),
        format!("Service {namespace}/web: the object, since the live one still has its name and ports"),
    ] {
        assert!(text.contains(&not_validated), "{not_validated} in {text}");
    }
    let text_of =
        |object: &Value, field: &str| object[field].as_str().expect("a text").replace(&namespace, "");
    let planned = planned["objects"].as_array().expect("a list").iter();
    let mut planned: Vec<_> =
        planned.map(|object| [text_of(object, "action"), text_of(object, "key")].join(" ")).collect();
    planned.sort();
    assert_eq!(
        planned,
        [
            "changeStatus /web",
            "create /app",
            "create /reader",
            "create /reader",
            "create urgent",
            "delete /one",
            "replace /web",
        ]
    );

    run_once(&Context::new("referring", account), controller).await;
    let live = maps.list(&ListParams::default().labels("generation")).await.expect("a list");
    assert_eq!(live.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["two"]);
    let selector = objects.services().get("web").await.expect("the Service").spec.expect("a spec").selector;
    assert_eq!(json!(selector), json!({"app": "b"}));
}
