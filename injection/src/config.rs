//! A ConfigMap as a typed value that follows it.

use std::{
    any::Any,
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    error::Error,
    fmt,
    sync::Arc,
};

use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;

use crate::{change::Change, context::Context, feed::Feed, informer::Informer, selection::select};

/// Knative's documentation block within a ConfigMap; no setting.
const EXAMPLE: &str = "_example";

/// A type whose values come from a ConfigMap of the system namespace. `Default` is what holds while there is none.
pub trait FromConfigMap: Default + Send + Sync + 'static {
    /// The ConfigMap's name, such as `config-features`.
    const NAME: &'static str;

    /// Reads its data, in which Knative's `_example` block is left out. A key that is absent means its default; the
    /// error names the key that is wrong.
    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>>;
}

/// The latest good value of a ConfigMap, as a controller reads it.
///
/// Within one pass every [`get`](Self::get) answers the same, whatever happens to the ConfigMap meanwhile. A ConfigMap
/// that cannot be read is logged, and the value before it stays, as it does when the ConfigMap is deleted. Without a
/// system namespace the default holds.
///
/// ```
/// use std::{collections::BTreeMap, error::Error};
/// use reknit_injection::{Config, FromConfigMap};
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
/// fn hurry(features: &Config<Features>) -> bool {
///     features.get().fast
/// }
/// ```
pub struct Config<T> {
    latest: Arc<Mutex<Latest<T>>>,
    map: Option<Informer<ConfigMap>>,
}

struct Latest<T> {
    value: Arc<T>,
    /// What the value was read from.
    data: BTreeMap<String, String>,
}

impl<T> Clone for Config<T> {
    fn clone(&self) -> Self {
        Self { latest: self.latest.clone(), map: self.map.clone() }
    }
}

impl<T: FromConfigMap> fmt::Debug for Config<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Config").field(&T::NAME).finish()
    }
}

impl<T: FromConfigMap> Config<T> {
    /// Follows the ConfigMap, and calls `on_changed` when its data has become another good value. Data that is equal
    /// to what was read last, `_example` aside, is no change.
    pub fn new(cx: &Context, on_changed: impl Fn() + Send + Sync + 'static) -> Self {
        let start = Latest { value: Arc::default(), data: BTreeMap::new() };
        let latest = Arc::new(Mutex::new(start));
        let map = cx.system_namespace().map(|namespace| {
            cx.informer::<ConfigMap>(select().namespace(namespace).field("metadata.name", T::NAME))
        });
        let config = Self { latest, map };
        if let Some(map) = &config.map {
            map.list().for_each(|held| {
                config.latest.lock().follow(&held);
            });
            let latest = config.latest.clone();
            map.on(move |change| {
                if let Change::Added(new) | Change::Updated { new, .. } = change
                    && latest.lock().follow(new)
                {
                    on_changed();
                }
            });
        }
        config
    }

    /// The latest good value; within one pass always the same.
    pub fn get(&self) -> Arc<T> {
        let latest = || self.latest.lock().value.clone();
        let slot = Arc::as_ptr(&self.latest).addr();
        let pin = |pins: &Pins| {
            pins.borrow_mut().entry(slot).or_insert_with(|| latest()).clone().downcast::<T>().ok()
        };
        PINNED.try_with(pin).ok().flatten().unwrap_or_else(latest)
    }

    /// What a controller waits for before its first pass; none without a system namespace.
    pub fn feed(&self) -> Option<Arc<dyn Feed>> {
        self.map.as_ref().map(Informer::feed)
    }
}

impl<T: FromConfigMap> Latest<T> {
    /// Whether this was news.
    fn follow(&mut self, map: &ConfigMap) -> bool {
        let mut data = map.data.clone().unwrap_or_default();
        data.remove(EXAMPLE);
        if data == self.data {
            return false;
        }
        match T::from_config_map(&data) {
            Ok(value) => {
                tracing::info!(config_map = T::NAME, "configuration read");
                *self = Self { value: Arc::new(value), data };
                true
            }
            Err(error) => {
                tracing::error!(config_map = T::NAME, %error, "cannot read the configuration, keeping the one before");
                false
            }
        }
    }
}

type Pins = RefCell<HashMap<usize, Arc<dyn Any + Send + Sync>>>;

tokio::task_local! {
    static PINNED: Pins;
}

/// Within this future, each [`Config`] answers what it answered first.
pub fn pinned<F: Future>(pass: F) -> impl Future<Output = F::Output> {
    PINNED.scope(RefCell::default(), pass)
}
