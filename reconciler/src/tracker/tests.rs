use std::{collections::HashSet, sync::Arc};

use k8s_openapi::api::core::v1::Service;
use kube::core::{Expression, Selector};
use parking_lot::Mutex;
use reknit_apis::Key;
use reknit_injection::{Context, Informer};
use reknit_testing::{ApiServer, InformerExt};

use super::trackers::{Tracker, Trackers};

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn sizes(tracker: &Tracker) -> [usize; 3] {
    tracker.0.lock().sizes()
}

fn web() -> Selector {
    Expression::Equal("app".into(), "web".into()).into()
}

#[test]
fn an_observer_that_changes_its_mind_a_thousand_times_leaves_nothing_behind() {
    let trackers = Trackers::default();
    let tracker = trackers.add();
    for n in 0..1000 {
        trackers.begin(&key("observer"));
        tracker.read(&key("observer"), &key(&n.to_string()));
        let selector = Expression::Equal("app".into(), n.to_string()).into();
        tracker.read_matching(&key("observer"), Some("default"), &selector);
        trackers.retain_latest(&key("observer"));
        assert_eq!(sizes(&tracker), [1, 1, 1]);
    }
    trackers.begin(&key("observer"));
    trackers.retain_latest(&key("observer"));
    assert_eq!(sizes(&tracker), [0, 0, 0]);
}

#[test]
fn an_observer_that_goes_takes_its_targets_along_and_leaves_those_of_others() {
    let trackers = Trackers::default();
    let tracker = trackers.add();
    for observer in ["one", "two"] {
        tracker.read(&key(observer), &key("shared"));
        tracker.read(&key(observer), &key(observer));
        tracker.read_matching(&key(observer), None, &web());
    }
    assert_eq!(sizes(&tracker), [3, 1, 2]);
    trackers.forget(&key("one"));
    assert_eq!(sizes(&tracker), [2, 1, 1]);
    trackers.forget(&key("two"));
    assert_eq!(sizes(&tracker), [0, 0, 0]);
}

#[test]
fn a_key_is_held_once_whether_it_reads_or_is_read() {
    let tracker = Tracker::default();
    let copies = || tracker.0.lock().copies();
    tracker.read(&key("a"), &key("a"));
    assert_eq!(copies(), 1, "an observer that reads what has its own name");
    tracker.read(&key("a"), &key("b"));
    tracker.read(&key("b"), &key("a"));
    assert_eq!(copies(), 2, "a target that becomes an observer, and an observer that is read");
}

#[test]
fn a_pass_that_fails_keeps_what_was_read_and_the_next_that_ends_well_does_not() {
    let trackers = Trackers::default();
    let tracker = trackers.add();
    for target in ["a", "b", "c"] {
        trackers.begin(&key("observer"));
        tracker.read(&key("observer"), &key(target));
    }
    assert_eq!(sizes(&tracker), [3, 0, 1]);
    trackers.retain_latest(&key("observer"));
    assert_eq!(sizes(&tracker), [1, 0, 1]);
}

#[test]
fn selectors_that_say_the_same_are_one() {
    let tracker = Tracker::default();
    let other: Selector = Expression::Exists("tier".into()).into();
    let both = |first: Selector, second: Selector| first.into_iter().chain(second).collect::<Selector>();
    tracker.read_matching(&key("one"), None, &both(web(), other.clone()));
    tracker.read_matching(&key("two"), None, &both(other, web()));
    assert_eq!(sizes(&tracker), [0, 1, 2]);
}

#[tokio::test]
async fn whoever_read_an_object_by_name_or_by_labels_observes_it_once() {
    let tracker = Tracker::default();
    tracker.read(&key("one"), &key("web"));
    tracker.read_matching(&key("one"), Some("default"), &web());
    tracker.read_matching(&key("two"), Some("default"), &web());
    tracker.read_matching(&key("elsewhere"), Some("other"), &web());
    let services: Informer<Service> = Context::preloaded("test", ApiServer::new().client(), Vec::new()).get();
    let found = Arc::new(Mutex::new(Vec::new()));
    let (observers, seen) = (found.clone(), tracker.clone());
    services.on_key_event(move |event| observers.lock().push(seen.observers(event)));
    let mut service = Service::default();
    service.metadata.name = Some("web".into());
    service.metadata.namespace = Some("default".into());
    for labels in [None, Some([("app".into(), "web".into())].into()), None] {
        service.metadata.labels = labels;
        services.insert(service.clone());
    }
    let one = HashSet::from(["default/one".into()]);
    let both = HashSet::from(["default/one".into(), "default/two".into()]);
    assert_eq!(*found.lock(), [one, both.clone(), both], "also when it moves away");
}
