//! Discovery: finds the resource of a Kind that is known only at run time.

mod failures;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use http::Request;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIResource, APIResourceList};
use kube::{
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use parking_lot::Mutex;
use reknit_apis::{dns_label, dns_subdomain, internal::HashMap};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use self::failures::Failures;
use crate::{
    client::{NoRetry, Transport},
    reflector::{Failure, fetch},
};

/// The error of a failed discovery of the resource of a Kind.
#[derive(Clone, Debug, thiserror::Error)]
#[error("failed to discover the resource of {kind} of {api_version}: {source}")]
pub struct Unresolved {
    api_version: String,
    kind: String,
    source: Failure,
}

impl Unresolved {
    fn new(kind: &GroupVersionKind, source: Failure) -> Self {
        Self { api_version: kind.api_version(), kind: kind.kind.clone(), source }
    }
}

/// The resource and the scope of a Kind.
pub(super) type Resource = (ApiResource, Scope);

/// A handler of changed answers.
type Handler = Box<dyn Fn(&GroupVersionKind) + Send + Sync>;

/// The time after which answers are checked again.
pub(super) const RECHECK: Duration = Duration::from_secs(10);

/// The time after which the answer about a Kind is forgotten if nobody asks for it and no informer of it is open.
const UNUSED_AFTER: Duration = Duration::from_secs(60);

/// The time for which a Kind that was not found, or a document whose request failed, is not asked for again, so that the
/// many keys that may name it do not send a request each.
const NOT_FOUND_FOR: Duration = Duration::from_secs(5);

/// The time limit of a request. An aggregated API server that is silent must not hold up passes for long.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum length of a Kind in bytes. That of a CustomResourceDefinition has at most 63. A user may have written a longer
/// one, which is not to be remembered.
const MAX_KIND: usize = 253;

/// The time after which a check that does not find a Kind is repeated, since one API server of several may be starting.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

/// The answers of the API server about Kinds. It may serve a Kind in another way later, after its
/// CustomResourceDefinition was deleted and created anew, or no longer, so the answers are [checked](Self::check) again
/// as long as they are used.
#[derive(Default)]
pub(super) struct Discovery {
    answers: Mutex<HashMap<GroupVersionKind, Answer>>,
    /// The served versions of groups, the preferred one first, and the time of each answer. There are none if the API
    /// server does not know the group.
    versions: Mutex<HashMap<String, (Vec<String>, Instant)>>,
    failures: Failures,
    handlers: Mutex<Vec<Handler>>,
}

struct Answer {
    /// `None` if the API server does not know the Kind.
    found: Option<Resource>,
    /// The time of the last question for a Kind that was found, or of any other answer.
    at: Instant,
}

impl Answer {
    fn new(found: Option<Resource>) -> Self {
        Self { found, at: Instant::now() }
    }

    /// Returns true if the Kind was not found long ago.
    fn is_over(&self) -> bool {
        self.found.is_none() && self.at.elapsed() >= NOT_FOUND_FOR
    }
}

impl Discovery {
    /// Returns the remembered answer about a Kind, or requests it.
    pub(super) async fn find(
        &self,
        transport: &Transport,
        kind: &GroupVersionKind,
    ) -> Result<Option<Resource>, Unresolved> {
        // A user may have written the API version, which becomes a part of the path of a request.
        if !is_well_formed(kind) {
            return Ok(None);
        }
        if let Some(found) = self.remembered(kind) {
            return Ok(found);
        }
        let list: Option<_> = self.request(transport, kind, &path_of_version(kind)).await?;
        let found = find_resource(kind, &resources_of(list));
        let mut answers = self.answers.lock();
        answers.retain(|_, answer| !answer.is_over());
        answers.insert(kind.clone(), Answer::new(found.clone()));
        Ok(found)
    }

    /// Returns the served versions of the group of this Kind, the preferred one first. The answer is remembered as that
    /// of a Kind that was not found.
    pub(super) async fn versions(
        &self,
        transport: &Transport,
        kind: &GroupVersionKind,
    ) -> Result<Vec<String>, Unresolved> {
        let is_over = |at: &Instant| at.elapsed() >= NOT_FOUND_FOR;
        if kind.group.is_empty() || !is_well_formed(kind) {
            return Ok(Vec::new()); // the core group has one version
        }
        if let Some((versions, _)) = self.versions.lock().get(&kind.group).filter(|(_, at)| !is_over(at)) {
            return Ok(versions.clone());
        }
        let group: Option<APIGroup> = self.request(transport, kind, &format!("/apis/{}", kind.group)).await?;
        let versions = group.map_or_else(Vec::new, by_preference);
        let mut remembered = self.versions.lock();
        remembered.retain(|_, (_, at)| !is_over(at));
        remembered.insert(kind.group.clone(), (versions.clone(), Instant::now()));
        Ok(versions)
    }

    /// The remembered answer about a Kind.
    fn remembered(&self, kind: &GroupVersionKind) -> Option<Option<Resource>> {
        let mut answers = self.answers.lock();
        let answer = answers.get_mut(kind).filter(|answer| !answer.is_over())?;
        if answer.found.is_some() {
            answer.at = Instant::now();
        }
        Some(answer.found.clone())
    }

    /// Requests a document for a pass, unless its last request [failed](Failures): one pass at a time waits for a server
    /// that is known to be silent, whichever of its Kinds the pass names.
    async fn request<T: Document>(
        &self,
        transport: &Transport,
        kind: &GroupVersionKind,
        path: &str,
    ) -> Result<Option<T>, Unresolved> {
        let pending = self.failures.begin(path, kind)?;
        let answer = request(transport, kind, path).await;
        pending.end(&answer);
        answer
    }

    /// Calls the handler with each Kind whose answer changes.
    pub(super) fn on_changed(&self, handler: Handler) {
        self.handlers.lock().push(handler);
    }

    /// Checks the answers about Kinds that were found, and forgets those that nobody uses. An answer stays if the API
    /// server does not say otherwise: if the requests for one group fail, the others are checked.
    pub(super) async fn check(&self, transport: &Transport, is_open: impl Fn(&ApiResource) -> bool) {
        let versions = self.used_kinds(is_open).into_values();
        join_all(versions.map(|kinds| self.check_version(transport, kinds))).await;
    }

    /// Checks the answers about Kinds of one API version.
    async fn check_version(&self, transport: &Transport, kinds: Vec<GroupVersionKind>) {
        let Ok(resources) = list_resources_again(transport, &kinds).await else { return };
        for kind in kinds {
            if self.replace(&kind, find_resource(&kind, &resources)) {
                self.handlers.lock().iter().for_each(|handler| handler(&kind));
            }
        }
    }

    /// Forgets unused answers, and returns the Kinds to check by API version.
    fn used_kinds(&self, is_open: impl Fn(&ApiResource) -> bool) -> BTreeMap<String, Vec<GroupVersionKind>> {
        let mut answers = self.answers.lock();
        answers.retain(|_, answer| match &answer.found {
            Some((resource, _)) => answer.at.elapsed() < UNUSED_AFTER || is_open(resource),
            None => !answer.is_over(),
        });
        let mut kinds = BTreeMap::<_, Vec<_>>::new();
        for (kind, _) in answers.iter().filter(|(_, answer)| answer.found.is_some()) {
            kinds.entry(kind.api_version()).or_default().push(kind.clone());
        }
        kinds
    }

    /// Replaces an answer, and returns true if it has changed.
    fn replace(&self, kind: &GroupVersionKind, found: Option<Resource>) -> bool {
        let mut answers = self.answers.lock();
        let is_changed = |answer: &&mut Answer| answer.found != found;
        let Some(answer) = answers.get_mut(kind).filter(is_changed) else { return false };
        let (api_version, kind) = (kind.api_version(), &kind.kind);
        match &found {
            None => tracing::warn!(
                api_version,
                kind,
                "the API server no longer serves a Kind that references name: install its definition, or change the \
                 references"
            ),
            Some((ApiResource { plural, .. }, scope)) => {
                tracing::info!(
                    api_version,
                    kind,
                    plural,
                    ?scope,
                    "the API server serves a Kind in another way"
                );
            }
        }
        *answer = Answer::new(found);
        true
    }
}

/// Returns true if the group is a DNS subdomain or empty, the version a DNS label, and the Kind no longer than a name can be.
fn is_well_formed(GroupVersionKind { group, version, kind }: &GroupVersionKind) -> bool {
    let is_group = group.is_empty() || dns_subdomain(group).is_empty();
    is_group && dns_label(version).is_empty() && kind.len() <= MAX_KIND
}

/// The path of the resources of the API version of this Kind.
fn path_of_version(kind: &GroupVersionKind) -> String {
    let root = if kind.group.is_empty() { "/api" } else { "/apis" };
    format!("{root}/{}", kind.api_version())
}

/// The resources of an API version. There are none if the API server does not know the version.
fn resources_of(list: Option<APIResourceList>) -> Vec<APIResource> {
    list.map_or_else(Vec::new, |list| list.resources)
}

/// Requests a document of the discovery for this Kind. `None` if the API server does not have it.
async fn request<T: Document>(
    transport: &Transport,
    kind: &GroupVersionKind,
    path: &str,
) -> Result<Option<T>, Unresolved> {
    let unresolved = |source| Unresolved::new(kind, source);
    let request = Request::get(path).extension(NoRetry).body(Vec::new());
    let request = request.map_err(|error| unresolved(kube::Error::HttpError(error).into()))?;
    let response = timeout(TIMEOUT, fetch(transport, request)).await;
    match response.unwrap_or(Err(Failure::Timeout(TIMEOUT))) {
        Ok(response) => read(&response).map(Some).map_err(unresolved),
        Err(Failure::NotFound(_)) => Ok(None),
        Err(failure) => Err(unresolved(failure)),
    }
}

/// A document of the discovery. One without its list must not count as an empty one: a proxy may have answered.
trait Document: DeserializeOwned {
    const LIST: &'static str;
}

impl Document for APIResourceList {
    const LIST: &'static str = "resources";
}

impl Document for APIGroup {
    const LIST: &'static str = "versions";
}

fn read<T: Document>(response: &[u8]) -> Result<T, Failure> {
    let fields: BTreeMap<String, IgnoredAny> =
        serde_json::from_slice(response).map_err(Failure::malformed)?;
    match fields.contains_key(T::LIST) {
        true => serde_json::from_slice(response).map_err(Failure::malformed),
        false => Err(Failure::malformed(format_args!("it has no {}", T::LIST))),
    }
}

/// The versions of a group, the preferred one first.
fn by_preference(group: APIGroup) -> Vec<String> {
    let preferred = group.preferred_version.map(|preferred| preferred.version);
    let mut versions: Vec<_> = group.versions.into_iter().map(|version| version.version).collect();
    versions.sort_by_key(|version| Some(version) != preferred.as_ref());
    versions
}

/// Requests the resources of the API version of these Kinds, and once more if a Kind is missing.
async fn list_resources_again(
    transport: &Transport,
    kinds: &[GroupVersionKind],
) -> Result<Vec<APIResource>, Unresolved> {
    let path = path_of_version(&kinds[0]);
    let resources = resources_of(request(transport, &kinds[0], &path).await?);
    if kinds.iter().all(|kind| find_resource(kind, &resources).is_some()) {
        return Ok(resources);
    }
    sleep(CONFIRM_AFTER).await;
    Ok(resources_of(request(transport, &kinds[0], &path).await?))
}

/// Returns the first resource of the Kind that can be listed and watched, or else the first one.
///
/// An aggregated API server may serve a Kind as several resources: that of OpenShift can only create `processedtemplates`,
/// which are of the Kind of `templates`.
fn find_resource(kind: &GroupVersionKind, resources: &[APIResource]) -> Option<Resource> {
    // The list contains subresources too: `pods/status` is also of Kind Pod.
    let is_of_kind = |resource: &&APIResource| resource.kind == kind.kind && !resource.name.contains('/');
    let lacking_verbs = |resource: &&APIResource| {
        ["list", "watch"].into_iter().filter(|&verb| !resource.verbs.iter().any(|one| one == verb)).count()
    };
    let resource = resources.iter().filter(is_of_kind).min_by_key(lacking_verbs)?;
    let scope = if resource.namespaced { Scope::Namespaced } else { Scope::Cluster };
    Some((ApiResource::from_gvk_with_plural(kind, &resource.name), scope))
}

/// Guesses the plural as kube does, and the scope from the preloaded objects.
pub(super) fn guess(kind: &GroupVersionKind, objects: &[Value]) -> Resource {
    let is_of_kind =
        |object: &&Value| object["kind"] == kind.kind && object["apiVersion"] == kind.api_version();
    let scope = match objects.iter().find(is_of_kind) {
        Some(object) if object["metadata"]["namespace"].is_null() => Scope::Cluster,
        _ => Scope::Namespaced,
    };
    (ApiResource::from_gvk(kind), scope)
}
