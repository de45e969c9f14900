//! Leadership without leases: a StatefulSet's replica N leads bucket N.

use std::time::Duration;

use crate::{
    bucket::{BucketState, Buckets},
    error::Error,
    leadership::Leadership,
};

const ORDINAL: &str = "STATEFUL_CONTROLLER_ORDINAL";
const SERVICE: &str = "STATEFUL_SERVICE_NAME";
const PORT: &str = "STATEFUL_SERVICE_PORT";
const PROTOCOL: &str = "STATEFUL_SERVICE_PROTOCOL";

/// A replica of a StatefulSet, from its environment variables.
///
/// ```
/// use reknit_leadership::internal::StatefulReplica;
///
/// let env = |name: &str| match name {
///     "STATEFUL_CONTROLLER_ORDINAL" => Some("autoscaler-1".to_owned()),
///     "STATEFUL_SERVICE_NAME" => Some("autoscaler".to_owned()),
///     _ => None,
/// };
/// let replica = StatefulReplica::from_env(env)?.expect("both variables are set");
/// assert_eq!(
///     replica.bucket(1, "knative-serving", "cluster.local"),
///     "http://autoscaler-1.autoscaler.knative-serving.svc.cluster.local:80"
/// );
/// # Ok::<_, reknit_leadership::internal::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatefulReplica {
    set: String,
    ordinal: u32,
    service: String,
    port: u16,
    protocol: String,
}

impl StatefulReplica {
    /// Reads `STATEFUL_CONTROLLER_ORDINAL` (`name-N`) and `STATEFUL_SERVICE_NAME`, and the optional
    /// `STATEFUL_SERVICE_PORT` (80) and `STATEFUL_SERVICE_PROTOCOL` (http). Returns `None` if one of the first two is
    /// unset or empty. Leader election then uses leases.
    ///
    /// # Errors
    ///
    /// Returns an error for a malformed value, with the name of its variable.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        let non_empty = |name| env(name).filter(|value| !value.is_empty());
        let (Some(pod), Some(service)) = (non_empty(ORDINAL), non_empty(SERVICE)) else { return Ok(None) };
        let (set, ordinal) = parse_ordinal(&pod).ok_or_else(|| {
            malformed(ORDINAL, &pod, "the name of a StatefulSet's pod, such as `controller-0`")
        })?;
        let port = non_empty(PORT)
            .map_or(Ok(80), |value| value.parse().map_err(|_| malformed(PORT, &value, "a port number")))?;
        let protocol = non_empty(PROTOCOL).unwrap_or_else(|| "http".into());
        Ok(Some(Self { set: set.into(), ordinal, service, port, protocol }))
    }

    /// The name of the bucket that replica `ordinal` leads, which is the URL of that replica.
    pub fn bucket(&self, ordinal: u32, namespace: &str, domain: &str) -> String {
        let Self { set, service, port, protocol, .. } = self;
        format!("{protocol}://{set}-{ordinal}.{service}.{namespace}.svc.{domain}:{port}")
    }
}

impl Leadership {
    /// Creates the leadership of a replica that always leads the bucket of its ordinal. The other replicas lead the
    /// other buckets.
    ///
    /// # Errors
    ///
    /// Returns an error for an ordinal without a bucket.
    pub fn stateful(
        replica: &StatefulReplica,
        buckets: u32,
        namespace: &str,
        domain: &str,
    ) -> Result<Self, Error> {
        let own = replica.ordinal;
        if own >= buckets {
            return Err(Error::Invalid(format!(
                "{ORDINAL} has ordinal {own}, but there are {buckets} buckets; raise buckets or scale down"
            )));
        }
        let names = (0..buckets).map(|ordinal| replica.bucket(ordinal, namespace, domain).into());
        let state = |bucket| match bucket == own as usize {
            true => BucketState::Led { until: None },
            false => BucketState::Other,
        };
        Ok(Self::of(Buckets::new(names.collect(), state), Duration::ZERO))
    }
}

fn malformed(variable: &str, value: &str, expected: &str) -> Error {
    Error::Invalid(format!("{variable}={value:?}: expected {expected}"))
}

/// Splits the name of a pod into the name of its StatefulSet and its ordinal.
fn parse_ordinal(pod: &str) -> Option<(&str, u32)> {
    let (set, number) = pod.rsplit_once('-')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if set.is_empty() || !is_number { None } else { Some((set, number.parse().ok()?)) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use reknit_apis::Key;

    use super::*;

    fn replica(vars: &[(&str, &str)]) -> Result<Option<StatefulReplica>, Error> {
        let vars: BTreeMap<_, _> = vars.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        StatefulReplica::from_env(|name| vars.get(name).cloned())
    }

    #[test]
    fn leases_are_used_unless_both_variables_are_set() {
        assert_eq!(replica(&[]).unwrap(), None);
        assert_eq!(replica(&[(ORDINAL, "as-1")]).unwrap(), None);
        assert_eq!(replica(&[(SERVICE, "as")]).unwrap(), None);
        assert_eq!(replica(&[(ORDINAL, "as-1"), (SERVICE, "")]).unwrap(), None);
    }

    #[test]
    fn a_malformed_variable_is_an_error_that_names_it_and_its_value() {
        for bad in ["as", "as-", "as-x", "-1", "as-+1", "as-99999999999"] {
            let error = replica(&[(ORDINAL, bad), (SERVICE, "as")]).unwrap_err().to_string();
            assert!(error.contains(ORDINAL) && error.contains(bad), "{error}");
        }
        let error = replica(&[(ORDINAL, "as-1"), (SERVICE, "as"), (PORT, "high")]).unwrap_err().to_string();
        assert!(error.contains(PORT) && error.contains("high"), "{error}");
    }

    #[tokio::test]
    async fn a_replica_leads_the_keys_of_its_own_bucket_and_no_others() {
        let replica = replica(&[(ORDINAL, "as-1"), (SERVICE, "as")]).unwrap().unwrap();
        let mut leadership = Leadership::stateful(&replica, 3, "ns", "cluster.local").unwrap();
        let own = replica.bucket(1, "ns", "cluster.local");
        let keys: Vec<_> = (0..100).map(|n| Key::new("default", &format!("object-{n}"))).collect();
        assert!(keys.iter().all(|key| leadership.leads(key) == leadership.bucket_owns(&own, key)));
        let led = keys.iter().filter(|key| leadership.leads(key)).count();
        assert!((1..100).contains(&led), "{led} of 100");
        assert!(leadership.has_known_leaders());
        assert_eq!(leadership.changed().await.gained, [own.into()]);
    }

    #[test]
    fn an_ordinal_without_a_bucket_is_an_error() {
        let replica = replica(&[(ORDINAL, "as-3"), (SERVICE, "as")]).unwrap().unwrap();
        let error = Leadership::stateful(&replica, 3, "ns", "cluster.local").unwrap_err().to_string();
        assert!(error.contains(ORDINAL), "{error}");
    }
}
