//! The owners of keys, and the configuration of leader election.

use std::{collections::BTreeMap, time::Duration};

use reknit_apis::Key;
use reknit_leadership::{LeaderElectionConfig, Ring};
use serde::Deserialize;

use crate::{CheckResult, check_equal};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HashRow {
    buckets: Vec<String>,
    owners: BTreeMap<String, String>,
    subset: Subset,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subset {
    target: String,
    n: usize,
    want: Vec<String>,
}

pub(crate) fn hash(row: HashRow) -> CheckResult {
    let ring = Ring::new(row.buckets);
    for (key, owner) in row.owners {
        check_equal(&key, ring.owner(&key.parse::<Key>()?), &owner)?;
    }
    let want = row.subset.want.iter().map(String::as_str).collect();
    check_equal("subset", ring.subset(&row.subset.target, row.subset.n), want)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ElectionRow {
    data: BTreeMap<String, String>,
    want: Option<Election>,
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Election {
    lease_duration_ms: u64,
    renew_deadline_ms: u64,
    retry_period_ms: u64,
    buckets: u32,
    map_lease_prefix: Option<BTreeMap<String, String>>,
}

pub(crate) fn leader_election(row: ElectionRow) -> CheckResult {
    let got = LeaderElectionConfig::from_data(&row.data);
    match (got, row.want, row.error) {
        (Ok(got), Some(want), None) => {
            check_equal("lease duration", got.lease_duration, Duration::from_millis(want.lease_duration_ms))?;
            check_equal("renew deadline", got.renew_deadline, Duration::from_millis(want.renew_deadline_ms))?;
            check_equal("retry period", got.retry_period, Duration::from_millis(want.retry_period_ms))?;
            check_equal("prefixes", got.lease_prefixes, want.map_lease_prefix.unwrap_or_default())?;
            check_equal("buckets", got.buckets, want.buckets)
        }
        (Err(got), None, Some(want)) => check_error(&got.to_string(), &want, &row.data),
        (got, ..) => Err(format!("got {got:?}").into()),
    }
}

/// Compares error messages. A message that quotes Go's strconv or time package is not compared literally: reknit's
/// message only has to name the key and the value.
fn check_error(got: &str, want: &str, data: &BTreeMap<String, String>) -> CheckResult {
    if !want.contains(": strconv.") && !want.contains(": time: ") {
        return check_equal("error", got, want);
    }
    let names_entry = |(key, value): (&String, &String)| {
        got.contains(&format!("{key:?}")) && got.contains(&format!("{value:?}"))
    };
    if data.iter().any(names_entry) { Ok(()) } else { Err(format!("{got:?} names no key and value").into()) }
}
