//! The faults of one simulation.

use std::{collections::BTreeSet, fmt, time::Duration};

use http::Method;

use crate::{random::Random, time::Time, trace::Sent};

/// A kind of fault. Each seed of a simulation injects a random subset of the kinds, because some faults hide others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Fault {
    /// Requests and responses take up to three seconds.
    SlowRequests,
    /// A request does not reach the API server.
    LostRequests,
    /// A request takes effect, and its response is lost.
    LostResponses,
    /// A change is refused with 409 (`Conflict`).
    Conflicts,
    /// A request is refused with 429 and `Retry-After: 1`.
    TooManyRequests,
    /// A request is answered with 500 and has no effect.
    ServerErrors,
    /// A request takes effect, and is answered with 504.
    Timeouts,
    /// The events of watches arrive up to ten seconds late.
    LaggingWatches,
    /// Watches end at random times.
    BrokenWatches,
    /// The API server forgets the events before a random time. Half of the open watches end with 410 then, and later
    /// ones from before that time are answered with it.
    ExpiredWatches,
    /// A replica is killed, and starts again up to half a minute later.
    Crashes,
    /// A replica is asked to stop, shuts down, and starts again.
    Restarts,
    /// A replica stands still for up to a minute and a half, as after SIGSTOP.
    Pauses,
    /// A replica does not reach the API server for up to a minute and a half.
    Partitions,
    /// The kubelet reports the end of a process up to a minute late, never, or with the message of an earlier
    /// process. The only kind that does nothing alone: a process ends by [`Crashes`](Self::Crashes) or
    /// [`Restarts`](Self::Restarts).
    CrashReports,
}

impl Fault {
    /// All kinds.
    pub const ALL: [Self; 15] = [
        Self::SlowRequests,
        Self::LostRequests,
        Self::LostResponses,
        Self::Conflicts,
        Self::TooManyRequests,
        Self::ServerErrors,
        Self::Timeouts,
        Self::LaggingWatches,
        Self::BrokenWatches,
        Self::ExpiredWatches,
        Self::Crashes,
        Self::Restarts,
        Self::Pauses,
        Self::Partitions,
        Self::CrashReports,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SlowRequests => "slow requests",
            Self::LostRequests => "lost requests",
            Self::LostResponses => "lost responses",
            Self::Conflicts => "conflicts",
            Self::TooManyRequests => "429",
            Self::ServerErrors => "500",
            Self::Timeouts => "504 after the effect",
            Self::LaggingWatches => "lagging watches",
            Self::BrokenWatches => "broken watches",
            Self::ExpiredWatches => "expired watches",
            Self::Crashes => "crashes",
            Self::Restarts => "restarts",
            Self::Pauses => "pauses",
            Self::Partitions => "partitions",
            Self::CrashReports => "crash reports",
        })
    }
}

/// One fault at a chosen point of a run, for the exhaustive search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Single {
    /// The replica crashes once the API server has handled its n-th write.
    CrashAfterWrite(usize),
    /// The n-th write takes effect, its response is lost, and watches report it late.
    LoseResponse(usize),
    /// When the n-th pass begins, no watch of its replica reports anything for a while.
    StaleRead(usize),
    /// From the n-th write on, the replica that sends it is cut off from the API server, until another one leads.
    ChangeLeader(usize),
}

impl fmt::Display for Single {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CrashAfterWrite(n) => write!(f, "a crash after write {n}"),
            Self::LoseResponse(n) => write!(f, "a lost response to write {n}"),
            Self::StaleRead(n) => write!(f, "a stale cache at pass {n}"),
            Self::ChangeLeader(n) => write!(f, "another leader at write {n}"),
        }
    }
}

/// The faults that one run injects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) kinds: BTreeSet<Fault>,
    pub(crate) single: Option<Single>,
}

impl Plan {
    /// A random subset of these kinds, which is not empty unless there are none.
    pub(crate) fn random(seed: u64, kinds: &BTreeSet<Fault>) -> Self {
        let mut random = Random::new(seed);
        let mut chosen: BTreeSet<_> =
            kinds.iter().copied().filter(|kind| random.chance(&format!("plan/{kind}"), 0.4)).collect();
        if chosen.is_empty() {
            chosen.extend(kinds.iter().nth(random.index("plan", kinds.len())));
        }
        Self { kinds: chosen, single: None }
    }

    pub(crate) fn single(single: Single) -> Self {
        Self { kinds: BTreeSet::new(), single: Some(single) }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(single) = self.single {
            return write!(f, "{single}");
        }
        if self.kinds.is_empty() {
            return f.write_str("none");
        }
        let kinds: Vec<_> = self.kinds.iter().map(ToString::to_string).collect();
        f.write_str(&kinds.join(", "))
    }
}

