//! Validation of objects.

use std::{collections::BTreeMap, iter, sync::Arc};

use kube::CustomResourceExt;
use reknit_apis::{FieldError, Kind, Operation, Request, Validatable};
use serde_json::Value;

use super::{
    caches::Caches,
    change::Change,
    decoding::Decoder,
    deletion_validators::{self, DeletionValidator},
    denial::Denial,
    group_version_kind::GroupVersionKind,
    outcome::{PendingRule, ReviewOutcome, judge},
    review::Review,
    validators::{PrepareRule, Validator, prepare},
};

/// The Kinds with rules.
#[derive(Clone, Default)]
pub(crate) struct Validation {
    kinds: BTreeMap<GroupVersionKind, ValidatedKind>,
    /// The informers that the constructor of the webhook has requested. Validators and mutators read them.
    pub(crate) caches: Caches,
}

#[derive(Clone, Default)]
struct ValidatedKind {
    plural: String,
    subresources: &'static [&'static str],
    validate: Option<Validate>,
    /// True if the Kind has a rule of its own about deletions.
    has_deletion_rule: bool,
    validators: Vec<PrepareRule>,
    deletion_validators: Vec<PrepareRule>,
}

type Validate = Arc<dyn Fn(&Change) -> Result<FieldError, Denial> + Send + Sync>;

impl Validation {
    pub(crate) fn add<K: Validatable + CustomResourceExt>(&mut self, decoder: Decoder<K>) {
        let kind = self.kind::<K>();
        kind.subresources = K::SUBRESOURCES;
        kind.has_deletion_rule = K::DELETION_RULE.is_some();
        kind.validate = Some(Arc::new(move |change: &Change| validate(&decoder, change)));
    }

    pub(crate) fn add_validator<V: Validator>(&mut self, validator: V) {
        self.kind::<V::Kind>().validators.push(prepare(validator));
    }

    pub(crate) fn add_deletion_validator<V: DeletionValidator>(&mut self, validator: V) {
        self.kind::<V::Kind>().deletion_validators.push(deletion_validators::prepare(validator));
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
            kind.rule(&handler.operations(), resources)
        };
        self.kinds.iter().map(rule).collect()
    }

    /// Returns true if the rules of the webhook configuration cover this request for an object of this Kind.
    pub(crate) fn covers(&self, kind: &GroupVersionKind, request: &Request) -> bool {
        let Some(handler) = self.kinds.get(kind) else { return false };
        let is_covered = |name| handler.subresources.contains(&name);
        handler.decides_about(request.operation) && request.subresource.as_deref().is_none_or(is_covered)
    }

    /// Answers a review: validates the object, and prepares the rules that read others.
    pub(crate) fn review(&self, review: Review) -> ReviewOutcome {
        let Review { response, kind, change, .. } = review;
        let Some(handler) = self.kinds.get(&kind) else {
            return ReviewOutcome::unhandled(response, "decoding request failed: ", &kind);
        };
        let Some(change) = change else { return response.into() };
        let name = &change.request.name;
        let refuse = |response, denial: Denial| denial.deny(response, &kind, name).into();
        if !handler.validators_of(change.request.operation).is_empty()
            && let Err(denial) = self.caches.check()
        {
            return refuse(response, denial);
        }
        let (faults, rules) =
            match handler.check(&change).and_then(|faults| Ok((faults, handler.rules(&change)?))) {
                Ok(checked) => checked,
                Err(denial) => return refuse(response, denial.context("decoding request failed")),
            };
        ReviewOutcome { rules, ..judge(response, &kind, name, faults).into() }
    }
}

