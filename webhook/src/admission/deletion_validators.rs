//! Rules about deletions that read other objects.

use std::{future::Future, sync::Arc};

use futures::FutureExt;
use reknit_apis::{FieldError, Kind, Request};
use reknit_reconciler::Result;

use super::{
    change::Change,
    validators::{PrepareRule, decode_for_validator, verdict},
};

/// Rules about deletions of a Kind that read other objects. What holds for a [`Validator`](crate::Validator) holds here
/// too. Rules about the object alone belong in [`DELETION_RULE`](reknit_apis::Validatable::DELETION_RULE).
///
/// It is a trait of its own because the API server asks the webhook about the deletions of a Kind only if there is such
/// a rule. While the webhook is unreachable, objects of this Kind, and the namespaces that contain some, cannot be
/// deleted.
///
/// ```
/// use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
/// use reknit_apis::{CauseType, FieldError, Request};
/// use reknit_injection::{Context, Informer};
/// use reknit_reconciler::Result;
/// use reknit_webhook::{DeletionValidator, Webhook};
///
/// /// A Namespace with quotas cannot be deleted.
/// struct Quotas(Informer<ResourceQuota>);
///
/// impl DeletionValidator for Quotas {
///     type Kind = Namespace;
///
///     async fn validate_delete(&self, namespace: &Namespace, _: &Request) -> Result<FieldError> {
///         let is_inside = |quota: &ResourceQuota| quota.metadata.namespace == namespace.metadata.name;
///         Ok(match self.0.list().any(|quota| is_inside(&quota)) {
///             true => FieldError::generic("it has quotas", ["metadata.name"]).cause(CauseType::Forbidden),
///             false => FieldError::none(),
///         })
///     }
/// }
///
/// fn webhook(cx: &Context) -> Result<Webhook> {
///     Ok(Webhook::new("example.com").deletion_validator(Quotas(cx.get())))
/// }
/// # let _ = webhook;
/// ```
pub trait DeletionValidator: Send + Sync + 'static {
    /// The Kind whose deletions are validated.
    type Kind: Kind;

    /// Validates the deletion of an object. An object that cannot be decoded can always be deleted.
    ///
    /// # Errors
    ///
    /// Fails if the rules cannot be evaluated. The request is then denied.
    fn validate_delete(
        &self,
        object: &Self::Kind,
        request: &Request,
    ) -> impl Future<Output = Result<FieldError>> + Send;
}

pub(crate) fn prepare<V: DeletionValidator>(validator: V) -> PrepareRule {
    let validator = Arc::new(validator);
    Arc::new(move |change: &Change| {
        let old = change.old.as_ref().and_then(|old| decode_for_validator::<V::Kind>(change, old).ok());
        let (validator, request) = (validator.clone(), change.request.clone());
        Ok(old.map(|old| async move { verdict(validator.validate_delete(&old, &request).await) }.boxed()))
    })
}
