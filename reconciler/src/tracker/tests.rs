use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Service;
use kube::core::{Expression, Selector};
use parking_lot::Mutex;
use reknit_apis::{Key, internal::HashState};
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

/// The objects that are read by name.
fn targets(tracker: &Tracker) -> Vec<String> {
    let index = tracker.lock();
    let targets: BTreeSet<_> = index.exact.iter().map(|(target, _)| target.to_string()).collect();
    targets.into_iter().collect()
}

fn label(name: &str, value: &str) -> Selector {
    Expression::Equal(name.into(), value.into()).into()
}

fn app_is_web() -> Selector {
    label("app", "web")
}

fn service(name: &str, labels: Option<&[(&str, &str)]>) -> Service {
    let mut service = Service::default();
    service.metadata.name = Some(name.into());
    service.metadata.namespace = Some("default".into());
    service.metadata.labels = labels
        .map(|labels| labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect());
    service
}

type Observers = HashSet<Arc<str>, HashState>;

/// The observers of each change of this informer.
fn observers_of_inserted(tracker: &Tracker, services: &Informer<Service>) -> Arc<Mutex<Vec<Observers>>> {
    let found = Arc::new(Mutex::new(Vec::new()));
    let (results, tracker) = (found.clone(), tracker.clone());
    services.on_key_event(move |event| results.lock().push(tracker.observers(event, &text_of(event.key()))));
    found
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
        trackers.pass_succeeded(&key("observer"));
        assert_eq!(sizes(&tracker), [1, 1, 1]);
    }
    trackers.begin_pass(&key("observer"));
    trackers.pass_succeeded(&key("observer"));
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
    let read = |target| {
        trackers.begin_pass(&key("observer"));
        tracker.lock().record_read(&key("observer"), &key(target));
    };
    read("a");
    trackers.pass_succeeded(&key("observer"));
    for target in ["b", "c"] {
        read(target);
        trackers.pass_failed(&key("observer"));
        assert_eq!(targets(&tracker), ["default/a", &format!("default/{target}")]);
    }
    read("d");
    assert_eq!(targets(&tracker), ["default/a", "default/c", "default/d"], "the pass has not ended");
    trackers.pass_succeeded(&key("observer"));
    assert_eq!(targets(&tracker), ["default/d"]);
}

#[test]
fn the_reads_of_an_object_whose_passes_fail_do_not_grow_with_their_number() {
    for is_dropped in [false, true] {
        let trackers = Trackers::default();
        let tracker = trackers.add();
        let read = |target: &str| {
            trackers.begin_pass(&key("observer"));
            tracker.lock().record_read(&key("observer"), &key(target));
            tracker.lock().read_matching(&key("observer"), None, &label("app", target));
        };
        for n in 0..1000 {
            read(&n.to_string());
            if !is_dropped {
                trackers.pass_failed(&key("observer"));
                assert_eq!(sizes(&tracker), [1, 1, 1], "no pass has succeeded");
            }
        }
        read("last");
        trackers.pass_succeeded(&key("observer"));
        for n in 0..1000 {
            read(&n.to_string());
            if !is_dropped {
                trackers.pass_failed(&key("observer"));
            }
            let [exact, matching, _] = sizes(&tracker);
            assert!(exact <= 3 && matching <= 3, "{exact} {matching}");
            assert!(targets(&tracker).contains(&"default/last".into()), "a read of the last success");
        }
        trackers.pass_failed(&key("observer"));
        assert_eq!(targets(&tracker), ["default/999", "default/last"]);
        trackers.forget(&key("observer"));
        assert_eq!(sizes(&tracker), [0, 0, 0]);
    }
}

