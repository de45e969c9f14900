//! Installation of CustomResourceDefinitions.

use std::{panic::catch_unwind, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, CustomResourceExt, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams},
};
use reknit_apis::{check_definition, kubernetes_schema};

use super::{ControlPlane, Error};
use crate::eventually::until;

const LIMIT: Duration = Duration::from_secs(30);

impl ControlPlane {
    /// Installs the definition of a Kind and waits until the API server serves it. Replaces a definition that is
    /// already installed. [`kubernetes_schema`] converts its schema first. Fails if a type has no structural schema.
    pub async fn install<K: CustomResourceExt>(&self) -> Result<(), Error> {
        let generate = || format!("generate CustomResourceDefinition {}", K::crd_name());
        let definition = catch_unwind(K::crd).map_err(|_| {
            Error::cannot(generate())(
                "crd() panicked: add `#[schemars(transform = reknit::apis::structural)]` to the spec and the status",
            )
        })?;
        let definition = kubernetes_schema(definition);
        check_definition(&definition).map_err(Error::cannot(generate()))?;
        self.install_crd(definition).await
    }

    /// Installs a definition that is not derived from a type, as [`install`](Self::install) does, but as it is.
    pub async fn install_crd(&self, crd: CustomResourceDefinition) -> Result<(), Error> {
        let origin = format!("CustomResourceDefinition {}", crd.name_any());
        let text = serde_json::to_string(&crd).map_err(Error::cannot(format!("write {origin}")))?;
        self.apply(&origin, &text).await
    }
}

/// Waits until every served version can be listed and is found by discovery.
pub(super) async fn wait_until_served(client: &Client, crd: &CustomResourceDefinition) -> Result<(), Error> {
    until(LIMIT, || async {
        check_established(client, &crd.name_any()).await?;
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            check_version(client, &api_resource(crd, &version.name)).await?;
        }
        Ok::<_, String>(())
    })
    .await
    .map_err(|last| Error::timeout(&format!("serving {}", crd.name_any()), LIMIT, &last))
}

async fn check_established(client: &Client, name: &str) -> Result<(), String> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = crds.get(name).await.map_err(|error| error.to_string())?;
    let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
    let is_established =
        conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True");
    is_established.then_some(()).ok_or_else(|| format!("not Established: {conditions:?}"))
}

/// Checks that a version is found by discovery and can be listed.
async fn check_version(client: &Client, resource: &ApiResource) -> Result<(), String> {
    let discovered =
        client.list_api_group_resources(&resource.api_version).await.map_err(|error| error.to_string())?;
    if !discovered.resources.iter().any(|listed| listed.name == resource.plural) {
        return Err(format!("discovery of {} does not have {}", resource.api_version, resource.plural));
    }
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    objects.list(&ListParams::default().limit(1)).await.map(|_| ()).map_err(|error| error.to_string())
}

fn api_resource(crd: &CustomResourceDefinition, version: &str) -> ApiResource {
    let names = &crd.spec.names;
    let kind = GroupVersionKind::gvk(&crd.spec.group, version, &names.kind);
    ApiResource::from_gvk_with_plural(&kind, &names.plural)
}
