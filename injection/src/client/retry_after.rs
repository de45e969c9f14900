//! `Retry-After`: the wait that the API server, or a proxy in front of it, asks for when it refuses a request.

use std::time::Duration;

use http::{
    HeaderMap,
    header::{DATE, RETRY_AFTER},
};
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use kube::core::{Status, response::StatusDetails};
use reknit_apis::internal::now;

/// The limits of every wait: a shorter one would be a loop, and a server does not stop a controller for longer.
const MIN_SECONDS: u64 = 1;
const MAX_SECONDS: u64 = 300;

/// Returns the wait that the header `Retry-After` of a response asks for, in seconds or as a date, within one second
/// and five minutes. A date is compared with the `Date` of the response, since the clocks may differ.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = match text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        true => text.parse().unwrap_or(u64::MAX),
        false => {
            let date = headers.get(DATE).and_then(|date| parse_date(date.to_str().ok()?));
            let wait = parse_date(text)?.duration_since(date.unwrap_or_else(now));
            u64::try_from(wait.as_secs()).unwrap_or(0)
        }
    };
    Some(within_limits(seconds))
}

/// Returns the wait that the server asked for when it refused a request.
pub fn retry_after_of(error: &kube::Error) -> Option<Duration> {
    match error {
        kube::Error::Api(status) => retry_after_of_status(status),
        _ => None,
    }
}

/// Returns the wait that the `Status` of a refusal asks for.
pub fn retry_after_of_status(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| within_limits(seconds.into()))
}

/// Sets the wait in the `Status` if the headers ask for one.
pub(super) fn set_wait(status: &mut Status, headers: &HeaderMap) {
    let Some(wait) = retry_after(headers) else { return };
    let details = status.details.get_or_insert_with(|| StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    });
    details.retry_after_seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
}

fn within_limits(seconds: u64) -> Duration {
    Duration::from_secs(seconds.clamp(MIN_SECONDS, MAX_SECONDS))
}

fn parse_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(headers: &[(http::HeaderName, &str)]) -> Option<u64> {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        retry_after(&headers).map(|wait| wait.as_secs())
    }

    #[test]
    fn the_wait_is_in_seconds_or_until_a_date_and_within_limits() {
        for (text, seconds) in [
            ("10", Some(10)),
            ("0", Some(1)),
            ("600", Some(300)),
            ("99999999999999999999999", Some(300)),
            ("-1", None),
            ("", None),
            ("soon", None),
            ("Thu, 01 Jan 2026 00:00:20 GMT", Some(20)),
            ("Thu, 01 Jan 2026 12:00:00 GMT", Some(300)),
            ("Thu, 01 Jan 2025 00:00:00 GMT", None), // not a Thursday
            ("Wed, 01 Jan 2025 00:00:00 GMT", Some(1)),
        ] {
            let date = (DATE, "Thu, 01 Jan 2026 00:00:00 GMT");
            assert_eq!(wait(&[date, (RETRY_AFTER, text)]), seconds, "{text}");
        }
        assert_eq!(wait(&[(RETRY_AFTER, "Fri, 01 Jan 2100 00:00:00 GMT")]), Some(300));
        assert_eq!(wait(&[]), None);
    }
}
