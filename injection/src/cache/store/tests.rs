use k8s_openapi::api::core::v1::ConfigMap;
use kube::discovery::ApiResource;
use reknit_apis::Key;

use super::{Delta, Store};
use crate::object::{Object, ObjectState, ResourceVersion, encode};

/// Values of `is_selected`.
const SELECTED: bool = true;
const NOT_SELECTED: bool = false;

fn map(name: &str, uid: &str, version: &str) -> Object {
    encoded(&config_map(name, uid, version))
}

fn encoded(config_map: &ConfigMap) -> Object {
    encode(config_map, &ApiResource::erase::<ConfigMap>(&())).unwrap().0
}

fn config_map(name: &str, uid: &str, version: &str) -> ConfigMap {
    let mut config_map = ConfigMap::default();
    config_map.metadata.namespace = Some("n".into());
    config_map.metadata.name = Some(name.into());
    config_map.metadata.uid = Some(uid.into());
    config_map.metadata.resource_version = Some(version.into());
    config_map
}

fn key_a() -> Key {
    Key::new("n", "a")
}

fn version(text: &str) -> ResourceVersion<'_> {
    ResourceVersion::parse(text).unwrap()
}

/// A state of the object `a`.
fn state_a<'a>(uid: &'a str, version: &'a str) -> ObjectState<'a> {
    ObjectState { namespace: Some("n"), name: "a", uid: Some(uid), resource_version: version }
}

/// The deltas as words of their resourceVersions: `+1` added, `~1>2` updated, `-2` deleted.
fn words(deltas: impl IntoIterator<Item = Option<Delta>>) -> String {
    let version_of = |object: &Object| object.state().resource_version.to_owned();
    let word = |delta| match delta {
        Delta::Added(new) => format!("+{}", version_of(&new)),
        Delta::Updated { old, new } => format!("~{}>{}", version_of(&old), version_of(&new)),
        Delta::Deleted(last) => format!("-{}", version_of(&last)),
    };
    deltas.into_iter().flatten().map(word).collect::<Vec<_>>().join(" ")
}

/// A store after a list of version 10 that contained `a` with the uid `u` at version 5.
fn store_after_list() -> Store {
    let mut store = Store::default();
    store.start_list();
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "+5");
    assert!(store.finish_list("10").is_empty());
    store
}

/// The cached version of the object `a`.
fn cached_version(store: &Store) -> Option<&str> {
    store.entries.get(&key_a()).and_then(|entry| entry.version()).map(ResourceVersion::as_str)
}

#[test]
fn an_own_write_is_cached_at_once_and_its_echo_changes_nothing() {
    let mut store = store_after_list();
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), SELECTED)), "~5>12");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "", "an older event");
    assert_eq!(words(store.apply_watched(map("a", "u", "12"))), "", "the echo");
    assert_eq!(words(store.apply_watched(map("a", "u", "13"))), "~12>13");
}

#[test]
fn a_response_after_its_echo_changes_nothing() {
    let mut store = store_after_list();
    assert_eq!(words(store.apply_watched(map("a", "u", "12"))), "~5>12");
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), SELECTED)), "");
    assert_eq!(words(store.apply_own_write(map("a", "u", "11"), SELECTED)), "", "a late response");
}

#[test]
fn a_response_that_arrives_while_its_echo_is_decoded_is_cached() {
    let mut store = store_after_list();
    let created = ObjectState { namespace: Some("n"), name: "b", uid: Some("w"), resource_version: "12" };
    assert!(!store.is_stale(&created), "not stale, so the cache decodes it");
    assert_eq!(
        words(store.apply_own_write(map("b", "w", "12"), SELECTED)),
        "+12",
        "meanwhile the write returns"
    );
    assert_eq!(words(store.apply_watched(map("b", "w", "12"))), "");
    assert_eq!(words(store.apply_deletion(&ObjectState { resource_version: "13", ..created })), "-12");
    assert_eq!(words(store.apply_own_write(map("b", "w", "12"), SELECTED)), "", "a late response");
}

#[test]
fn a_response_after_the_deletion_restores_nothing() {
    let mut store = store_after_list();
    assert_eq!(words(store.apply_deletion(&state_a("u", "14"))), "-5");
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), SELECTED)), "");
    assert_eq!(
        words(store.apply_own_write(map("a", "v", "15"), SELECTED)),
        "+15",
        "a new object of that name is added"
    );
}

#[test]
fn a_list_that_began_before_the_write_does_not_undo_it() {
    let mut store = store_after_list();
    store.start_list();
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), SELECTED)), "~5>12");
    assert_eq!(words(store.apply_own_write(map("b", "w", "13"), SELECTED)), "+13");
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "");
    assert!(store.finish_list("11").is_empty());
    assert_eq!((cached_version(&store), store.entries.len()), (Some("12"), 2));
}

