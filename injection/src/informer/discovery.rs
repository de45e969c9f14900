//! Discovery: finds the resource of a Kind that is known only at run time.

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
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

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

/// The resource and the scope of a Kind.
pub(super) type Resource = (ApiResource, Scope);

/// A handler of changed answers.
type Handler = Box<dyn Fn(&GroupVersionKind) + Send + Sync>;

/// The time after which answers are checked again.
pub(super) const RECHECK: Duration = Duration::from_secs(10);

/// The time after which the answer about a Kind is forgotten if nobody asks for it and no informer of it is open.
const UNUSED_AFTER: Duration = Duration::from_secs(60);

/// The time for which a Kind that was not found is not asked for again, so that the many keys that may name it do not
/// send a request each, or wait for a server that is silent.
const NOT_FOUND_FOR: Duration = Duration::from_secs(5);

/// The time limit of a request. An aggregated API server that is silent must not hold up passes for long.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The time after which a check that does not find a Kind is repeated, since one API server of several may be starting.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

/// The answers of the API server about Kinds. It may serve a Kind in another way later, after its
/// CustomResourceDefinition was deleted and created anew, or no longer, so the answers are [checked](Self::check) again
/// as long as they are used.
#[derive(Default)]
pub(super) struct Discovery {
    answers: Mutex<HashMap<GroupVersionKind, Answer>>,
    /// The served versions of groups, the preferred one first, and the time of each answer.
    versions: Mutex<HashMap<String, (Versions, Instant)>>,
    handlers: Mutex<Vec<Handler>>,
}

/// The versions of a group. There are none if the API server does not know the group.
type Versions = Result<Vec<String>, Unresolved>;

struct Answer {
    /// `None` if the API server does not know the Kind.
    found: Result<Option<Resource>, Unresolved>,
    /// The time of the last question for a Kind that was found, or of any other answer.
    at: Instant,
}

impl Answer {
    fn new(found: Result<Option<Resource>, Unresolved>) -> Self {
        Self { found, at: Instant::now() }
    }

    fn resource(&self) -> Option<&Resource> {
        self.found.as_ref().ok()?.as_ref()
    }

