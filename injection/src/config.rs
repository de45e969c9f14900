//! A ConfigMap as a typed value.

use std::{
    any::Any,
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    error::Error,
    fmt,
    sync::Arc,
    time::Instant,
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    context::Context,
    informer::{Change, Informer, InformerHandle, InformerState, select},
};

/// The key of Knative's documentation block, which is not a setting.
const EXAMPLE: &str = "_example";

/// A type that is read from a ConfigMap of the system namespace. `Default` is its value while there is no ConfigMap.
pub trait FromConfigMap: Default + Send + Sync + 'static {
    /// The ConfigMap's name, such as `config-features`.
    const NAME: &'static str;

    /// Reads the data, without Knative's `_example` block. An absent key means its default. The error names the key that
    /// is wrong.
    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>>;
}

/// The latest valid value of a ConfigMap.
///
/// Within one reconcile every [`get`](Self::get) returns the same value, even if the ConfigMap changes meanwhile. An invalid
/// ConfigMap is logged, and the last valid value stays, as it does when the ConfigMap is deleted. If the ConfigMap is
/// invalid when the process starts, there is no last value: the controller waits until it is valid or deleted. Without a
/// system namespace the value is the default.
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
    /// The data of the value; `None` while it is the default.
    data: Option<BTreeMap<String, String>>,
    /// The time since which the ConfigMap is invalid without a last value, and the reason.
    unread: watch::Sender<Option<(Instant, String)>>,
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
    /// Watches the ConfigMap, and calls `on_changed` when its data becomes another valid value. Data that equals the last,
    /// apart from `_example`, is not a change.
    pub fn new(cx: &Context, on_changed: impl Fn() + Send + Sync + 'static) -> Self {
        let start = Latest { value: Arc::default(), data: None, unread: watch::Sender::new(None) };
        let latest = Arc::new(Mutex::new(start));
        let map = cx.system_namespace().map(|namespace| {
            cx.informer_without_dependency::<ConfigMap>(
                select().namespace(namespace).field("metadata.name", T::NAME),
            )
        });
        let config = Self { latest, map };
        config.handle().into_iter().for_each(|informer| cx.add_dependency(informer));
        if let Some(map) = &config.map {
            map.list().for_each(|held| {
                config.latest.lock().follow(&held, true);
            });
            let (latest, listed) = (config.latest.clone(), map.0.cache.progress.synced());
            map.on(move |change| {
                let changed = match change {
                    Change::Added(new) | Change::Updated { new, .. } => {
                        latest.lock().follow(new, !*listed.borrow())
                    }
                    Change::Deleted { .. } => {
                        latest.lock().unread.send_replace(None);
                        false
                    }
                };
                if changed {
                    on_changed();
                }
            });
        }
        config
    }

    /// Returns the latest valid value, which is the same within one reconcile.
    pub fn get(&self) -> Arc<T> {
        let latest = || self.latest.lock().value.clone();
        let slot = Arc::as_ptr(&self.latest).addr();
        let pin = |pins: &Pins| {
            pins.borrow_mut().entry(slot).or_insert_with(|| latest()).clone().downcast::<T>().ok()
        };
        PINNED.try_with(pin).ok().flatten().unwrap_or_else(latest)
    }

    /// Returns the informer that a controller waits for before its first reconcile; `None` without a system namespace. It
    /// is not synced while the ConfigMap is invalid from the start.
    pub fn handle(&self) -> Option<Arc<dyn InformerHandle>> {
        let map = self.map.as_ref()?.handle();
        let unread = self.latest.lock().unread.subscribe();
        Some(Arc::new(Readable { map, name: T::NAME, unread }))
    }
}

/// The informer of a ConfigMap, which is synced once the ConfigMap is valid.
struct Readable {
    map: Arc<dyn InformerHandle>,
    name: &'static str,
    unread: watch::Receiver<Option<(Instant, String)>>,
}