impl ValidatedKind {
    /// The operations about which the API server asks. While the webhook is unreachable, it refuses these.
    fn operations(&self) -> Vec<&'static str> {
        let names =
            [(Operation::Create, "CREATE"), (Operation::Update, "UPDATE"), (Operation::Delete, "DELETE")];
        let decided = names.into_iter().filter(|(operation, _)| self.decides_about(*operation));
        decided.map(|(_, name)| name).collect()
    }

    fn decides_about(&self, operation: Operation) -> bool {
        let has_rule = match operation {
            Operation::Delete => self.has_deletion_rule,
            _ => self.validate.is_some(),
        };
        has_rule || !self.validators_of(operation).is_empty()
    }

    fn validators_of(&self, operation: Operation) -> &[PrepareRule] {
        match operation {
            Operation::Delete => &self.deletion_validators,
            _ => &self.validators,
        }
    }

    /// Applies the rules of the Kind itself, if it has any.
    fn check(&self, change: &Change) -> Result<FieldError, Denial> {
        if change.request.operation != Operation::Delete {
            change.new_object()?;
        }
        self.validate.as_ref().map_or_else(|| Ok(FieldError::none()), |validate| validate(change))
    }

    fn rules(&self, change: &Change) -> Result<Vec<PendingRule>, Denial> {
        let validators = self.validators_of(change.request.operation);
        validators.iter().filter_map(|prepare| prepare(change).transpose()).collect()
    }
}

fn validate<K>(decoder: &Decoder<K>, change: &Change) -> Result<FieldError, Denial>
where
    K: Validatable + CustomResourceExt,
{
    let (request, old) = (&change.request, decoder.old_object(change));
    if request.operation == Operation::Delete {
        let faults = K::DELETION_RULE.zip(old).map(|(rule, old)| rule(&old, request));
        return Ok(faults.unwrap_or_else(FieldError::none));
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
    use reknit_apis::kind;
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

    impl<K: Kind> DeletionValidator for Anything<K> {
        type Kind = K;

        async fn validate_delete(&self, _: &K, _: &Request) -> Result<FieldError> {
            Ok(FieldError::none())
        }
    }

    fn rule(group: &str, operations: &[&str], resources: &[&str]) -> Value {
        json!({
            "operations": operations, "apiGroups": [group], "apiVersions": ["v1"], "resources": resources,
            "scope": "*",
        })
    }

    #[test]
    fn the_rules_cover_the_subresources_of_each_kind_and_no_deletions_without_a_rule_about_them() {
        let mut validation = Validation::default();
        validation.add::<Lamp>(Definitions::default().decoder());
        validation.add_validator(Anything::<Lamp>(PhantomData));
        validation.add_validator(Anything::<Namespace>(PhantomData));
        let changes = ["CREATE", "UPDATE"];
        let expected = json!([
            rule("", &changes, &["namespaces"]),
            rule("demo.reknit.dev", &changes, &["lamps", "lamps/status"]),
        ]);
        assert_eq!(validation.rules(), expected);
        let covers = |kind: &GroupVersionKind, subresource: &str, operation| {
            let mut request = Request::new(operation);
            request.subresource = Some(subresource.to_owned()).filter(|name| !name.is_empty());
            validation.covers(kind, &request)
        };
        let (lamp, namespace) = (GroupVersionKind::of::<Lamp>(), GroupVersionKind::of::<Namespace>());
        let update = Operation::Update;
        assert!(
            covers(&lamp, "", update) && covers(&lamp, "status", update) && !covers(&lamp, "scale", update)
        );
        assert!(covers(&namespace, "", update) && !covers(&namespace, "status", update));
        assert!(!covers(&lamp, "", Operation::Delete) && !covers(&namespace, "", Operation::Delete));
    }

    #[test]
    fn the_rules_cover_deletions_that_a_validator_decides_about() {
        let mut validation = Validation::default();
        validation.add_deletion_validator(Anything::<Namespace>(PhantomData));
        assert_eq!(validation.rules(), json!([rule("", &["DELETE"], &["namespaces"])]));
        validation.add_validator(Anything::<Namespace>(PhantomData));
        assert_eq!(validation.rules(), json!([rule("", &["CREATE", "UPDATE", "DELETE"], &["namespaces"])]));
    }
}
