//! The environment of a test: the process of an example, in a namespace of its own, on a control plane with nodes.

use std::{fmt::Debug, path::PathBuf};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{apps::v1::Deployment, events::v1::Event, rbac::v1::RoleBinding},
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use reknit::{
    prelude::*,
    testing::{ControlPlane, eventually},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{
    EXAMPLES, file,
    process::{Process, example},
    program_of,
    wait::TIMEOUT,
};

/// The process of an example, and the namespace to which it is confined. When this is dropped, the process is killed
/// and its objects stay.
pub(crate) struct Environment {
    pub(crate) namespace: String,
    pub(crate) client: Client,
    pub(crate) process: Process,
}

/// Binds the generated roles of an example to its service account in this namespace, and returns the kubeconfig of the
/// account.
pub(crate) async fn restricted_kubeconfig(plane: &ControlPlane, example: &str, namespace: &str) -> PathBuf {
    let program = program_of(example).provide(select().namespace(namespace));
    let manifests = program.rbac(namespace).to_yaml().expect("the manifests");
    plane.apply_yaml(&manifests).await.expect("they are applied");
    plane.kubeconfig_as(namespace, example).await.expect("a kubeconfig")
}

/// The shared control plane, with the definitions of all examples and a node.
pub(crate) async fn plane_with_nodes() -> &'static ControlPlane {
    let plane = ControlPlane::shared().await.expect("a control plane");
    // Before the nodes, because the garbage collector discovers Kinds at its start, and later only every 30 s.
    for example in EXAMPLES {
        plane.apply_path(file(example, "crd.yaml")).await.expect("the definition");
    }
    plane.nodes(1).await.expect("nodes");
    plane
}

/// Binds a ClusterRole to a service account of this namespace, for the namespace.
pub(crate) async fn bind_role(client: &Client, role: &str, account: &str, namespace: &str) {
    let binding = json!({
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    });
    let binding: RoleBinding = serde_json::from_value(binding).expect("a binding");
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    bindings.create(&PostParams::default(), &binding).await.expect("a binding");
}

impl Environment {
    /// Starts the example without its webhook, in a namespace of its own and with its generated permissions, and waits
    /// until it is ready.
    pub(crate) async fn start(name: &str) -> Self {
        let plane = plane_with_nodes().await;
        let namespace = plane.namespace(name).await.expect("a namespace");
        let kubeconfig = restricted_kubeconfig(plane, name, &namespace).await;
        let process = example(name, &kubeconfig)
            .without_leader_election()
            .in_namespace(&namespace)
            .env("ENABLE_WEBHOOKS", "false")
            .spawn();
        process.wait_until_ready().await;
        Self { namespace, client: plane.client().expect("a client"), process }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Sends a merge patch.
    pub(crate) async fn merge_patch<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let patched = self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("a patched object")
    }

    /// Waits until the Deployment exists and meets the condition, which `what` describes.
    pub(crate) async fn wait_for_deployment(
        &self,
        name: &str,
        what: &str,
        condition: impl Fn(&Deployment) -> bool,
    ) -> Deployment {
        let deployments = self.api::<Deployment>();
        eventually(format!("the Deployment {name} {what}"), TIMEOUT, async || {
            let found = deployments.get_opt(name).await.map_err(|error| error.to_string())?;
            found
                .filter(&condition)
                .ok_or_else(|| format!("not yet; the log:\n{}", self.process.last_lines()))
        })
        .await
    }

    /// Waits for an event about the object of this name, and returns its type and message.
    pub(crate) async fn wait_for_event(&self, object: &str, reason: &str) -> (String, String) {
        let events = self.api::<Event>();
        eventually(format!("an event {reason} about {object}"), TIMEOUT, async || {
            let all = events.list(&ListParams::default()).await.ok()?.items;
            let object_of = |event: &Event| event.regarding.as_ref().and_then(|object| object.name.clone());
            let event = all.into_iter().find(|event| {
                object_of(event).as_deref() == Some(object) && event.reason.as_deref() == Some(reason)
            })?;
            Some((event.type_.unwrap_or_default(), event.note.unwrap_or_default()))
        })
        .await
    }
}