impl InformerHandle for Readable {
    fn name(&self) -> &str {
        self.map.name()
    }

    fn state(&self) -> InformerState {
        match (self.map.state(), &*self.unread.borrow()) {
            (InformerState::Synced { .. }, Some((since, why))) => {
                InformerState::Waiting { since: *since, why: format!("ConfigMap {}: {why}", self.name) }
            }
            (state, _) => state,
        }
    }

    fn synced(&self) -> BoxFuture<'static, ()> {
        let (map, mut unread) = (self.map.synced(), self.unread.clone());
        Box::pin(async move {
            map.await;
            // This fails only if the Config is dropped.
            let _ = unread.wait_for(Option::is_none).await;
        })
    }
}

impl<T: FromConfigMap> Latest<T> {
    /// Reads a ConfigMap and returns whether the value changed. A ConfigMap that exists `from_the_start` leaves no time in
    /// which the default was the value.
    fn follow(&mut self, map: &ConfigMap, from_the_start: bool) -> bool {
        let mut data = map.data.clone().unwrap_or_default();
        data.remove(EXAMPLE);
        if self.data.as_ref() == Some(&data) {
            return false;
        }
        match T::from_config_map(&data) {
            Ok(value) => {
                tracing::info!(config_map = T::NAME, "configuration read");
                (self.value, self.data) = (Arc::new(value), Some(data));
                self.unread.send_replace(None);
                true
            }
            Err(error) => {
                tracing::error!(config_map = T::NAME, %error, "invalid ConfigMap, keeping the last valid value");
                let since = self.unread.borrow().as_ref().map(|(since, _)| *since);
                if let Some(since) =
                    since.or_else(|| (from_the_start && self.data.is_none()).then(Instant::now))
                {
                    self.unread.send_replace(Some((since, error.to_string())));
                }
                false
            }
        }
    }
}

type Pins = RefCell<HashMap<usize, Arc<dyn Any + Send + Sync>>>;

tokio::task_local! {
    static PINNED: Pins;
}