/// The way of one request to the API server and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is handled after the first time, and answered after the second.
    Handled { up: Duration, down: Duration },
    /// It never arrives. The replica learns that after this time.
    RequestLost { after: Duration },
    /// It is handled, and the replica learns only that the connection broke.
    ResponseLost { up: Duration, after: Duration },
    /// It is answered with this code, and has no effect.
    Refused { code: u16, after: Duration },
    /// It is handled, and answered with this code.
    FailsAfterEffect { code: u16, up: Duration, down: Duration },
}

/// Decides the fate of requests, by the plan and the seed.
pub(crate) struct Faults {
    plan: Plan,
    random: Random,
    /// The end of the random faults.
    until: Time,
}

/// The shares of the requests that each fault meets.
const RARE: f64 = 0.04;
const OFTEN: f64 = 0.15;

impl Faults {
    pub(crate) fn new(plan: Plan, seed: u64, until: Time) -> Self {
        Self { plan, random: Random::new(seed), until }
    }

    fn is_active(&self, kind: Fault, now: Time) -> bool {
        self.plan.kinds.contains(&kind) && now < self.until
    }

    pub(crate) fn fate(&mut self, sent: &Sent, now: Time) -> Fate {
        let slow = self.is_active(Fault::SlowRequests, now) && self.random.chance("slow", OFTEN);
        let longest = if slow { 3000 } else { 20 };
        let (up, down) = (self.random.millis("up", 1, longest), self.random.millis("down", 1, longest));
        let is_change = [Method::PATCH, Method::PUT, Method::DELETE].contains(&sent.method);
        let is_watch = sent.info.as_ref().is_some_and(|info| info.verb == "watch");
        if self.meets(Fault::LostRequests, RARE, now) {
            return Fate::RequestLost { after: self.random.millis("lost", 1, 5000) };
        }
        if !is_watch && self.meets(Fault::LostResponses, RARE, now) {
            return Fate::ResponseLost { up, after: self.random.millis("lost response", 1, 5000) };
        }
        if is_change && self.meets(Fault::Conflicts, OFTEN, now) {
            return Fate::Refused { code: 409, after: up + down };
        }
        if self.meets(Fault::TooManyRequests, OFTEN, now) {
            return Fate::Refused { code: 429, after: up + down };
        }
        if self.meets(Fault::ServerErrors, RARE, now) {
            return Fate::Refused { code: 500, after: up + down };
        }
        if !is_watch && self.meets(Fault::Timeouts, RARE, now) {
            return Fate::FailsAfterEffect { code: 504, up, down };
        }
        Fate::Handled { up, down }
    }

    /// Returns true for this share of the calls while the fault is active.
    pub(crate) fn meets(&mut self, kind: Fault, share: f64, now: Time) -> bool {
        self.is_active(kind, now) && self.random.chance(&kind.to_string(), share)
    }

    /// The delay of an event of a watch.
    pub(crate) fn watch_delay(&mut self, now: Time) -> Duration {
        let lags = self.meets(Fault::LaggingWatches, 0.3, now);
        self.random.millis("watch", 1, if lags { 10_000 } else { 30 })
    }

    /// The time until a watch breaks.
    pub(crate) fn watch_life(&mut self, now: Time) -> Option<Duration> {
        self.is_active(Fault::BrokenWatches, now).then(|| self.random.millis("watch life", 100, 60_000))
    }

    /// The times of faults of this kind, each about this long after the one before.
    pub(crate) fn times(&mut self, kind: Fault, mean: Duration) -> Vec<Time> {
        let (mut times, mut now) = (Vec::new(), Time::default());
        if !self.plan.kinds.contains(&kind) {
            return times;
        }
        let mean = u64::try_from(mean.as_millis()).unwrap_or(u64::MAX);
        loop {
            now = now + self.random.millis(&format!("{kind} times"), mean / 4, mean * 3);
            if now >= self.until {
                return times;
            }
            times.push(now);
        }
    }

    /// A number below `n`, for the choice of a replica.
    pub(crate) fn choose(&mut self, kind: Fault, n: usize) -> usize {
        self.random.index(&format!("{kind} replica"), n)
    }

    pub(crate) fn duration(&mut self, kind: Fault, min: u64, max: u64) -> Duration {
        self.random.millis(&format!("{kind} duration"), min, max)
    }

    pub(crate) fn single(&self) -> Option<Single> {
        self.plan.single
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_injects_a_fault_unless_there_are_none() {
        let kinds = |faults: &[Fault], seed| Plan::random(seed, &faults.iter().copied().collect()).kinds;
        for seed in 0..100 {
            assert_eq!(kinds(&[Fault::Crashes], seed), [Fault::Crashes].into());
            assert!(!kinds(&[Fault::Crashes, Fault::Pauses], seed).is_empty());
            assert!(kinds(&[], seed).is_empty());
        }
    }
}
