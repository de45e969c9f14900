//! Validation of objects.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Display,
    future::Future,
    iter,
    sync::Arc,
};

use kube::CustomResourceExt;
use reknit_apis::{FieldError, Kind, Level, Operation, Request, Validatable};
use serde_json::Value;

use super::{
    decoding::{Decoder, decode_leniently},
    denial::{Denial, deny},
    group_version_kind::GroupVersionKind,
    review::{Change, PreparedCallback, Review, ReviewOutcome},
};

/// The Kinds with rules or callbacks.
#[derive(Clone, Default)]
pub(crate) struct Validation {
    kinds: BTreeMap<GroupVersionKind, ValidatedKind>,
}

#[derive(Clone, Default)]
struct ValidatedKind {
    plural: String,
    subresources: &'static [&'static str],
    validate: Option<Validate>,
    callbacks: Vec<PrepareCallback>,
}

type Validate = Arc<dyn Fn(&Change) -> Result<FieldError, Denial> + Send + Sync>;

/// Decodes the object for a callback. Returns `None` if the callback must not be called.
type PrepareCallback =
    Arc<dyn Fn(&Value, &Request) -> Result<Option<PreparedCallback>, Denial> + Send + Sync>;

impl Validation {
    pub(crate) fn add<K: Validatable + CustomResourceExt>(&mut self, decoder: Decoder<K>) {
        let kind = self.kind::<K>();
        kind.subresources = K::SUBRESOURCES;
        kind.validate = Some(Arc::new(move |change: &Change| validate(&decoder, change)));
    }

    pub(crate) fn add_callback<K, C, E>(&mut self, callback: impl Fn(K, Request) -> C + Send + Sync + 'static)
    where
        K: Kind,
        C: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + 'static,
    {
        let callback = Arc::new(callback);
        let prepare = move |object: &Value, request: &Request| {
            // It is unknown here whether the status is a subresource, so an undecodable status is always dropped.
            let object = match decode_leniently::<K>(object, &Value::Null, request.subresource.is_none()) {
                Ok((object, _)) => object,
                // An undecodable object must not prevent its own deletion.
                Err(_) if request.operation == Operation::Delete => return Ok(None),
                Err(error) => return Err(error),
            };
            let (callback, request) = (callback.clone(), request.clone());
            let prepared: PreparedCallback = Box::new(move || {
                let future = callback(object, request);
                Box::pin(async { future.await.map_err(|error| error.to_string()) })
            });
            Ok(Some(prepared))
        };
        self.kind::<K>().callbacks.push(Arc::new(prepare));
    }

    fn kind<K: Kind>(&mut self) -> &mut ValidatedKind {
        let kind = self.kinds.entry(GroupVersionKind::of::<K>()).or_default();
        kind.plural = K::plural(&()).into();
        kind
    }

    /// The rules of the webhook configuration.
    pub(crate) fn rules(&self) -> Value {
        let rule = |(kind, handler): (&GroupVersionKind, &ValidatedKind)| {
            let plural = &handler.plural;
            let subresources = handler.subresources.iter().map(|name| format!("{plural}/{name}"));
            let resources = iter::once(plural.clone()).chain(subresources).collect();
            kind.rule(&["CREATE", "UPDATE", "DELETE"], resources)
        };
        self.kinds.iter().map(rule).collect()
    }

    /// Returns true if the rules of the webhook configuration cover this Kind, or this subresource of the Kind.
    pub(crate) fn covers(&self, kind: &GroupVersionKind, subresource: Option<&str>) -> bool {
        let handler = self.kinds.get(kind);
        handler.is_some_and(|handler| subresource.is_none_or(|name| handler.subresources.contains(&name)))
    }

    /// Answers a review: validates the object, and prepares the callbacks.
    pub(crate) fn review(&self, review: Review) -> ReviewOutcome {
        let Review { mut response, kind, change } = review;
        let Some(handler) = self.kinds.get(&kind) else {
            return deny(response, format!("decoding request failed: unhandled kind: {kind}")).into();
        };
        let Some(change) = change else { return response.into() };
        let refuse = |response, denial: Denial| denial.deny(response, &kind, &change.request.name).into();
        let faults = match handler.check(&change) {
            Ok(faults) => faults,
            Err(denial) => return refuse(response, denial.context("decoding request failed")),
        };
        response.warnings = warnings(&faults);
        let errors = faults.filter(Level::Error);
        if !errors.is_empty() {
            return refuse(response, Denial::from(errors).context("validation failed"));
        }
        match handler.prepare_callbacks(&change) {
            Ok(callbacks) => ReviewOutcome { response, callbacks },
            Err(denial) => refuse(response, denial.context("validation callback failed")),
        }
    }
}

impl ValidatedKind {
    /// Applies the rules of the Kind, if it has any.
    fn check(&self, change: &Change) -> Result<FieldError, Denial> {
        if change.request.operation != Operation::Delete {
            change.new_object()?;
        }
        self.validate.as_ref().map_or_else(|| Ok(FieldError::none()), |validate| validate(change))
    }

    /// Prepares the callbacks, except in a dry run, since callbacks may have effects.
    fn prepare_callbacks(&self, change: &Change) -> Result<VecDeque<PreparedCallback>, Denial> {
        let object = change.object.as_ref().or(change.old.as_ref());
        let Some(object) = object.filter(|_| !change.request.dry_run) else { return Ok(VecDeque::new()) };
        self.callbacks.iter().filter_map(|prepare| prepare(object, &change.request).transpose()).collect()
    }
}

fn validate<K>(decoder: &Decoder<K>, change: &Change) -> Result<FieldError, Denial>
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

/// Returns one warning for each line, since the API server sends each in an HTTP header.
fn warnings(faults: &FieldError) -> Option<Vec<String>> {
    let warnings = faults.clone().filter(Level::Warning).to_string();
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
    use crate::admission::decoding::Definitions;

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
    fn the_rules_cover_the_deletions_and_subresources_of_each_kind() {
        let mut validation = Validation::default();
        validation.add::<Lamp>(Definitions::default().decoder());
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
        let covers = |kind: &GroupVersionKind, subresource| validation.covers(kind, subresource);
        let (lamp, namespace) = (GroupVersionKind::of::<Lamp>(), GroupVersionKind::of::<Namespace>());
        assert!(covers(&lamp, None) && covers(&lamp, Some("status")) && !covers(&lamp, Some("scale")));
        assert!(covers(&namespace, None) && !covers(&namespace, Some("status")));
    }
}
