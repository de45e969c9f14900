//! The configuration of leader election, from the ConfigMap `config-leader-election`.

use std::{collections::BTreeMap, time::Duration};

use reknit_apis::{dns_subdomain, parse_duration};

const LEASE: &str = "lease-duration";
const RENEW: &str = "renew-deadline";
const RETRY: &str = "retry-period";
const BUCKETS: &str = "buckets";
const PREFIX: &str = "map-lease-prefix.";
const MAX_BUCKETS: u32 = 10;

/// The maximum lease duration. No replica writes a longer one, so a Lease that has one was edited.
pub(crate) const MAX_LEASE_DURATION: Duration = Duration::from_secs(600);

/// The settings of leader election.
///
/// ```
/// use std::{collections::BTreeMap, time::Duration};
/// use reknit_leadership::LeaderElectionConfig;
///
/// let data = BTreeMap::from([("lease-duration".into(), "15s".into()), ("renew-deadline".into(), "11s".into())]);
/// let config = LeaderElectionConfig::from_data(&data)?;
/// assert_eq!(config.lease_duration, Duration::from_secs(15));
/// assert_eq!(config.retry_period, Duration::from_secs(10));
/// config.check_times()?;
/// assert_eq!(config.bucket_names("controller", "Lamps.demo"), ["controller.lamps.demo.00-of-01"]);
/// # Ok::<_, reknit_leadership::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElectionConfig {
    /// The time for which a lease is valid after its last renewal (`lease-duration`, 60s; at most ten minutes).
    pub lease_duration: Duration,
    /// The time after its last renewal at which a leader stops leading (`renew-deadline`, 40s).
    pub renew_deadline: Duration,
    /// The interval of attempts to acquire or renew a lease (`retry-period`, 10s).
    pub retry_period: Duration,
    /// The number of buckets of each controller's keys, each with its own lease (`buckets`, 1; at most 10).
    pub buckets: u32,
    /// Replacements of the prefixes of lease names, by the prefix to replace (`map-lease-prefix.<prefix>`).
    pub lease_prefixes: BTreeMap<String, String>,
}

/// The error of invalid settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value cannot be parsed.
    #[error("failed to parse {key:?}: {why}")]
    InvalidValue {
        /// The key in the ConfigMap.
        key: String,
        /// The fault, which shows the value.
        why: String,
    },
    /// The number of buckets is out of bounds.
    #[error("buckets: value must be between 1 <= {0} <= {MAX_BUCKETS}")]
    InvalidBuckets(u32),
    /// The durations are not in the required order: a leader could stop before it renews, or lead at the same time as
    /// the next leader.
    #[error(
        "{LEASE} ({lease:?}) must be longer than {RENEW} ({renew:?}), {RENEW} longer than {RETRY} ({retry:?}), and \
         {RETRY} at least 1s: only whole seconds count"
    )]
    InvalidTimes {
        /// The lease duration.
        lease: Duration,
        /// The renew deadline.
        renew: Duration,
        /// The retry period.
        retry: Duration,
    },
    /// The lease duration is longer than the replicas respect.
    #[error(
        "{LEASE} must be at most {MAX_LEASE_DURATION:?}, not {0:?}: replicas respect a lease for no longer than that"
    )]
    LeaseTooLong(Duration),
}

impl Default for LeaderElectionConfig {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(60),
            renew_deadline: Duration::from_secs(40),
            retry_period: Duration::from_secs(10),
            buckets: 1,
            lease_prefixes: BTreeMap::new(),
        }
    }
}

impl LeaderElectionConfig {
    /// The keys that [`from_data`](Self::from_data) reads, and those of older Knative components, which it ignores. A key that
    /// ends in `*` stands for all keys with this prefix.
    pub const KEYS: &'static [&'static str] = &[
        LEASE,
        RENEW,
        RETRY,
        BUCKETS,
        "map-lease-prefix.*",
        "leaseDuration",
        "renewDeadline",
        "retryPeriod",
        "resourceLock",
        "enabledComponents",
    ];

    /// Parses the data of the ConfigMap. Unknown keys are ignored.
    ///
    /// The older camelCase keys (`leaseDuration`) are accepted too. If both forms are set, the dashed one takes
    /// precedence.
    ///
    /// # Errors
    ///
    /// Returns an error for a malformed duration or number, a number of buckets out of bounds, or a prefix that is not
    /// valid in the name of a lease. [`check_times`](Self::check_times) compares the durations with each other.
    pub fn from_data(data: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (keys, field) in [
            (["leaseDuration", LEASE], &mut config.lease_duration),
            (["renewDeadline", RENEW], &mut config.renew_deadline),
            (["retryPeriod", RETRY], &mut config.retry_period),
        ] {
            for key in keys {
                if let Some(text) = data.get(key) {
                    *field = parse_duration(text).map_err(|error| invalid_value(key, error))?;
                }
            }
        }
        if let Some(text) = data.get(BUCKETS) {
            config.buckets = parse_count(text).map_err(|why| invalid_value(BUCKETS, why))?;
        }
        if !(1..=MAX_BUCKETS).contains(&config.buckets) {
            return Err(ConfigError::InvalidBuckets(config.buckets));
        }
        let prefixes = data.iter().filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value)));
        config.lease_prefixes = prefixes.map(|(from, to)| (from.to_owned(), to.clone())).collect();
        config.check_prefixes()?;
        Ok(config)
    }

    /// Checks the replacements of prefixes. An empty replacement is ignored.
    fn check_prefixes(&self) -> Result<(), ConfigError> {
        for (from, to) in self.lease_prefixes.iter().filter(|(_, to)| !to.is_empty()) {
            if let Some(name) = self.lease_names(to).find(|name| !is_lease_name(name)) {
                let why = format!("invalid prefix {to:?}: no lease can be named {name:?}");
                return Err(invalid_value(&format!("{PREFIX}{from}"), why));
            }
        }
        Ok(())
    }

    /// Checks that a leader can renew before its deadline, and stops before its lease expires.
    ///
    /// Fractions of a second are ignored, since leases count whole seconds.
    ///
    /// # Errors
    ///
    /// Returns an error unless 10m ≥ lease duration > renew deadline > retry period ≥ 1s.
    pub fn check_times(&self) -> Result<(), ConfigError> {
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        if lease > MAX_LEASE_DURATION {
            return Err(ConfigError::LeaseTooLong(lease));
        }
        let ordered = lease.as_secs() > renew.as_secs() && renew.as_secs() > retry.as_secs();
        if ordered && retry.as_secs() >= 1 {
            return Ok(());
        }
        Err(ConfigError::InvalidTimes { lease, renew, retry })
    }

    /// The names of a controller's buckets and of their leases: `<component>.<queue>.00-of-03`, in lower case. An entry
    /// of `lease_prefixes` can replace the part before the number.
    pub fn bucket_names(&self, component: &str, queue: &str) -> Vec<String> {
        let default_prefix = format!("{component}.{queue}");
        let mapped = self.lease_prefixes.get(&default_prefix).filter(|to| !to.is_empty());
        self.lease_names(mapped.unwrap_or(&default_prefix)).collect()
    }

    fn lease_names(&self, prefix: &str) -> impl Iterator<Item = String> {
        let (prefix, buckets) = (prefix.to_lowercase(), self.buckets);
        (0..buckets).map(move |bucket| format!("{prefix}.{bucket:02}-of-{buckets:02}"))
    }
}

