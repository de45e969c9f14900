//! The builder of a webhook.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use kube::CustomResourceExt;
use reknit_apis::{Convertible, Defaultable, Kind, Validatable};
use reknit_injection::{FromConfigMap, config_map_name};

use crate::{
    admission::{
        config_maps::ConfigMapValidation, decoding::Definitions, defaulting::Defaulting,
        deletion_validators::DeletionValidator, mutator::Mutator, request_values::RequestValues,
        validation::Validation, validators::Validator,
    },
    certificates::secret::Lifetime,
    conversion::hub::Conversions,
    health::RunningCode,
    limits::Limits,
    server::clients::ClientAuthority,
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
    definitions: Definitions,
    pub(crate) defaulting: Defaulting,
    pub(crate) validation: Validation,
    pub(crate) config_maps: ConfigMapValidation,
    /// The ConfigMaps whose values requests carry.
    pub(crate) request_values: RequestValues,
    pub(crate) conversions: Conversions,
    /// The mutators by their paths.
    pub(crate) mutators: BTreeMap<&'static str, Arc<dyn Mutator>>,
    pub(crate) excludes_namespaces: bool,
    pub(crate) lifetime: Lifetime,
    /// `None` if every client may read the answers to reviews.
    pub(crate) client_authority: Option<ClientAuthority>,
    pub(crate) limits: Limits,
    /// The time from the signal to stop to the end of the process.
    pub(crate) shutdown_timeout: Duration,
    pub(crate) running: RunningCode,
}

impl Webhook {
    /// Creates a webhook without Kinds. The domain is usually the group of its Kinds. The names of the configurations
    /// end in the domain: `defaulting.webhook.<domain>`, `validation.webhook.<domain>`.
    pub fn new(domain: &str) -> Self {
        Self {
            domain: domain.into(),
            definitions: Definitions::default(),
            defaulting: Defaulting::default(),
            validation: Validation::default(),
            config_maps: ConfigMapValidation::default(),
            request_values: RequestValues::default(),
            conversions: Conversions::default(),
            mutators: BTreeMap::new(),
            excludes_namespaces: true,
            lifetime: Lifetime::default(),
            client_authority: None,
            limits: Limits::default(),
            shutdown_timeout: Duration::MAX,
            running: RunningCode::default(),
        }
    }

    /// Sets the defaults of a Kind when its objects are created or updated. Also adds the annotations that
    /// [`user_annotations`](Self::user_annotations) describes.
    ///
    /// The patch contains only what [`Kind::set_defaults`] changes. A value of `#[serde(default)]` is not a change: the
    /// decoded object has it already. Such a value comes from the schema of the derived CustomResourceDefinition, which
    /// has it as `default`, so the API server fills it in before it calls the webhook. A default of `None`, or one that
    /// `skip_serializing_if` skips, is not in the schema: the field stays absent.
    pub fn defaulting<K: Kind + CustomResourceExt>(mut self) -> Self {
        self.defaulting.add::<K>(self.definitions.decoder(), |_, _, _| {});
        self
    }

    /// Sets the defaults of a Kind as [`defaulting`](Self::defaulting) does, and the defaults that depend on the
    /// request.
    pub fn defaulting_by_request<K: Defaultable + CustomResourceExt>(mut self) -> Self {
        let set_request_defaults = |object: &mut K, old: Option<&K>, request: &_| {
            object.set_request_defaults(old, request);
        };
        self.defaulting.add(self.definitions.decoder(), set_request_defaults);
        self
    }

    /// Sets whether defaulting adds the annotations `<group>/creator` and `<group>/lastModifier` with the name of the
    /// user, as Knative does. The default is true. If it is false, annotations that an object already has stay. They are
    /// hints: everybody who may update an object can change them.
    ///
    /// ```
    /// use reknit_webhook::Webhook;
    ///
    /// let webhook = Webhook::new("demo.reknit.dev").user_annotations(false);
    /// # let _ = webhook;
    /// ```
    pub fn user_annotations(mut self, enabled: bool) -> Self {
        self.defaulting.user_annotations = enabled;
        self
    }

    /// Validates the objects of a Kind when they are created or updated, and when they are deleted if the Kind has a
    /// [`DELETION_RULE`](Validatable::DELETION_RULE).
    pub fn validation<K: Validatable + CustomResourceExt>(mut self) -> Self {
        self.validation.add::<K>(self.definitions.decoder());
        self
    }

    /// Validates the objects of a Kind by rules that read other objects. See [`Validator`].
    ///
    /// Several validators of one Kind are asked one after another, in this order, until one refuses the request.
    pub fn validator(mut self, validator: impl Validator) -> Self {
        self.validation.add_validator(validator);
        self
    }

    /// Validates the deletions of a Kind by rules that read other objects. See [`DeletionValidator`].
    pub fn deletion_validator(mut self, validator: impl DeletionValidator) -> Self {
        self.validation.add_deletion_validator(validator);
        self
    }

    /// Adds a mutating step with a path of its own. A later one of the same path replaces it. The API server calls the
    /// steps of a webhook independently of each other; in a test, [`admit`](Self::admit) calls them after defaulting.
    pub fn mutator(mut self, mutator: impl Mutator) -> Self {
        self.mutators.insert(mutator.path(), Arc::new(mutator));
        self
    }

