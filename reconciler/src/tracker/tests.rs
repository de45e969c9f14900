use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Service;
use kube::core::{Expression, Selector};
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{Context, Informer};
use reknit_testing::{ApiServer, InformerExt};

use super::{
    index::{Tracker, text_of},
    trackers::Trackers,
};

fn key(name: &str) -> Key {
    Key::new("default", name)
}

/// The numbers of objects that are read by name, of selectors and of observers.
fn sizes(tracker: &Tracker) -> [usize; 3] {
    let index = tracker.lock();
    let matching = index.matching.values().map(HashMap::len).sum();
    let exact: HashSet<_> = index.exact.iter().map(|(target, _)| target).collect();
    let observers: HashSet<_> = index.reads.iter().map(|(observer, _)| observer).collect();
    [exact.len(), matching, observers.len()]
}

/// The number of stored texts of keys. A text that is shared counts once.
fn stored_texts(tracker: &Tracker) -> usize {
    let index = tracker.lock();
    let pairs = index.exact.iter().flat_map(|(target, observer)| [target, observer]);
    pairs.map(Arc::as_ptr).collect::<HashSet<_>>().len()
}

fn app_is_web() -> Selector {
    Expression::Equal("app".into(), "web".into()).into()
}

#[test]
fn reads_that_are_not_repeated_are_removed_from_the_index() {
    let trackers = Trackers::default();
    let tracker = trackers.add();
    for n in 0..1000 {
        trackers.begin_pass(&key("observer"));
        tracker.lock().record_read(&key("observer"), &key(&n.to_string()));
        let selector = Expression::Equal("app".into(), n.to_string()).into();
        tracker.lock().read_matching(&key("observer"), Some("default"), &selector);
        trackers.retain_latest(&key("observer"));
        assert_eq!(sizes(&tracker), [1, 1, 1]);
    }
    trackers.begin_pass(&key("observer"));
    trackers.retain_latest(&key("observer"));
    assert_eq!(sizes(&tracker), [0, 0, 0]);
}

#[test]
fn forgetting_an_observer_keeps_the_reads_of_others() {
    let trackers = Trackers::default();
    let tracker = trackers.add();
    for observer in ["one", "two"] {
        tracker.lock().record_read(&key(observer), &key("shared"));
        tracker.lock().record_read(&key(observer), &key(observer));
        tracker.lock().read_matching(&key(observer), None, &app_is_web());
    }
    assert_eq!(sizes(&tracker), [3, 1, 2]);
    trackers.forget(&key("one"));
    assert_eq!(sizes(&tracker), [2, 1, 1]);
    trackers.forget(&key("two"));
    assert_eq!(sizes(&tracker), [0, 0, 0]);
}

#[test]
fn a_key_is_stored_once_as_observer_and_target() {
    let tracker = Tracker::default();
    tracker.lock().record_read(&key("a"), &key("a"));
    assert_eq!(stored_texts(&tracker), 1, "an observer that reads an object of its own name");
    tracker.lock().record_read(&key("a"), &key("b"));
    tracker.lock().record_read(&key("b"), &key("a"));
    assert_eq!(stored_texts(&tracker), 2, "a target that becomes an observer, and an observer that is read");
}

#[test]
fn reads_are_kept_after_a_failed_pass_and_dropped_after_a_successful_one() {
    let trackers = Trackers::default();
    let tracker = trackers.add();
    for target in ["a", "b", "c"] {
        trackers.begin_pass(&key("observer"));
        tracker.lock().record_read(&key("observer"), &key(target));
    }
    assert_eq!(sizes(&tracker), [3, 0, 1]);
    trackers.retain_latest(&key("observer"));
    assert_eq!(sizes(&tracker), [1, 0, 1]);
}

#[test]
fn equal_selectors_are_stored_once() {
    let tracker = Tracker::default();
    let other: Selector = Expression::Exists("tier".into()).into();
    let both = |first: Selector, second: Selector| first.into_iter().chain(second).collect::<Selector>();
    tracker.lock().read_matching(&key("one"), None, &both(app_is_web(), other.clone()));
    tracker.lock().read_matching(&key("two"), None, &both(other, app_is_web()));
    assert_eq!(sizes(&tracker), [0, 1, 2]);
}

#[tokio::test]
async fn an_observer_that_reads_an_object_by_name_and_by_labels_is_found_once() {
    let tracker = Tracker::default();
    tracker.lock().record_read(&key("one"), &key("web"));
    tracker.lock().read_matching(&key("one"), Some("default"), &app_is_web());
    tracker.lock().read_matching(&key("two"), Some("default"), &app_is_web());
    tracker.lock().read_matching(&key("elsewhere"), Some("other"), &app_is_web());
    let services: Informer<Service> = Context::preloaded("test", ApiServer::new().client(), Vec::new()).get();
    let found = Arc::new(Mutex::new(Vec::new()));
    let (results, handler_tracker) = (found.clone(), tracker.clone());
    services.on_key_event(move |event| {
        results.lock().push(handler_tracker.observers(event, &text_of(event.key())))
    });
    let mut service = Service::default();
    service.metadata.name = Some("web".into());
    service.metadata.namespace = Some("default".into());
    for labels in [None, Some([("app".into(), "web".into())].into()), None] {
        service.metadata.labels = labels;
        services.insert(service.clone());
    }
    let one = HashSet::from_iter(["default/one".into()]);
    let both = HashSet::from_iter(["default/one".into(), "default/two".into()]);
    assert_eq!(
        *found.lock(),
        [one, both.clone(), both],
        "the selectors match the labels before or after each change"
    );
}
