//! Writes the status of a pass: only the difference, and never over another client's change.

mod diff;

use std::{sync::Arc, time::Duration};

use reknit_apis::{Key, Kind, StatusOf};
use serde_json::{Value, json, to_value};

use self::diff::{conflicts_with, diff, merge};
use crate::{
    Result,
    metrics::PassMetrics,
    object_client::{ObjectClient, WriteMeta, status_code},
};

const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// The change of a status by a pass, as a merge patch.
pub(crate) struct StatusChange(Value);

/// The result of writing a status.
pub(crate) enum Written {
    /// The object is as the pass saw it, with the status that the pass left.
    Is(WriteMeta),
    /// Another client changed the object before the status was written. That change has enqueued its key.
    Changed,
    /// The object is gone.
    Gone,
}

impl StatusChange {
    /// The change from the status that was read to the one that the pass left, if any. Transition times of unchanged
    /// conditions are no change, and are restored in `left`.
    pub(crate) fn between<K: Kind>(
        read: Option<&StatusOf<K>>,
        left: &mut StatusOf<K>,
    ) -> Result<Option<Self>> {
        let empty = StatusOf::<K>::default();
        let before = read.unwrap_or(&empty);
        K::keep_transition_times(left, before);
        if K::eq_ignoring_transition_time(before, left) {
            return Ok(None);
        }
        let (before, left) = (to_value(before)?, to_value(left)?);
        if read.is_none() {
            // The whole status: the API server does not store the defaults of an absent one.
            return Ok((left != before).then_some(Self(left)));
        }
        Ok(diff(&before, left).map(Self))
    }

    /// The change that this object, which another client changed, still needs.
    fn remaining<K: Kind>(&self, object: &K) -> Result<Option<Self>> {
        let mut wanted = object.read_status().map_or(Ok(json!({})), to_value)?;
        merge(&mut wanted, &self.0);
        Self::between::<K>(object.read_status(), &mut serde_json::from_value(wanted)?)
    }

    /// Returns true if it would overwrite another client's change since the status was read, such as an entry of a list.
    fn overwrites<K: Kind>(&self, read: Option<&StatusOf<K>>, now: Option<&StatusOf<K>>) -> Result<bool> {
        let value = |status: Option<&StatusOf<K>>| to_value(status.cloned().unwrap_or_default());
        Ok(conflicts_with(&self.0, Some(&value(read)?), Some(&value(now)?)))
    }
}

/// Writes the change to the object. `read` is its status before any defaults.
///
/// After a conflict the object is read again and the remaining change is written, in up to five attempts. If another
/// client changed the same values, the conflict is returned, and another pass decides.
pub(crate) async fn write<K: Kind>(
    client: &ObjectClient<K>,
    object: &K,
    read: Option<&StatusOf<K>>,
    change: StatusChange,
    metrics: &PassMetrics,
) -> Result<Written> {
    let key = Arc::new(Key::of(object));
    let version = object.meta().resource_version.as_deref();
    let answer = client.patch_status(&key, version, &change.0, true).await;
    metrics.status_write(answer.is_ok());
    match answer {
        Ok(newest) => Ok(Written::Is(newest)),
        // Boxed: the future of every pass has room for this rare one.
        Err(error) => Box::pin(write_again(client, &key, object, read, change, metrics, error)).await,
    }
}

/// Continues after a first attempt that failed with this error.
async fn write_again<K: Kind>(
    client: &ObjectClient<K>,
    key: &Arc<Key>,
    object: &K,
    read: Option<&StatusOf<K>>,
    mut change: StatusChange,
    metrics: &PassMetrics,
    mut error: kube::Error,
) -> Result<Written> {
    let mut last: Option<K> = None;
    for attempt in 1.. {
        let code = status_code(&error);
        let is_conflict = code == Some(409) && attempt < ATTEMPTS;
        if !is_conflict && code != Some(404) {
            return Err(error.into());
        }
        tokio::time::sleep(PAUSE.mul_f64(rand::random_range(0.5..1.5))).await;
        let Some(now) = client.get(key).await?.filter(|now| now.meta().uid == object.meta().uid) else {
            return Ok(Written::Gone);
        };
        if !is_conflict {
            return Err(error.into()); // the object exists, so its status subresource does not
        }
        let Some(remaining) = change.remaining(&now)? else { break };
        let read = last.as_ref().map_or(read, K::read_status);
        if change.overwrites::<K>(read, now.read_status())? {
            return Err(error.into());
        }
        change = remaining;
        let version = now.meta().resource_version.as_deref();
        let answer = client.patch_status(key, version, &change.0, false).await;
        metrics.status_write(answer.is_ok());
        match answer {
            Ok(_) => break,
            Err(again) => error = again,
        }
        last = Some(now);
    }
    Ok(Written::Changed)
}