/// Runs a reconcile in which each [`Config`] returns the value that it returned first.
pub fn with_pinned_config<F: Future>(pass: F) -> impl Future<Output = F::Output> {
    PINNED.scope(RefCell::default(), pass)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;

    use super::*;
    use crate::testing::server;

    #[derive(Debug, Default, PartialEq)]
    struct Limit(u32);

    impl FromConfigMap for Limit {
        const NAME: &'static str = "config-limit";

        fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
            assert!(!data.contains_key("_example"));
            Ok(Self(data.get("limit").map_or(Ok(10), |text| text.parse())?))
        }
    }

    fn map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some("system".into());
        map.metadata.name = Some(name.into());
        map.data = Some(data.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
        map
    }

    struct Given {
        maps: Informer<ConfigMap>,
        limit: Config<Limit>,
        changes: Arc<AtomicUsize>,
    }

    fn given() -> Given {
        let cx = Context::builder("test", server().0).system_namespace(Some("system".into())).build();
        let maps = cx.informer(select().namespace("system").field("metadata.name", Limit::NAME));
        let changes = Arc::new(AtomicUsize::new(0));
        let count = changes.clone();
        let limit = Config::new(&cx, move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        Given { maps, limit, changes }
    }

    #[tokio::test]
    async fn a_config_follows_its_config_map_and_no_other() {
        let Given { maps, limit, changes } = given();
        assert_eq!(*limit.get(), Limit(0), "the default of the type, while there is none");
        maps.insert(&map("config-limit", &[("_example", "limit: 7")])).unwrap();
        assert_eq!(*limit.get(), Limit(10), "that of an empty one");
        maps.insert(&map("config-limit", &[("limit", "5"), ("_example", "limit: 7")])).unwrap();
        maps.insert(&map("config-other", &[("limit", "6")])).unwrap();
        assert_eq!((&*limit.get(), changes.load(Ordering::Relaxed)), (&Limit(5), 2));
    }

    #[tokio::test]
    async fn equal_data_is_no_change_and_invalid_data_keeps_the_value() {
        let Given { maps, limit, changes } = given();
        maps.insert(&map("config-limit", &[("limit", "5")])).unwrap();
        maps.insert(&map("config-limit", &[("limit", "5"), ("_example", "new")])).unwrap();
        maps.insert(&map("config-limit", &[("limit", "many")])).unwrap();
        maps.remove(&reknit_apis::Key::new("system", "config-limit"));
        assert_eq!((&*limit.get(), changes.load(Ordering::Relaxed)), (&Limit(5), 1));
        maps.insert(&map("config-limit", &[("limit", "8")])).unwrap();
        assert_eq!((&*limit.get(), changes.load(Ordering::Relaxed)), (&Limit(8), 2));
    }

    #[tokio::test]
    async fn a_config_map_that_is_invalid_at_the_start_is_waited_for() {
        let (limit, maps) = preloaded(&[("limit", "many")]);
        let informer = limit.handle().unwrap();
        let InformerState::Waiting { why, .. } = informer.state() else { panic!("{:?}", informer.state()) };
        assert!(why.starts_with("ConfigMap config-limit: invalid digit"), "{why}");
        assert!(informer.synced().now_or_never().is_none());
        maps.insert(&map("config-limit", &[("limit", "5")])).unwrap();
        assert!(
            matches!(informer.state(), InformerState::Synced { .. })
                && informer.synced().now_or_never().is_some()
        );
        maps.insert(&map("config-limit", &[("limit", "many")])).unwrap();
        assert!(matches!(informer.state(), InformerState::Synced { .. }), "the value before it holds");

        let (limit, maps) = preloaded(&[("limit", "many")]);
        maps.remove(&reknit_apis::Key::new("system", "config-limit"));
        assert!(
            matches!(limit.handle().unwrap().state(), InformerState::Synced { .. }),
            "so the default holds"
        );
    }

    #[tokio::test]
    async fn an_invalid_config_map_created_later_leaves_the_default() {
        let (limit, maps) = holding(vec![]);
        maps.insert(&map("config-limit", &[("limit", "many")])).unwrap();
        assert!(matches!(limit.handle().unwrap().state(), InformerState::Synced { .. }));
        assert_eq!(*limit.get(), Limit(0));
    }

    fn preloaded(data: &[(&str, &str)]) -> (Config<Limit>, Informer<ConfigMap>) {
        let mut object = serde_json::to_value(map("config-limit", data)).unwrap();
        object["apiVersion"] = "v1".into();
        object["kind"] = "ConfigMap".into();
        holding(vec![object])
    }

    fn holding(objects: Vec<serde_json::Value>) -> (Config<Limit>, Informer<ConfigMap>) {
        let builder = Context::builder("test", server().0).system_namespace(Some("system".into()));
        let cx = builder.preloaded(objects).build();
        let maps = cx.informer(select().namespace("system").field("metadata.name", Limit::NAME));
        (Config::new(&cx, || {}), maps)
    }

    #[tokio::test]
    async fn one_reconcile_reads_one_value() {
        let Given { maps, limit, .. } = given();
        maps.insert(&map("config-limit", &[("limit", "5")])).unwrap();
        let before = limit.clone();
        with_pinned_config(async move {
            assert_eq!(*before.get(), Limit(5));
            maps.insert(&map("config-limit", &[("limit", "8")])).unwrap();
            assert_eq!(*before.get(), Limit(5), "the same throughout");
        })
        .await;
        assert_eq!(*limit.get(), Limit(8));
    }

    #[tokio::test]
    async fn without_a_system_namespace_the_default_holds() {
        let cx = Context::new("test", server().0);
        let limit = Config::<Limit>::new(&cx, || {});
        assert_eq!(*limit.get(), Limit(0));
        assert!(limit.handle().is_none());
    }
}