#[test]
fn a_read_that_a_failed_pass_repeats_is_kept_by_the_next_one() {
    let trackers = Trackers::default();
    let tracker = trackers.add();
    for reads in [&["a", "b"][..], &["a"], &["c"], &[], &["d"]] {
        trackers.begin_pass(&key("observer"));
        reads.iter().for_each(|target| tracker.lock().record_read(&key("observer"), &key(target)));
        match reads {
            ["a", "b"] => trackers.pass_succeeded(&key("observer")),
            _ => trackers.pass_failed(&key("observer")),
        }
        let kept: Vec<_> = targets(&tracker).iter().map(|target| target.replace("default/", "")).collect();
        let read_last = reads.iter().filter(|target| !["a", "b"].contains(target));
        assert_eq!(kept, ["a", "b"].iter().chain(read_last).copied().collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_target_takes_a_bounded_number_of_bytes_and_still_enqueues() {
    let tracker = Tracker::default();
    let [long, other] = ["a", "b"].map(|end| format!("{}{end}", "é".repeat(1000)));
    tracker.lock().record_read(&key("one"), &key(&long));
    tracker.lock().record_read(&key("two"), &key(&other));
    tracker.lock().read_matching(&key("three"), Some(&long), &app_is_web());
    let many = Expression::In("app".into(), (0..5000).map(|n| n.to_string()).collect());
    tracker.lock().read_matching(&key("four"), Some("default"), &many.into());
    assert_eq!(sizes(&tracker), [2, 2, 4]);
    let stored: usize = targets(&tracker).iter().map(String::len).sum();
    assert!(stored < 400, "{stored}");
    assert!(format!("{:?}", tracker.lock()).len() < 4000, "the index keeps a long text elsewhere");

    let services: Informer<Service> = Context::preloaded("test", ApiServer::new().client(), Vec::new()).get();
    let relatives = tracker.reads_of(&key("one"), &services);
    assert_eq!(relatives[0].exists, None, "a cut name leads to no object");
    let found = observers_of_inserted(&tracker, &services);
    services.insert(service(&long, None));
    assert_eq!(
        found.lock().pop().unwrap(),
        HashSet::from_iter(["default/one".into(), "default/four".into()]),
        "a selector that is too long counts as one of all objects"
    );
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
async fn selectors_that_look_the_same_find_their_own_observers() {
    let joined = label("env", "prod,team=x");
    let both: Selector = label("env", "prod").into_iter().chain(label("team", "x")).collect();
    assert_eq!(joined.to_string(), both.to_string());
    let tracker = Tracker::default();
    tracker.lock().read_matching(&key("one"), None, &joined);
    tracker.lock().read_matching(&key("two"), None, &both);
    for selector in [Expression::Exists("a=b".into()), Expression::Equal("a".into(), "b".into())] {
        tracker.lock().read_matching(&key("three"), None, &selector.into());
    }
    assert_eq!(sizes(&tracker), [0, 4, 3]);
    let services: Informer<Service> = Context::preloaded("test", ApiServer::new().client(), Vec::new()).get();
    let found = observers_of_inserted(&tracker, &services);
    services.insert(service("web", Some(&[("env", "prod"), ("team", "x")])));
    services.insert(service("ab", Some(&[("a", "b")])));
    assert_eq!(
        *found.lock(),
        ["default/two", "default/three"].map(|observer| HashSet::from_iter([observer.into()]))
    );
    let shown: Vec<_> =
        tracker.reads_of(&key("two"), &services).into_iter().map(|read| read.target).collect();
    assert_eq!(shown, ["env=prod,team=x"], "the console shows kubectl's syntax");
}

#[tokio::test]
async fn an_observer_that_reads_an_object_by_name_and_by_labels_is_found_once() {
    let tracker = Tracker::default();
    tracker.lock().record_read(&key("one"), &key("web"));
    tracker.lock().read_matching(&key("one"), Some("default"), &app_is_web());
    tracker.lock().read_matching(&key("two"), Some("default"), &app_is_web());
    tracker.lock().read_matching(&key("elsewhere"), Some("other"), &app_is_web());
    let services: Informer<Service> = Context::preloaded("test", ApiServer::new().client(), Vec::new()).get();
    let found = observers_of_inserted(&tracker, &services);
    for labels in [None, Some(&[("app", "web")][..]), None] {
        services.insert(service("web", labels));
    }
    let one = HashSet::from_iter(["default/one".into()]);
    let both = HashSet::from_iter(["default/one".into(), "default/two".into()]);
    assert_eq!(
        *found.lock(),
        [one, both.clone(), both],
        "the selectors match the labels before or after each change"
    );
}
