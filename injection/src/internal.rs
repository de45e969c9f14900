//! Items for the other crates of reknit. They are not part of the public API, and may change in any release.

use kube::discovery::ApiResource;
use reknit_apis::Key;
pub use reknit_apis::internal::{
    Environment, HashMap, HashSet, Seeded, host_name, now, random, random_range, random_uuid, suspended,
    variable, within,
};
use serde::Serialize;

use crate::{Cached, Informer, Informers, Selection};
pub use crate::{
    cache::{Update, is_initial},
    client::{
        HttpResponse, NoRetry, PassRequest, PassRequests, RequestEnd, ResourcePath, Term, TermBody,
        TermEnded, Transport, Writers, WrittenState, has_term_ended, header_warnings, is_absence,
        is_absence_of, is_apply, is_dry_run, is_watch, path_segment, request_verb, resource_name,
        retry_after, retry_after_of, retry_after_of_status, term_began, with_retry_after_in_status,
        within_term,
    },
    clock::{clock_instant, is_test_clock, next_clock_change},
    config::{text_data, warn_of_misspelt_keys, with_pinned_config},
    context::optional_informer,
    error_text::{panic_message, with_causes},
    fights::{FieldChange, Restored},
    informer::{
        KeyEvent, Old, WeakIndex, cached_json, can_be_left, carriers_outside, decode_errors, field_term,
        for_each_cached, listed, on_first_lists, on_kind_changed, redaction, selected_objects, start_on,
        writers,
    },
    log_limit::LogLimit,
    metrics::{register_durations, register_metric, register_scraped},
    object::Parts,
    pass::CurrentPass,
    permissions::{Permissions, RequestAttributes, UnnamedKinds, covers_resource},
    recording::{
        ConfigMapData, ListRead, ObjectName, PassFacts, RecordedKind, RecordedPass, RecordedRequest,
        Recordings, RunningRecording, read_recorded,
    },
    redaction::Redaction,
    reflector::{jittered, read_page, read_watch},
    shallow::{RawFields, cut_object, decode_object, decode_value, may_be_cut},
    shared_table::{Namespaced, SharedTable},
    stack_question::{StackAnswer, StackQuestion, WaitPlace},
    timing::sleep_until_optional,
};

/// A channel that holds one value.
pub mod watch {
    pub use crate::ordered_watch::{Closed, Receiver, Ref, Sender};
}

/// Opens an informer without waiting for its first list. The caller must not read it before [`listed`] is `Ok`.
pub fn open_unsynced<K: Cached>(
    informers: &Informers,
    kind: &ApiResource,
    selection: Selection,
) -> Informer<K> {
    informers.get(kind.clone(), selection)
}

/// For tests: inserts an object into the informer's cache and calls its handlers. An object that the selection does not
/// admit is removed instead. Fails if the object cannot be serialized and deserialized again.
pub fn insert<K: Cached + Serialize>(informer: &Informer<K>, object: &K) -> Result<(), String> {
    informer.insert(object)
}

/// For tests: removes an object from the informer's cache and calls its handlers.
pub fn remove<K: Cached>(informer: &Informer<K>, key: &Key) {
    informer.remove(key);
}

/// Returns the selection of the informer.
pub fn selection<K: Cached>(informer: &Informer<K>) -> &Selection {
    &informer.0.cache.selection
}

/// Returns the JSON of the newest state of an object, if it cannot be decoded.
pub fn undecodable_json<K: Cached>(informer: &Informer<K>, key: &Key) -> Option<String> {
    informer.0.cache.undecodable_json(key)
}

/// Returns the JSON of an object that was read from the cache, with the fields that its type does not have. It may be
/// nested too deep for serde_json. `None` if another state is cached by now.
pub fn raw_json<K: Cached>(informer: &Informer<K>, object: &K) -> Option<String> {
    informer.0.cache.raw_json(&Key::of(object), object.meta().resource_version.as_deref())
}

/// Returns true if an object of this key exists, even if it cannot be decoded.
pub fn exists<K: Cached>(informer: &Informer<K>, key: &Key) -> bool {
    informer.contains(key) || informer.0.cache.is_undecodable(key)
}
