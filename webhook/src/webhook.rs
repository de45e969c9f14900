//! What a webhook does, put together.

use std::{collections::BTreeMap, fmt, fmt::Display, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use kube::{CustomResourceExt, core::admission::AdmissionResponse};
use reknit_apis::{Convertible, Defaultable, Kind, Request, Validatable};
use reknit_injection::FromConfigMap;
use serde_json::Value;

use crate::{
    admission::config_maps::ConfigMaps,
    admission::defaulting::Defaulting,
    admission::test_request::{Admitted, Proposal, Refused},
    admission::validation::{Validated, Validation},
    certificates::Lifetime,
    conversion::hub::Conversion,
    server::health::{Health, Running},
    server::limits::Limits,
    server::routes,
};

/// What the API server asks before it stores objects of some Kinds: what is to be filled in, and what to be refused.
///
/// ```
/// use reknit_apis::{FieldError, Request, Validatable, kind};
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
/// kind!(Lamp { defaults: |lamp| lamp.spec.watts = lamp.spec.watts.or(Some(40)) });
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
    pub(crate) config_maps: ConfigMaps,
    pub(crate) conversion: Conversion,
    pub(crate) lifetime: Lifetime,
    pub(crate) limits: Limits,
    pub(crate) running: Running,
}

impl Webhook {
    /// One that knows no Kind yet. The domain is what the names of its configurations end in, the group of its Kinds as a
    /// rule: `defaulting.webhook.<domain>`, `validation.webhook.<domain>`.
    pub fn new(domain: &str) -> Self {
        Self {
            domain: domain.into(),
            defaulting: Defaulting::default(),
            validation: Validation::default(),
            config_maps: ConfigMaps::default(),
            conversion: Conversion::default(),
            lifetime: Lifetime::default(),
            limits: Limits::default(),
            running: Running::default(),
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
    /// nothing else is wrong with it. Several are asked in turn. A dry run asks none, nor does the deletion of an object that
    /// cannot be decoded. What it does before it returns its future runs in a thread of its own and may block it; the future
    /// must not.
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
        self.validation.add_callback(call);
        self
    }

    /// This ConfigMap of the system namespace has to be as the process can read it, and its `_example` has to stay as its
    /// checksum says. Of several that read one ConfigMap all are asked, until one refuses. One that is being deleted can lose
    /// its finalizers whatever it says.
    ///
    /// ```
    /// use std::{collections::BTreeMap, error::Error};
    ///
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use reknit_injection::FromConfigMap;
    /// use reknit_webhook::{Proposal, Webhook};
    /// use serde_json::json;
    ///
    /// #[derive(Default)]
    /// struct Features {
    ///     fast: bool,
    /// }
    ///
    /// impl FromConfigMap for Features {
    ///     const NAME: &'static str = "config-features";
    ///
    ///     fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
    ///         let fast = data.get("fast").map(|text| text.parse()).transpose();
    ///         Ok(Self { fast: fast.map_err(|e| format!("fast: {e}"))?.unwrap_or_default() })
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let webhook = Webhook::new("demo.reknit.dev").config_validation::<Features>();
    /// let map = json!({
    ///     "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "config-features"}, "data": {"fast": "very"},
    /// });
    /// let refused = webhook.admit(Proposal::create(map)).await.unwrap_err();
    /// assert!(refused.to_string().starts_with("validation failed: fast: "));
    /// # }
    /// ```
    pub fn config_validation<T: FromConfigMap>(mut self) -> Self {
        self.config_maps.add::<T>();
        self
    }

    /// The same for one that something else than a type reads; `_example` is left out of what it is given.
    pub fn config_parser(
        mut self,
        name: &str,
        parse: impl Fn(&BTreeMap<String, String>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.config_maps.add_parser(name, parse);
        self
    }

    /// Objects of this version become such of the others by way of the hub, and get the defaults of the version that they
    /// end in. To be called for every version but the hub.
    pub fn conversion<K: Convertible>(mut self) -> Self {
        self.conversion.add::<K>();
        self
    }

    /// How long its certificates last (seven days; ten years at most), and how long before their end they are renewed (a day;
    /// less than they last). [`assemble`](Self::assemble) refuses anything else.
    pub fn certificates(mut self, validity: Duration, renew_before: Duration) -> Self {
        self.lifetime = Lifetime { validity, renew_before };
        self
    }

    /// What it takes from its clients; see [`Limits`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How it is doing, for whoever probes the process: `reknit_sharedmain::Main` does, at `/health`. To be called once its
    /// limits are set.
    pub fn health(&self) -> Health {
        Health::new(&self.running, self.limits.answer)
    }

    /// What the API server would make of this: defaults first, the rules then. It asks about a subresource only where the rules
    /// of the Kind name it ([`Validatable::SUBRESOURCES`]), and never for defaults. For tests.
    ///
    /// # Errors
    ///
    /// The words of the refusal.
    pub async fn admit(&self, proposal: Proposal) -> Result<Admitted, Refused> {
        let mut object = proposal.object.clone();
        let kind = proposal.review(&object)?.kind;
        let subresource = proposal.request.subresource.as_deref();
        if self.defaulting.has(&kind, subresource) {
            let response = allowed(self.defaulting.answer(proposal.review(&object)?))?;
            object = patched(object, response.patch.as_deref().unwrap_or(b"[]")).map_err(Refused)?;
        }
        allowed(self.config_maps.answer(proposal.review(&object)?))?;
        let mut warnings = Vec::new();
        if self.validation.has(&kind, subresource) {
            let mut validated = self.validation.answer(proposal.review(&object)?);
            while let Some(call) = validated.calls.pop_front() {
                validated = validated.with_result(call().await);
            }
            warnings = allowed(validated)?.warnings.unwrap_or_default();
        }
        let object = if object.is_null() { proposal.old } else { object };
        Ok(Admitted { object, warnings })
    }

    /// What the server answers to a body that is sent to this path: the HTTP status, and the body of the answer. Nothing but
    /// the server itself is missing, so a fuzzer can ask it.
    pub async fn answer(&self, path: &str, body: impl Into<Bytes>) -> (u16, Bytes) {
        let answer = routes::answer(Arc::new(self.clone()), path, body.into()).await;
        answer.unwrap_or_else(|error| (400, error.to_string().into()))
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

fn allowed(Validated { response, .. }: Validated) -> Result<AdmissionResponse, Refused> {
    if response.allowed { Ok(response) } else { Err(Refused(response.result.message)) }
}

fn patched(mut object: Value, patch: &[u8]) -> Result<Value, String> {
    let patch: json_patch::Patch = serde_json::from_slice(patch).map_err(|error| error.to_string())?;
    json_patch::patch(&mut object, &patch).map_err(|error| error.to_string())?;
    Ok(object)
}