#[test]
fn a_written_object_that_a_later_list_does_not_contain_is_removed() {
    let mut store = store_after_list();
    assert_eq!(words(store.apply_own_write(map("b", "w", "12"), SELECTED)), "+12");
    store.start_list();
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "");
    assert_eq!(store.finish_list("14").len(), 1, "b was deleted meanwhile");
}

#[test]
fn an_object_written_and_deleted_during_a_list_is_gone() {
    let mut store = store_after_list();
    store.start_list();
    assert_eq!(words(store.apply_own_write(map("b", "w", "12"), SELECTED)), "+12");
    store.apply_listed(map("a", "u", "5"));
    assert_eq!(
        store.finish_list("14").len(),
        1,
        "b was written at 12, and the list of version 14 does not contain it"
    );
}

#[test]
fn deletions_during_a_gap_are_reported_with_the_last_object() {
    let mut store = store_after_list();
    store.apply_watched(map("a", "u", "11"));
    store.start_list();
    let removed = store.finish_list("20");
    assert_eq!(removed.len(), 1);
    assert_eq!(removed[0].state().resource_version, "11");
}

#[test]
fn an_object_recreated_under_its_name_is_deleted_and_added() {
    let mut store = store_after_list();
    assert_eq!(words(store.apply_watched(map("a", "v", "12"))), "-5 +12");
    assert_eq!(words(store.apply_own_write(map("a", "w", "14"), SELECTED)), "-12 +14");
    assert_eq!(
        words(store.apply_deletion(&state_a("v", "13"))),
        "",
        "the deletion of an earlier object of that name"
    );
    store.start_list();
    assert_eq!(words(store.apply_listed(map("a", "x", "16"))), "-14 +16");
}

#[test]
fn the_watch_does_not_restore_a_deleted_object() {
    let mut store = store_after_list();
    assert_eq!(words(store.delete_uid(&key_a(), "other")), "", "no object of this uid is cached");
    assert_eq!(words(store.delete_uid(&key_a(), "u")), "-5");
    assert_eq!(
        words(store.apply_watched(map("a", "u", "11"))),
        "",
        "an update of another client before the deletion"
    );
    assert_eq!(words(store.apply_deletion(&state_a("u", "12"))), "");
    assert_eq!(store.tombstones(), 0);
    assert_eq!(words(store.apply_watched(map("a", "v", "13"))), "+13");
}

#[test]
fn deleting_a_terminating_object_does_not_remove_it_from_the_cache() {
    let mut store = store_after_list();
    let mut terminating = config_map("a", "u", "11");
    terminating.metadata.deletion_timestamp = serde_json::from_str(r#""2026-01-01T00:00:00Z""#).unwrap();
    terminating.metadata.deletion_grace_period_seconds = Some(30);
    store.apply_watched(encoded(&terminating));
    assert_eq!(words(store.delete_uid(&key_a(), "u")), "");
}

#[test]
fn a_deletion_at_a_known_version_drops_states_up_to_that_version() {
    let mut store = store_after_list();
    assert_eq!(words(store.delete_at(&key_a(), version("12"))), "-5");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "");
    assert_eq!(words(store.apply_watched(map("a", "v", "13"))), "+13", "created again");
    assert_eq!(words(store.apply_deletion(&state_a("u", "12"))), "", "the echo of the deletion, late");
}

#[test]
fn removing_the_last_finalizer_deletes_an_object_whose_version_the_watch_has_reached() {
    let mut store = store_after_list();
    store.apply_watched(map("a", "u", "11"));
    assert_eq!(words(store.apply_own_deletion(&state_a("u", "11"))), "-11");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "");
    assert_eq!(words(store.apply_deletion(&state_a("u", "12"))), "");
    assert_eq!(store.tombstones(), 0);
    store.apply_watched(map("a", "v", "13"));
    assert_eq!(
        words(store.apply_own_deletion(&state_a("u", "11"))),
        "",
        "a late response about an earlier object of that name"
    );
}

#[test]
fn an_object_that_left_the_selection_by_an_own_write_can_return() {
    let mut store = store_after_list();
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), NOT_SELECTED)), "-5");
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "");
    assert_eq!(words(store.apply_own_write(map("a", "u", "14"), SELECTED)), "+14");
    assert_eq!(
        words(store.apply_deletion(&state_a("u", "12"))),
        "",
        "the event of leaving, from before the return"
    );
    assert_eq!(cached_version(&store), Some("14"));
}

#[test]
fn a_bookmark_expires_tombstones() {
    let mut store = store_after_list();
    words(store.delete_at(&key_a(), version("12")));
    store.apply_bookmark("11");
    assert_eq!(store.tombstones(), 1);
    store.apply_bookmark("12");
    assert_eq!(store.tombstones(), 0);
    assert_eq!(
        words(store.apply_own_write(map("a", "u", "12"), SELECTED)),
        "",
        "the watch has passed version 12, so the object was deleted"
    );
}

