//! Measures the time for which the API server has answered every request with 401.

use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The time after which a process counts as unhealthy. Informers send requests at least every half minute meanwhile.
const LIMIT: Duration = Duration::from_secs(120);

/// The first and the last of the refusals since the API server last accepted the credentials. A restart may help
/// against them. It would not help against 403, an overloaded or a silent API server, which change nothing.
#[derive(Default)]
pub(super) struct Refusals(Mutex<Option<(Instant, Instant)>>);

impl Refusals {
    /// Records the status of a response.
    pub(super) fn record(&self, status: StatusCode) {
        let (mut refusals, now) = (self.0.lock(), Instant::now());
        if status == StatusCode::UNAUTHORIZED {
            *refusals = Some((refusals.map_or(now, |(first, _)| first), now));
        } else if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() {
            *refusals = None;
        }
    }

    /// Returns the time from the first to the last refusal, if it exceeds the limit and the last one is recent.
    pub(super) fn duration(&self) -> Option<Duration> {
        let (first, last) = (*self.0.lock())?;
        Some(last - first).filter(|duration| *duration >= LIMIT && last.elapsed() < LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records these statuses, half a minute apart.
    async fn after(statuses: &[u16]) -> Option<Duration> {
        let refusals = Refusals::default();
        for status in statuses {
            tokio::time::advance(Duration::from_secs(30)).await;
            refusals.record(StatusCode::from_u16(*status).unwrap());
        }
        refusals.duration()
    }

    #[tokio::test(start_paused = true)]
    async fn only_refusals_of_every_request_for_two_minutes_count() {
        assert_eq!(after(&[401, 401, 401, 401]).await, None);
        assert_eq!(after(&[401, 401, 401, 401, 401]).await, Some(LIMIT));
        assert_eq!(after(&[200, 401, 503, 429, 401, 401]).await, Some(LIMIT));
        assert_eq!(after(&[401, 401, 401, 200, 401, 401, 401]).await, None);
        assert_eq!(after(&[401, 401, 401, 403, 401, 401]).await, None);
        assert_eq!(after(&[403, 500, 503, 429, 404, 500, 403]).await, None);
        assert_eq!(after(&[401, 401, 401, 401, 401, 503, 503, 503, 503]).await, None, "silent since");
    }
}
