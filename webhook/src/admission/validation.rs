//! Validation of objects.

use std::{collections::BTreeMap, iter, sync::Arc};

use kube::CustomResourceExt;
use reknit_apis::{FieldError, Kind, Operation, Validatable};
use serde_json::Value;

use super::{
    caches::Caches,
    change::Change,
    decoding::Decoder,
    denial::{Denial, deny},
    group_version_kind::GroupVersionKind,
    outcome::{PendingRule, ReviewOutcome, judge},
    review::Review,
    validators::{PrepareRule, Validator, prepare},
};

/// The Kinds with rules.
#[derive(Clone, Default)]
pub(crate) struct Validation {
    kinds: BTreeMap<GroupVersionKind, ValidatedKind>,
    /// The informers that the validators read.
    pub(crate) caches: Caches,
}

#[derive(Clone, Default)]
struct ValidatedKind {
    plural: String,
    subresources: &'static [&'static str],
    validate: Option<Validate>,
    validators: Vec<PrepareRule>,
}

type Validate = Arc<dyn Fn(&Change) -> Result<FieldError, Denial> + Send + Sync>;

impl Validation {
    pub(crate) fn add<K: Validatable + CustomResourceExt>(&mut self, decoder: Decoder<K>) {
        let kind = self.kind::<K>();
        kind.subresources = K::SUBRESOURCES;
        kind.validate = Some(Arc::new(move |change: &Change| validate(&decoder, change)));
    }

    pub(crate) fn add_validator<V: Validator>(&mut self, validator: V) {
        self.kind::<V::Kind>().validators.push(prepare(validator));
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

    /// Answers a review: validates the object, and prepares the rules that read others.
    pub(crate) fn review(&self, review: Review) -> ReviewOutcome {
        let Review { response, kind, change, .. } = review;
        let Some(handler) = self.kinds.get(&kind) else {
            return deny(response, format!("decoding request failed: unhandled kind: {kind}")).into();
        };
        let Some(change) = change else { return response.into() };
        let name = &change.request.name;
        let refuse = |response, denial: Denial| denial.deny(response, &kind, name).into();
        if !handler.validators.is_empty()
            && let Err(denial) = self.caches.check()
        {
            return refuse(response, denial);
        }
        let (faults, rules) =
            match handler.check(&change).and_then(|faults| Ok((faults, handler.rules(&change)?))) {
                Ok(checked) => checked,
                Err(denial) => return refuse(response, denial.context("decoding request failed")),
            };
        ReviewOutcome { response: judge(response, &kind, name, faults), rules }
    }
}

impl ValidatedKind {
    /// Applies the rules of the Kind itself, if it has any.
    fn check(&self, change: &Change) -> Result<FieldError, Denial> {
        if change.request.operation != Operation::Delete {
            change.new_object()?;
        }
        self.validate.as_ref().map_or_else(|| Ok(FieldError::none()), |validate| validate(change))
    }

    fn rules(&self, change: &Change) -> Result<Vec<PendingRule>, Denial> {
        self.validators.iter().filter_map(|prepare| prepare(change).transpose()).collect()
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

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use k8s_openapi::api::core::v1::Namespace;
    use reknit_apis::{Request, kind};
    use reknit_reconciler::Result;
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

    struct Anything<K>(PhantomData<fn() -> K>);

    impl<K: Kind> Validator for Anything<K> {
        type Kind = K;

        async fn validate(&self, _: &K, _: Option<&K>, _: &Request) -> Result<FieldError> {
            Ok(FieldError::none())
        }
    }

    #[test]
    fn the_rules_cover_the_deletions_and_subresources_of_each_kind() {
        let mut validation = Validation::default();
        validation.add::<Lamp>(Definitions::default().decoder());
        validation.add_validator(Anything::<Lamp>(PhantomData));
        validation.add_validator(Anything::<Namespace>(PhantomData));
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
