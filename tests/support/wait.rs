//! Waiting for conditions.

use std::time::{Duration, Instant};

/// The timeout for conditions that usually hold within a second. It is long, because the machine may be busy.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until `read` has returned the same value for `period`, and returns the value. Use it to assert that nothing
/// more happens.
pub(crate) async fn wait_until_settled<T: PartialEq>(
    period: Duration,
    what: &str,
    read: impl AsyncFn() -> T,
) -> T {
    let (mut last, mut unchanged_since, began) = (read().await, Instant::now(), Instant::now());
    while unchanged_since.elapsed() < period {
        assert!(began.elapsed() < TIMEOUT + period, "still changing: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let value = read().await;
        if value != last {
            (last, unchanged_since) = (value, Instant::now());
        }
    }
    last
}