pub(crate) fn is_lease_name(name: &str) -> bool {
    dns_subdomain(name).is_empty()
}

fn invalid_value(key: &str, why: impl ToString) -> ConfigError {
    ConfigError::InvalidValue { key: key.into(), why: why.to_string() }
}

fn parse_count(text: &str) -> Result<u32, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let count = is_number.then(|| text.parse().ok()).flatten();
    count.ok_or_else(|| format!("invalid number {text:?}: want digits, and at most {}", u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(data: &[(&str, &str)]) -> Result<LeaderElectionConfig, ConfigError> {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        LeaderElectionConfig::from_data(&data)
    }

    #[test]
    fn durations_are_compared_in_whole_seconds_and_the_error_names_them() {
        let times = |lease, renew, retry| {
            parse(&[(LEASE, lease), (RENEW, renew), (RETRY, retry)]).unwrap().check_times()
        };
        assert_eq!(times("15s", "10s", "2s"), Ok(()));
        for (lease, renew, retry) in
            [("10.9s", "10.1s", "2s"), ("10s", "15s", "2s"), ("15s", "2s", "2s"), ("15s", "10s", "900ms")]
        {
            let error = times(lease, renew, retry).unwrap_err().to_string();
            for part in [LEASE, RENEW, RETRY, lease, renew, retry] {
                assert!(error.contains(part), "{error} does not name {part}");
            }
        }
    }

    /// A replica would take the lease of another one that has not renewed it for ten minutes, and still leads.
    #[test]
    fn a_lease_duration_for_which_replicas_would_not_respect_the_lease_is_refused() {
        let check = |lease| parse(&[(LEASE, lease)]).unwrap().check_times();
        assert_eq!(check("10m"), Ok(()));
        let error = check("10m1s").unwrap_err().to_string();
        assert!(error.starts_with("lease-duration must be at most 600s, not 601s"), "{error}");
    }

    #[test]
    fn the_default_durations_are_valid() {
        assert_eq!(LeaderElectionConfig::default().check_times(), Ok(()));
    }

    #[test]
    fn a_replaced_prefix_is_used_in_the_names_of_leases() {
        let config = parse(&[("map-lease-prefix.controller.lamps", "Old"), (BUCKETS, "2")]).unwrap();
        assert_eq!(config.bucket_names("controller", "lamps"), ["old.00-of-02", "old.01-of-02"]);
        assert_eq!(config.bucket_names("other", "lamps")[1], "other.lamps.01-of-02");
    }

    #[test]
    fn a_prefix_with_which_the_names_of_leases_would_be_invalid_is_refused() {
        for prefix in ["Bad/Name", "a b", ".a", &"a".repeat(245)] {
            let error = parse(&[("map-lease-prefix.controller.lamps", prefix)]).unwrap_err().to_string();
            let expected = r#"failed to parse "map-lease-prefix.controller.lamps": invalid prefix ""#;
            assert!(error.starts_with(&format!("{expected}{prefix}")), "{error}");
        }
        let unmapped = parse(&[("map-lease-prefix.controller.lamps", "")]).unwrap();
        assert_eq!(unmapped.bucket_names("controller", "lamps"), ["controller.lamps.00-of-01"]);
        assert!(parse(&[("map-lease-prefix.controller.lamps", &"a".repeat(244))]).is_ok());
    }

    #[test]
    fn a_malformed_value_is_refused_even_if_the_other_form_takes_precedence() {
        let error = parse(&[("leaseDuration", "never"), (LEASE, "15s")]).unwrap_err().to_string();
        assert!(error.starts_with(r#"failed to parse "leaseDuration": invalid duration "never""#), "{error}");
    }
}
