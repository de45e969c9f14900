//! Schedules in Cron format, and the runs that are due.

use cronexpr::{Crontab, FallbackTimezoneOption, ParseOptions};
use k8s_openapi::jiff::Timestamp;

/// More missed runs than this mean that a clock is wrong, or that the controller was down for a long time.
const MAX_MISSED: usize = 100;

/// The names of common schedules.
const NAMED: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// A schedule in UTC.
#[derive(Debug)]
pub struct Schedule(Crontab);

/// The last run that is due, if any, and the first run that is not.
#[derive(Debug, PartialEq, Eq)]
pub struct Runs {
    /// The scheduled time of the last run that is due and has not happened.
    pub missed: Option<Timestamp>,
    /// The scheduled time of the next run.
    pub next: Timestamp,
}

/// A schedule that has no next run.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// The schedule has too few or too many fields.
    #[error("expected exactly 5 fields, found {found}: {schedule}")]
    Fields {
        /// The number of fields.
        found: usize,
        /// The schedule.
        schedule: String,
    },
    /// A field is invalid, or no date matches.
    #[error(transparent)]
    Cron(#[from] cronexpr::Error),
    /// Too many runs were missed to find the last of them.
    #[error(
        "too many missed start times (> {MAX_MISSED}): set or decrease .spec.startingDeadlineSeconds, or check the clock skew"
    )]
    TooManyMissed,
}

impl Schedule {
    /// Parses five fields, or the name of a schedule such as `@hourly`.
    pub fn parse(schedule: &str) -> Result<Self, ScheduleError> {
        let named = NAMED.iter().find(|(name, _)| *name == schedule);
        let fields = named.map_or(schedule, |(_, fields)| fields);
        // cronexpr reads a sixth field as a time zone.
        match fields.split_whitespace().count() {
            5 => {}
            found => return Err(ScheduleError::Fields { found, schedule: schedule.into() }),
        }
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        Ok(Self(cronexpr::parse_crontab_with(fields, options)?))
    }

    /// Finds the last run until `now` and the first one after it, among the runs that are scheduled after `earliest`.
    pub fn runs(&self, earliest: Timestamp, now: Timestamp) -> Result<Runs, ScheduleError> {
        let (mut missed, mut next) = (None, self.next_after(earliest.min(now))?);
        for _ in 0..=MAX_MISSED {
            if next > now {
                return Ok(Runs { missed, next });
            }
            (missed, next) = (Some(next), self.next_after(next)?);
        }
        Err(ScheduleError::TooManyMissed)
    }

    fn next_after(&self, time: Timestamp) -> Result<Timestamp, ScheduleError> {
        Ok(self.0.find_next(time)?.timestamp())
    }
}
