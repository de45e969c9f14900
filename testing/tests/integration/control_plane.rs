//! The features of a control plane that tests rely on.

use std::{error::Error, time::Duration};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Secret},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Config, CustomResource, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use reknit_testing::{ControlPlane, eventually};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

type TestResult = Result<(), Box<dyn Error>>;

const SOON: Duration = Duration::from_secs(10);

/// A custom resource.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(group = "testing.reknit.dev", version = "v1", kind = "Greeting", namespaced)]
struct GreetingSpec {
    text: String,
}

fn greeting(text: &str) -> Greeting {
    Greeting::new("hello", GreetingSpec { text: text.into() })
}

fn config_map(name: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

#[tokio::test]
async fn an_installed_kind_is_served_at_once() -> TestResult {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("installed").await?;
    plane.install::<Greeting>().await?;
    plane.install::<Greeting>().await?;
    let greetings: Api<Greeting> = Api::namespaced(plane.client()?, &namespace);
    greetings.create(&PostParams::default(), &greeting("Hello")).await?;
    assert_eq!(greetings.get("hello").await?.spec.text, "Hello");
    Ok(())
}

#[tokio::test]
async fn a_folder_of_yaml_can_contain_a_crd_and_its_objects() -> TestResult {
    let plane = ControlPlane::shared().await?;
    let folder = tempfile::tempdir()?;
    let kind = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shouts.yaml.reknit.dev}
spec:
  group: yaml.reknit.dev
  scope: Cluster
  names: {kind: Shout, plural: shouts, singular: shout, listKind: ShoutList}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
---
# a comment alone is no object
---
apiVersion: yaml.reknit.dev/v1
kind: Shout
metadata: {name: loud}
";
    let settings = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: of-the-folder}\ndata: {volume: high}\n";
    std::fs::write(folder.path().join("100-kind.yaml"), kind)?;
    std::fs::write(folder.path().join("200-settings.yml"), settings)?;
    std::fs::write(folder.path().join("README.md"), "no object")?;
    plane.apply_path(folder.path()).await?;
    plane.apply_path(folder.path()).await?;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(plane.client()?);
    assert_eq!(config_maps.get("of-the-folder").await?.data.unwrap_or_default()["volume"], "high");
    Ok(())
}

#[tokio::test]
async fn yaml_without_an_object_is_refused_with_its_position() -> TestResult {
    let plane = ControlPlane::shared().await?;
    let error = async |text: &str| plane.apply_yaml(text).await.unwrap_err().to_string();
    assert_eq!(
        error("---\nkind: ConfigMap\napiVersion: v1\n").await,
        "text, document 1: a ConfigMap without a name"
    );
    assert_eq!(error("metadata: {name: x}").await, "text, document 1: no apiVersion and kind");
    assert!(error("a: [").await.starts_with("text, document 1: "));
    assert_eq!(
        error("apiVersion: absent.dev/v1\nkind: Nothing\nmetadata: {name: x}").await,
        "cannot find the Kind absent.dev/v1 Nothing"
    );
    Ok(())
}