#[test]
fn a_list_that_began_before_a_deletion_does_not_undo_it() {
    let mut store = store_after_list();
    store.start_list();
    assert_eq!(words(store.delete_uid(&key_a(), "u")), "-5");
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "");
    store.finish_list("11");
    assert_eq!((store.entries.len(), store.tombstones()), (0, 1), "the watch has yet to report the deletion");
    words(store.apply_deletion(&state_a("u", "12")));
    assert_eq!(store.tombstones(), 0);
}

#[test]
fn a_list_that_began_after_a_deletion_replaces_the_tombstone() {
    let mut store = store_after_list();
    words(store.delete_uid(&key_a(), "u"));
    store.start_list();
    assert_eq!(words(store.apply_own_write(map("a", "u", "11"), SELECTED)), "", "a late response");
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "+5", "listed after the deletion");
    store.finish_list("20");
    assert_eq!(store.tombstones(), 0);
}

#[test]
fn the_store_follows_a_server_that_was_restored_from_a_backup() {
    let mut store = store_after_list();
    store.apply_watched(map("a", "u", "50"));
    store.apply_own_write(map("b", "w", "60"), SELECTED);
    assert_eq!(store.highest(), "60");
    store.start_list();
    assert_eq!(words(store.apply_listed(map("a", "u", "5"))), "~50>5");
    assert_eq!(store.finish_list("10").len(), 1, "the restored server has no b");
    assert_eq!((store.highest(), store.last_response()), ("10", None));
    assert_eq!(words(store.apply_watched(map("a", "u", "11"))), "~5>11");
}

#[test]
fn the_last_writes_are_those_that_the_watch_reports() {
    let mut store = store_after_list();
    assert_eq!(store.last_response(), None);
    store.apply_own_write(map("a", "u", "12"), SELECTED);
    store.apply_own_write(map("other", "o", "13"), NOT_SELECTED);
    assert_eq!((store.last_response(), store.has_all("10"), store.has_all("12")), (Some("12"), true, false));
    store.apply_watched(map("a", "u", "12"));
    assert!(store.has_all("12") && store.has_all("not a number"));
    store.apply_watched(map("b", "w", "20"));
    store.apply_own_write(map("b", "w", "20"), SELECTED);
    assert_eq!(store.last_response(), Some("20"), "the response came after its echo");
    store.delete_at(&key_a(), version("1000"));
    assert_eq!(store.last_response(), Some("20"), "the version of a list, which no event has");
    store.apply_own_deletion(&ObjectState {
        namespace: Some("n"),
        name: "b",
        uid: Some("w"),
        resource_version: "25",
    });
    assert_eq!((store.last_response(), store.has_all("25")), (Some("25"), false));
    store.apply_bookmark("30");
    assert!(store.has_all("25"));
}

#[test]
fn if_versions_cannot_be_ordered_own_writes_wait_for_the_watch() {
    let mut store = Store::default();
    store.start_list();
    store.apply_listed(map("a", "u", "x9"));
    store.finish_list("x9");
    assert_eq!(words(store.apply_own_write(map("a", "u", "x10"), SELECTED)), "");
    assert_eq!(words(store.apply_own_write(map("a", "u", "11"), SELECTED)), "");
    assert_eq!(words(store.apply_watched(map("a", "u", "x1"))), "~x9>x1");
    assert_eq!(words(store.apply_watched(map("a", "u", "x1"))), "", "a repeated state changes nothing");
    assert_eq!(words(store.apply_deletion(&state_a("u", "x2"))), "-x1");
}

#[test]
fn an_object_whose_list_item_is_not_decoded_is_not_removed() {
    let mut store = store_after_list();
    store.start_list();
    let is_stale = store.mark_listed(&state_a("u", "15"), |_| false);
    assert!(!is_stale);
    assert!(store.finish_list("20").is_empty());
    assert_eq!(cached_version(&store), Some("5"));
}

#[test]
fn a_listed_object_of_the_cached_version_replaces_it_if_its_content_differs() {
    let mut defaulted = config_map("a", "u", "5");
    defaulted.immutable = Some(true);
    let mut store = store_after_list();
    store.start_list();
    assert_eq!(words(store.apply_listed(encoded(&defaulted))), "~5>5");
    assert_eq!(words(store.apply_listed(encoded(&defaulted))), "");
    assert_eq!(words(store.apply_watched(map("a", "u", "5"))), "", "an echo");
    assert_eq!(words(store.apply_own_write(map("a", "u", "12"), SELECTED)), "~5>12");
    let mut written = config_map("a", "u", "12");
    written.immutable = Some(true);
    assert_eq!(words(store.apply_listed(encoded(&written))), "", "written since the list began");
    store.start_list();
    assert_eq!(words(store.apply_listed(encoded(&written))), "~12>12");
}
