use k8s_openapi::api::core::v1::ConfigMap;
use kube::discovery::ApiResource;
use reknit_apis::Key;

use super::{Delta, Store};
use crate::object::{Object, ObjectState, ResourceVersion, encode};

fn map(name: &str, uid: &str, version: &str) -> Object {
    cached(&object(name, uid, version))
}

fn cached(object: &ConfigMap) -> Object {
    encode(object, &ApiResource::erase::<ConfigMap>(&())).unwrap().0
}

fn object(name: &str, uid: &str, version: &str) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.namespace = Some("n".into());
    object.metadata.name = Some(name.into());
    object.metadata.uid = Some(uid.into());
    object.metadata.resource_version = Some(version.into());
    object
}

fn a() -> Key {
    Key::new("n", "a")
}

fn version(text: &str) -> ResourceVersion<'_> {
    ResourceVersion::parse(text).unwrap()
}

fn state<'a>(uid: &'a str, version: &'a str) -> ObjectState<'a> {
    ObjectState { namespace: Some("n"), name: "a", uid: Some(uid), resource_version: version }
}

/// The deltas as words: `+1 ~1>2 -2`.
fn words(told: impl IntoIterator<Item = Option<Delta>>) -> String {
    let of = |object: &Object| object.state().resource_version.to_owned();
    let word = |news| match news {
        Delta::Added(new) => format!("+{}", of(&new)),
        Delta::Updated { old, new } => format!("~{}>{}", of(&old), of(&new)),
        Delta::Deleted(last) => format!("-{}", of(&last)),
    };
    told.into_iter().flatten().map(word).collect::<Vec<_>>().join(" ")
}

/// A store whose list at version 10 held `a` at version 5.
fn listed() -> Store {
    let mut store = Store::default();
    store.start_list();
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "+5");
    assert!(store.finish_list("10").is_empty());
    store
}

fn held(store: &Store) -> Option<&str> {
    store.table.get(&a()).and_then(|held| held.version()).map(ResourceVersion::as_str)
}

#[test]
fn an_own_write_is_cached_at_once_and_its_echo_changes_nothing() {
    let mut store = listed();
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), true)), "~5>12");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "", "an older event");
    assert_eq!(words(store.apply_watched(map("a", "u", "12"))), "", "the echo");
    assert_eq!(words(store.apply_watched(map("a", "u", "13"))), "~12>13");
}

#[test]
fn an_answer_after_its_echo_changes_nothing() {
    let mut store = listed();
    assert_eq!(words(store.apply_watched(map("a", "u", "12"))), "~5>12");
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), true)), "");
    assert_eq!(words(store.apply_own_write(map("a", "u", "11"), true)), "", "an answer that took its time");
}

#[test]
fn an_answer_that_arrives_while_its_echo_is_decoded_is_cached() {
    let mut store = listed();
    let created = ObjectState { namespace: Some("n"), name: "b", uid: Some("w"), resource_version: "12" };
    assert!(!store.is_stale(&created), "so it is decoded");
    assert_eq!(
        words(store.apply_own_write(map("b", "w", "12"), true)),
        "+12",
        "and meanwhile the write returns"
    );
    assert_eq!(words(store.apply_watched(map("b", "w", "12"))), "");
    assert_eq!(words(store.apply_deletion(&ObjectState { resource_version: "13", ..created })), "-12");
    assert_eq!(words(store.apply_own_write(map("b", "w", "12"), true)), "", "an answer that took its time");
}

#[test]
fn an_answer_after_the_deletion_restores_nothing() {
    let mut store = listed();
    assert_eq!(words(store.apply_deletion(&state("u", "14"))), "-5");
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), true)), "");
    assert_eq!(words(store.apply_own_write(map("a", "v", "15"), true)), "+15", "a new one is news");
}

#[test]
fn a_list_that_began_before_the_write_does_not_undo_it() {
    let mut store = listed();
    store.start_list();
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), true)), "~5>12");
    assert_eq!(words(store.apply_own_write(map("b", "w", "13"), true)), "+13");
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "");
    assert!(store.finish_list("11").is_empty());
    assert_eq!((held(&store), store.table.len()), (Some("12"), 2));
}

#[test]
fn a_list_that_began_after_the_write_is_the_truth() {
    let mut store = listed();
    assert_eq!(words(store.apply_own_write(map("b", "w", "12"), true)), "+12");
    store.start_list();
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "");
    assert_eq!(store.finish_list("14").len(), 1, "b was deleted meanwhile");
}

#[test]
fn an_object_written_and_deleted_during_a_list_is_gone() {
    let mut store = listed();
    store.start_list();
    assert_eq!(words(store.apply_own_write(map("b", "w", "12"), true)), "+12");
    store.apply_listed(map("a", "u", "5"));
    assert_eq!(store.finish_list("14").len(), 1, "the list is of version 14 and does not hold b");
}

#[test]
fn deletions_during_a_gap_are_reported_with_the_last_object() {
    let mut store = listed();
    store.apply_watched(map("a", "u", "11"));
    store.start_list();
    let removed = store.finish_list("20");
    assert_eq!(removed.len(), 1);
    assert_eq!(removed[0].state().resource_version, "11");
}