#[tokio::test]
async fn a_service_account_can_do_only_what_rbac_grants() -> TestResult {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("granted").await?;
    let role = format!(
        "apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: reader, namespace: {namespace}}}
rules: [{{apiGroups: [''], resources: [configmaps], verbs: [list]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: reader, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}}
subjects: [{{kind: ServiceAccount, name: reader, namespace: {namespace}}}]
"
    );
    plane.apply_yaml(&role).await?;
    let client = plane.client_as(&namespace, "reader").await?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    eventually("the right to list", SOON, async || config_maps.list(&ListParams::default()).await).await;
    let code = |result: kube::Result<_>| match result {
        Err(kube::Error::Api(status)) => status.code,
        _ => 200,
    };
    let created = config_maps.create(&PostParams::default(), &config_map("x")).await;
    assert_eq!(code(created.map(drop)), 403);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    assert_eq!(code(secrets.list(&ListParams::default()).await.map(drop)), 403);
    let other_namespace: Api<ConfigMap> = Api::namespaced(client, "default");
    assert_eq!(code(other_namespace.list(&ListParams::default()).await.map(drop)), 403);
    Ok(())
}

#[tokio::test]
async fn a_kubeconfig_grants_the_access_of_its_user() -> TestResult {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("kubeconfigs").await?;
    let get_namespace = async |path: &std::path::Path| -> Result<String, Box<dyn Error>> {
        let options = KubeConfigOptions::default();
        let mut config = Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?;
        config.proxy_url = None; // kube uses the proxy of the environment even for 127.0.0.1.
        let namespaces: Api<Namespace> = Api::all(kube::Client::try_from(config)?);
        Ok(namespaces.get(&namespace).await.map_or_else(|error| error.to_string(), |found| found.name_any()))
    };
    assert_eq!(get_namespace(plane.kubeconfig()).await?, namespace);
    let refusal = get_namespace(&plane.kubeconfig_as(&namespace, "somebody").await?).await?;
    let user = format!("\"system:serviceaccount:{namespace}:somebody\" cannot get resource \"namespaces\"");
    assert!(refusal.contains(&user), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn accounts_with_similar_names_have_separate_kubeconfigs() -> TestResult {
    let plane = ControlPlane::shared().await?;
    plane.apply_yaml("{apiVersion: v1, kind: Namespace, metadata: {name: default-a}}").await?;
    let one = plane.kubeconfig_as("default", "a-controller").await?;
    let other = plane.kubeconfig_as("default-a", "controller").await?;
    assert_ne!(one, other);
    Ok(())
}

#[tokio::test]
async fn data_addresses_and_tokens_survive_a_restart() -> TestResult {
    let plane = ControlPlane::start().await?;
    let client = plane.client()?;
    let account_client = plane.client_as("default", "somebody").await?;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(client);
    config_maps.create(&PostParams::default(), &config_map("kept")).await?;
    plane.stop().await?;
    assert!(config_maps.get("kept").await.is_err(), "a stopped control plane does not respond");
    plane.stop().await?;
    plane.restart().await?;
    config_maps.get("kept").await?;
    let refused = Api::<Secret>::default_namespaced(account_client).get("x").await.unwrap_err().to_string();
    assert!(refused.contains("default:somebody"), "the token is valid, and RBAC refuses: {refused}");
    plane.restart().await?;
    config_maps.get("kept").await?;
    Ok(())
}

#[tokio::test]
async fn a_watch_from_before_a_compaction_gets_410() -> TestResult {
    let plane = ControlPlane::builder().arg("--watch-cache=false").start().await?;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(plane.client()?);
    let old = config_maps
        .create(&PostParams::default(), &config_map("first"))
        .await?
        .resource_version()
        .unwrap_or_default();
    config_maps.create(&PostParams::default(), &config_map("second")).await?;
    let first_event = async || {
        let events = config_maps.watch(&WatchParams::default(), &old).await?;
        events.boxed().try_next().await
    };
    assert!(matches!(first_event().await?, Some(WatchEvent::Added(map)) if map.name_any() == "second"));
    config_maps.delete("first", &DeleteParams::default()).await?;
    plane.compact().await?;
    plane.compact().await?;
    match first_event().await? {
        Some(WatchEvent::Error(status)) => assert_eq!(status.code, 410, "{status:?}"),
        other => panic!("expected an event with code 410, got {other:?}"),
    }
    Ok(())
}

#[tokio::test]
async fn requests_are_in_the_audit_log() -> TestResult {
    let plane = ControlPlane::builder().audited().start().await?;
    let client = plane.client_as("default", "curious").await?;
    Api::<Secret>::default_namespaced(client).get("treasure").await.unwrap_err();
    let refusal = eventually("the request in the audit log", SOON, async || {
        let events = plane.audit_events().map_err(|error| error.to_string())?;
        let user = "system:serviceaccount:default:curious";
        let refusal = events.into_iter().find(|event| event["user"]["username"] == user);
        refusal.ok_or_else(|| "no request of this user".to_owned())
    })
    .await;
    assert_eq!(refusal["responseStatus"]["code"], 403);
    assert_eq!(refusal["objectRef"]["resource"], "secrets");
    Ok(())
}

#[tokio::test]
async fn an_unknown_flag_of_the_api_server_is_named_in_the_error() {
    let error = ControlPlane::builder().arg("--no-such-flag=1").start().await.unwrap_err().to_string();
    assert!(error.contains("kube-apiserver exited with status 1"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
}

#[tokio::test]
async fn a_process_cannot_bind_an_aggregated_role_whose_rights_it_lacks() -> TestResult {
    let plane = ControlPlane::shared().await?;
    let namespace = plane.namespace("binding").await?;
    let rules = |names: &str| {
        format!(
            r#"{{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {{name: binder, namespace: {namespace}}},
            rules: [{{apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings], verbs: [create]}},
                    {{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], verbs: [bind], resourceNames: [{names}]}}]}}"#
        )
    };
    let binding = json!({
        "metadata": {"name": "binder"},
        "subjects": [{"kind": "ServiceAccount", "name": "binder", "namespace": namespace}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "binder"},
    });
    plane.apply_yaml(&rules("view")).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(plane.client()?, &namespace);
    bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    let edit = json!({
        "metadata": {"name": "editors"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
    });
    let edit: RoleBinding = serde_json::from_value(edit)?;
    let own: Api<RoleBinding> = Api::namespaced(plane.client_as(&namespace, "binder").await?, &namespace);
    eventually("the refusal to grant the rights of edit", 6 * SOON, async || {
        match own.create(&PostParams::default(), &edit).await {
            Err(kube::Error::Api(status))
                if status.message.contains("attempting to grant RBAC permissions") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    plane.apply_yaml(&rules("edit")).await?;
    eventually("the binding", 6 * SOON, async || own.create(&PostParams::default(), &edit).await).await;
    Ok(())
}

/// Etcd on a port would be open to the other users of the machine, and to the websites in their browsers.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn etcd_listens_on_no_port() {
    let plane = ControlPlane::start().await.unwrap();
    let process = |program: &str| {
        let id = std::fs::read_to_string(plane.folder().join(format!("{program}.pid"))).unwrap();
        std::path::PathBuf::from("/proc").join(id.trim())
    };
    let listening = |process: &std::path::Path| {
        let files = std::fs::read_dir(process.join("fd")).unwrap();
        let files: Vec<_> = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok()).collect();
        let tables =
            ["tcp", "tcp6"].map(|table| std::fs::read_to_string(process.join("net").join(table)).unwrap());
        // The fourth column is the state, 0A of a listening socket, and the tenth the inode.
        let sockets = tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(|line| {
            let columns: Vec<_> = line.split_whitespace().collect();
            (columns[3] == "0A").then(|| format!("socket:[{}]", columns[9]))
        });
        sockets.filter(|socket| files.iter().any(|file| file.to_str() == Some(socket))).count()
    };
    assert_eq!((listening(&process("etcd")), listening(&process("kube-apiserver"))), (0, 1));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(plane.folder()).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
}
