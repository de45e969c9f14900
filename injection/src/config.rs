//! A ConfigMap as a typed value.

mod keys;
#[cfg(test)]
mod tests;

use std::{any::Any, cell::RefCell, collections::BTreeMap, error::Error, fmt, mem, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use reknit_apis::internal::{HashMap, variable};
use tokio::time::{Instant, timeout};

pub use self::keys::warn_of_misspelt_keys;
use crate::{
    context::Context,
    informer::{Change, GaugeShare, Informer, InformerHandle, InformerState, Unwatched, is_synced, select},
    log_limit::{self, LogLimit},
    ordered_watch as watch,
    pass::CurrentPass,
};

/// The key in which Knative's ConfigMaps document their settings. It is not a setting itself.
const EXAMPLE_KEY: &str = "_example";

/// A type that is read from a ConfigMap of the system namespace. `Default` is the value until a valid ConfigMap has
/// been read.
pub trait FromConfigMap: Default + Send + Sync + 'static {
    /// The ConfigMap's name, such as `config-features`. The environment variable `CONFIG_FEATURES_NAME` replaces it, for
    /// a second installation in one cluster.
    const NAME: &'static str;

    /// The keys that [`from_config_map`](Self::from_config_map) reads, and those that it ignores on purpose. A key that ends
    /// in `*` stands for all keys with this prefix. A key of the ConfigMap that resembles one of them, but is none of them, is
    /// probably misspelt: one warning for each version of the ConfigMap names it. Empty by default: no key is checked.
    const KEYS: &'static [&'static str] = &[];

    /// Reads the data of the ConfigMap, without the key `_example`, in which Knative's ConfigMaps document their
    /// settings. The implementation chooses the default of an absent key, and an error names the invalid key.
    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>>;
}

/// The latest valid value of a ConfigMap.
///
/// Within one reconcile every [`get`](Self::get) returns the same value, even if the ConfigMap changes meanwhile. If
/// the ConfigMap becomes invalid, the error is logged and the last valid value stays. The value also stays if the
/// ConfigMap is deleted. If the ConfigMap is invalid when the process starts, the controllers that use it wait until it
/// is valid or deleted. Without a [system namespace](Context::system_namespace) the value is the default.
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
/// fn is_fast(features: &Config<Features>) -> bool {
///     features.get().fast
/// }
/// ```
pub struct Config<T> {
    latest: Arc<Mutex<Latest<T>>>,
    informer: Option<Informer<ConfigMap>>,
}

struct Latest<T> {
    /// The name of the ConfigMap in this installation.
    config_map: String,
    value: Arc<T>,
    /// The data from which `value` was parsed; `None` while `value` is the default.
    data: Option<BTreeMap<String, String>>,
    is_absence_logged: bool,
    /// The resourceVersion whose keys were checked last.
    checked: Option<Option<String>>,
    /// Set if the ConfigMap was invalid when the process started: the time of the first error, and the latest error.
    /// `None` once the ConfigMap is valid or deleted.
    invalid: watch::Sender<Option<(Instant, String)>>,
    log_limit: LogLimit<String>,
    /// The share of `reflector_unsynced`, which is 1 while `invalid` is set.
    unsynced: Option<GaugeShare>,
}

impl<T> Clone for Config<T> {
    fn clone(&self) -> Self {
        Self { latest: self.latest.clone(), informer: self.informer.clone() }
    }
}

impl<T: FromConfigMap> fmt::Debug for Config<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Config").field(&T::NAME).finish()
    }
}

