//! Validation of objects.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Display,
    future::Future,
    iter,
    sync::Arc,
};

use futures::future::BoxFuture;
use kube::{CustomResourceExt, core::admission::AdmissionResponse};
use reknit_apis::{FieldError, Kind, Level, Operation, Request, Validatable};
use serde_json::Value;

use super::{
    decoding::{Decoder, decode_leniently},
    review::{Change, GroupVersionKind, Review, deny},
};

/// The Kinds with rules or callbacks.
#[derive(Clone, Default)]
pub(crate) struct Validation(BTreeMap<GroupVersionKind, Entry>);

#[derive(Clone, Default)]
struct Entry {
    plural: String,
    subresources: &'static [&'static str],
    validate: Option<Arc<dyn Fn(&Change) -> Result<FieldError, String> + Send + Sync>>,
    callbacks: Vec<Callback>,
}

/// Decodes the object for a callback. None if the callback is not to be called.
type Callback = Arc<dyn Fn(&Value, &Request) -> Result<Option<Call>, String> + Send + Sync>;

/// Calls a callback that has its object. The call may block its thread, its future must not.
pub(crate) type Call = Box<dyn FnOnce() -> BoxFuture<'static, Result<(), String>> + Send>;

/// A response, and the callbacks that may still deny the request.
pub(crate) struct Validated {
    pub(crate) response: AdmissionResponse,
    /// To be called one after another until one fails.
    pub(crate) calls: VecDeque<Call>,
}

impl From<AdmissionResponse> for Validated {
    fn from(response: AdmissionResponse) -> Self {
        Self { response, calls: VecDeque::new() }
    }
}

impl Validated {
    /// Takes the result of a callback into account.
    pub(crate) fn with_result(self, result: Result<(), String>) -> Self {
        match result {
            Ok(()) => self,
            Err(reason) => deny(self.response, format!("validation callback failed: {reason}")).into(),
        }
    }
}

impl Validation {
    pub(crate) fn add<K: Validatable + CustomResourceExt>(&mut self) {
        let decoder = Decoder::<K>::new();
        let entry = self.entry::<K>();
        entry.subresources = K::SUBRESOURCES;
        entry.validate = Some(Arc::new(move |change: &Change| validate(&decoder, change)));
    }

    pub(crate) fn add_callback<K, F, C, E>(&mut self, callback: F)
    where
        K: Kind,
        F: Fn(K, Request) -> C + Send + Sync + 'static,
        C: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + 'static,
    {
        let callback = Arc::new(callback);
        let prepare = move |object: &Value, request: &Request| {
            // The definition of the Kind, if any, is unknown here: its status may be no subresource.
            let object = match decode_leniently::<K>(object, request.subresource.is_none()) {
                Ok((object, _)) => object,
                // An undecodable object must not prevent its own deletion.
                Err(_) if request.operation == Operation::Delete => return Ok(None),
                Err(error) => return Err(error),
            };
            let (callback, request) = (callback.clone(), request.clone());
            let call: Call = Box::new(move || {
                let future = callback(object, request);
                Box::pin(async { future.await.map_err(|error| error.to_string()) })
            });
            Ok(Some(call))
        };
        self.entry::<K>().callbacks.push(Arc::new(prepare));
    }

