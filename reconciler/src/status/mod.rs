//! Writes what a pass did to a status: only what differs, and never over somebody else's write.

mod diff;

use std::{sync::Arc, time::Duration};

use reknit_apis::{Key, Kind, StatusOf};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};

use self::diff::conflicts_with;
pub(crate) use self::diff::{diff, merge};
use crate::{
    Result,
    metrics::PassMetrics,
    object_client::{ObjectClient, WriteMeta, status_code},
};

const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(10);

/// What a pass did to a status, as the text of a merge patch: few are looked at again once they are sent.
pub(crate) struct StatusChange(Box<RawValue>);

/// What came of writing a status.
pub(crate) enum Written {
    /// The object, as far as is known now: as the pass saw it, with the status that it left.
    Is(WriteMeta),
    /// Somebody else changed the object too, before the status was in. Its key has been woken by that.
    Changed,
    /// There is nothing left to write to.
    Gone,
}

impl StatusChange {
    /// What differs between the status that was read and the one that the pass left; none where nothing does. When
    /// conditions changed counts for nothing, and is set back in `left`.
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
        if read.is_none() {
            // whole, since the API server holds nothing yet of what an absent status would have by default
            let (whole, before) = (to_raw_value(left)?, to_raw_value(before)?);
            return Ok(Some(Self(whole)).filter(|whole| whole.0.get() != before.get()));
        }
        let change = diff(&serde_json::to_value(before)?, serde_json::to_value(&left)?);
        Ok(change.map(|change| to_raw_value(&change)).transpose()?.map(Self))
    }

    /// What is left to be done to this object, which changed since.
    fn again<K: Kind>(&self, object: &K) -> Result<Option<Self>> {
        let mut wanted = match object.read_status() {
            Some(status) => serde_json::to_value(status)?,
            None => json!({}),
        };
        merge(&mut wanted, &self.patch()?);
        Self::between::<K>(object.read_status(), &mut serde_json::from_value(wanted)?)
    }

    fn patch(&self) -> Result<Value> {
        Ok(serde_json::from_str(self.0.get())?)
    }

    /// Whether it would replace what somebody else made of a value after it was read: such as a list, to which they
    /// added something.
    fn overwrites<K: Kind>(&self, read: Option<&StatusOf<K>>, now: Option<&StatusOf<K>>) -> Result<bool> {
        let value = |status: Option<&StatusOf<K>>| serde_json::to_value(status.cloned().unwrap_or_default());
        Ok(conflicts_with(&self.patch()?, Some(&value(read)?), Some(&value(now)?)))
    }
}

/// Writes the change to the object it was computed from; `read` is its status as it was read, before any defaults. Where
/// somebody else was faster, the object is read again and what is still missing there is written, up to five times. Where
/// they changed the same values, that is the conflict it looks like, and for another pass to decide.
pub(crate) async fn write<K: Kind>(
    client: &ObjectClient<K>,
    object: &K,
    read: Option<&StatusOf<K>>,
    missing: StatusChange,
    metrics: &PassMetrics,
) -> Result<Written> {
    let key = Arc::new(Key::of(object));
    let version = object.meta().resource_version.as_deref();
    let answer = client.patch_status(&key, version, &missing.0, true).await;
    metrics.status_write(answer.is_ok());
    match answer {
        Ok(newest) => Ok(Written::Is(newest)),
        // a box of its own, since every pass has room for this future, and few take this way
        Err(error) => Box::pin(write_anew(client, &key, object, read, missing, metrics, error)).await,
    }
}

/// After a first attempt that failed with this error.
async fn write_anew<K: Kind>(
    client: &ObjectClient<K>,
    key: &Arc<Key>,
    object: &K,
    read: Option<&StatusOf<K>>,
    mut missing: StatusChange,
    metrics: &PassMetrics,
    mut error: kube::Error,
) -> Result<Written> {
    let mut since: Option<K> = None;
    for attempt in 1.. {
        let conflict = status_code(&error) == Some(409);
        if !(conflict && attempt < TRIES || status_code(&error) == Some(404)) {
            return Err(error.into());
        }
        tokio::time::sleep(PAUSE.mul_f64(rand::random_range(0.5..1.5))).await;
        let Some(now) = client.get(key).await?.filter(|now| now.meta().uid == object.meta().uid) else {
            return Ok(Written::Gone);
        };
        if !conflict {
            return Err(error.into()); // the object is there: what is not is its status subresource
        }
        match missing.again(&now)? {
            None => break,
            Some(_)
                if missing
                    .overwrites::<K>(since.as_ref().map_or(read, K::read_status), now.read_status())? =>
            {
                return Err(error.into());
            }
            Some(still) => missing = still,
        }
        let answer =
            client.patch_status(key, now.meta().resource_version.as_deref(), &missing.0, false).await;
        metrics.status_write(answer.is_ok());
        error = match answer {
            Ok(_) => return Ok(Written::Changed),
            Err(error) => error,
        };
        since = Some(now);
    }
    Ok(Written::Changed)
}