    /// Returns true if the Kind was not found long ago.
    fn is_over(&self) -> bool {
        self.resource().is_none() && self.at.elapsed() >= NOT_FOUND_FOR
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
            return found;
        }
        let resources = list_resources(transport, kind).await;
        let found = resources.map(|resources| find_resource(kind, &resources));
        let mut answers = self.answers.lock();
        answers.retain(|_, answer| !answer.is_over());
        answers.insert(kind.clone(), Answer::new(found.clone()));
        found
    }

    /// Returns the served versions of the group of this Kind, the preferred one first. The answer is remembered as that
    /// of a Kind that was not found.
    pub(super) async fn versions(&self, transport: &Transport, kind: &GroupVersionKind) -> Versions {
        let is_over = |at: &Instant| at.elapsed() >= NOT_FOUND_FOR;
        if kind.group.is_empty() || !is_well_formed(kind) {
            return Ok(Vec::new()); // the core group has one version
        }
        if let Some((versions, _)) = self.versions.lock().get(&kind.group).filter(|(_, at)| !is_over(at)) {
            return versions.clone();
        }
        let group: Result<Option<APIGroup>, _> =
            request(transport, kind, &format!("/apis/{}", kind.group)).await;
        let versions = group.map(|group| group.map_or_else(Vec::new, by_preference));
        let mut remembered = self.versions.lock();
        remembered.retain(|_, (_, at)| !is_over(at));
        remembered.insert(kind.group.clone(), (versions.clone(), Instant::now()));
        versions
    }

    /// The remembered answer about a Kind. An API version that failed for one Kind fails for each, so that the many Kinds
    /// that keys may name do not wait for a silent server one after another.
    fn remembered(&self, kind: &GroupVersionKind) -> Option<Result<Option<Resource>, Unresolved>> {
        let mut answers = self.answers.lock();
        if let Some(answer) = answers.get_mut(kind).filter(|answer| !answer.is_over()) {
            if answer.resource().is_some() {
                answer.at = Instant::now();
            }
            return Some(answer.found.clone());
        }
        let of_version =
            |other: &GroupVersionKind| (&other.group, &other.version) == (&kind.group, &kind.version);
        let mut failures = answers.iter().filter(|(other, answer)| of_version(other) && !answer.is_over());
        let failure = failures.find_map(|(_, answer)| answer.found.as_ref().err())?;
        Some(Err(Unresolved { kind: kind.kind.clone(), ..failure.clone() }))
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
        answers.retain(|_, answer| match answer.resource() {
            Some((resource, _)) => answer.at.elapsed() < UNUSED_AFTER || is_open(resource),
            None => !answer.is_over(),
        });
        let mut kinds = BTreeMap::<_, Vec<_>>::new();
        for (kind, _) in answers.iter().filter(|(_, answer)| answer.resource().is_some()) {
            kinds.entry(kind.api_version()).or_default().push(kind.clone());
        }
        kinds
    }

    /// Replaces an answer, and returns true if it has changed.
    fn replace(&self, kind: &GroupVersionKind, found: Option<Resource>) -> bool {
        let mut answers = self.answers.lock();
        let is_changed = |answer: &&mut Answer| answer.resource() != found.as_ref();
        let Some(answer) = answers.get_mut(kind).filter(is_changed) else { return false };
        let (api_version, kind) = (kind.api_version(), &kind.kind);
        match &found {
            None => tracing::warn!(
                api_version,
                kind,
                "the API server no longer serves a Kind that references name"
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
        *answer = Answer::new(Ok(found));
        true
    }
}

/// Returns true if the group is a DNS subdomain or empty, and the version a DNS label.
fn is_well_formed(GroupVersionKind { group, version, .. }: &GroupVersionKind) -> bool {
    (group.is_empty() || dns_subdomain(group).is_empty()) && dns_label(version).is_empty()
}

/// Requests the resources of the API version of this Kind. There are none if the API server does not know the version.
async fn list_resources(
    transport: &Transport,
    kind: &GroupVersionKind,
) -> Result<Vec<APIResource>, Unresolved> {
    let root = if kind.group.is_empty() { "/api" } else { "/apis" };
    let path = format!("{root}/{}", kind.api_version());
    let list: Option<APIResourceList> = request(transport, kind, &path).await?;
    Ok(list.map_or_else(Vec::new, |list| list.resources))
}

/// Requests a document of the discovery for this Kind. `None` if the API server does not have it.
async fn request<T: DeserializeOwned>(
    transport: &Transport,
    kind: &GroupVersionKind,
    path: &str,
) -> Result<Option<T>, Unresolved> {
    let unresolved = |source| Unresolved { api_version: kind.api_version(), kind: kind.kind.clone(), source };
    let request = Request::get(path).extension(NoRetry).body(Vec::new());
    let request = request.map_err(|error| unresolved(kube::Error::HttpError(error).into()))?;
    let response = timeout(TIMEOUT, fetch(transport, request)).await;
    match response.unwrap_or(Err(Failure::Timeout(TIMEOUT))) {
        Ok(response) => {
            serde_json::from_slice(&response).map(Some).map_err(|error| unresolved(Failure::malformed(error)))
        }
        Err(Failure::NotFound(_)) => Ok(None),
        Err(failure) => Err(unresolved(failure)),
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
    let resources = list_resources(transport, &kinds[0]).await?;
    if kinds.iter().all(|kind| find_resource(kind, &resources).is_some()) {
        return Ok(resources);
    }
    sleep(CONFIRM_AFTER).await;
    list_resources(transport, &kinds[0]).await
}

fn find_resource(kind: &GroupVersionKind, resources: &[APIResource]) -> Option<Resource> {
    // The list contains subresources too: `pods/status` is also of Kind Pod.
    let mut resources = resources.iter();
    let resource = resources.find(|resource| resource.kind == kind.kind && !resource.name.contains('/'))?;
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

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use futures::FutureExt;
    use kube::api::DynamicObject;
    use serde_json::json;

    use super::*;
    use crate::{Context, informer::on_kind_changed, testing::server};

    fn lamp() -> GroupVersionKind {
        GroupVersionKind::gvk("example.com", "v1", "Lamp")
    }

    /// The resources of `example.com/v1`, with lamps of this plural.
    fn resources(plural: &str, namespaced: bool) -> Value {
        json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": [
            {"name": format!("{plural}/status"), "kind": "Lamp", "namespaced": namespaced, "singularName": "", "verbs": ["get"]},
            {"name": plural, "kind": "Lamp", "namespaced": namespaced, "singularName": "lamp", "verbs": ["get"]},
        ]})
    }

    #[tokio::test]
    async fn a_malformed_api_version_is_unknown_and_enters_no_url() {
        let (client, _server) = server();
        let transport = client.into();
        let discovery = Discovery::default();
        let malformed = [
            ("example.com", "v1/../../../api/v1"),
            ("..", "v1"),
            ("example.com", ".."),
            ("batch", "v1?dryRun=All"),
            ("batch#", "v1"),
            ("a/b", "v1"),
            ("", ""),
            ("example.com", "%2e%2e"),
        ];
        for (group, version) in malformed {
            let kind = GroupVersionKind::gvk(group, version, "Lamp");
            // A request would not be answered.
            let found = discovery.find(&transport, &kind).now_or_never();
            assert!(matches!(found, Some(Ok(None))), "{kind:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_remembered_and_an_unknown_one_is_requested_again_after_a_while() {
        let (client, mut server) = server();
        let informers = Context::new("test", client).informers();
        let resolve = async || informers.resolve(&lamp()).await;
        let (absent, ()) =
            tokio::join!(resolve(), async { server.next().await.respond(404, "404 page not found") });
        assert!(absent.unwrap().is_none());
        assert!(resolve().await.unwrap().is_none() && server.is_idle(), "many keys may name an unknown Kind");
        tokio::time::advance(NOT_FOUND_FOR).await;
        let (failed, ()) =
            tokio::join!(resolve(), async { server.next().await.fail(403, "you may not look") });
        let error = failed.unwrap_err().to_string();
        assert_eq!(
            resolve().await.unwrap_err().to_string(),
            error,
            "no other pass waits for a server that fails"
        );
        tokio::time::advance(NOT_FOUND_FOR).await;
        assert_eq!(
            error,
            "failed to discover the resource of Lamp of example.com/v1: you may not look (403)"
        );
        let answer = async { server.next().await.respond(200, resources("lampen", false)) };
        let (found, ()) = tokio::join!(resolve(), answer);
        let (resource, scope) = found.unwrap().unwrap();
        assert_eq!((resource.plural.as_str(), scope), ("lampen", Scope::Cluster));
        assert_eq!(resolve().await.unwrap().unwrap().0, resource);
        assert!(server.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn only_one_kind_of_an_api_version_that_does_not_answer_is_waited_for() {
        let (client, mut server) = server();
        let informers = Context::new("test", client).informers();
        let kind = lamp();
        let (failed, _unanswered) = tokio::join!(informers.resolve(&kind), server.next());
        let error = failed.unwrap_err().to_string();
        let torch = GroupVersionKind::gvk("example.com", "v1", "Torch");
        let at_once = informers.resolve(&torch).now_or_never().unwrap();
        assert_eq!(at_once.unwrap_err().to_string(), error.replace("Lamp", "Torch"));
        let other_version = GroupVersionKind::gvk("example.com", "v2", "Lamp");
        let answer = async { server.next().await.respond(404, "404 page not found") };
        let (found, ()) = tokio::join!(informers.resolve(&other_version), answer);
        assert!(found.unwrap().is_none());
        tokio::time::advance(NOT_FOUND_FOR).await;
        let answer = async { server.next().await.respond(200, resources("lamps", true)) };
        let (found, ()) = tokio::join!(informers.resolve(&torch), answer);
        assert!(found.unwrap().is_none(), "it is asked for again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_whose_version_is_not_served_is_found_in_another_one() {
        let (client, mut server) = server();
        let informers = Context::new("test", client).informers();
        let versions = ["v3alpha1", "v2"]
            .map(|version| json!({"groupVersion": format!("example.com/{version}"), "version": version}));
        let group = json!({"name": "example.com", "versions": versions, "preferredVersion": versions[1]});
        let answers = async {
            let mut paths = Vec::new();
            for (code, body) in [(404, json!(null)), (200, group), (200, resources("lamps", true))] {
                let request = server.next().await;
                paths.push(request.path.clone());
                request.respond(code, body);
            }
            paths
        };
        let kind = lamp();
        let (found, paths) = tokio::join!(informers.resolve_in_any_version(&kind), answers);
        assert_eq!(paths, ["/apis/example.com/v1", "/apis/example.com", "/apis/example.com/v2"]);
        let (resource, _) = found.unwrap().unwrap();
        assert_eq!((&*resource.api_version, &*resource.plural), ("example.com/v2", "lamps"));
        assert!(informers.resolve(&kind).await.unwrap().is_none());
        assert!(informers.resolve_in_any_version(&kind).await.unwrap().is_some() && server.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_served_in_another_way_or_no_longer_is_reported_once_and_failures_change_nothing()
    {
        let (client, mut server) = server();
        let informers = Context::new("test", client).informers();
        informers.start();
        let changed = Arc::new(AtomicUsize::new(0));
        let counter = changed.clone();
        on_kind_changed(&informers, move |kind| {
            assert_eq!(*kind, lamp());
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let resolve = async || informers.resolve(&lamp()).await.unwrap();
        let answer = async { server.next().await.respond(200, resources("lamps", true)) };
        tokio::join!(resolve(), answer);
        server.next().await.respond(200, resources("lamps", true));
        let (resource, _) = resolve().await.unwrap();
        let _open = informers.get::<DynamicObject>(resource, crate::select());
        let _list = server.list().await;
        server.next().await.fail(503, "the API of this group is not available");
        server.next().await.respond(200, resources("lampen", false));
        // The next check follows the change.
        let next_check = server.next().await;
        let (resource, scope) = resolve().await.unwrap();
        assert_eq!((resource.plural.as_str(), scope), ("lampen", Scope::Cluster));
        assert_eq!(changed.load(Ordering::Relaxed), 1);

        next_check.respond(404, "404 page not found");
        server.next().await.respond(200, resources("lampen", false));
        resolve().await.unwrap();
        server.next().await.respond(404, "404 page not found");
        server.next().await.respond(404, "404 page not found");
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(resolve().await.is_none(), "two checks in a row did not find it");
        assert_eq!(changed.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_that_does_not_answer_does_not_hold_up_the_checks_of_others() {
        let (client, mut server) = server();
        let informers = Context::new("test", client).informers();
        informers.start();
        for group in ["example.com", "example.org"] {
            let kind = GroupVersionKind::gvk(group, "v1", "Lamp");
            let answer = async { server.next().await.respond(200, resources("lamps", true)) };
            let (found, ()) = tokio::join!(informers.resolve(&kind), answer);
            assert!(found.unwrap().is_some());
        }
        let unanswered = [server.next().await, server.next().await];
        assert_ne!(unanswered[0].path, unanswered[1].path);
    }

    #[tokio::test]
    async fn preloaded_informers_send_no_request() {
        let (client, mut server) = server();
        let object = |namespace| json!({"apiVersion": "example.com/v1", "kind": "Lamp", "metadata": {"name": "a", "namespace": namespace}});
        for (object, expected) in [(object(Some("n")), Scope::Namespaced), (object(None), Scope::Cluster)] {
            let informers = Context::preloaded("test", client.clone(), vec![object]).informers();
            let (resource, scope) = informers.resolve(&lamp()).await.unwrap().unwrap();
            assert_eq!((resource.plural.as_str(), scope), ("lamps", expected));
            assert_eq!(informers.open::<DynamicObject>(&resource, crate::select()).await.unwrap().len(), 1);
        }
        assert!(server.is_idle());
    }
}
