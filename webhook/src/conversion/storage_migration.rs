//! Migration of stored objects to the current storage version.
//!
//! The versions in the managed fields of an object are replaced too, see [`ManagedObject`].

use std::fmt;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::ListMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, GetParams, GroupVersionKind, ListParams, Patch, PatchParams},
    core::{Request, Status},
};
use reknit_injection::internal::is_absence_of;
use reknit_reconciler::{
    Error, Result, ResultExt,
    internal::{ManagedMetadata, ManagedObject},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::json;

use super::hub::full_name;

/// The number of objects in a page of a list.
const PAGE_SIZE: u32 = 500;
/// The number of attempts to write an object that other clients change meanwhile.
const ATTEMPTS: usize = 5;
/// The maximum number of objects that an error names.
const MAX_NAMED_REFUSALS: usize = 20;

/// Stores every object of a CustomResourceDefinition in its storage version, and sets `status.storedVersions` to that
/// version. After that, the other versions can be removed from the definition. The versions in `metadata.managedFields` become
/// the storage version too: otherwise server-side apply would fail once the others are removed. Run it again if clients have
/// applied objects in another version since.
///
/// Returns the number of objects. A migration can be repeated, and stopped at any time. It continues if another client
/// deletes or writes an object meanwhile: the write also stores the object in the storage version. If objects cannot be
/// updated, for example because admission refuses them or because they cannot be converted, it migrates all others, then
/// fails with the names of those objects, and leaves the status as it is. It also leaves the status as it is, and fails,
/// if the definition changes meanwhile, since the change may concern the storage version.
///
/// A program that only migrates gets its client from `reknit_sharedmain::connect`. It waits at most five seconds for each
/// object that an overloaded API server refuses, where kube's own client may wait for more than a minute.
///
/// ```no_run
/// # async fn run() -> reknit_reconciler::Result<()> {
/// let client = kube::Client::try_default().await?;
/// let count = reknit_webhook::migrate_storage(&client, "lamps.demo.reknit.dev").await?;
/// println!("{count} lamps are stored in the storage version");
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// Fails with the number of objects that cannot be updated, and the names and reasons of the first twenty.
pub async fn migrate_storage(client: &Client, definition: &str) -> Result<usize> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let failed = format!("failed to read or update CustomResourceDefinition {definition}");
    let crd = crds.get(definition).await.context(&failed)?;
    let versions = Versions::of(&crd).ok_or_else(|| {
        format!("CustomResourceDefinition {definition} has no storage version, or serves no version")
    })?;
    let (count, refusals) = rewrite_objects(client, &versions).await?;
    refusals.check(count)?;
    // The resourceVersion causes a conflict if the definition has changed, and with it perhaps the storage version.
    let resource_version = crd.resource_version();
    let status = json!({"metadata": {"resourceVersion": resource_version}, "status": {"storedVersions": [versions.storage]}});
    crds.patch_status(definition, &PatchParams::default(), &Patch::Merge(status)).await.context(failed)?;
    Ok(count)
}

/// The versions of a Kind.
struct Versions {
    /// The name of the storage version, which need not be served. The API server stores an object in it whatever the version
    /// of the request.
    storage: String,
    /// The resource in a version that is served: the storage version if it is.
    resource: ApiResource,
    /// The resource in the other versions that are served.
    others: Vec<ApiResource>,
}

impl Versions {
    /// `None` if no version is served or stored.
    fn of(crd: &CustomResourceDefinition) -> Option<Self> {
        let (spec, names) = (&crd.spec, &crd.spec.names);
        let storage = spec.versions.iter().find(|version| version.storage)?.name.clone();
        let mut served: Vec<_> = spec.versions.iter().filter(|version| version.served).collect();
        served.sort_by_key(|version| !version.storage);
        let mut resources = served.into_iter().map(|version| {
            let kind = GroupVersionKind::gvk(&spec.group, &version.name, &names.kind);
            ApiResource::from_gvk_with_plural(&kind, &names.plural)
        });
        Some(Self { storage, resource: resources.next()?, others: resources.collect() })
    }

    /// Lists a page of objects. The API server converts them together, so that one that cannot be converted fails the list: then
    /// it is read in another version, in which that object may be stored.
    async fn list(&self, client: &Client, params: &ListParams) -> kube::Result<StoredObjects> {
        let listed = list(client, &self.resource, params).await;
        if !listed.as_ref().is_err_and(is_internal) {
            return listed;
        }
        for other in &self.others {
            if let Ok(list) = list(client, other, params).await {
                return Ok(list);
            }
        }
        listed
    }
}

async fn list(client: &Client, resource: &ApiResource, params: &ListParams) -> kube::Result<StoredObjects> {
    let all_namespaces = Request::new(DynamicObject::url_path(resource, None));
    client.request(all_namespaces.list_metadata(params).map_err(kube::Error::BuildRequest)?).await
}

/// Returns true for an internal error, which a failed conversion is to the API server.
fn is_internal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 500)
}

