use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::FutureExt;
use k8s_openapi::ByteString;
use prometheus::Registry;

use super::*;
use crate::testing::{Log, server};

#[derive(Debug, Default, PartialEq)]
struct Limit(u32);

impl FromConfigMap for Limit {
    const NAME: &'static str = "config-limit";
    const KEYS: &'static [&'static str] = &["limit"];

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        assert!(!data.contains_key("_example"));
        Ok(Self(data.get("limit").map_or(Ok(10), |text| text.parse())?))
    }
}

fn config_map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let mut config_map = ConfigMap::default();
    config_map.metadata.namespace = Some("system".into());
    config_map.metadata.name = Some(name.into());
    config_map.data = Some(data.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
    config_map
}

/// A Config of `config-limit`, and the informer through which a test changes that ConfigMap.
struct Fixture {
    maps: Informer<ConfigMap>,
    limit: Config<Limit>,
    /// The number of calls of `on_changed`.
    changes: Arc<AtomicUsize>,
}

fn fixture() -> Fixture {
    let cx = Context::builder("test", server().0).system_namespace(Some("system".into())).build();
    let maps = cx.informer(select().namespace("system").field("metadata.name", Limit::NAME));
    let changes = Arc::new(AtomicUsize::new(0));
    let count = changes.clone();
    let limit = Config::new(&cx, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    Fixture { maps, limit, changes }
}

#[tokio::test]
async fn a_config_follows_only_the_config_map_of_its_name() {
    let Fixture { maps, limit, changes } = fixture();
    assert_eq!(*limit.get(), Limit(0), "without a ConfigMap: Limit::default()");
    maps.insert(&config_map("config-limit", &[("_example", "limit: 7")])).unwrap();
    assert_eq!(*limit.get(), Limit(10), "empty data: the default in from_config_map");
    maps.insert(&config_map("config-limit", &[("limit", "5"), ("_example", "limit: 7")])).unwrap();
    maps.insert(&config_map("config-other", &[("limit", "6")])).unwrap();
    assert_eq!((&*limit.get(), changes.load(Ordering::Relaxed)), (&Limit(5), 2));
}

#[tokio::test]
async fn equal_data_is_no_change_and_invalid_data_keeps_the_value() {
    let (log, Fixture { maps, limit, changes }) = (Log::start(), fixture());
    maps.insert(&config_map("config-limit", &[("limit", "5")])).unwrap();
    maps.insert(&config_map("config-limit", &[("limit", "5"), ("_example", "new")])).unwrap();
    maps.insert(&config_map("config-limit", &[("limit", "many")])).unwrap();
    let invalid = log.lines("invalid ConfigMap, keeping the last valid value");
    assert!(invalid.len() == 1 && invalid[0].contains("a process that starts now wait"), "{invalid:?}");
    maps.remove(&reknit_apis::Key::new("system", "config-limit"));
    assert_eq!((&*limit.get(), changes.load(Ordering::Relaxed)), (&Limit(5), 1));
    maps.insert(&config_map("config-limit", &[("limit", "8")])).unwrap();
    assert_eq!((&*limit.get(), changes.load(Ordering::Relaxed)), (&Limit(8), 2));
}

#[tokio::test]
async fn a_config_is_not_synced_while_its_config_map_is_invalid_at_startup() {
    let (limit, maps) = preloaded_with_data(&[("limit", "many")]);
    let informer = limit.handle().unwrap();
    let InformerState::Unavailable { reason: why, .. } = informer.state() else {
        panic!("{:?}", informer.state())
    };
    assert!(why.starts_with("ConfigMap config-limit: invalid digit"), "{why}");
    assert!(informer.synced().now_or_never().is_none());
    maps.insert(&config_map("config-limit", &[("limit", "5")])).unwrap();
    assert!(
        matches!(informer.state(), InformerState::Synced { .. })
            && informer.synced().now_or_never().is_some()
    );
    maps.insert(&config_map("config-limit", &[("limit", "many")])).unwrap();
    assert!(matches!(informer.state(), InformerState::Synced { .. }), "the last valid value stays");

    let (limit, maps) = preloaded_with_data(&[("limit", "many")]);
    maps.remove(&reknit_apis::Key::new("system", "config-limit"));
    assert!(
        matches!(limit.handle().unwrap().state(), InformerState::Synced { .. }),
        "a deleted ConfigMap leaves the default"
    );
}

#[tokio::test(start_paused = true)]
async fn a_config_map_that_is_invalid_at_startup_is_unsynced_in_the_metrics_and_logged_once_a_minute() {
    let (log, registry) = (Log::start(), Registry::new());
    let builder = Context::builder("test", server().0).system_namespace(Some("system".into()));
    let cx = builder.metrics(registry.clone()).preloaded(vec![object(&[("limit", "many")])]).build();
    let maps = cx.informer(select().namespace("system").field("metadata.name", Limit::NAME));
    let limit = Config::<Limit>::new(&cx, |_| {});
    let unsynced = || {
        let families = registry.gather();
        let family = families.iter().find(|family| family.name() == "reflector_unsynced").unwrap();
        family.get_metric()[0].get_gauge().get_value()
    };
    let lines = || log.lines("the controllers that read it do not start").len();
    assert_eq!((unsynced(), lines()), (1.0, 1));
    let synced = tokio::spawn(limit.handle().unwrap().synced());
    tokio::time::sleep(Duration::from_secs(125)).await;
    assert_eq!((unsynced(), lines()), (1.0, 3));
    maps.insert(&config_map("config-limit", &[("limit", "5")])).unwrap();
    synced.await.unwrap();
    assert_eq!((unsynced(), lines()), (0.0, 3));
    assert!(log.lines("keeping the last valid value").is_empty());
}

#[tokio::test]
async fn an_absent_config_map_is_logged_once_and_one_that_exists_is_not() {
    let log = Log::start();
    let absent = || log.lines("the ConfigMap does not exist: the defaults are used").len();
    preloaded_with_data(&[("limit", "5")]).0.handle().unwrap().synced().await;
    assert_eq!(absent(), 0);
    let (limit, _maps) = preloaded(vec![]);
    limit.handle().unwrap().synced().await;
    limit.handle().unwrap().synced().await;
    assert_eq!(absent(), 1);
}

#[tokio::test]
async fn values_that_are_not_text_are_named_in_the_log() {
    let (log, mut binary) = (Log::start(), config_map("config-limit", &[("other", "1")]));
    binary.binary_data = Some([("limit".into(), ByteString(b"\xff5".to_vec()))].into());
    let (limit, maps) = preloaded(vec![]);
    maps.insert(&binary).unwrap();
    assert_eq!(*limit.get(), Limit(10));
    let lines = log.lines("values in binaryData are not read");
    assert!(lines.len() == 1 && lines[0].contains("limit"), "{lines:?}");
}

#[tokio::test]
async fn each_version_of_a_config_map_is_checked_once_for_misspelt_keys() {
    let (log, mut misspelt) = (Log::start(), config_map("config-limit", &[("limits", "5")]));
    let (limit, maps) = preloaded_with_data(&[("limits", "5")]);
    assert_eq!(*limit.get(), Limit(10));
    let lines = || log.lines("limits (is limit meant?)").len();
    assert_eq!(lines(), 1);
    for (version, warnings) in [("11", 2), ("11", 2), ("12", 3)] {
        misspelt.metadata.resource_version = Some(version.into());
        maps.insert(&misspelt).unwrap();
        assert_eq!(lines(), warnings, "{version}");
    }
}

#[tokio::test]
async fn an_invalid_config_map_created_later_leaves_the_default() {
    let (limit, maps) = preloaded(vec![]);
    maps.insert(&config_map("config-limit", &[("limit", "many")])).unwrap();
    assert!(matches!(limit.handle().unwrap().state(), InformerState::Synced { .. }));
    assert_eq!(*limit.get(), Limit(0));
}

fn preloaded_with_data(data: &[(&str, &str)]) -> (Config<Limit>, Informer<ConfigMap>) {
    preloaded(vec![object(data)])
}

fn object(data: &[(&str, &str)]) -> serde_json::Value {
    let mut object = serde_json::to_value(config_map("config-limit", data)).unwrap();
    object["apiVersion"] = "v1".into();
    object["kind"] = "ConfigMap".into();
    object
}

fn preloaded(objects: Vec<serde_json::Value>) -> (Config<Limit>, Informer<ConfigMap>) {
    let builder = Context::builder("test", server().0).system_namespace(Some("system".into()));
    let cx = builder.preloaded(objects).build();
    let maps = cx.informer(select().namespace("system").field("metadata.name", Limit::NAME));
    (Config::new(&cx, |_| {}), maps)
}

#[tokio::test]
async fn one_reconcile_reads_one_value() {
    let Fixture { maps, limit, .. } = fixture();
    maps.insert(&config_map("config-limit", &[("limit", "5")])).unwrap();
    let in_reconcile = limit.clone();
    with_pinned_config(async move {
        assert_eq!(*in_reconcile.get(), Limit(5));
        maps.insert(&config_map("config-limit", &[("limit", "8")])).unwrap();
        assert_eq!(*in_reconcile.get(), Limit(5), "pinned for this reconcile");
    })
    .await;
    assert_eq!(*limit.get(), Limit(8));
}

#[tokio::test]
async fn without_a_system_namespace_the_value_is_the_default() {
    let cx = Context::new("test", server().0);
    let limit = Config::<Limit>::new(&cx, |_| {});
    assert_eq!(*limit.get(), Limit(0));
    assert!(limit.handle().is_none());
}
