//! Writes the status of a pass: sends only the difference, and never overwrites another client's change.

pub(crate) mod diff;
mod unstored;

use std::{sync::Arc, time::Duration};

use reknit_apis::{Key, Kind, StatusOf, bound_conditions, equality::are_equal, to_json};
use reknit_injection::{
    Informer,
    internal::{decode_object, jittered, may_be_cut, raw_json},
};
use serde::Deserialize;
use serde_json::{Value, json};

pub use self::diff::merge_patch;
use self::diff::{conflicts_with, diff, replacement};
pub(crate) use self::unstored::{SEND_AGAIN_AFTER, UnstoredChanges};
use crate::{
    Result,
    kind_client::{Attempt, KindClient, WriteMeta},
    merge::merge_changes,
    metrics::PassMetrics,
    object_client::status_code,
    readable::Readable,
};

const ATTEMPTS: usize = 5;
const RETRY_PAUSE: Duration = Duration::from_millis(15);

/// The change of a status by a pass, as a merge patch.
pub(crate) struct StatusChange {
    patch: Value,
    /// The names of the fields of conditions that were made acceptable to the API server.
    pub(crate) bounded: Vec<String>,
}

impl StatusChange {
    /// The change from the status that was read to the one that the pass computed, if any. Differences in the
    /// transition times of unchanged conditions do not count: `after` gets the old times. The conditions of `after` are
    /// made acceptable to the API server.
    pub(crate) fn between<K: Kind>(
        stored: Option<&StatusOf<K>>,
        after: &mut StatusOf<K>,
    ) -> Result<Option<Self>> {
        let empty = StatusOf::<K>::default();
        let before = stored.unwrap_or(&empty);
        K::keep_transition_times(after, before);
        if before == after {
            return Ok(None);
        }
        let mut json = to_json(after)?;
        let bounded = bound_conditions(&mut json, K::conditions(after).is_some());
        if !bounded.is_empty() {
            *after = serde_json::from_value(json)?;
            K::keep_transition_times(after, before);
            json = to_json(after)?;
        }
        let before = to_json(before)?;
        let patch = match stored {
            // The patch is the whole status: a diff from the default would leave out equal values.
            None => (!are_equal(&before, &json)).then_some(json),
            Some(_) => diff(&before, json),
        };
        Ok(patch.map(|patch| Self { patch, bounded }))
    }

    /// The part of the change that this object, which another client changed, does not have yet.
    fn remaining<K: Kind>(&self, object: &K) -> Result<Option<Self>> {
        let mut desired = object.read_status().map_or_else(|| Ok(json!({})), to_json)?;
        json_patch::merge(&mut desired, &self.patch);
        Self::between::<K>(object.read_status(), &mut serde_json::from_value(desired)?)
    }

    /// Adds the fields of list items that the type of the status does not have: a merge patch replaces a list as a whole, so
    /// they would be lost, such as those of the conditions of another controller. `before` is the status from which the
    /// change was computed, and `raw` the same status as it is stored. `None` if nothing is left to change.
    ///
    /// # Errors
    ///
    /// Fails if the change holds a value that is nested so deep that it was read only in part.
    fn keeping_unknown_fields<K: Kind>(
        self,
        before: Option<&StatusOf<K>>,
        raw: Option<Value>,
    ) -> Result<Option<Self>> {
        let Some(before) = before else { return Ok(Some(self)) };
        let Some(raw) = raw.filter(Value::is_object) else { return self.require_whole().map(Some) };
        let before = to_json(before)?;
        let (mut after, mut raw_after) = (before.clone(), raw.clone());
        json_patch::merge(&mut after, &self.patch);
        merge_changes(&mut raw_after, &before, &after);
        let changed = diff(&raw, raw_after).map(|patch| Self { patch, ..self });
        changed.map(|change| if may_be_cut(&raw) { change.require_whole() } else { Ok(change) }).transpose()
    }

    fn require_whole(self) -> Result<Self> {
        match may_be_cut(&self.patch) {
            true => Err("the status is not written: it would change a value that is nested so deep that only its first \
                         levels were read, and remove the others. Remove that value from the status"
                .into()),
            false => Ok(self),
        }
    }

