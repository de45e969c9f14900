//! Writes the status of a pass: sends only the difference, and never overwrites another client's change.

pub(crate) mod diff;
mod unstored;

use std::{sync::Arc, time::Duration};

use reknit_apis::{Key, Kind, StatusOf, bound_conditions, equality::are_equal, to_json};
use reknit_injection::internal::jittered;
use serde_json::{Value, json};

pub use self::diff::merge_patch;
use self::diff::{conflicts_with, diff, replacement};
pub(crate) use self::unstored::UnstoredChanges;
use crate::{
    Result,
    kind_client::{Attempt, KindClient, WriteMeta},
    metrics::PassMetrics,
    object_client::status_code,
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

    /// Returns true if this change would overwrite another client's change between `before` and `now`: a merge patch
    /// replaces a list as a whole, for example, to which another client may have added an entry.
    fn overwrites<K: Kind>(&self, before: Option<&StatusOf<K>>, now: Option<&StatusOf<K>>) -> Result<bool> {
        let value = |status: Option<&StatusOf<K>>| to_json(&status.cloned().unwrap_or_default());
        Ok(conflicts_with(&self.patch, &value(before)?, &value(now)?))
    }
}

/// Writes the change to the object, and returns the metadata for the next write. `None` if another client has changed
/// or deleted the object since the pass read it; that change has enqueued the key. `before` is the stored status from
/// which the change was computed.
///
/// After a conflict the object is read again and the remaining change is written, in up to five attempts. If another
/// client changed the same values, the conflict is returned, and the next pass starts from the new state. An object
/// that is gone is not an error.
pub(crate) async fn write<K: Kind>(
    client: &KindClient<K>,
    object: &K,
    before: Option<&StatusOf<K>>,
    change: StatusChange,
    unstored: &UnstoredChanges,
    metrics: &PassMetrics,
) -> Result<Option<WriteMeta>> {
    let key = Arc::new(Key::of(object));
    if unstored.contains(object, &change.patch) {
        return Ok(Some(object.meta().into()));
    }
    let version = object.meta().resource_version.as_deref();
    let answer = client.patch_status(&key, version, &change.patch, Attempt::First).await;
    metrics.record_status_write(answer.is_ok());
    match answer {
        Ok(answer) => {
            unstored.check(object, &change.patch, &answer.status);
            Ok(Some(answer.metadata))
        }
        // Boxed, so that this rare future does not enlarge the future of every pass.
        Err(error) => Box::pin(write_again(client, object, before, change, unstored, metrics, error)).await,
    }
}

/// Replaces a stored status that cannot be decoded. Returns the metadata for the next write, or `None` if the object is
/// gone. A conflict is not retried here: the next pass starts from the new state.
pub(crate) async fn replace<K: Kind>(
    client: &KindClient<K>,
    object: &K,
    unreadable: &Value,
    status: &StatusOf<K>,
    unstored: &UnstoredChanges,
    metrics: &PassMetrics,
) -> Result<Option<WriteMeta>> {
    let patch = replacement(unreadable, to_json(status)?);
    let key = Arc::new(Key::of(object));
    let version = object.meta().resource_version.as_deref();
    let answer = client.patch_status(&key, version, &patch, Attempt::First).await;
    metrics.record_status_write(answer.is_ok());
    match answer {
        Err(error) if status_code(&error) == Some(404) && client.is_gone(object).await? => Ok(None),
        answer => {
            let answer = answer?;
            unstored.check(object, &patch, &answer.status);
            Ok(Some(answer.metadata))
        }
    }
}

/// Retries after a first attempt that failed with this error.
async fn write_again<K: Kind>(
    client: &KindClient<K>,
    object: &K,
    before: Option<&StatusOf<K>>,
    mut change: StatusChange,
    unstored: &UnstoredChanges,
    metrics: &PassMetrics,
    mut error: kube::Error,
) -> Result<Option<WriteMeta>> {
    let key = &Arc::new(Key::of(object));
    let mut last_read: Option<K> = None;
    for attempt in 1.. {
        let code = status_code(&error);
        let may_retry = code == Some(409) && attempt < ATTEMPTS;
        if !may_retry && code != Some(404) {
            return Err(error.into());
        }
        let pause = jittered(format_args!("status/{}/{key}", K::kind(&())), RETRY_PAUSE, 0.7);
        tokio::time::sleep(pause).await;
        let Some(now) = client.get(key).await?.filter(|now| now.meta().uid == object.meta().uid) else {
            return Ok(None);
        };
        if !may_retry {
            return Err(error.into()); // 404 although the object exists: it has no status subresource
        }
        let Some(remaining) = change.remaining(&now)? else { break };
        let before = last_read.as_ref().map_or(before, K::read_status);
        if change.overwrites::<K>(before, now.read_status())? {
            return Err(error.into());
        }
        change = remaining;
        let version = now.meta().resource_version.as_deref();
        let answer = client.patch_status(key, version, &change.patch, Attempt::Later).await;
        metrics.record_status_write(answer.is_ok());
        match answer {
            Ok(answer) => {
                unstored.check(object, &change.patch, &answer.status);
                break;
            }
            Err(next) => error = next,
        }
        last_read = Some(now);
    }
    Ok(None)
}