    /// Declares configuration that defaults and rules read by [`Request::config`](reknit_apis::Request::config): the
    /// webhook watches the ConfigMap, and each request carries its latest valid value, as
    /// [`Config`](reknit_injection::Config) returns it. One request reads one value of each type, even if the ConfigMap
    /// changes meanwhile. In Knative's Go library, the context of `SetDefaults` and `Validate` carries such values.
    ///
    /// A webhook that has just started denies requests with 503 until it has read a valid ConfigMap, or found that
    /// there is none. [`config_validation`](Self::config_validation) refuses invalid changes of the ConfigMap, and
    /// works even before that. The service account of the webhook needs permission to list and watch ConfigMaps in the
    /// system namespace.
    ///
    /// A test without a server sets the value with [`TestRequest::with`](crate::TestRequest::with).
    ///
    /// ```
    /// use std::{collections::BTreeMap, error::Error};
    ///
    /// use reknit_apis::{FieldError, Request, Validatable, kind};
    /// use reknit_injection::FromConfigMap;
    /// use reknit_webhook::{TestRequest, Webhook};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Default)]
    /// struct Limits {
    ///     watts: u32,
    /// }
    ///
    /// impl FromConfigMap for Limits {
    ///     const NAME: &'static str = "config-limits";
    ///
    ///     fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
    ///         Ok(Self { watts: data.get("watts").map_or(Ok(40), |text| text.parse())? })
    ///     }
    /// }
    ///
    /// #[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
    /// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
    /// struct LampSpec {
    ///     watts: u32,
    /// }
    ///
    /// kind!(Lamp {});
    ///
    /// impl Validatable for Lamp {
    ///     fn validate(&self, request: &Request) -> FieldError {
    ///         let limits = request.config::<Limits>();
    ///         match self.spec.watts {
    ///             watts if watts > limits.watts => FieldError::out_of_bounds(watts, 1, limits.watts, "spec.watts"),
    ///             _ => FieldError::none(),
    ///         }
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let webhook = Webhook::new("demo.reknit.dev").validation::<Lamp>().config::<Limits>();
    /// let bright = TestRequest::create(Lamp::new("hall", LampSpec { watts: 100 }));
    /// assert!(webhook.admit(bright.clone().with(Limits { watts: 60 })).await.is_err());
    /// assert!(webhook.admit(bright.with(Limits { watts: 200 })).await.is_ok());
    /// # }
    /// ```
    pub fn config<T: FromConfigMap>(mut self) -> Self {
        self.request_values.declare::<T>();
        self
    }

    /// Refuses changes of a ConfigMap in the system namespace if the type cannot parse the new data, or if the
    /// `_example`, in which Knative's ConfigMaps document their settings, does not match its checksum. If several types
    /// are declared for one ConfigMap, each has to parse it. The finalizers of a terminating ConfigMap can always be
    /// removed.
    ///
    /// ```
    /// use std::{collections::BTreeMap, error::Error};
    ///
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use reknit_injection::FromConfigMap;
    /// use reknit_webhook::{TestRequest, Webhook};
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
    /// let refused = webhook.admit(TestRequest::create(map)).await.unwrap_err();
    /// assert!(refused.to_string().starts_with("validation failed: fast: "));
    /// # }
    /// ```
    pub fn config_validation<T: FromConfigMap>(mut self) -> Self {
        self.config_maps.add(&config_map_name(T::NAME), |data| {
            T::from_config_map(data).map(drop).map_err(|error| error.to_string())
        });
        self
    }

    /// Converts objects between this version and the other versions of the Kind by way of the hub. A converted object
    /// gets the defaults of its new version. Must be called for every version except the hub.
    ///
    /// An object may lack required fields: for server-side apply, the API server converts what is left of an object
    /// after it has removed the fields of a manager. The conversion then gets values in their place, and the fields
    /// that depend on these values are left out of the converted object.
    pub fn conversion<K>(mut self) -> Self
    where
        K: Convertible<Hub: CustomResourceExt> + CustomResourceExt,
    {
        self.conversions.add::<K>(&mut self.definitions);
        self
    }

    /// Sets whether the label `webhooks.knative.dev/exclude` of a namespace, with any value, keeps the API server from
    /// calling this webhook for the objects in it. It does by default, as in Knative: the expression is added to the
    /// namespace selector of each configuration, and added again when it is removed. Then whoever may label a namespace
    /// turns defaults and rules off there. Pass `false` if the rules protect something, and remove the expression from
    /// the manifests too.
    ///
    /// ```
    /// use reknit_webhook::Webhook;
    ///
    /// let webhook = Webhook::new("demo.reknit.dev").namespace_exclusion(false);
    /// # let _ = webhook;
    /// ```
    pub fn namespace_exclusion(mut self, enabled: bool) -> Self {
        self.excludes_namespaces = enabled;
        self
    }

    /// Sets the validity of certificates, and how long before their end they are renewed. The defaults are seven days
    /// and one day. The process fails to start if `validity` exceeds ten years, or if `renew_before` is zero or
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