    /// Returns true if this change would overwrite another client's change between `before` and `now`: a merge patch
    /// replaces a list as a whole, for example, to which another client may have added an entry.
    fn overwrites<K: Kind>(&self, before: Option<&StatusOf<K>>, now: Option<&StatusOf<K>>) -> Result<bool> {
        let value = |status: Option<&StatusOf<K>>| to_json(&status.cloned().unwrap_or_default());
        Ok(conflicts_with(&self.patch, &value(before)?, &value(now)?))
    }
}

/// Writes the status of one object.
pub(crate) struct StatusWriter<'a, K: Kind> {
    pub(crate) client: &'a KindClient<K>,
    /// The object as the pass read it.
    pub(crate) object: &'a K,
    pub(crate) informer: &'a Informer<K>,
    pub(crate) unstored: &'a UnstoredChanges,
    pub(crate) metrics: &'a PassMetrics,
}

impl<K: Kind> StatusWriter<'_, K> {
    /// Writes the change to the object. `before` is the stored status from which the change was computed.
    ///
    /// After a conflict the object is read again and the remaining change is written, in up to five attempts. If another
    /// client changed the same values, the conflict is returned, and the next pass starts from the new state. An object
    /// that is gone is not an error.
    ///
    /// Returns the metadata for the next write of the pass. `None` if another client has changed or deleted the object since
    /// the pass read it, also if a later attempt then wrote the status; that change has enqueued the key.
    pub(crate) async fn write(
        &self,
        before: Option<&StatusOf<K>>,
        change: StatusChange,
    ) -> Result<Option<WriteMeta>> {
        let raw = before.and_then(|_| self.cached_status());
        let change = change.keeping_unknown_fields::<K>(before, raw)?;
        let Some(change) = change.filter(|change| !self.unstored.contains(self.object, &change.patch)) else {
            return Ok(Some(self.object.meta().into()));
        };
        match self.send(self.object, &change.patch, Attempt::First).await {
            Ok(meta) => Ok(Some(meta)),
            // Boxed, so that this rare future does not enlarge the future of every pass.
            Err(error) => Box::pin(self.write_again(before, change, error)).await,
        }
    }

    /// Replaces a stored status that cannot be decoded. Returns the metadata for the next write, or `None` if the object
    /// is gone. A conflict is not retried here: the next pass starts from the new state.
    pub(crate) async fn replace(
        &self,
        unreadable: &Value,
        status: &StatusOf<K>,
    ) -> Result<Option<WriteMeta>> {
        let patch = replacement(unreadable, to_json(status)?);
        match self.send(self.object, &patch, Attempt::First).await {
            Err(error) if status_code(&error) == Some(404) && self.client.is_gone(self.object).await? => {
                Ok(None)
            }
            sent => Ok(Some(sent?)),
        }
    }

    /// Returns the stored status as JSON, if the cached object is the one that the pass read.
    fn cached_status(&self) -> Option<Value> {
        raw_status(&raw_json(self.informer, self.object)?)
    }

    /// Sends a patch, on the condition that the object is still as it was `read`.
    async fn send(&self, read: &K, patch: &Value, attempt: Attempt) -> kube::Result<WriteMeta> {
        let key = Arc::new(Key::of(self.object));
        let version = read.meta().resource_version.as_deref();
        let answer = self.client.patch_status(&key, version, patch, attempt).await;
        self.metrics.record_status_write(answer.is_ok());
        let answer = answer?;
        self.unstored.check(self.object, patch, &answer.status());
        Ok(answer.metadata)
    }

    /// Retries after a first attempt that failed with this error.
    async fn write_again(
        &self,
        before: Option<&StatusOf<K>>,
        mut change: StatusChange,
        mut error: kube::Error,
    ) -> Result<Option<WriteMeta>> {
        let (key, uid) = (Key::of(self.object), &self.object.meta().uid);
        let mut last_read: Option<Arc<K>> = None;
        for attempt in 1.. {
            let code = status_code(&error);
            let may_retry = code == Some(409) && attempt < ATTEMPTS;
            if !may_retry && code != Some(404) {
                return Err(error.into());
            }
            let pause = jittered(format_args!("status/{}/{key}", K::kind(&())), RETRY_PAUSE, 0.7);
            tokio::time::sleep(pause).await;
            let Some(raw) = self.client.get(&key).await? else { return Ok(None) };
            let Readable { object: now, unreadable_status } =
                Readable::<K>::decode(raw.get()).map_err(kube::Error::SerdeError)?;
            if now.meta().uid != *uid {
                return Ok(None);
            }
            // 404 although the object exists: it has no status subresource. The next pass replaces an unreadable status.
            if !may_retry || unreadable_status.is_some() {
                return Err(error.into());
            }
            let Some(remaining) = change.remaining(&*now)? else { break };
            let before = last_read.as_deref().map_or(before, K::read_status);
            if change.overwrites::<K>(before, now.read_status())? {
                return Err(error.into());
            }
            let remaining =
                remaining.keeping_unknown_fields::<K>(now.read_status(), raw_status(raw.get()))?;
            let Some(remaining) = remaining else { break };
            change = remaining;
            match self.send(&now, &change.patch, Attempt::Later).await {
                Ok(_) => break,
                Err(next) => error = next,
            }
            last_read = Some(now);
        }
        Ok(None)
    }
}

