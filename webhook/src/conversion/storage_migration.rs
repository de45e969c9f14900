//! Has objects stored in the version that is the one to store.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::json;

/// How many objects are read at once.
const PAGE: u32 = 500;

/// What stands in the way of a migration.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// The definition cannot be read, or not be told which versions are stored.
    #[error("the CustomResourceDefinition {definition}: {source}")]
    Definition {
        /// Its name.
        definition: String,
        /// What the API server said.
        source: kube::Error,
    },
    /// The definition names no version to store.
    #[error("the CustomResourceDefinition {0} has no version that is stored")]
    NoStorageVersion(String),
    /// The objects cannot be listed, or one of them not be written.
    #[error("{what}: {source}")]
    Objects {
        /// Which objects.
        what: String,
        /// What the API server said.
        source: kube::Error,
    },
}

/// Writes every object of a CustomResourceDefinition anew, so that all are stored in its storage version, and notes in its
/// status that no other version is. Then a version that was stored before can be taken out of the definition.
///
/// Answers how many objects there were. It can be repeated, and stopped at any time. An object that is gone meanwhile, or that
/// somebody else writes at the same time and so stores anew, is no error; one that admission refuses is, and ends it. So does a
/// definition that changes meanwhile, perhaps to another storage version: then nothing is noted in its status.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = kube::Client::try_default().await?;
/// let count = reknit_webhook::migrate_storage(&client, "lamps.demo.reknit.dev").await?;
/// println!("{count} lamps are stored in the latest version");
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// With the name of what could not be read or written.
pub async fn migrate_storage(client: &Client, definition: &str) -> Result<usize, MigrationError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let failed = |source| MigrationError::Definition { definition: definition.into(), source };
    let held = definitions.get(definition).await.map_err(failed)?;
    let (kind, version) =
        storage(&held).ok_or_else(|| MigrationError::NoStorageVersion(definition.into()))?;
    let count = rewrite(client, &kind).await?;
    // A conflict where the definition is not the one that was read: another version may be the one to store by now.
    let read = held.resource_version();
    let status = json!({"metadata": {"resourceVersion": read}, "status": {"storedVersions": [version]}});
    definitions
        .patch_status(definition, &PatchParams::default(), &Patch::Merge(status))
        .await
        .map_err(failed)?;
    Ok(count)
}

fn storage(definition: &CustomResourceDefinition) -> Option<(ApiResource, String)> {
    let (spec, names) = (&definition.spec, &definition.spec.names);
    let version = spec.versions.iter().find(|version| version.storage)?.name.clone();
    let kind = GroupVersionKind::gvk(&spec.group, &version, &names.kind);
    Some((ApiResource::from_gvk_with_plural(&kind, &names.plural), version))
}

async fn rewrite(client: &Client, kind: &ApiResource) -> Result<usize, MigrationError> {
    let all: Api<DynamicObject> = Api::all_with(client.clone(), kind);
    let failed = |what: &str, source| MigrationError::Objects { what: what.into(), source };
    let (mut count, mut page) = (0, ListParams::default().limit(PAGE));
    loop {
        let list = match all.list_metadata(&page).await {
            Ok(list) => list,
            Err(error) => {
                let Some(token) = go_on(&error) else { return Err(failed(&kind.plural, error)) };
                page = page.continue_token(&token);
                continue;
            }
        };
        for object in &list.items {
            let (name, namespace) = (object.name_any(), object.namespace());
            let api: Api<DynamicObject> = match &namespace {
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, kind),
                None => all.clone(),
            };
            // A patch that changes nothing is written all the same where what is stored is of another version.
            match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(json!({}))).await {
                Ok(_) => count += 1,
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                // Who has just written it has had it stored.
                Err(kube::Error::Api(status)) if status.is_conflict() => count += 1,
                Err(error) => {
                    let place = namespace.map(|namespace| namespace + "/").unwrap_or_default();
                    return Err(failed(&format!("{} {place}{name}", kind.plural), error));
                }
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(count),
        }
    }
}

/// Where to go on when the list that was begun is too old by now, which it is after some minutes. Objects that were created
/// meanwhile, and would be missed, are stored in the right version anyway.
fn go_on(error: &kube::Error) -> Option<String> {
    let kube::Error::Api(status) = error else { return None };
    let metadata = status.metadata.as_ref().filter(|_| status.code == 410)?;
    metadata.continue_.clone().filter(|token| !token.is_empty())
}
