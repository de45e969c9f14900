//! Simulated time, in whole milliseconds, which is the resolution of tokio's timers.

use std::{fmt, ops::Add, time::Duration};

use k8s_openapi::jiff::Timestamp;

/// The time since the start of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Time(u64);

/// The wall clock at the start: 2026-01-01T00:00:00Z.
const EPOCH: i64 = 1_767_225_600;

impl Time {
    pub(crate) const MAX: Self = Self(u64::MAX / 2);

    pub(crate) fn after_start(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX / 2))
    }

    pub(crate) fn since_start(self) -> Duration {
        Duration::from_millis(self.0)
    }

    /// The time between an earlier time and this one.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    pub(crate) fn timestamp(self) -> Timestamp {
        let millis = EPOCH * 1000 + i64::try_from(self.0).unwrap_or(i64::MAX / 2);
        Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(Self::after_start(duration).0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}