/// Writes every object, which stores it in the storage version. Returns the number of objects, and those that could not be
/// updated.
async fn rewrite_objects(client: &Client, versions: &Versions) -> Result<(usize, Refusals)> {
    let resource = &versions.resource;
    let (mut count, mut refusals, mut params) =
        (0, Refusals::default(), ListParams::default().limit(PAGE_SIZE));
    loop {
        let list = match versions.list(client, &params).await {
            Ok(list) => list,
            // Objects that cannot be converted may be stored in several versions. Each alone can be read in its own.
            Err(error) if is_internal(&error) && params.limit == Some(PAGE_SIZE) => {
                params.limit = Some(1);
                continue;
            }
            Err(error) => {
                let Some(token) = continue_token(&error) else {
                    let what = format!("failed to list {}{}", resource.plural, refusals.so_far());
                    return Err(Error::from(error).context(what));
                };
                params = params.continue_token(&token);
                continue;
            }
        };
        for ManagedObject { metadata } in list.items {
            let name = full_name(&metadata.namespace, &metadata.name);
            match rewrite(client, resource, &versions.storage, metadata).await {
                Ok(()) => count += 1,
                Err(error) if is_absence_of(&error, &resource.plural) => {}
                // The next objects would fail, too.
                Err(error) if !matches!(error, kube::Error::Api(_)) => {
                    let what = format!("failed to update {name}{}", refusals.so_far());
                    return Err(Error::from(error).context(what));
                }
                Err(error) => refusals.add(format!("{} {name}: {error}", resource.plural)),
            }
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok((count, refusals)),
        }
    }
}

/// Writes an object: with the storage version in its managed fields, if they name another one, and otherwise by an empty
/// patch. The API server writes even an empty patch if the object is stored in another version.
async fn rewrite(
    client: &Client,
    resource: &ApiResource,
    version: &str,
    mut stored: ManagedMetadata,
) -> kube::Result<()> {
    let namespace = Some(stored.namespace.clone()).filter(|namespace| !namespace.is_empty());
    let requests = Request::new(DynamicObject::url_path(resource, namespace.as_deref()));
    let (params, api_version) = (PatchParams::default(), format!("{}/{version}", resource.group));
    for attempt in 1.. {
        let migration = stored.patch_to_version(&api_version);
        let request = match &migration {
            Some(patch) => requests.patch_metadata(&stored.name, &params, &Patch::<()>::Json(patch.clone())),
            None => requests.patch_metadata(&stored.name, &params, &Patch::Merge(json!({}))),
        };
        let refused = match client.request::<IgnoredAny>(request.map_err(kube::Error::BuildRequest)?).await {
            // Another client has just written the object, and thereby stored it again.
            Err(kube::Error::Api(status)) if status.is_conflict() && migration.is_none() => return Ok(()),
            Err(kube::Error::Api(status)) if may_be_outdated(&status) && attempt < ATTEMPTS => status,
            written => return written.map(drop),
        };
        let read =
            requests.get_metadata(&stored.name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        let found = client.request::<ManagedObject>(read).await?.metadata;
        if !refused.is_conflict() && found.has_version_of(&stored) {
            return Err(kube::Error::Api(refused));
        }
        stored = found;
    }
    Ok(())
}

/// Returns true for a conflict, and for a patch that is invalid, perhaps because the managed fields have become fewer: the API
/// server finds that before it compares the resourceVersion.
fn may_be_outdated(status: &Status) -> bool {
    status.is_conflict() || status.code == 422
}

#[derive(Deserialize)]
struct StoredObjects {
    metadata: ListMeta,
    items: Vec<ManagedObject>,
}

/// The objects that could not be updated: their number, and the first [`MAX_NAMED_REFUSALS`] with the reasons.
#[derive(Default)]
struct Refusals {
    count: usize,
    named: Vec<String>,
}

impl Refusals {
    fn add(&mut self, refusal: String) {
        self.count += 1;
        if self.named.len() < MAX_NAMED_REFUSALS {
            self.named.push(refusal);
        }
    }

    /// The refusals as part of another error. Empty if there are none.
    fn so_far(&self) -> String {
        if self.count == 0 { String::new() } else { format!(" (before that, {self})") }
    }

    fn check(&self, migrated: usize) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        Err(format!(
            "{self}; {migrated} objects are migrated; mend those objects and run the migration again"
        )
        .into())
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to update {} objects: {}", self.count, self.named.join("; "))?;
        match self.count - self.named.len() {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Returns the token in a 410 error, which the API server sends if the token of a list has expired. The list continues
/// with this token, and may miss objects that were created meanwhile; these are stored in the right version.
fn continue_token(error: &kube::Error) -> Option<String> {
    let kube::Error::Api(status) = error else { return None };
    let metadata = status.metadata.as_ref().filter(|_| status.code == 410)?;
    metadata.continue_.clone().filter(|token| !token.is_empty())
}
