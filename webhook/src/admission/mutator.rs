//! Mutating steps beside defaulting, each with a path and a webhook configuration of its own.

use kube::api::ApiResource;
use reknit_apis::Request;
use serde_json::Value;

use super::{
    caches::Caches,
    change::Change,
    denial::deny,
    group_version_kind::GroupVersionKind,
    outcome::{ReviewOutcome, allow_with_patch},
    review::Review,
};

/// A mutating admission step for objects of any Kind. [`Webhook::mutator`](crate::Webhook::mutator) adds it to a webhook.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use kube::api::ApiResource;
/// use reknit_apis::Request;
/// use reknit_webhook::{Mutator, TestRequest, Webhook};
/// use serde_json::{Value, json};
///
/// /// Sets a label on each new Pod.
/// struct Labeller([ApiResource; 1]);
///
/// impl Mutator for Labeller {
///     fn path(&self) -> &'static str {
///         "/labels"
///     }
///
///     fn resources(&self) -> &[ApiResource] {
///         &self.0
///     }
///
///     fn mutate(&self, _: &Request, old: Option<&Value>, pod: &mut Value) -> Result<(), String> {
///         if old.is_none() {
///             pod["metadata"]["labels"]["tier"] = json!("front");
///         }
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let webhook = Webhook::new("demo.reknit.dev").mutator(Labeller([ApiResource::erase::<Pod>(&())]));
/// let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}});
/// let admitted = webhook.admit(TestRequest::create(pod)).await.unwrap();
/// assert_eq!(admitted.object["metadata"]["labels"]["tier"], "front");
/// # }
/// ```
pub trait Mutator: Send + Sync + 'static {
    /// The path of the step on the server. It also names the step in the webhook configurations: the entry of
    /// `/bindings` is `bindings.webhook.<domain>`.
    fn path(&self) -> &'static str;

    /// The resources for which the API server calls the step, when an object is created or updated.
    fn resources(&self) -> &[ApiResource];

    /// Changes the entry of the step in the MutatingWebhookConfiguration, for example its selectors. The certificate
    /// controller calls this at each reconcile, so the second call must change nothing.
    fn configure(&self, _entry: &mut Value) {}

    /// Changes the object before it is stored. `old` is the stored object of an update.
    ///
    /// Until the first lists of the informers that the constructor of the webhook has requested are there, requests are
    /// denied with 503 and the mutator is not asked. Objects that the API server does not serve, or whose list fails for a
    /// minute, are not waited for: the response then has a warning.
    ///
    /// # Errors
    ///
    /// The request is denied with this message.
    fn mutate(&self, request: &Request, old: Option<&Value>, object: &mut Value) -> Result<(), String>;
}

/// Returns true if the API server calls the mutator for objects of this Kind.
pub(crate) fn selects(mutator: &dyn Mutator, kind: &GroupVersionKind) -> bool {
    mutator.resources().iter().any(|resource| kind_of(resource) == *kind)
}

/// The rules of the mutator in the webhook configuration.
pub(crate) fn rules_of(mutator: &dyn Mutator) -> Value {
    let rule =
        |resource: &ApiResource| kind_of(resource).rule(&["CREATE", "UPDATE"], vec![resource.plural.clone()]);
    mutator.resources().iter().map(rule).collect()
}

/// Answers a review with the patch of the mutator, which may read these caches.
pub(crate) fn mutate(
    mutator: &dyn Mutator,
    caches: &Caches,
    Review { mut response, kind, change, .. }: Review,
) -> ReviewOutcome {
    if !selects(mutator, &kind) {
        return ReviewOutcome::unhandled(response, "", &kind);
    }
    let Some(Change { request, object: Some(object), old }) = change else { return response.into() };
    match caches.check_first_lists() {
        Err(denial) => return denial.deny(response, &kind, &request.name).into(),
        Ok(warnings) if warnings.is_empty() => {}
        Ok(warnings) => response.warnings = Some(warnings),
    }
    let mut mutated = object.clone();
    if let Err(reason) = mutator.mutate(&request, old.as_ref(), &mut mutated) {
        return deny(response, reason).into();
    }
    allow_with_patch(response, json_patch::diff(&object, &mutated))
}

fn kind_of(resource: &ApiResource) -> GroupVersionKind {
    GroupVersionKind::new(&resource.api_version, &resource.kind)
}
