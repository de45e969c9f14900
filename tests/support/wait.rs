//! Waiting for conditions.

use std::time::{Duration, Instant};

/// The limit for conditions that become true soon, on a machine that may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Waits until `ask` has returned the same value for `period`. There is no other way to see that nothing more happens.
pub(crate) async fn settled<T: PartialEq>(period: Duration, what: &str, ask: impl AsyncFn() -> T) -> T {
    let (mut last, mut since, began) = (ask().await, Instant::now(), Instant::now());
    while since.elapsed() < period {
        assert!(began.elapsed() < SOON + period, "never came to rest: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = ask().await;
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}