impl<T: FromConfigMap> Config<T> {
    /// Watches the ConfigMap, and calls `on_changed` with each new valid value. A change of `_example` alone is
    /// ignored. Without a system namespace nothing is watched.
    pub fn new(cx: &Context, on_changed: impl Fn(&T) + Send + Sync + 'static) -> Self {
        let config_map = config_map_name(T::NAME);
        let informer = cx.system_namespace().map(|namespace| {
            cx.informer_without_dependency::<ConfigMap>(
                select().namespace(namespace).field("metadata.name", &config_map),
            )
        });
        let initial = Latest {
            config_map,
            value: Arc::default(),
            data: None,
            is_absence_logged: false,
            checked: None,
            invalid: watch::Sender::new(None),
            log_limit: LogLimit::default(),
            unsynced: informer.as_ref().map(|informer| informer.0.cache.metrics.unsynced()),
        };
        let latest = Arc::new(Mutex::new(initial));
        let config = Self { latest, informer };
        config.handle().into_iter().for_each(|handle| cx.add_dependency(handle));
        if let Some(informer) = &config.informer {
            informer.list().for_each(|config_map| {
                let at_startup = true;
                config.latest.lock().update(&config_map, at_startup);
            });
            let (latest, progress) = (config.latest.clone(), informer.0.cache.progress.subscribe());
            informer.on(move |change| {
                let new_value = match change {
                    Change::Added(new) | Change::Updated { new, .. } => {
                        let (mut latest, at_startup) = (latest.lock(), !is_synced(&progress.borrow()));
                        latest.update(new, at_startup).then(|| latest.value.clone())
                    }
                    Change::Deleted { .. } => {
                        latest.lock().keep_after_deletion();
                        None
                    }
                };
                if let Some(value) = new_value {
                    on_changed(&value);
                }
            });
        }
        config
    }

    /// Returns the latest valid value, which is the same within one reconcile.
    pub fn get(&self) -> Arc<T> {
        let latest = || {
            let latest = self.latest.lock();
            if let Some(recording) = CurrentPass::recording() {
                recording.add(|reads| reads.add_config_map(T::NAME, latest.data.clone()));
            }
            latest.value.clone()
        };
        let address = Arc::as_ptr(&self.latest).addr();
        let pin = |pinned: &PinnedValues| {
            pinned.borrow_mut().entry(address).or_insert_with(|| latest()).clone().downcast::<T>().ok()
        };
        PINNED.try_with(pin).ok().flatten().unwrap_or_else(latest)
    }

    /// Returns the informer that a controller waits for before its first reconcile; `None` without a system namespace.
    /// If the ConfigMap is invalid when the process starts, the informer is synced only once the ConfigMap is valid or
    /// deleted.
    pub fn handle(&self) -> Option<Arc<dyn InformerHandle>> {
        let informer = self.informer.as_ref()?.handle();
        let (invalid, config_map) = {
            let latest = self.latest.lock();
            (latest.invalid.subscribe(), latest.config_map.clone())
        };
        let latest = self.latest.clone();
        let report = Arc::new(move || latest.lock().report());
        Some(Arc::new(ValidatedInformer { informer, config_map, invalid, report }))
    }
}

/// Returns the name of a ConfigMap in this installation: the environment variable that is made from the default name, such
/// as `CONFIG_FEATURES_NAME` for `config-features`, or else the default name.
pub fn config_map_name(default: &str) -> String {
    let name = default.to_uppercase().replace(['-', '.'], "_") + "_NAME";
    variable(&name).unwrap_or_else(|| default.to_owned())
}

/// Returns the data of a ConfigMap. Warns of the keys in its `binaryData`, which nothing reads: kubectl and kustomize put
/// files there that are not UTF-8, so a setting would silently have its default.
pub fn text_data(config_map: &ConfigMap) -> BTreeMap<String, String> {
    let binary: Vec<_> = config_map.binary_data.iter().flatten().map(|(key, _)| key.as_str()).collect();
    if !binary.is_empty() {
        tracing::warn!(
            config_map = config_map.metadata.name,
            keys = binary.join(", "),
            "values in binaryData are not read: write them as UTF-8, so that they are in data"
        );
    }
    config_map.data.clone().unwrap_or_default()
}

/// The informer of a ConfigMap, which counts as synced only once the ConfigMap is valid or deleted.
struct ValidatedInformer {
    informer: Arc<dyn InformerHandle>,
    config_map: String,
    invalid: watch::Receiver<Option<(Instant, String)>>,
    /// Logs that the ConfigMap does not exist or is invalid, if that is so. Called once the informer is synced.
    report: Arc<dyn Fn() + Send + Sync>,
}

impl InformerHandle for ValidatedInformer {
    fn name(&self) -> &str {
        self.informer.name()
    }

