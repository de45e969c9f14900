//! A failed pass that a process has recorded, as a test.

mod unknown;

use std::{collections::BTreeMap, fs, path::Path};

use http::StatusCode;
use kube::{
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use reknit_injection::{
    Cached, Context,
    internal::{RecordedKind, RecordedPass, RecordedRequest, Recordings},
};
use reknit_reconciler::{Controller, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    effects::Effects,
    given::{Given, nothing},
};
use crate::FakeClock;

/// The version of the format of the file that this version of the crate reads.
const FORMAT_VERSION: u32 = 1;

/// Fields whose values differ whenever a pass runs again, and the annotation of applied children, which holds a hash of
/// what was not redacted yet.
const VOLATILE: [&str; 4] = ["resourceVersion", "uid", "lastTransitionTime", "reknit.dev/applied"];

/// A pass that a process recorded with `--record-failures`, from [`recorded`].
#[must_use = "nothing happens before `.reconcile(…)`"]
pub struct Recorded {
    pass: RecordedPass,
    given: Given,
}

/// Reads a pass that a process recorded with `--record-failures`, to run it again as a test.
///
/// The caches and the [`ApiServer`](crate::ApiServer) in memory contain the objects that the pass read, the clock shows
/// the time at which it began, and the ConfigMaps are those of the file. A request that was refused is refused with the
/// same answer, as long as the pass sends it with the same body. The API server in memory answers every other request.
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::Namespace;
/// # use reknit_reconciler::{Controller, Outcome, ReconcileKind, Result};
/// # use reknit_injection::Context;
/// use reknit_testing::recorded;
///
/// # struct Quotas;
/// # impl ReconcileKind for Quotas {
/// #     type Kind = Namespace;
/// #     async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> { Ok(Outcome::done()) }
/// # }
/// fn controller(cx: &Context) -> Result<Controller> {
///     Ok(Controller::of::<Namespace>(cx).reconciler(Quotas).build())
/// }
///
/// #[tokio::test]
/// # async fn hidden() {}
/// async fn a_quota_without_limits_is_accepted() {
///     let effects = recorded("tests/passes/quota-without-limits.json").reconcile(controller).await;
///     assert!(effects.result.is_ok(), "{:?}", effects.result);
/// }
/// ```
///
/// # Panics
///
/// Panics if the file cannot be read, has another format, or does not contain all that the pass read because it would
/// have become too large.
#[expect(clippy::panic, reason = "a failed assertion of a test panics")]
pub fn recorded(path: impl AsRef<Path>) -> Recorded {
    let path = path.as_ref();
    let pass = read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let given = given_of(&pass).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Recorded { pass, given }
}

fn read(path: &Path) -> Result<RecordedPass, Box<dyn std::error::Error>> {
    let json: Value = serde_json::from_slice(&fs::read(path)?)?;
    if json["formatVersion"] != FORMAT_VERSION {
        let version = &json["formatVersion"];
        return Err(
            format!("formatVersion is {version}, but this version of reknit reads {FORMAT_VERSION}").into()
        );
    }
    let pass: RecordedPass = serde_json::from_value(json)?;
    match pass.left_out.is_empty() {
        true => Ok(pass),
        false => Err(format!(
            "the pass cannot run again: the file leaves out {}, since a file has at most 1 MiB",
            pass.left_out.join(", ")
        )
        .into()),
    }
}

/// Creates the state in which the pass began.
fn given_of(pass: &RecordedPass) -> Result<Given, String> {
    let (time, clock) = (pass.time, FakeClock::at(&pass.time.to_string()));
    let mut given = nothing().provide(clock.clock());
    given.server = given.server.with_clock(move || time);
    given.component.clone_from(&pass.component);
    let kinds: BTreeMap<_, _> =
        pass.kinds.iter().map(|kind| ((&*kind.api_version, &*kind.kind), resource_of(kind))).collect();
    given.kinds = pass.kinds.iter().filter_map(resolved).collect();
    for object in &pass.objects {
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let resource = kinds.get(&(text("apiVersion"), text("kind"))).cloned().flatten();
        let resource = resource.ok_or_else(|| format!("the Kind {} has no plural", text("kind")))?;
        given = given.and_of(&resource, object.clone());
    }
    if let Some(namespace) = &pass.system_namespace {
        given = given.system_namespace(namespace);
        for (name, data) in pass.config_maps.iter().filter_map(|(name, data)| Some((name, data.as_ref()?))) {
            let metadata = json!({"namespace": namespace, "name": name});
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
            let kind = GroupVersionKind::gvk("", "v1", "ConfigMap");
            given = given.and_of(&ApiResource::from_gvk(&kind), map);
        }
    }
    insert_answers(&given, pass);
    let mut failures: Vec<_> = pass.requests.iter().filter(|request| is_failure(request)).cloned().collect();
    given.server.answer(move |method, path, body| {
        let is_same = |failure: &RecordedRequest| {
            failure.method == method.as_str()
                && path_of(&failure.uri) == path
                && steady(failure.body.clone()) == steady(body.clone())
        };
        let at = failures.iter().position(is_same)?;
        Some(answer_of(failures.remove(at)))
    });
    Ok(if pass.is_following { given.following() } else { given })
}

fn resource_of(kind: &RecordedKind) -> Option<ApiResource> {
    let (group, version) = kind.api_version.rsplit_once('/').unwrap_or(("", &kind.api_version));
    let gvk = GroupVersionKind::gvk(group, version, &kind.kind);
    Some(ApiResource::from_gvk_with_plural(&gvk, kind.plural.as_ref()?))
}

/// Returns the answer of the API server about a Kind for which the pass asked.
fn resolved(kind: &RecordedKind) -> Option<(GroupVersionKind, Option<(ApiResource, Scope)>)> {
    let (group, version) = kind.api_version.rsplit_once('/').unwrap_or(("", &kind.api_version));
    let gvk = GroupVersionKind::gvk(group, version, &kind.kind);
    match (resource_of(kind), kind.namespaced) {
        (None, _) => Some((gvk, None)),
        (Some(resource), Some(true)) => Some((gvk, Some((resource, Scope::Namespaced)))),
        (Some(resource), Some(false)) => Some((gvk, Some((resource, Scope::Cluster)))),
        (Some(_), None) => None,
    }
}

/// Stores the objects that the pass got, or changed without reading them before, in the API server but not in the
/// caches.
fn insert_answers(given: &Given, pass: &RecordedPass) {
    let mut known = unknown::paths(pass);
    for request in &pass.requests {
        let path = path_of(&request.uri);
        for object in objects_in(&request.answer) {
            let Some((resource, path)) = unknown::stored_at(path, &object) else { continue };
            let existed = request.code == Some(200);
            if known.insert(path) && existed {
                given.server.insert_of(&resource, object);
            }
        }
    }
}

/// Returns the object of an answer, or those of a list, which have no Kind of their own.
fn objects_in(answer: &Value) -> Vec<Value> {
    let Some(items) = answer["items"].as_array() else { return vec![answer.clone()] };
    let kind = answer["kind"].as_str().unwrap_or_default().trim_end_matches("List");
    let types = json!({"apiVersion": answer["apiVersion"], "kind": kind});
    let fields = |item: &Value| {
        types
            .as_object()
            .into_iter()
            .chain(item.as_object())
            .flatten()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    items.iter().map(|item| Value::Object(fields(item))).collect()
}

fn is_failure(request: &RecordedRequest) -> bool {
    let is_absence = request.method == "GET" && request.code == Some(404);
    request.code.is_none_or(|code| code >= 400) && !is_absence
}

/// Returns the answer of a request that failed. A request without a response is answered with 503 and the error.
fn answer_of(failure: RecordedRequest) -> (StatusCode, Value) {
    let code = failure.code.and_then(|code| StatusCode::from_u16(code).ok());
    let code = code.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    match failure.answer {
        answer @ Value::Object(_) => (code, answer),
        answer => {
            let message = answer.as_str().unwrap_or_default();
            (code, json!({"kind": "Status", "status": "Failure", "message": message, "code": code.as_u16()}))
        }
    }
}

fn path_of(uri: &str) -> &str {
    uri.split('?').next().unwrap_or_default()
}

/// Returns a body without volatile fields.
fn steady(mut body: Value) -> Value {
    match &mut body {
        Value::Object(fields) => {
            fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
            fields.values_mut().for_each(|field| *field = steady(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = steady(item.take())),
        _ => {}
    }
    body
}

impl Recorded {
    /// Adds an object that the recorded pass did not read, for example because the repaired controller reads it.
    pub fn and<K: Cached + Serialize>(self, object: K) -> Self {
        Self { given: self.given.and(object), ..self }
    }

    /// Adds a value to the constructor's [`Context`], such as the flags of the program.
    pub fn provide<T: Clone + Send + Sync + 'static>(self, value: T) -> Self {
        Self { given: self.given.provide(value), ..self }
    }

    /// Returns the error of the recorded pass, or the reason why it was dropped.
    pub fn error(&self) -> &str {
        &self.pass.result
    }

    /// Runs the pass again.
    ///
    /// # Panics
    ///
    /// Panics if the pass reads anything that the file neither contains nor lists as absent, and if the file is of
    /// another controller. Panics as [`Given::reconcile`] does.
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    pub async fn reconcile(self, constructor: impl FnOnce(&Context) -> Result<Controller>) -> Effects {
        let Self { pass, given } = self;
        let added = given.objects().to_vec();
        let mut reads = None;
        let construct = |cx: &Context| {
            reads = Some(Recordings::of_test(cx));
            let controller = constructor(cx)?;
            match controller.name() == pass.controller {
                true => Ok(controller),
                false => Err(format!(
                    "the file records a pass of the controller {}, not of {}",
                    pass.controller,
                    controller.name()
                )
                .into()),
            }
        };
        let effects = given.reconcile(construct, &pass.key).await;
        let unknown = reads.map(|reads| unknown::reads(&pass, &added, &reads())).unwrap_or_default();
        if !unknown.is_empty() {
            panic!(
                "the pass read what the recorded one did not, so the file neither contains it nor lists it as \
                 absent:\n  {}\nadd an object by .and(…); a list, a Kind or a typed ConfigMap cannot be added: write a \
                 test of this pass by given(…)",
                Vec::from_iter(unknown).join("\n  ")
            );
        }
        effects
    }
}