/// The status of an object as JSON, with null for what is nested too deep. `None` if it has none.
fn raw_status(object: &str) -> Option<Value> {
    #[derive(Deserialize)]
    struct OnlyStatus {
        status: Option<Value>,
    }
    decode_object::<OnlyStatus>(object).ok()?.status
}

#[cfg(test)]
mod tests {
    use kube::CustomResource;
    use schemars::JsonSchema;
    use serde::Serialize;

    use super::*;

    #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
    #[kube(group = "test.reknit.dev", version = "v1", kind = "Job", namespaced, status = "JobStatus")]
    struct JobSpec {}

    #[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
    struct JobStatus {
        tasks: Vec<Task>,
    }

    #[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
    struct Task {
        name: String,
    }

    reknit_apis::kind!(Job { status: JobStatus });

    /// This many lists in one another.
    fn lists(levels: usize) -> String {
        "[".repeat(levels) + &"]".repeat(levels)
    }

    #[test]
    fn fields_of_other_clients_in_list_items_are_kept_beside_a_value_that_is_nested_too_deep() {
        let tasks = r#"[{"name": "a", "theirs": 1}]"#;
        let object = format!(r#"{{"status": {{"tasks": {tasks}, "steps": {}}}}}"#, lists(200));
        let before = JobStatus { tasks: vec![Task { name: "a".into() }] };
        let mut after = before.clone();
        after.tasks.push(Task { name: "b".into() });
        let change = StatusChange::between::<Job>(Some(&before), &mut after).unwrap().unwrap();
        let kept = change.keeping_unknown_fields::<Job>(Some(&before), raw_status(&object)).unwrap().unwrap();
        assert_eq!(kept.patch, json!({"tasks": [{"name": "a", "theirs": 1}, {"name": "b"}]}));
    }

    #[test]
    fn a_change_of_a_value_that_was_read_only_in_part_is_refused() {
        let before = JobStatus { tasks: Vec::new() };
        for (stored, is_refused) in [(120, false), (200, true)] {
            let object = format!(r#"{{"status": {{"tasks": [], "steps": {}}}}}"#, lists(stored));
            let mut steps = raw_status(&object).unwrap()["steps"].take();
            steps.as_array_mut().unwrap().push(json!("another"));
            let patch = json!({ "steps": steps });
            let change = StatusChange { patch, bounded: Vec::new() };
            let kept = change.keeping_unknown_fields::<Job>(Some(&before), raw_status(&object));
            assert_eq!(kept.is_err(), is_refused, "{stored} levels");
        }
    }

    #[test]
    fn a_first_status_may_have_any_depth() {
        let patch = json!({"steps": serde_json::from_str::<Value>(&lists(99)).unwrap()});
        let change = StatusChange { patch, bounded: Vec::new() };
        assert!(change.keeping_unknown_fields::<Job>(None, None).is_ok());
    }
}