    fn state_in(&self, namespace: Option<&str>) -> InformerState {
        match (self.informer.state_in(namespace), &*self.invalid.borrow()) {
            (InformerState::Synced { .. }, Some((since, why))) => InformerState::Unavailable {
                since: *since,
                reason: format!("ConfigMap {}: {why}", self.config_map),
                was_synced: false,
            },
            (state, _) => state,
        }
    }

    fn is_synced(&self) -> bool {
        self.informer.is_synced() && self.invalid.borrow().is_none()
    }

    fn synced(&self) -> BoxFuture<'static, ()> {
        let (synced, mut invalid) = (self.informer.synced(), self.invalid.clone());
        let report = self.report.clone();
        Box::pin(async move {
            synced.await;
            report();
            // The wait fails only if the Config is dropped.
            while timeout(log_limit::INTERVAL, invalid.wait_for(Option::is_none)).await.is_err() {
                report();
            }
            report();
        })
    }

    fn unwatched(&self) -> Option<Unwatched> {
        self.informer.unwatched()
    }
}

impl<T: FromConfigMap> Latest<T> {
    /// Logs once that there is no ConfigMap of this name, and once a minute that it is invalid.
    fn report(&mut self) {
        let Self { config_map, data, is_absence_logged, invalid, log_limit, .. } = self;
        if let Some((_, error)) = &*invalid.borrow() {
            if log_limit.allows(error) {
                tracing::error!(
                    config_map,
                    error,
                    "invalid ConfigMap: the controllers that read it do not start until it is valid or deleted; this \
                     error is repeated once a minute"
                );
            }
        } else if data.is_none() && !mem::replace(is_absence_logged, true) {
            tracing::info!(config_map, "the ConfigMap does not exist: the defaults are used");
        }
    }

    fn keep_after_deletion(&mut self) {
        tracing::info!(config_map = self.config_map, "ConfigMap deleted, keeping the last valid value");
        self.set_invalid(None);
    }

    fn set_invalid(&self, invalid: Option<(Instant, String)>) {
        self.unsynced.iter().for_each(|share| share.set(invalid.is_some().into()));
        self.invalid.send_replace(invalid);
    }

    /// Reads a ConfigMap and returns true if its data is new and valid. If it is invalid `at_startup`, the controller
    /// must not start with the default: it waits for a valid value.
    fn update(&mut self, config_map: &ConfigMap, at_startup: bool) -> bool {
        let mut data = text_data(config_map);
        data.remove(EXAMPLE_KEY);
        let version = &config_map.metadata.resource_version;
        if self.checked.as_ref() != Some(version) {
            self.checked = Some(version.clone());
            warn_of_misspelt_keys(config_map, T::KEYS);
        }
        if self.data.as_ref() == Some(&data) {
            return false;
        }
        match T::from_config_map(&data) {
            Ok(value) => {
                tracing::info!(config_map = self.config_map, "configuration read");
                (self.value, self.data) = (Arc::new(value), Some(data));
                self.set_invalid(None);
                true
            }
            Err(error) => {
                let since = self.invalid.borrow().as_ref().map(|(since, _)| *since);
                match since.or_else(|| (at_startup && self.data.is_none()).then(Instant::now)) {
                    Some(since) => {
                        self.set_invalid(Some((since, error.to_string())));
                        self.report();
                    }
                    None => tracing::error!(
                        config_map = self.config_map,
                        %error,
                        "invalid ConfigMap, keeping the last valid value: the controllers of a process that starts \
                         now wait until the ConfigMap is valid"
                    ),
                }
                false
            }
        }
    }
}

/// The value that each [`Config`] returned at its first `get` of the current reconcile, by the address of `latest`.
type PinnedValues = RefCell<HashMap<usize, Arc<dyn Any + Send + Sync>>>;

tokio::task_local! {
    static PINNED: PinnedValues;
}

/// Runs a pass, during which each [`Config`] keeps the value of its first `get`.
pub fn with_pinned_config<F: Future>(pass: F) -> impl Future<Output = F::Output> {
    PINNED.scope(RefCell::default(), pass)
}
