//! Tests of schedules.

use k8s_openapi::jiff::Timestamp;

use super::at;
use crate::support::cronjob::program::{Runs, Schedule};

fn runs(schedule: &str, earliest: &str, now: &str) -> Runs {
    Schedule::parse(schedule).unwrap().runs(at(earliest), at(now)).unwrap()
}

fn error(schedule: &str) -> String {
    Schedule::parse(schedule).unwrap_err().to_string()
}

#[test]
fn a_run_is_due_from_its_scheduled_time_until_it_has_happened() {
    let next = at("11:00");
    assert_eq!(runs("0 * * * *", "09:30", "09:59"), Runs { missed: None, next: at("10:00") });
    assert_eq!(runs("0 * * * *", "09:30", "10:00"), Runs { missed: Some(at("10:00")), next });
    assert_eq!(runs("0 * * * *", "09:30", "10:59"), Runs { missed: Some(at("10:00")), next });
    assert_eq!(runs("0 * * * *", "10:00", "10:59"), Runs { missed: None, next });
}

#[test]
fn of_several_missed_runs_the_last_is_due() {
    assert_eq!(runs("0 * * * *", "09:30", "13:10"), Runs { missed: Some(at("13:00")), next: at("14:00") });
}

#[test]
fn no_run_is_skipped_if_the_creation_time_is_in_the_future() {
    assert_eq!(runs("0 * * * *", "12:30", "09:30"), Runs { missed: None, next: at("10:00") });
}

#[test]
fn more_than_a_hundred_missed_runs_are_an_error() {
    let minutely = Schedule::parse("* * * * *").unwrap();
    assert_eq!(minutely.runs(at("10:00"), at("11:40")).unwrap().missed, Some(at("11:40")));
    let error = minutely.runs(at("10:00"), at("11:41")).unwrap_err().to_string();
    assert!(error.starts_with("too many missed start times (> 100)"), "{error}");
}

#[test]
fn a_schedule_has_five_fields_or_a_name() {
    assert_eq!(error("invalid-cron-schedule"), "expected exactly 5 fields, found 1: invalid-cron-schedule");
    assert_eq!(error(""), "expected exactly 5 fields, found 0: ");
    assert_eq!(error("0 0 * * * Asia/Tokyo"), "expected exactly 5 fields, found 6: 0 0 * * * Asia/Tokyo");
    assert_eq!(error("@reboot"), "expected exactly 5 fields, found 1: @reboot");
    for schedule in ["*/5 * * * *", "0 0 * * *", "15,45 9-17 1-7 jan-jun mon-fri", " 0  0 * * 7 ", "@daily"] {
        Schedule::parse(schedule).unwrap();
    }
    for schedule in ["60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *"] {
        error(schedule);
    }
}

#[test]
fn fields_select_days_of_the_month_and_of_the_week_and_times_are_utc() {
    // 5 January 2026 is a Monday.
    for (schedule, expected) in [
        ("@hourly", "2026-01-05T10:00:00Z"),
        ("@daily", "2026-01-06T00:00:00Z"),
        ("@weekly", "2026-01-11T00:00:00Z"),
        ("@monthly", "2026-02-01T00:00:00Z"),
        ("@yearly", "2027-01-01T00:00:00Z"),
        ("0 12 10 * *", "2026-01-10T12:00:00Z"),
        ("0 12 10 * wed", "2026-01-07T12:00:00Z"),
        ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
    ] {
        let expected: Timestamp = expected.parse().unwrap();
        assert_eq!(runs(schedule, "09:30", "09:30").next, expected, "{schedule}");
    }
}

#[test]
fn a_date_that_never_comes_is_an_error() {
    let never = Schedule::parse("0 0 30 2 *").unwrap().runs(at("09:30"), at("09:30"));
    assert!(never.unwrap_err().to_string().contains("failed to find next timestamp"));
}
