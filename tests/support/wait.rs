//! Waiting on conditions.

use std::time::{Duration, Instant};

/// The longest that a test waits for something that should happen soon, on a machine that may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Waits until `ask` has answered the same for `period`: that nothing happens any more shows in no other way.
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
