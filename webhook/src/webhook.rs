//! What a webhook does, put together.

use std::{fmt, fmt::Display, future::Future, sync::Arc};

use kube::{
    CustomResourceExt,
    core::admission::{AdmissionRequest, AdmissionResponse},
};
use reknit_apis::{Defaultable, Kind, Request, Validatable};
use serde_json::Value;

use crate::{
    asked::About,
    defaulting::Defaulting,
    limits::Limits,
    proposal::{Admitted, Proposal, Refused},
    raw::Raw,
    validation::Validation,
};

/// What the API server asks before it stores objects of some Kinds: what is to be filled in, and what to be refused.
///
/// ```
/// use reknit_apis::{FieldError, Kind, Request, Validatable};
/// use reknit_webhook::{Proposal, Webhook};
/// use serde::{Deserialize, Serialize};
/// use serde_json::json;
///
/// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
/// struct LampSpec {
///     room: String,
///     watts: Option<u32>,
/// }
///
/// impl Kind for Lamp {
///     type Status = ();
///     fn default_in_place(&mut self) {
///         self.spec.watts.get_or_insert(40);
///     }
/// }
///
/// impl Validatable for Lamp {
///     fn validate(&self, _: &Request) -> FieldError {
///         match self.spec.watts {
///             Some(watts @ 61..) => FieldError::out_of_bounds(watts, 1, 60, "spec.watts"),
///             _ => FieldError::none(),
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let webhook = Webhook::new("demo.reknit.dev").defaulting::<Lamp>().validation::<Lamp>();
/// // A test of it needs no server:
/// let hall = Lamp::new("hall", LampSpec { room: "hall".into(), watts: None });
/// let admitted = webhook.admit(Proposal::create(&hall)).await.unwrap();
/// assert_eq!(admitted.object["spec"]["watts"], 40);
///
/// let mut misspelt = json!(hall);
/// misspelt["spec"]["wats"] = json!(100);
/// let refused = webhook.admit(Proposal::create(misspelt)).await.unwrap_err();
/// assert_eq!(refused.to_string(), r#"mutation failed: cannot decode incoming new object: unknown field "spec.wats""#);
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a webhook answers nobody until it is served"]
pub struct Webhook {
    pub(crate) domain: String,
    pub(crate) defaulting: Defaulting,
    pub(crate) validation: Validation,
    pub(crate) limits: Limits,
}

impl Webhook {
    /// One that knows no Kind yet. The domain is what the names of its configurations end in, the group of its Kinds as a
    /// rule: `defaulting.webhook.<domain>`, `validation.webhook.<domain>`.
    pub fn new(domain: &str) -> Self {
        Self {
            domain: domain.into(),
            defaulting: Defaulting::default(),
            validation: Validation::default(),
            limits: Limits::default(),
        }
    }

    /// Objects of this Kind get its defaults when they are created or changed, and the annotations `<group>/creator` and
    /// `<group>/lastModifier`.
    pub fn defaulting<K: Kind + CustomResourceExt>(mut self) -> Self {
        self.defaulting.add::<K>();
        self
    }

    /// They get also the defaults that depend on the request.
    pub fn defaulting_by_request<K: Defaultable + CustomResourceExt>(mut self) -> Self {
        self.defaulting.add_by_request::<K>();
        self
    }

    /// Objects of this Kind have to be as it says when they are created, changed or deleted.
    pub fn validation<K: Validatable + CustomResourceExt>(mut self) -> Self {
        self.validation.add::<K>();
        self
    }

    /// Asks this too when an object of the Kind is created, changed or deleted (then it gets the object as it was), once
    /// nothing else is wrong with it. Several are asked in turn. A dry run asks none.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Namespace;
    /// use reknit_webhook::Webhook;
    ///
    /// let webhook = Webhook::new("demo.reknit.dev").callback(async |namespace: Namespace, request| {
    ///     match namespace.metadata.name.as_deref() {
    ///         Some("forbidden") => Err(format!("{} must not have it", request.username())),
    ///         _ => Ok(()),
    ///     }
    /// });
    /// # let _ = webhook;
    /// ```
    pub fn callback<K, C, E>(mut self, call: impl Fn(K, Request) -> C + Send + Sync + 'static) -> Self
    where
        K: Kind,
        C: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + 'static,
    {
        self.validation.call(call);
        self
    }

    /// What it takes from its clients; see [`Limits`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// What the API server would make of this: defaults first, the rules then. For tests.
    ///
    /// # Errors
    ///
    /// The words of the refusal.
    pub async fn admit(&self, proposal: Proposal) -> Result<Admitted, Refused> {
        let mut object = proposal.object().clone();
        let asked = proposal.asked(&object)?;
        let about = About::asked(&asked);
        if self.defaulting.has(&about) {
            let patch = allowed(self.defaulting.answer(asked))?.patch;
            object = patched(object, patch.as_deref().unwrap_or(b"[]")).map_err(Refused)?;
        }
        let mut warnings = Vec::new();
        if self.validation.has(&about) {
            let response = allowed(self.validation.answer(proposal.asked(&object)?).await)?;
            warnings = response.warnings.unwrap_or_default();
        }
        let object = if object.is_null() { proposal.old().clone() } else { object };
        Ok(Admitted { object, warnings })
    }

    pub(crate) async fn defaults(self: Arc<Self>, asked: AdmissionRequest<Raw>) -> AdmissionResponse {
        self.defaulting.answer(asked)
    }

    pub(crate) async fn validates(self: Arc<Self>, asked: AdmissionRequest<Raw>) -> AdmissionResponse {
        self.validation.answer(asked).await
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("domain", &self.domain)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

fn allowed(response: AdmissionResponse) -> Result<AdmissionResponse, Refused> {
    if response.allowed { Ok(response) } else { Err(Refused(response.result.message)) }
}

fn patched(mut object: Value, patch: &[u8]) -> Result<Value, String> {
    let patch: json_patch::Patch = serde_json::from_slice(patch).map_err(|error| error.to_string())?;
    json_patch::patch(&mut object, &patch).map_err(|error| error.to_string())?;
    Ok(object)
}
