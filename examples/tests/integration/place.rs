//! An example at work: a process of its own, confined to a namespace of a control plane with nodes.

use std::fmt::Debug;

use k8s_openapi::{
    NamespaceResourceScope,
    api::{apps::v1::Deployment, events::v1::Event},
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, Patch, PatchParams},
};
use reknit::testing::{ControlPlane, eventually};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::support::{
    file,
    process::{Process, example},
    wait::SOON,
};

/// Dropped, it kills the process; its objects stay in their namespace.
pub(crate) struct Place {
    pub(crate) namespace: String,
    pub(crate) client: Client,
    pub(crate) process: Process,
}

impl Place {
    /// The definition is applied and the process is ready.
    pub(crate) async fn of(name: &str) -> Self {
        let plane = ControlPlane::shared().await.expect("a control plane");
        // The garbage collector knows at once of the Kinds that were there when it started, and of others half a minute later.
        for example in ["foo", "mydemo", "waitdeployment"] {
            plane.apply_path(file(example, "crd.yaml")).await.expect("the definition");
        }
        plane.nodes(1).await.expect("nodes");
        let namespace = plane.namespace(name).await.expect("a namespace");
        let process = example(name, plane.kubeconfig()).alone().within(&namespace).spawn();
        process.ready().await;
        Self { namespace, client: plane.client().expect("a client"), process }
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Merges into an object.
    pub(crate) async fn merge<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let patched = self.api().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("it is patched")
    }

    /// Waits for a Deployment that looks so.
    pub(crate) async fn deployment(
        &self,
        name: &str,
        what: &str,
        looks: impl Fn(&Deployment) -> bool,
    ) -> Deployment {
        let deployments = self.api::<Deployment>();
        eventually(format!("the Deployment {name} {what}"), SOON, async || {
            let found = deployments.get_opt(name).await.map_err(|error| error.to_string())?;
            found.filter(&looks).ok_or_else(|| format!("not yet; the log:\n{}", self.process.tail()))
        })
        .await
    }

    /// Waits for an event about an object of this name, and answers its type and message.
    pub(crate) async fn event(&self, about: &str, reason: &str) -> (String, String) {
        let events = self.api::<Event>();
        eventually(format!("an event {reason} about {about}"), SOON, async || {
            let all = events.list(&ListParams::default()).await.ok()?.items;
            let named = |event: &Event| event.regarding.as_ref().and_then(|about| about.name.clone());
            let found = all.into_iter().find(|event| {
                named(event).as_deref() == Some(about) && event.reason.as_deref() == Some(reason)
            })?;
            Some((found.type_.unwrap_or_default(), found.note.unwrap_or_default()))
        })
        .await
    }
}
