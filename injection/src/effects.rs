//! Effects outside the API server, which a plan only lists.

use std::sync::Arc;

use kube::Resource;
use reknit_apis::Key;

use crate::{Context, Inject};

/// Receives the object and the description of a planned effect.
type Record = Arc<dyn Fn(String, String) + Send + Sync>;

/// Tells code whether it may change something outside the API server, such as a bucket or a DNS record.
///
/// It is allowed unless the process only [plans](https://github.com/reknit/reknit/blob/main/docs/how-to/upgrades.md)
/// (`--plan`). Comes from `cx.get::<Effects>()`.
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use reknit_injection::Effects;
///
/// fn create_bucket(effects: &Effects, settings: &ConfigMap) {
///     if effects.allowed(settings, || "create bucket photos") {
///         // send the request
///     }
/// }
///
/// create_bucket(&Effects::default(), &ConfigMap::default());
/// ```
#[derive(Clone, Default, derive_more::Debug)]
#[debug("Effects {{ allowed: {} }}", self.plan.is_none())]
pub struct Effects {
    plan: Option<Record>,
}

impl Effects {
    /// Returns true if the effect is allowed. In a plan it returns false, and the plan lists the described effect as one
    /// of this object.
    #[must_use = "an effect that is not allowed must not happen"]
    pub fn allowed<K, D>(&self, object: &K, describe: impl FnOnce() -> D) -> bool
    where
        K: Resource<DynamicType: Default>,
        D: Into<String>,
    {
        let Some(record) = &self.plan else { return true };
        let key =
            Key::new(object.meta().namespace.as_deref(), object.meta().name.as_deref().unwrap_or_default());
        record(format!("{} {key}", K::kind(&K::DynamicType::default())), describe().into());
        false
    }

    /// Allows nothing, and calls the function with the object and the description of each effect.
    #[doc(hidden)]
    pub fn planned(record: impl Fn(String, String) + Send + Sync + 'static) -> Self {
        Self { plan: Some(Arc::new(record)) }
    }
}

impl Inject for Effects {
    fn inject(_: &Context) -> Self {
        Self::default()
    }
}