#[test]
fn an_object_recreated_under_its_name_is_deleted_and_added() {
    let mut store = listed();
    assert_eq!(words(store.apply_watched(map("a", "v", "12"))), "-5 +12");
    assert_eq!(words(store.apply_own_write(map("a", "w", "14"), true)), "-12 +14");
    assert_eq!(words(store.apply_deletion(&state("v", "13"))), "", "that was the one before");
    store.start_list();
    assert_eq!(words(store.apply_listed(map("a", "x", "16"))), "-14 +16");
}

#[test]
fn the_watch_does_not_restore_a_deleted_object() {
    let mut store = listed();
    assert_eq!(words(store.delete_uid(&a(), "other")), "", "of another uid nothing is known");
    assert_eq!(words(store.delete_uid(&a(), "u")), "-5");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "", "somebody's update before the deletion");
    assert_eq!(words(store.apply_deletion(&state("u", "12"))), "");
    assert_eq!(store.tombstones(), 0);
    assert_eq!(words(store.apply_watched(map("a", "v", "13"))), "+13");
}

#[test]
fn a_pod_with_a_grace_period_stays_until_the_watch_deletes_it() {
    let mut store = listed();
    let mut going = object("a", "u", "11");
    going.metadata.deletion_timestamp = serde_json::from_str(r#""2026-01-01T00:00:00Z""#).unwrap();
    going.metadata.deletion_grace_period_seconds = Some(30);
    store.apply_watched(cached(&going));
    assert_eq!(words(store.delete_uid(&a(), "u")), "");
}

#[test]
fn a_deletion_answered_with_an_object_covers_states_up_to_its_version() {
    let mut store = listed();
    assert_eq!(words(store.delete_at(&a(), version("12"))), "-5");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "");
    assert_eq!(words(store.apply_watched(map("a", "v", "13"))), "+13", "created again");
    assert_eq!(words(store.apply_deletion(&state("u", "12"))), "", "the echo, late");
}

#[test]
fn removing_the_last_finalizer_deletes_an_object_whose_version_was_reached() {
    let mut store = listed();
    store.apply_watched(map("a", "u", "11"));
    assert_eq!(words(store.apply_own_deletion(&state("u", "11"))), "-11");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "");
    assert_eq!(words(store.apply_deletion(&state("u", "12"))), "");
    assert_eq!(store.tombstones(), 0);
    store.apply_watched(map("a", "v", "13"));
    assert_eq!(words(store.apply_own_deletion(&state("u", "11"))), "", "late, and about the one before");
}

#[test]
fn an_object_that_left_the_selection_by_an_own_write_may_return() {
    let mut store = listed();
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), false)), "-5");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "");
    assert_eq!(words(store.apply_own_write(map("a", "u", "14"), true)), "+14");
    assert_eq!(words(store.apply_deletion(&state("u", "12"))), "", "it left, but that was before");
    assert_eq!(held(&store), Some("14"));
}

#[test]
fn a_bookmark_expires_tombstones() {
    let mut store = listed();
    words(store.delete_at(&a(), version("12")));
    store.apply_bookmark("11");
    assert_eq!(store.tombstones(), 1);
    store.apply_bookmark("12");
    assert_eq!(store.tombstones(), 0);
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), true)), "", "seen and gone");
}

#[test]
fn a_list_that_began_before_a_deletion_does_not_undo_it() {
    let mut store = listed();
    store.start_list();
    assert_eq!(words(store.delete_uid(&a(), "u")), "-5");
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "");
    store.finish_list("11");
    assert_eq!((store.table.len(), store.tombstones()), (0, 1), "the watch has yet to tell");
    words(store.apply_deletion(&state("u", "12")));
    assert_eq!(store.tombstones(), 0);
}

#[test]
fn a_list_that_began_after_a_deletion_is_the_truth() {
    let mut store = listed();
    words(store.delete_uid(&a(), "u"));
    store.start_list();
    assert_eq!(words(store.apply_own_write(map("a", "u", "11"), true)), "", "a late answer");
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "+5", "whatever the deletion answered");
    store.finish_list("20");
    assert_eq!(store.tombstones(), 0);
}

#[test]
fn a_server_whose_store_became_younger_is_followed() {
    let mut store = listed();
    store.apply_watched(map("a", "u", "50"));
    store.apply_own_write(map("b", "w", "60"), true);
    assert_eq!(store.highest(), "60");
    store.start_list();
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "~50>5");
    assert_eq!(store.finish_list("10").len(), 1, "b has never been");
    assert_eq!(store.highest(), "10");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "~5>11");
}

#[test]
fn without_ordered_versions_own_writes_wait_for_the_watch() {
    let mut store = Store::default();
    store.start_list();
    store.apply_listed(map("a", "u", "x9"));
    store.finish_list("x9");
    assert_eq!(words(store.apply_own_write(map("a", "u", "x10"), true)), "");
    assert_eq!(words(store.apply_own_write(map("a", "u", "11"), true)), "");
    assert_eq!(words(store.apply_watched(map("a", "u", "x1"))), "~x9>x1");
    assert_eq!(words(store.apply_watched(map("a", "u", "x1"))), "", "the same again is no change");
    assert_eq!(words(store.apply_deletion(&state("u", "x2"))), "-x1");
}

#[test]
fn an_undecodable_item_does_not_look_absent() {
    let mut store = listed();
    store.start_list();
    assert!(!store.is_known_item(&state("u", "15")));
    assert!(store.finish_list("20").is_empty());
    assert_eq!(held(&store), Some("5"));
}
