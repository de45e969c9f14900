//! Rules that read other objects. They are asynchronous, and answer after the object itself was found to be valid.

use std::{future::Future, sync::Arc};

use futures::FutureExt;
use reknit_apis::{FieldError, Kind, Level, Request};
use reknit_reconciler::Result;
use serde_json::Value;

use super::{
    change::Change,
    decoding::decode_leniently,
    denial::Denial,
    outcome::{PendingRule, Verdict},
};

/// Rules of a Kind that read other objects: from informers that the constructor of the webhook requests, or from the
/// API server. Rules about the object alone belong in [`Validatable`](reknit_apis::Validatable), which is checked first.
///
/// A validator decides, and has no other effect: the API server also asks it about dry runs and about requests that
/// something else refuses later. A request waits for it, for at most
/// [`Limits::validator_timeout`](crate::Limits::validator_timeout). It must not block the thread.
///
/// Two requests at the same time may both pass a rule that counts, such as "at most three in a namespace": each is
/// checked before the other is stored. An informer may also lag behind the API server. Let the controller find such
/// objects, and report them in their conditions.
///
/// A rule about deletions is a [`DeletionValidator`](crate::DeletionValidator).
///
/// If the caches of informers that the constructor requested are not synced yet, requests for the Kind are denied with
/// 503. If the validator fails, they are denied with 500 and its error. An update that leaves the spec alone is admitted
/// all the same, if the validator fails for the stored object with the same error.
///
/// ```
/// use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
/// use reknit_apis::{FieldError, Request};
/// use reknit_injection::{Context, Informer};
/// use reknit_reconciler::Result;
/// use reknit_webhook::{Validator, Webhook};
///
/// /// A Namespace with quotas needs a label.
/// struct Quotas(Informer<ResourceQuota>);
///
/// impl Validator for Quotas {
///     type Kind = Namespace;
///
///     async fn validate(&self, namespace: &Namespace, _: Option<&Namespace>, _: &Request) -> Result<FieldError> {
///         let is_inside = |quota: &ResourceQuota| quota.metadata.namespace == namespace.metadata.name;
///         Ok(match namespace.metadata.labels.is_none() && self.0.list().any(|quota| is_inside(&quota)) {
///             true => FieldError::missing(["metadata.labels"]),
///             false => FieldError::none(),
///         })
///     }
/// }
///
/// fn webhook(cx: &Context) -> Result<Webhook> {
///     Ok(Webhook::new("example.com").validator(Quotas(cx.get())))
/// }
/// # let _ = webhook;
/// ```
pub trait Validator: Send + Sync + 'static {
    /// The Kind whose objects are validated.
    type Kind: Kind;

    /// Validates an object to create, or the new state of an object to update, whose stored state is `old`, with the
    /// defaults of today. `old` is `None` for an object to create, and if the stored object cannot be decoded.
    ///
    /// # Errors
    ///
    /// Fails if the rules cannot be evaluated. The request is then denied.
    fn validate(
        &self,
        object: &Self::Kind,
        old: Option<&Self::Kind>,
        request: &Request,
    ) -> impl Future<Output = Result<FieldError>> + Send;
}

/// Decodes the objects of a change for a validator. Returns `None` if the validator must not be asked.
pub(crate) type PrepareRule = Arc<dyn Fn(&Change) -> Result<Option<PendingRule>, Denial> + Send + Sync>;

pub(crate) fn prepare<V: Validator>(validator: V) -> PrepareRule {
    let validator = Arc::new(validator);
    Arc::new(move |change: &Change| {
        let decode = |object: &Value| decode_for_validator::<V::Kind>(change, object);
        let (validator, request) = (validator.clone(), change.request.clone());
        let old = change.old.as_ref().and_then(|old| decode(old).ok());
        let object = change.object.as_ref().map(decode).transpose()?;
        Ok(object.map(|object| {
            async move { verdict(validator.validate(&object, old.as_ref(), &request).await) }.boxed()
        }))
    })
}

pub(super) fn decode_for_validator<K: Kind>(change: &Change, object: &Value) -> Result<K, Denial> {
    // It is unknown here whether the status is a subresource, so an undecodable status is always dropped.
    let may_drop_status = change.request.subresource.is_none();
    decode_leniently(object, &Value::Null, may_drop_status).map(|(object, _)| object)
}

pub(super) fn verdict(result: Result<FieldError>) -> Verdict {
    result.map_err(|error| Denial::internal(error.to_string()))
}

/// Ignores the faults of an update that leaves the spec alone, if the stored object has the same ones. Ignores the error
/// of a rule that could not be evaluated likewise: else no finalizer could be removed while, for example, a permission is
/// missing.
pub(crate) fn ratchet_rule(rule: PendingRule, of_stored: PendingRule) -> PendingRule {
    let errors = |verdict: &Verdict| verdict.clone().map(|faults| faults.filter(Level::Error));
    async move {
        let verdict = rule.await;
        match errors(&verdict) {
            Ok(none) if none.is_empty() => verdict,
            found if found == errors(&of_stored.await) => {
                Ok(verdict.map_or_else(|_| FieldError::none(), |faults| faults.filter(Level::Warning)))
            }
            _ => verdict,
        }
    }
    .boxed()
}
