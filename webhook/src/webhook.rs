//! The builder of a webhook.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use crate::{
    admission::{
        config_maps::ParseConfigMap, config_values::ConfigValues, decoding::Definition,
        defaulting::DefaultedKind, mutator::Mutator, review::GroupVersionKind, validation::ValidatedKind,
    },
    certificates::secret::Lifetime,
    conversion::hub::VersionConversion,
    server::{health::RunningCode, limits::Limits},
};

/// A webhook that sets defaults, validates and converts objects for the API server.
///
/// ```
/// use reknit_apis::{FieldError, Request, Validatable, kind};
/// use reknit_webhook::{TestRequest, Webhook};
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
/// // A test needs no server:
/// let hall = Lamp::new("hall", LampSpec { room: "hall".into(), watts: None });
/// let admitted = webhook.admit(TestRequest::create(&hall)).await.unwrap();
/// assert_eq!(admitted.object["spec"]["watts"], 40);
///
/// let mut misspelt = json!(hall);
/// misspelt["spec"]["wats"] = json!(100);
/// let refused = webhook.admit(TestRequest::create(misspelt)).await.unwrap_err();
/// assert_eq!(refused.to_string(), r#"mutation failed: cannot decode incoming new object: unknown field "spec.wats""#);
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a webhook answers no requests until it is served"]
pub struct Webhook {
    pub(crate) domain: String,
    /// The definitions of the Kinds whose objects are decoded.
    pub(crate) definitions: BTreeMap<GroupVersionKind, Arc<Definition>>,
    pub(crate) defaulting: BTreeMap<GroupVersionKind, DefaultedKind>,
    pub(crate) validation: BTreeMap<GroupVersionKind, ValidatedKind>,
    /// The parsers of each ConfigMap, by its name.
    pub(crate) config_maps: BTreeMap<String, Vec<ParseConfigMap>>,
    /// True if defaulting sets the annotations for the creator and the last modifier.
    pub(crate) user_annotations: bool,
    /// The ConfigMaps whose values requests carry.
    pub(crate) config_values: ConfigValues,
    /// The namespace of the ConfigMaps. If it is not known, ConfigMaps of all namespaces are checked.
    pub(crate) system_namespace: Option<String>,
    pub(crate) conversion: BTreeMap<GroupVersionKind, VersionConversion>,
    /// The mutators by their paths.
    pub(crate) mutators: BTreeMap<&'static str, Arc<dyn Mutator>>,
    pub(crate) lifetime: Lifetime,
    pub(crate) limits: Limits,
    pub(crate) running: RunningCode,
}

impl Webhook {
    /// The name of the controller that keeps the certificate and the configurations up to date.
    pub const CONTROLLER: &'static str = "webhook";

    /// Creates a webhook without Kinds. The domain is usually the group of its Kinds. The names of the configurations
    /// end in the domain: `defaulting.webhook.<domain>`, `validation.webhook.<domain>`.
    pub fn new(domain: &str) -> Self {
        Self {
            domain: domain.into(),
            definitions: BTreeMap::new(),
            defaulting: BTreeMap::new(),
            validation: BTreeMap::new(),
            config_maps: BTreeMap::new(),
            user_annotations: true,
            config_values: ConfigValues::default(),
            system_namespace: None,
            conversion: BTreeMap::new(),
            mutators: BTreeMap::new(),
            lifetime: Lifetime::default(),
            limits: Limits::default(),
            running: RunningCode::default(),
        }
    }

    /// Sets the validity of certificates, and how long before their end they are renewed. The defaults are seven days
    /// and one day. [`assemble`](Self::assemble) fails if `validity` exceeds ten years, or if `renew_before` is zero or
    /// not shorter than `validity`.
    pub fn certificates(mut self, validity: Duration, renew_before: Duration) -> Self {
        self.lifetime = Lifetime { validity, renew_before };
        self
    }

    /// Sets the limits on requests.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
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
