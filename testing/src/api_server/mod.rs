//! A small API server in memory: a map of objects, and a tape of what was asked of it.

mod answer;
mod apply;
mod change;
mod create;
mod delete;
mod objects;
mod patch;
mod place;
mod request;
mod selector;
#[cfg(test)]
mod tests;
mod write;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Response, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, Resource, client::Body};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub use self::write::{Verb, Write};
use self::{answer::Answer, apply::Owners, objects::Objects, place::Place, request::Request};

/// An API server in memory, for tests of single passes: what a client asks of it is answered at once, as the real one
/// answers it, which a test of this crate compares verb by verb.
///
/// It gets, lists (label and field selectors, pages), creates, updates, patches (merge patches, JSON patches, server-side
/// apply with owners and conflicts), deletes, and deletes collections, and the same of `status`. With names made of
/// `generateName`; uid, generation and creation time; a resourceVersion that is raised by changes only; 409 for a stale
/// one, for another uid, for a name that is taken; the status apart from the rest; finalizers, which hold a deleted
/// object until the last is removed; propagation policies, preconditions and dry runs.
///
/// What it does not: it knows no schema, so it neither defaults, validates nor prunes; every Kind of
/// somebody's own has a status, and its lists are applied as a whole. Field selectors go by any field of a built-in Kind;
/// by name and namespace of others, and by `selectableFields` where the CustomResourceDefinition is [held](Self::hold).
/// No controllers run: dependents are not collected, a namespace need not be there, and pods are gone at once. What it
/// does not support it answers with 501 and a message that names it: watches, strategic merge patches, other
/// subresources. For all of that there is [`ControlPlane`](crate::ControlPlane); that such a request is sent, and what
/// comes of another failure, can be tested here too: `fail(Verb::Create, "pods/eviction", 429)`.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::{Api, api::PostParams};
/// use reknit_testing::{ApiServer, Verb};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = ApiServer::new();
/// let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
/// let map: ConfigMap = serde_json::from_value(json!({"metadata": {"generateName": "settings-"}}))?;
/// maps.create(&PostParams::default(), &map).await?;
/// assert_eq!(maps.list(&Default::default()).await?.items.len(), 1);
///
/// server.fail(Verb::Create, "configmaps", 500);
/// assert!(maps.create(&PostParams::default(), &map).await.is_err());
/// assert_eq!(server.writes().len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct ApiServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: Objects,
    failures: Vec<Failure>,
    tape: Vec<Write>,
}

struct Failure {
    verb: Verb,
    resource: String,
    code: u16,
    /// How often; without end where none.
    left: Option<usize>,
}

impl ApiServer {
    /// One that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Holds this object as it is, whatever it held, in version 1 unless it has one; returns it as it is held. Nobody owns
    /// its fields.
    ///
    /// # Panics
    ///
    /// Where the object is no JSON.
    pub fn hold<K: Resource<DynamicType = ()> + Serialize>(&self, object: &K) -> Value {
        let (place, value) = placed(object);
        self.state().objects.hold(&place, value, Owners::default())
    }

    /// The same, with the fields owned by this field manager, as by server-side apply.
    ///
    /// # Panics
    ///
    /// Where the object is no JSON.
    pub fn hold_applied<K: Resource<DynamicType = ()> + Serialize>(
        &self,
        object: &K,
        manager: &str,
    ) -> Value {
        let (place, value) = placed(object);
        let owners = Owners::of_applied(&place, manager, &value);
        self.state().objects.hold(&place, value, owners)
    }

    /// Answers every such request with this code, from now on, and with the reason that goes with it: a 409 is
    /// `AlreadyExists` for a create, `Conflict` for other verbs.
    pub fn fail(&self, verb: Verb, resource: &str, code: u16) {
        self.state().failures.push(Failure { verb, resource: resource.into(), code, left: None });
    }

    /// Answers the next so many such requests with this code.
    pub fn fail_times(&self, verb: Verb, resource: &str, code: u16, times: usize) {
        self.state().failures.push(Failure { verb, resource: resource.into(), code, left: Some(times) });
    }

    /// The object as it is now.
    ///
    /// # Panics
    ///
    /// Where the object does not decode as a `K`.
    pub fn object<K: Resource<DynamicType = ()> + DeserializeOwned>(
        &self,
        namespace: Option<&str>,
        name: &str,
    ) -> Option<K> {
        let found = self.state().objects.get(&Place::of_kind::<K>(namespace), name)?.clone();
        #[expect(clippy::expect_used, reason = "a test has to see what is wrong with the object")]
        Some(serde_json::from_value(found).expect("the object decodes"))
    }

    /// Takes the tape: every request that was to write something, in order, also those that failed, and those that this
    /// server does not support.
    pub fn writes(&self) -> Vec<Write> {
        std::mem::take(&mut self.state().tape)
    }

    /// A client of this server.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let (code, answer) = match Request::parse(&head, &body) {
                    Ok(request) => server.answer(&request),
                    Err(refusal) => refusal,
                };
                let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
                *response.status_mut() = code;
                Ok::<_, kube::Error>(response)
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, request: &Request) -> Answer {
        let mut state = self.state();
        let injected = state.failing(request);
        let answer = match injected {
            // What it would have written is on the tape; nothing is changed.
            Some(_) => state.objects.clone().answer(request),
            None => state.objects.answer(request),
        };
        if request.verb.writes() {
            let meant =
                answer.as_ref().ok().filter(|_| request.verb.leaves_one()).map(|(_, object)| object.clone());
            state.tape.push(request.write(meant));
        }
        match injected {
            Some(code) => answer::injected(request, code),
            None => answer.unwrap_or_else(|refusal| refusal),
        }
    }

    /// A test that panicked elsewhere does not make this one panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn failing(&mut self, request: &Request) -> Option<StatusCode> {
        let meant = |failure: &&mut Failure| {
            failure.verb == request.verb && failure.resource == request.resource() && failure.left != Some(0)
        };
        let failure = self.failures.iter_mut().find(meant)?;
        failure.left = failure.left.map(|left| left - 1);
        StatusCode::from_u16(failure.code).ok()
    }
}

/// The object, which says of what Kind it is, and where it belongs.
fn placed<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> (Place, Value) {
    #[expect(clippy::expect_used, reason = "objects of Kubernetes are JSON, and this is for tests")]
    let mut value = serde_json::to_value(object).expect("an object is JSON");
    if let Some(fields) = value.as_object_mut() {
        fields.entry("apiVersion").or_insert_with(|| json!(K::api_version(&())));
        fields.entry("kind").or_insert_with(|| json!(K::kind(&())));
    }
    (Place::of_kind::<K>(object.meta().namespace.as_deref()), value)
}

fn metadata(value: &mut Value) -> &mut serde_json::Map<String, Value> {
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
    }
    match &mut value["metadata"] {
        Value::Object(metadata) => metadata,
        _ => unreachable!("it was made an object"),
    }
}

/// Lists and maps without members are not kept.
fn prune(fields: &mut serde_json::Map<String, Value>) {
    fields.retain(|_, value| match value {
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        value => !value.is_null(),
    });
}