    fn entry<K: Kind>(&mut self) -> &mut Entry {
        let entry = self.0.entry(GroupVersionKind::of::<K>()).or_default();
        entry.plural = K::plural(&()).into();
        entry
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rules of the webhook configuration.
    pub(crate) fn rules(&self) -> Value {
        let rule = |(kind, entry): (&GroupVersionKind, &Entry)| {
            let subresources = entry.subresources.iter().map(|name| format!("{}/{name}", entry.plural));
            let resources: Vec<_> = iter::once(entry.plural.clone()).chain(subresources).collect();
            kind.rule(&["CREATE", "UPDATE", "DELETE"], &resources)
        };
        self.0.iter().map(rule).collect()
    }

    /// Whether the rules name this Kind or its subresource.
    pub(crate) fn has(&self, kind: &GroupVersionKind, subresource: Option<&str>) -> bool {
        let has = |entry: &Entry| subresource.is_none_or(|name| entry.subresources.contains(&name));
        self.0.get(kind).is_some_and(has)
    }

    /// Validates the object and prepares the callbacks.
    pub(crate) fn answer(&self, review: Review) -> Validated {
        let Review { mut response, kind, change } = review;
        let Some(entry) = self.0.get(&kind) else {
            return deny(response, format!("decoding request failed: unhandled kind: {kind}")).into();
        };
        let Some(change) = change else { return response.into() };
        let error = match entry.check(&change) {
            Ok(error) => error,
            Err(reason) => return deny(response, format!("decoding request failed: {reason}")).into(),
        };
        response.warnings = warnings(&error);
        let errors = error.filter(Level::Error);
        if !errors.is_empty() {
            return deny(response, format!("validation failed: {errors}")).into();
        }
        match entry.calls(&change) {
            Ok(calls) => Validated { response, calls },
            Err(reason) => Validated::from(response).with_result(Err(reason)),
        }
    }
}

impl Entry {
    fn check(&self, change: &Change) -> Result<FieldError, String> {
        if change.request.operation != Operation::Delete {
            change.new_object()?;
        }
        self.validate.as_ref().map_or_else(|| Ok(FieldError::none()), |validate| validate(change))
    }

    /// None in a dry run, since callbacks may have effects.
    fn calls(&self, change: &Change) -> Result<VecDeque<Call>, String> {
        let object = change.object.as_ref().or(change.old.as_ref());
        let Some(object) = object.filter(|_| !change.request.dry_run) else { return Ok(VecDeque::new()) };
        self.callbacks.iter().filter_map(|prepare| prepare(object, &change.request).transpose()).collect()
    }
}

fn validate<K>(decoder: &Decoder<K>, change: &Change) -> Result<FieldError, String>
where
    K: Validatable + CustomResourceExt,
{
    let (request, old) = (&change.request, decoder.old_object(change));
    if request.operation == Operation::Delete {
        return Ok(old.map_or_else(FieldError::none, |old| old.validate_delete(request)));
    }
    let object = decoder.new_object(change)?.object;
    Ok(match (&old, &request.subresource) {
        (old, Some(_)) => object.validate_subresource(old.as_ref().unwrap_or(&object), request),
        (Some(old), None) => object.validate_update(old, request),
        (None, None) => object.validate(request),
    })
}

/// One warning a line, since the API server sends each in an HTTP header.
fn warnings(error: &FieldError) -> Option<Vec<String>> {
    let warnings = error.clone().filter(Level::Warning).to_string();
    let lines: Vec<String> = warnings.lines().map(str::to_owned).collect();
    Some(lines).filter(|lines| !lines.is_empty())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;
    use reknit_apis::kind;
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;

    #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced, status = "LampStatus")]
    struct LampSpec {}

    #[derive(Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    struct LampStatus {}

    kind!(Lamp {});

    impl Validatable for Lamp {
        const SUBRESOURCES: &'static [&'static str] = &["status"];

        fn validate(&self, _: &Request) -> FieldError {
            FieldError::none()
        }
    }

    #[test]
    fn it_is_asked_of_each_kind_also_when_one_is_deleted_and_of_the_parts_that_the_kind_names() {
        let mut validation = Validation::default();
        validation.add::<Lamp>();
        validation.add_callback(async |_: Lamp, _| Ok::<_, String>(()));
        validation.add_callback(async |_: Namespace, _| Ok::<_, String>(()));
        let rule = |group, resources: &[&str]| {
            json!({
                "operations": ["CREATE", "UPDATE", "DELETE"], "apiGroups": [group], "apiVersions": ["v1"],
                "resources": resources, "scope": "*",
            })
        };
        let expected =
            json!([rule("", &["namespaces"]), rule("demo.reknit.dev", &["lamps", "lamps/status"])]);
        assert_eq!(validation.rules(), expected);
        let asks = |kind: &GroupVersionKind, part| validation.has(kind, part);
        let (lamp, namespace) = (GroupVersionKind::of::<Lamp>(), GroupVersionKind::of::<Namespace>());
        assert!(asks(&lamp, None) && asks(&lamp, Some("status")) && !asks(&lamp, Some("scale")));
        assert!(asks(&namespace, None) && !asks(&namespace, Some("status")));
    }
}
